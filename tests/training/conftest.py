"""Tiny captioners and drawn images for the tests of training."""

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, ViTConfig, ViTModel

from hf_captioners.data import load_captions
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

SIDE = 32


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """12 drawn training images and 6 for evaluation, five captions each."""
    counts = {"train": 12, "validation": 6}
    return load_captions("scenes", num_images=counts, image_size=SIDE, cache_dir=tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="session")
def tokenizer(scenes):
    """A byte-level BPE of 300 types with GPT-2's end token and the captioner's begin and padding tokens."""
    base = ByteLevelBPETokenizer()
    texts = [f" {caption}" for captions in scenes["train"]["captions"] for caption in captions]
    base.train_from_iterator(texts, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    end = "<|endoftext|>"
    return prepare_gpt2_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=base._tokenizer, bos_token=end, eos_token=end, unk_token=end)
    )


@pytest.fixture(scope="session")
def processor(tokenizer):
    """VisualGPT's processor for images of 32 x 32."""
    return VisualGPTProcessor(CaptioningImageProcessor(size={"height": SIDE, "width": SIDE}), tokenizer)


@pytest.fixture
def make_captioner(tokenizer):
    """Build a tiny VisualGPT with a ViT of 16 patches; fields of its configuration may be given."""

    def make(seed: int = 0, **fields):
        torch.manual_seed(seed)
        text = GPT2Config(
            vocab_size=len(tokenizer) - 2,
            n_positions=96,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
        vision = ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=SIDE,
            patch_size=8,
        )
        parts = {"language_model": GPT2LMHeadModel(text), "vision_model": ViTModel(vision), "tokenizer": tokenizer}
        return VisualGPTForConditionalGeneration.from_pretrained_parts(**(parts | {"encoder_ffn_dim": 32} | fields))

    return make


@pytest.fixture
def make_trainer(scenes, processor, make_captioner, tmp_path):
    """Build a trainer on the drawn scenes: small batches, greedy evaluation, quiet."""

    def make(model=None, callbacks=None, processing_class=None, train_rows=None, eval_rows=None, **fields):
        arguments = {
            "output_dir": str(tmp_path / "run"),
            "use_cpu": True,
            "per_device_train_batch_size": 6,
            "learning_rate": 1e-3,
            "num_train_epochs": 2,
            "captions_per_image": 1,
            "generation_num_beams": 1,
            "generation_max_new_tokens": 5,
            "logging_steps": 1,
            "disable_tqdm": True,
            "seed": 7,
        }
        return CaptioningTrainer(
            make_captioner() if model is None else model,
            CaptioningTrainingArguments(**(arguments | fields)),
            train_dataset=scenes["train"] if train_rows is None else train_rows,
            eval_dataset=scenes["validation"] if eval_rows is None else eval_rows,
            processing_class=processor if processing_class is None else processing_class,
            callbacks=callbacks,
        )

    return make

"""Tiny random captioners of transformers and of this library, with their processors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor

WORDS = ["a", "man", "dog", "two", "on", "the", "beach", "photo", "of", "red"]


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Return a word-level tokenizer that adds no special tokens; ids 0-3 are pad, bos, eos, unk."""
    names = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names + WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def bert_tokenizer() -> transformers.BertTokenizer:
    """Return a BERT tokenizer as BLIP and GIT use it: it adds [CLS] and [SEP] to every text."""
    vocab = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *WORDS])}
    return transformers.BertTokenizer(vocab=vocab)


def blip() -> tuple[Any, Any]:
    """Build a tiny BLIP, whose class has a `generate` of its own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    ids = {"vocab_size": 15, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.BlipConfig(
        text_config=sizes | ids | {"encoder_hidden_size": 32, "initializer_range": 0.5, "projection_dim": 16},
        vision_config=sizes | {"image_size": 32, "patch_size": 16, "initializer_range": 0.5},
        projection_dim=16,
    )
    model = transformers.BlipForConditionalGeneration(config).eval()
    images = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    return model, transformers.BlipProcessor(images, bert_tokenizer())


def git() -> tuple[Any, Any]:
    """Build a tiny GIT: decoder only, image and text in one sequence."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.GitConfig(
        vision_config=sizes | {"image_size": 32, "patch_size": 16},
        vocab_size=15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.5,
        **sizes,
    )
    model = transformers.GitForCausalLM(config).eval()
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, do_center_crop=True
    )
    return model, transformers.GitProcessor(images, bert_tokenizer())


def vit_gpt2() -> tuple[Any, Any, Any]:
    """Vision-encoder-decoder: has no processor class, only a tokenizer and an image processor."""
    torch.manual_seed(0)
    vision = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=16
    )
    text = transformers.GPT2Config(
        vocab_size=15, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2, initializer_range=0.5
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    model = transformers.VisionEncoderDecoderModel(config).eval()
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=1, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    return model, word_tokenizer(), transformers.ViTImageProcessor(size={"height": 32, "width": 32})


def visualgpt() -> tuple[Any, Any]:
    """VisualGPT on a ViT, with word-level captions."""
    torch.manual_seed(0)
    text = {"vocab_size": 15, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40, "initializer_range": 0.5}
    vision = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"intermediate_size": 16, "image_size": 32, "patch_size": 16, "initializer_range": 0.5}
    config = VisualGPTConfig(
        text_config=text,
        vision_config=vision,
        region_feature_size=16,
        encoder_layers=2,
        encoder_ffn_dim=32,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = VisualGPTForConditionalGeneration(config).eval()
    for parameter in model.parameters():  # large weights, so that captions depend on the image
        torch.nn.init.normal_(parameter, std=0.5)
    return model, VisualGPTProcessor(CaptioningImageProcessor(size={"height": 32, "width": 32}), word_tokenizer())


BUILDERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "blip": blip,
    "git": git,
    "vision-encoder-decoder": vit_gpt2,
    "visualgpt": visualgpt,
}


def save(name: str, directory: Path) -> Path:
    """Build a captioner and save all its parts."""
    for part in BUILDERS[name]():
        part.save_pretrained(directory)
    return directory

"""Small untrained image-to-text models of transformers, which can learn captions of drawn scenes."""

import sys
from collections.abc import Iterable
from typing import Any

import torch
import transformers as hf
from provenance import ROOT
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

sys.path.insert(0, str(ROOT))
from tests.tiny_families import VICUNA  # noqa: E402

IMAGE = "<image>"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", IMAGE)


def caption_tokenizer(texts: Iterable[str], side: str, vocabulary: int = 700) -> Any:
    """Build a byte-level BPE of captions; ids 0 to 3 are padding, begin, end and unknown."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
        ),
    )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    extra = {"image_token": IMAGE}
    return hf.PreTrainedTokenizerFast(tokenizer_object=core, padding_side=side, extra_special_tokens=extra, **names)


def special_ids(tokenizer: Any) -> dict[str, Any]:
    """Return the special token ids of a configuration."""
    names = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {"vocab_size": len(tokenizer), **names}


def vision_language_model(
    texts: Iterable[str], side: int = 64, patch: int = 16, hidden: int = 128, layers: int = 3, vocabulary: int = 700
) -> tuple[Any, Any]:
    """Build a LLaVA, which has a chat template, and its processor.

    Args:
        texts: captions, of which the tokenizer is made.
        side: of images, in pixels.
        patch: of images, in pixels.
        hidden: features of a token.
        layers: of each of both parts.
        vocabulary: number of tokens.
    """
    words = caption_tokenizer([*texts, "Describe this image. user: assistant: \n"], "left", vocabulary)
    sizes: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4}
    sizes["intermediate_size"] = 4 * hidden
    text = {**sizes, "model_type": "llama", "num_key_value_heads": 4, "max_position_embeddings": 1024}
    vision = {**sizes, "model_type": "clip_vision_model", "image_size": side, "patch_size": patch}
    config = hf.LlavaConfig(
        vision_config={**vision, "projection_dim": hidden},
        text_config={**text, **special_ids(words)},
        image_token_index=words.convert_tokens_to_ids(IMAGE),
        image_seq_length=(side // patch) ** 2,
        vision_feature_layer=-1,
    )
    images = hf.CLIPImageProcessor(size={"height": side, "width": side}, crop_size={"height": side, "width": side})
    options = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1, "chat_template": VICUNA}
    return hf.LlavaForConditionalGeneration(config), hf.LlavaProcessor(images, words, patch_size=patch, **options)


def encoder_decoder(texts: Iterable[str], side: int = 64, hidden: int = 128, layers: int = 2) -> tuple[Any, Any]:
    """Build a Florence-2, which has no chat template, and its processor; arguments as above."""
    words = caption_tokenizer(texts, "right")
    marks = [("<s>", 1), ("</s>", 2)]
    words._tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    sizes = {"d_model": hidden, "max_position_embeddings": 256, "decoder_start_token_id": 2, "forced_bos_token_id": 1}
    parts = {"layers": layers, "attention_heads": 4, "ffn_dim": 4 * hidden}
    sizes |= {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in parts.items()}
    vision = {"depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]}
    vision |= {"patch_prenorm": [False, True], "embed_dim": [hidden // 2, hidden], "num_heads": [2, 4]}
    vision |= {"num_groups": [2, 4], "window_size": 4, "projection_dim": hidden, "drop_path_rate": 0.0}
    tokens = {"decoder_start_token_id": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = hf.Florence2Config(
        text_config={"model_type": "bart", **sizes, **special_ids(words), "dropout": 0.0},
        vision_config=vision,
        image_token_id=words.convert_tokens_to_ids(IMAGE),
        **tokens,
    )
    model = hf.Florence2ForConditionalGeneration(config)
    model.generation_config = hf.GenerationConfig(**tokens, forced_bos_token_id=1)
    images = hf.CLIPImageProcessor(size={"height": side, "width": side}, crop_size={"height": side, "width": side})
    images.image_seq_length = (side // 8) ** 2 + 1
    return model, hf.Florence2Processor(images, words, num_additional_image_tokens=1)


def redrawn(model: Any, seed: int, deviation: float = 0.05) -> Any:
    """Initialise the weights of a model that was built without initialisation; return it."""
    torch.manual_seed(seed)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=deviation)
    return model

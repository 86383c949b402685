"""Untrained image-to-text models that this library captions with and trains, but cannot explain."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
)

WORDS = 30
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**SIZES, "image_size": 32, "patch_size": 8}


def blip_2() -> PreTrainedModel:
    """BLIP-2, which reads an image only where its text has placeholders: without them it trains on text alone."""
    text = {"model_type": "opt", "vocab_size": WORDS, "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 16}
    return Blip2ForConditionalGeneration(
        Blip2Config(
            vision_config=VISION,
            qformer_config={**SIZES, "vocab_size": WORDS, "encoder_hidden_size": 16},
            text_config={**text, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64},
            num_query_tokens=4,
            image_text_hidden_size=16,
            image_token_index=WORDS - 1,
        )
    )


def llava() -> PreTrainedModel:
    """LLaVA, which needs an instruction."""
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config={"model_type": "clip_vision_model", **VISION, "projection_dim": 16},
            text_config={"model_type": "llama", **SIZES, "vocab_size": WORDS, "num_key_value_heads": 2},
            image_token_index=WORDS - 1,
        )
    )


MODELS = {"blip-2": blip_2, "llava": llava}


def write_unsupported(folder: Path, model_type: str) -> None:
    """Save an untrained model of a given type."""
    torch.manual_seed(0)
    MODELS[model_type]().save_pretrained(folder)

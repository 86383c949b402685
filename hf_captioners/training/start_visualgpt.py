"""VisualGPT from a GPT-2 and a vision model."""

from collections.abc import Iterable
from typing import Any

from transformers import AutoConfig, AutoModel, AutoTokenizer

from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor, prepare_gpt2_tokenizer

from .starting import StartingPoint, load_vision_part, reading


def start(
    parts: StartingPoint, captions: Iterable[str] = ()
) -> tuple[VisualGPTForConditionalGeneration, VisualGPTProcessor]:
    """Build model and processor; captions are decoded as in the published evaluation (5 beams, 20 tokens).

    Raises:
        ValueError: a part is missing or of another kind.
    """
    if parts.language_model is None:
        raise ValueError("`--language_model` is missing: VisualGPT starts from a GPT-2 and a vision model.")
    vision, images = load_vision_part(parts)
    with reading(parts.tokenizer or parts.language_model):
        tokenizer = prepare_gpt2_tokenizer(AutoTokenizer.from_pretrained(parts.tokenizer or parts.language_model))
    language_model: Any = parts.language_model
    if parts.random_language_model:
        with reading(parts.language_model):
            language_model = AutoModel.from_config(AutoConfig.from_pretrained(parts.language_model))
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        language_model=language_model, vision_model=vision, tokenizer=tokenizer, **parts.config_fields()
    )
    model.generation_config.update(max_length=None, max_new_tokens=20, num_beams=5)
    return model, VisualGPTProcessor(images, tokenizer)

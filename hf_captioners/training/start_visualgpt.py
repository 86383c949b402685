"""VisualGPT from a GPT-2 and a vision model."""

from typing import Any

from transformers import AutoTokenizer

from hf_captioners.modeling.layers_vision import TIMM_PREFIX, load_vision_model
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor, prepare_gpt2_tokenizer

from .starting import StartingPoint, reading


def start(parts: StartingPoint) -> tuple[VisualGPTForConditionalGeneration, VisualGPTProcessor]:
    """Build model and processor; captions are decoded as in the published evaluation (5 beams, 20 tokens).

    Raises:
        ValueError: a part is missing or of another kind.
    """
    if parts.language_model is None or parts.vision_model is None:
        name = "language_model" if parts.language_model is None else "vision_model"
        raise ValueError(f"`--{name}` is missing: VisualGPT starts from a GPT-2 and a vision model.")
    with reading(parts.vision_model):
        vision = load_vision_model(parts.vision_model)
        source = data_source(parts.vision_model, vision)
        pictures = CaptioningImageProcessor.from_backbone(source, **parts.picture_settings())
    with reading(parts.tokenizer or parts.language_model):
        tokenizer = prepare_gpt2_tokenizer(AutoTokenizer.from_pretrained(parts.tokenizer or parts.language_model))
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        language_model=parts.language_model, vision_model=vision, tokenizer=tokenizer, **parts.config_fields()
    )
    model.generation_config.update(max_length=None, max_new_tokens=20, num_beams=5)
    return model, VisualGPTProcessor(pictures, tokenizer)


def data_source(name: Any, vision: Any) -> Any:
    """Where the preparation of pictures for a vision model is written down: its directory, or timm's settings."""
    if not str(name).startswith(TIMM_PREFIX):
        return name
    from timm.data import resolve_model_data_config

    return resolve_model_data_config(vision.timm_model)

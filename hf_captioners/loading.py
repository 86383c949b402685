"""Loading of captioners, vision models and processors from a directory or a name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from hf_captioners.modeling.layers_vision import TIMM_PREFIX, load_vision_model
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor


def load_vision_part(source: str, image_size: int | None = None) -> tuple[Any, CaptioningImageProcessor]:
    """Load a vision model and the image processor that belongs to it.

    Args:
        source: name or directory of a vision model, or `timm:ARCHITECTURE[:FILE]`.
        image_size: side of the images in pixels: the shorter side is resized to it, the central square cropped.
            Default: the preparation of the vision model.

    Raises:
        ValueError: `source` is not a vision model.
        FileNotFoundError: it cannot be read.
    """
    settings: dict[str, Any] = {}
    if image_size is not None:
        square = {"height": image_size, "width": image_size}
        settings = {"size": {"shortest_edge": image_size}, "do_center_crop": True, "crop_size": square}
    with reading(source):
        vision = load_vision_model(source)
        return vision, CaptioningImageProcessor.from_backbone(image_settings_source(source, vision), **settings)


def image_settings_source(name: Any, vision: Any) -> Any:
    """Return the source of a vision model's image settings: its directory, or the data configuration of timm."""
    if not str(name).startswith(TIMM_PREFIX):
        return name
    from timm.data import resolve_model_data_config

    return resolve_model_data_config(vision.timm_model)


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Name the checkpoint in errors of reading it, which the messages of the libraries often omit.

    Raises:
        FileNotFoundError: instead of an `OSError` inside.
    """
    try:
        yield
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise FileNotFoundError(
            f"{source} is no checkpoint that can be read locally or from the Hub ({reason})"
        ) from error


def changed_config(source: str, fields: dict[str, Any]) -> Any:
    """Return the configuration of a captioner with different values in some fields.

    Raises:
        ValueError: the configuration has no such field.
        FileNotFoundError: it cannot be read.
    """
    with reading(source):
        config, unknown = AutoConfig.from_pretrained(source, return_unused_kwargs=True, **fields)
    if unknown:
        raise ValueError(
            f"`--model_config` has {next(iter(unknown))!r}, and a {type(config).__name__} has no such field."
        )
    return config


def load_captioner(source: str, **options: Any) -> tuple[Any, Any]:
    """Load a captioner and its processor.

    Args:
        source: name or directory.
        **options: arguments of `from_pretrained`.

    Raises:
        ValueError: the checkpoint is not a captioner, or a weight is not finite.
        FileNotFoundError: it cannot be read.
    """
    try:
        with reading(source):
            model = AutoModelForImageTextToText.from_pretrained(source, **options)
    except (ValueError, KeyError) as error:
        if "configuration class" not in str(error) and "model_type" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"{source} is no captioner ({reason}). Pass a checkpoint that generates captions.") from error
    if name := weight_that_is_not_finite(model):
        raise ValueError(
            f"{source} has weights that are not finite, first in {name}: its training diverged, or the file is "
            "damaged. Pass an earlier checkpoint, or download it again."
        )
    return model, load_processor(source, options.get("trust_remote_code", False))


# Other number formats (8 bits and less) belong to quantised weights, and have no infinity or no test for it.
CHECKED_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.no_grad()
def weight_that_is_not_finite(model: torch.nn.Module) -> str | None:
    """Return the name of the first parameter with NaN or infinite values; None if all are finite."""
    for name, weight in model.named_parameters():
        if weight.dtype in CHECKED_TYPES and not weight.is_meta and not bool(torch.isfinite(weight).all()):
            return name
    return None


def load_processor(source: str, trust_remote_code: bool = False) -> Any:
    """Load the processor of a captioner; join image processor and tokenizer if they were saved separately."""
    processor = AutoProcessor.from_pretrained(source, trust_remote_code=trust_remote_code)
    if hasattr(processor, "image_processor") and hasattr(processor, "tokenizer"):
        return processor
    return ImageTextProcessor(
        AutoImageProcessor.from_pretrained(source, trust_remote_code=trust_remote_code),
        AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code),
    )


class ImageTextProcessor:
    """Image processor and tokenizer that were saved separately, as those of vision-encoder-decoder models.

    Args:
        image_processor: an image processor of transformers.
        tokenizer: a tokenizer of transformers.
    """

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.image_processor, self.tokenizer = image_processor, tokenizer
        self.model_input_names = ["pixel_values", "labels"]

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save both into one directory."""
        self.image_processor.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)

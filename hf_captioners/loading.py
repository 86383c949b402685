"""Captioners, vision models and processors from a directory or a name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from hf_captioners.modeling.layers_vision import TIMM_PREFIX, load_vision_model
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor


def load_vision_part(source: str, image_size: int | None = None) -> tuple[Any, CaptioningImageProcessor]:
    """A vision model and the image processor that belongs to it.

    Args:
        source: name or directory of a vision model, or `timm:ARCHITECTURE[:FILE]`.
        image_size: side of the images in pixels: the shorter side is scaled to it and the middle square is used.
            Default: as the vision model's own preparation says.

    Raises:
        ValueError: it is no vision model.
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
    """Where the preparation of images for a vision model is written down: its directory, or timm's settings."""
    if not str(name).startswith(TIMM_PREFIX):
        return name
    from timm.data import resolve_model_data_config

    return resolve_model_data_config(vision.timm_model)


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Name the checkpoint that cannot be read; the libraries' own messages often do not.

    Raises:
        FileNotFoundError: instead of an `OSError` inside.
    """
    try:
        yield
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise FileNotFoundError(f"{source} is no checkpoint that can be read here or on the Hub ({reason})") from error


def changed_config(source: str, fields: dict[str, Any]) -> Any:
    """The configuration of a captioner with other values in some fields.

    Raises:
        ValueError: it has no such field.
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
        **options: of `from_pretrained`.

    Raises:
        ValueError: the checkpoint is no captioner.
        OSError: it cannot be read.
    """
    try:
        with reading(source):
            model = AutoModelForImageTextToText.from_pretrained(source, **options)
    except (ValueError, KeyError) as error:
        if "configuration class" not in str(error) and "model_type" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"{source} is no captioner ({reason}). Pass a checkpoint that writes captions.") from error
    return model, load_processor(source, options.get("trust_remote_code", False))


def load_processor(source: str, trust_remote_code: bool = False) -> Any:
    """The processor of a captioner; image processor and tokenizer together where they were saved apart."""
    processor = AutoProcessor.from_pretrained(source, trust_remote_code=trust_remote_code)
    if hasattr(processor, "image_processor") and hasattr(processor, "tokenizer"):
        return processor
    return ImageTextProcessor(
        AutoImageProcessor.from_pretrained(source, trust_remote_code=trust_remote_code),
        AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code),
    )


class ImageTextProcessor:
    """An image processor and a tokenizer that were saved apart, as those of vision-encoder-decoder models.

    Args:
        image_processor: of transformers.
        tokenizer: of transformers.
    """

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        self.image_processor, self.tokenizer = image_processor, tokenizer
        self.model_input_names = ["pixel_values", "labels"]

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save both into one directory."""
        self.image_processor.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)

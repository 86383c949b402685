"""A captioner to train: from a language model and a vision model, or from another captioner."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
from transformers.utils import logging

from hf_captioners.auto import get_architecture
from hf_captioners.modeling.layers_vision import TIMM_PREFIX, load_vision_model
from hf_captioners.named_values import read_named_values
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor

from .caption_encoding import ImageTextProcessor

logger = logging.get_logger(__name__)


@dataclass
class StartingPoint:
    """What a captioner is made from.

    Args:
        architecture: name in the table of architectures.
        model: a captioner to go on from; takes the place of all others but `model_config` and `processor_config`.
        language_model: name or directory of a language model, for architectures that start from one.
        random_language_model: take the language model's sizes and tokenizer, but not its weights.
        tokenizer: name or directory; default: the language model's, or one made of the words of the captions.
        min_word_count: for such a tokenizer: a word that occurs less often becomes the unknown token.
        vocabulary_size: for such a tokenizer: at most so many tokens, the most frequent ones.
        vision_model: name or directory of a vision model, or `timm:ARCHITECTURE[:FILE]`.
        image_size: side of the images in pixels: the shorter side is scaled to it and the middle square is used.
            Default: as the vision model's own preparation says.
        model_config: fields of the architecture's configuration, as `name=value`.
        processor_config: arguments of its processor, as `drop_final_punctuation=false`.
    """

    architecture: str = field(default="visualgpt", metadata={"help": "Kind of captioner."})
    model: str | None = field(
        default=None, metadata={"help": "A captioner to go on from (name or directory), instead of the parts below."}
    )
    language_model: str | None = field(
        default=None, metadata={"help": "Language model to start from (name or directory), for instance distilgpt2."}
    )
    random_language_model: bool = field(
        default=False, metadata={"help": "Take the language model's sizes and tokenizer, but not its weights."}
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "Tokenizer (name or directory); default: the language model's, or words."}
    )
    min_word_count: int = field(
        default=5, metadata={"help": "For a vocabulary of words: how often a word must occur in the captions."}
    )
    vocabulary_size: int | None = field(
        default=None, metadata={"help": "For a vocabulary of words: at most so many, special tokens included."}
    )
    vision_model: str | None = field(
        default=None,
        metadata={"help": "Vision model: name or directory of transformers, or timm:ARCHITECTURE[:CHECKPOINT_FILE]."},
    )
    image_size: int | None = field(
        default=None,
        metadata={"help": "Scale the shorter side to this many pixels and use the middle square."},
    )
    model_config: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Fields of the configuration: name=value ..., as srau_threshold=0.3; added to those of a recipe.",
            "action": "extend",
        },
    )
    processor_config: list[str] = field(
        default_factory=list,
        metadata={
            "help": "How captions are written: name=value ..., as lowercase=false; added to those of a recipe.",
            "action": "extend",
        },
    )

    def config_fields(self) -> dict[str, Any]:
        """`model_config` as a dictionary.

        Raises:
            ValueError: an entry has no `=`.
        """
        return read_named_values(self.model_config, "--model_config")

    def replaced_by_model(self) -> list[str]:
        """Names of what was set although `model` takes its place."""
        empty, beside = type(self)(), ("model", "model_config", "processor_config")
        names = (one.name for one in fields(self) if one.name not in beside)
        return [name for name in names if getattr(self, name) != getattr(empty, name)]

    def image_settings(self) -> dict[str, Any]:
        """Settings of the image processor that `image_size` stands for."""
        if self.image_size is None:
            return {}
        square = {"height": self.image_size, "width": self.image_size}
        return {"size": {"shortest_edge": self.image_size}, "do_center_crop": True, "crop_size": square}


def start_captioner(start: StartingPoint, captions: Iterable[str] = ()) -> tuple[Any, Any]:
    """Make or load the captioner.

    Args:
        start: what it is made from.
        captions: those to learn, which an architecture may take its words from.

    Returns:
        Model and processor.

    Raises:
        ValueError: the architecture is unknown, a part is missing, or a checkpoint is of another kind.
        OSError: a checkpoint cannot be read.
    """
    if start.model is not None:
        if unused := start.replaced_by_model():
            typed = ", ".join(f"--{name}" for name in unused)
            logger.warning(f"{start.model} brings its own parts along, so these are not used: {typed}.")
        changes = start.config_fields()
        options = {"config": changed_config(start.model, changes)} if changes else {}
        model, processor = load_captioner(start.model, **options)
    else:
        name = get_architecture(start.architecture).name
        model, processor = import_module(f"{__package__}.start_{name}").start(start, captions)
    known = inspect.signature(type(processor)).parameters
    for name, value in read_named_values(start.processor_config, "--processor_config").items():
        if name not in known or not hasattr(processor, name):
            raise ValueError(f"`--processor_config` has {name!r}, and a {type(processor).__name__} has no such field.")
        setattr(processor, name, value)
    return model, processor


def load_vision_part(start: StartingPoint) -> tuple[Any, CaptioningImageProcessor]:
    """The vision model and the preparation of images that belongs to it; None for a captioner of region features.

    Raises:
        ValueError: there is none, or it is of another kind.
        FileNotFoundError: it cannot be read.
    """
    if start.vision_model is None:
        if "region_feature_size" in start.config_fields():
            return None, CaptioningImageProcessor()
        raise ValueError(
            "`--vision_model` is missing: a captioner needs something to see with, or stored features (--features)."
        )
    with reading(start.vision_model):
        vision = load_vision_model(start.vision_model)
        source = image_settings_source(start.vision_model, vision)
        return vision, CaptioningImageProcessor.from_backbone(source, **start.image_settings())


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

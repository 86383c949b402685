"""Initialisation of a captioner for training: from a language model and a vision model, or a captioner."""

import inspect
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging

from hf_captioners.architectures import Architecture, get_architecture
from hf_captioners.default_model import is_default
from hf_captioners.loading import (
    adapter_settings,
    changed_config,
    load_captioner,
    load_vision_part,
    read_vision_config,
    reading,
    require_fields,
)
from hf_captioners.modeling.configuration_captioning import check_field
from hf_captioners.modeling.layers_gpt2 import gpt2_config_of
from hf_captioners.names import did_you_mean, read_named_values
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
from hf_captioners.processing.word_tokenizer import RULES, build_word_tokenizer

from .adapters import AdapterArguments, add_adapter, continue_adapter
from .new_words import add_words, unknown_words

logger = logging.get_logger(__name__)

MISSING_VISION_MODEL = "`vision_model` is missing: pass a vision model, or stored features (`features`)."
PROCESSOR_PARTS = ("image_processor", "tokenizer", "kwargs")
HALVES = (torch.float16, torch.bfloat16)
NEW_TOKENS = 3  # that a tokenizer may have beyond those of its language model: begin, end and padding


@dataclass
class ModelArguments(AdapterArguments):
    """Model arguments: the captioner to train, or the parts of a new one, and the adapter (`AdapterArguments`).

    Args:
        architecture: name in the table of architectures.
        model: a captioner to continue from; replaces the arguments of parts. The adapter of PEFT in a checkpoint is
            trained further.
        new_words: for a `model` with a vocabulary of words: add the words that it lacks and that occur at least this
            number of times in the training captions. None adds no words.
        language_model: name or directory of a language model, for architectures that start from one.
        random_language_model: use the language model's sizes and tokenizer with random weights.
        tokenizer: name or directory; default: the language model's, or a vocabulary of the words of the captions.
        min_word_count: for such a vocabulary: words that occur less often become the unknown token.
        vocabulary_size: for such a vocabulary: at most this number of tokens, the most frequent ones.
        vision_model: name or directory of a vision model, or `timm:ARCHITECTURE[:FILE]`.
        image_size: input resolution in pixels: the shorter side is scaled to it and the central square is used.
            Default: that of the vision model.
        attribute_detector: an attribute detector, for architectures that read attributes.
        model_config: fields of the architecture's configuration, as `name=value`.
        processor_config: arguments of its processor, such as `drop_final_punctuation=false`.
    """

    architecture: str = field(default="visualgpt", metadata={"help": "Architecture of the captioner."})
    model: str | None = field(
        default=None,
        metadata={"help": "Captioner to continue from: name or directory, or default (the installed one)."},
    )
    new_words: int | None = field(
        default=None,
        metadata={"help": "For --model: add unknown words that occur at least this number of times in the captions."},
    )
    language_model: str | None = field(
        default=None, metadata={"help": "Language model to start from (name or directory), for instance distilgpt2."}
    )
    random_language_model: bool = field(
        default=False, metadata={"help": "Use the language model's sizes and tokenizer with random weights."}
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "Tokenizer (name or directory); default: the language model's, or words."}
    )
    min_word_count: int = field(
        default=5, metadata={"help": "For a vocabulary of words: minimum number of occurrences in the captions."}
    )
    vocabulary_size: int | None = field(
        default=None, metadata={"help": "For a vocabulary of words: maximum size, special tokens included."}
    )
    vision_model: str | None = field(
        default=None,
        metadata={"help": "Vision model: name or directory of transformers, or timm:ARCHITECTURE[:CHECKPOINT_FILE]."},
    )
    image_size: int | None = field(
        default=None,
        metadata={"help": "Input resolution: scale the shorter side to it and use the central square (pixels)."},
    )
    attribute_detector: str | None = field(
        default=None,
        metadata={"help": "Attribute detector (name or directory) of `hf-captioners attributes train`, for eta."},
    )
    model_config: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Fields of the configuration: name=value ..., such as srau_threshold=0.3; added to a recipe.",
            "action": "extend",
        },
    )
    processor_config: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Arguments of the processor: name=value ..., such as lowercase=false; added to a recipe.",
            "action": "extend",
        },
    )

    def config_fields(self) -> dict[str, Any]:
        """Return `model_config` as a dictionary.

        Raises:
            ValueError: an entry has no `=`.
        """
        return read_named_values(self.model_config, "model_config")

    @property
    def description(self) -> str:
        """Origin of the captioner's weights, as text."""
        if self.model is not None:
            return f"the captioner {self.model}{' with a LoRA adapter' if self.use_peft else ''}"
        new = "random weights with the sizes of " if self.random_language_model else ""
        parts = (f"{new}{self.language_model}" if self.language_model else None, self.vision_model)
        return f"{' and '.join(part for part in parts if part) or 'no parts'}; everything else is new"

    def replaced_by_model(self) -> list[str]:
        """Return the names of arguments that have no effect because `model` is set."""
        empty = type(self)()
        beside = {
            "model",
            "model_config",
            "processor_config",
            "new_words",
            *(argument.name for argument in fields(AdapterArguments)),
        }
        names = (argument.name for argument in fields(self) if argument.name not in beside)
        return [name for name in names if getattr(self, name) != getattr(empty, name)]


def with_new_words(
    start: ModelArguments, model: Any, processor: Any, captions: Iterable[str]
) -> tuple[Any, Any, str | None]:
    """Add new words of the training captions to a captioner, as the argument `new_words` says.

    Args:
        start: the model arguments.
        model: the captioner to continue from.
        processor: its processor.
        captions: all training captions.

    Returns:
        Model and processor, and a sentence about the words; None if `new_words` is None.

    Raises:
        ValueError: the captioner is not one of this library with a vocabulary of words, or has an adapter.
    """
    if start.new_words is None:
        return model, processor, None
    words = unknown_words(captions, processor, start.new_words)
    if not words:
        return model, processor, f"No unknown word occurs {start.new_words} times or more in the training captions."
    model, processor = add_words(model, processor, words)
    shown = ", ".join(f"{word!r} ({count:,})" for word, count in list(words.items())[:10])
    return model, processor, f"Added {len(words):,} words that the captioner did not know: {shown}."


def start_captioner(
    start: ModelArguments, captions: Iterable[str] = (), caption_tokenizer: str = "ptb"
) -> tuple[Any, Any]:
    """Build or load the captioner.

    Args:
        start: the model arguments.
        captions: training captions, from which an architecture may build its vocabulary.
        caption_tokenizer: what a word of such a vocabulary is, see `CaptioningTrainingArguments`.

    Returns:
        Model and processor.

    Raises:
        ValueError: the architecture is unknown, a part is missing, or a checkpoint is of a different type.
        OSError: a checkpoint cannot be read.
    """
    _check_new_words(start)
    if start.model is not None:
        if unused := start.replaced_by_model():
            names = ", ".join(f"`{name}`" for name in unused)
            logger.warning(f"{start.model} has its own parts, so these are not used: {names}.")
        model, processor = _from_captioner(start)
    else:
        check_parts(start)
        model, processor = _from_parts(start, captions, caption_tokenizer)
    for name, value in processor_fields(start, type(processor)).items():
        setattr(processor, name, value)
    return model, processor


def _check_new_words(start: ModelArguments) -> None:
    if start.new_words is None:
        return
    if start.new_words < 1:
        raise ValueError(f"`new_words` is {start.new_words}, expected at least 1.")
    if start.model is None:
        raise ValueError("`new_words` adds words to a captioner: pass `model`, or choose `min_word_count` instead.")
    if start.use_peft:
        raise ValueError("`new_words` trains new rows of the embedding, which an adapter leaves out: drop `use_peft`.")


def processor_fields(start: ModelArguments, processor_class: type[Any]) -> dict[str, Any]:
    """Return `processor_config` as a dictionary.

    Raises:
        ValueError: a processor of this class has no such field; the message has the nearest one.
    """
    values = read_named_values(start.processor_config, "processor_config")
    parameters = [name for name in inspect.signature(processor_class).parameters if name not in PROCESSOR_PARTS]
    for name in values:
        if name not in parameters:
            raise ValueError(
                f"`processor_config` has {name!r}, and a {processor_class.__name__} has no such field."
                f"{did_you_mean(name, parameters)}"
            )
    return values


def check_parts(start: ModelArguments, with_features: bool = False) -> None:
    """Check the parts of a new captioner before data and weights are loaded.

    Args:
        start: the model arguments.
        with_features: whether the captioner is trained on stored features.

    Raises:
        ValueError: a part is missing, is not used by the architecture or is of a different type; a field of the
            configuration or the processor is unknown or has a wrong value; or there is an adapter.
        FileNotFoundError: a checkpoint cannot be read.
    """
    architecture, fields_of_config = get_architecture(start.architecture), start.config_fields()
    _check_new_words(start)
    if start.use_peft:
        raise ValueError(
            "`use_peft` trains an adapter of a captioner that is trained already, and new parts have to be trained "
            "whole: pass `model`, or leave it out."
        )
    _require_used_parts(start, architecture)
    if start.vision_model is None and not with_features and "region_feature_size" not in fields_of_config:
        raise ValueError(MISSING_VISION_MODEL)
    check_fields(start)
    if start.vision_model is not None:
        read_vision_config(start.vision_model)
    if start.language_model is not None:
        with reading(start.language_model):
            gpt2_config_of(start.language_model)
    if start.tokenizer is not None:
        with reading(start.tokenizer):
            AutoTokenizer.from_pretrained(start.tokenizer)


def check_fields(start: ModelArguments) -> None:
    """Check the configuration and processor fields of a new captioner.

    Raises:
        ValueError: there is no such architecture or field (the message has the nearest one), or a value is wrong.
    """
    architecture = get_architecture(start.architecture)
    if start.model is None:
        config_class, values = architecture.load("Config"), start.config_fields()
        require_fields(config_class, values)
        for name, value in values.items():
            check_field(config_class, name, value)
        processor_fields(start, architecture.load("Processor"))


def _require_used_parts(start: ModelArguments, architecture: Architecture) -> None:
    reads_text = architecture.tokenizer == "gpt2"
    if reads_text and start.language_model is None:
        raise ValueError(f"`language_model` is missing: {architecture.prefix} starts from a GPT-2 and a vision model.")
    if not reads_text and start.language_model is not None:
        raise ValueError(
            f"`language_model={start.language_model}` is not used by {architecture.prefix}, which builds its "
            "vocabulary from the captions; leave it out."
        )
    builder = architecture.load("ForConditionalGeneration").from_pretrained_parts
    if start.attribute_detector is not None and "attribute_detector" not in inspect.signature(builder).parameters:
        raise ValueError(
            f"`attribute_detector={start.attribute_detector}` is not used by {architecture.prefix}, which reads no "
            "attributes; leave it out, or pass `architecture=eta`."
        )


def _from_captioner(start: ModelArguments) -> tuple[Any, Any]:
    """Load a captioner for further training, with a new PEFT adapter if requested."""
    source, changes = str(start.model), start.config_fields()
    settings = None if is_default(source) else adapter_settings(source)
    if settings is not None:
        if changes or start.set_adapter_arguments():
            name = "model_config" if changes else start.set_adapter_arguments()[0]
            raise ValueError(
                f"{source} is an adapter, which is trained further as it is: leave `{name}` out, or merge the adapter "
                "first (`hf_captioners.loading.merge_adapter`)."
            )
        return continue_adapter(source, settings)
    options = {"config": changed_config(source, changes)} if changes else {}
    model, processor = load_captioner(source, **options, **start.loading_options())
    if start.use_peft:
        return add_adapter(model, start), processor
    # Steps of a whole model are lost in the precision of halves, in which many checkpoints are saved.
    return (model.float() if model.dtype in HALVES else model), processor


def _from_parts(start: ModelArguments, captions: Iterable[str], caption_tokenizer: str) -> tuple[Any, Any]:
    """Build model and processor from parts, with the architecture's generation defaults."""
    architecture = get_architecture(start.architecture)
    parts: dict[str, Any] = {}
    if architecture.tokenizer == "gpt2":
        parts["language_model"] = _language_model(start)
        tokenizer = _gpt2_tokenizer(start)
    else:
        tokenizer = _word_tokenizer(start, captions, caption_tokenizer)
    if start.vision_model is None:  # a captioner of stored features
        parts["vision_model"], image_processor = None, CaptioningImageProcessor()
    else:
        parts["vision_model"], image_processor = load_vision_part(start.vision_model, start.image_size)
    captioner = architecture.load("ForConditionalGeneration")
    if start.attribute_detector is not None:
        with reading(start.attribute_detector):
            parts["attribute_detector"] = AutoModel.from_pretrained(start.attribute_detector)
    with reading(start.language_model) if start.language_model else nullcontext():
        model = captioner.from_pretrained_parts(**parts, tokenizer=tokenizer, **start.config_fields())
    model.generation_config.update(max_length=None, **architecture.generation)
    if architecture.tokenizer == "words":  # the unknown word has no meaning in a caption
        model.generation_config.update(suppress_tokens=[tokenizer.unk_token_id])
    return model, architecture.load("Processor").for_config(model.config, image_processor, tokenizer)


def _language_model(start: ModelArguments) -> Any:
    """Return the language model's name, or a randomly initialised model of the same size."""
    if not start.random_language_model:
        return start.language_model
    with reading(str(start.language_model)):
        return AutoModel.from_config(AutoConfig.from_pretrained(start.language_model))


def _gpt2_tokenizer(start: ModelArguments) -> Any:
    source = str(start.tokenizer or start.language_model)
    with reading(source):
        tokenizer = AutoTokenizer.from_pretrained(source)
    if start.tokenizer is not None and not start.random_language_model:
        require_own_tokenizer(tokenizer, source, str(start.language_model))
    return prepare_gpt2_tokenizer(tokenizer)


def require_own_tokenizer(tokenizer: Any, source: str, language_model: str) -> None:
    """Check that a tokenizer has the same ids as a language model's own tokenizer.

    Args:
        tokenizer: the tokenizer.
        source: its name or directory, for messages.
        language_model: name or directory of the language model.

    Raises:
        ValueError: it has more tokens than the language model, or words with other ids than in its own tokenizer.
    """
    with reading(language_model):
        size = AutoConfig.from_pretrained(language_model).vocab_size
    advice = f"Leave `tokenizer` out, or pass `random_language_model` to use only the sizes of {language_model}."
    vocabulary = tokenizer.get_vocab()
    if max(vocabulary.values()) >= size + NEW_TOKENS:
        raise ValueError(f"{source} has {len(vocabulary):,} tokens, the language model {size:,}. {advice}")
    try:
        original = AutoTokenizer.from_pretrained(language_model).get_vocab()
    except (OSError, ValueError, KeyError):  # it was saved without one
        original = {}
    differing = [word for word, number in original.items() if number < size and vocabulary.get(word) != number]
    if differing or (not original and len(vocabulary) < size * 0.9):
        shown = f", such as {differing[0]!r}" if differing else ""
        raise ValueError(
            f"{source} is not the tokenizer of {language_model}: {len(differing) or size - len(vocabulary):,} of its "
            f"{size:,} words have other ids or none{shown}. {advice}"
        )


def _word_tokenizer(start: ModelArguments, captions: Iterable[str], caption_tokenizer: str) -> Any:
    if start.tokenizer is None:
        rule = caption_tokenizer if caption_tokenizer in RULES else RULES[0]
        return build_word_tokenizer(captions, start.min_word_count, start.vocabulary_size, rule=rule)
    with reading(start.tokenizer):
        return AutoTokenizer.from_pretrained(start.tokenizer)

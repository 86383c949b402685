"""Tokenizers and processors from the vocabularies of other programs."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from hf_captioners.architectures import get_architecture
from hf_captioners.hub.safe_unpickling import program_dictionary
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
from hf_captioners.processing.word_tokenizer import LAYOUTS, word_tokenizer

from .released import Released


def make_processor(architecture: str, released: Released, vocabulary: str) -> Any:
    """Build the processor of a converted captioner.

    Args:
        architecture: name of the architecture.
        released: what was read from the checkpoint.
        vocabulary: file of the vocabulary, or name of GPT-2's tokenizer.

    Raises:
        ValueError: size or order of the vocabulary differ from those of the checkpoint.
        OSError: it cannot be read.
    """
    if released.vocabulary == "gpt2":
        tokenizer = gpt2_tokenizer(vocabulary, released.config)
    else:
        tokenizer = tokenizer_of_words(vocabulary, released.vocabulary, released.config.vocab_size)
    processor_class = get_architecture(architecture).load("Processor")
    return processor_class(CaptioningImageProcessor(), tokenizer, **released.processor)


def gpt2_tokenizer(vocabulary: str, config: Any) -> Any:
    """Load GPT-2's tokenizer and set the begin, end and padding ids of a checkpoint.

    Args:
        vocabulary: name or directory of the tokenizer.
        config: configuration of the captioner.

    Raises:
        ValueError: its size differs from that of the checkpoint.
        OSError: it cannot be read.
    """
    tokenizer = AutoTokenizer.from_pretrained(vocabulary)
    size = config.text_config.vocab_size
    if len(tokenizer) != size:
        raise ValueError(
            f"The tokenizer {vocabulary} has {len(tokenizer)} tokens, the checkpoint {size}. Pass the tokenizer that "
            "the checkpoint was trained with."
        )
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return prepare_gpt2_tokenizer(tokenizer, **ids)


def tokenizer_of_words(vocabulary: str, layout: str, size: int) -> Any:
    """Build a word-level tokenizer with the ids of a checkpoint.

    Args:
        vocabulary: file with the words.
        layout: a layout of `hf_captioners.processing.word_tokenizer`.
        size: vocabulary size of the checkpoint.

    Raises:
        ValueError: ids are missing, or special tokens have different ids.
    """
    chosen = LAYOUTS[layout]
    first, count = len(chosen.before), size - len(chosen.before) - len(chosen.after)
    words = read_words(Path(vocabulary), first)
    kept = [words.get(first + index) for index in range(count)]
    if None in kept:
        raise ValueError(
            f"{vocabulary} has no word for id {first + kept.index(None)}; the checkpoint has words from {first} to "
            f"{first + count - 1}. Pass the vocabulary that it was trained with."
        )
    tokenizer = word_tokenizer([str(word) for word in kept], layout)
    special = {word: first + count + index for index, word in enumerate(chosen.after)} | {
        word: index for index, word in enumerate(chosen.before)
    }
    moved = [(word, index) for index, word in words.items() if special.get(word, index) != index]
    if moved:
        word, index = moved[0]
        raise ValueError(
            f"{vocabulary} has {word!r} at id {index}, expected {special[word]}. It belongs to a different program."
        )
    return tokenizer


def read_words(path: Path, first: int) -> dict[int, str]:
    """Read words by id.

    Args:
        path: `.json` with `{word: id}`, `.pkl` with such a dictionary, or a text file with one word per line.
        first: id of the first line of a text file.

    Raises:
        ValueError: the file has a different form.
        OSError: it cannot be read.
    """
    if path.suffix == ".pkl":
        ids: Any = program_dictionary(path)
    elif path.suffix == ".json":
        ids = json.loads(path.read_text(encoding="utf-8"))
    else:
        ids = {word: first + index for index, word in enumerate(path.read_text(encoding="utf-8").splitlines())}
    if not isinstance(ids, dict) or not all(isinstance(index, int) for index in ids.values()):
        raise ValueError(f"{path} is not of the form {{word: id}}.")
    return {index: str(word) for word, index in ids.items()}

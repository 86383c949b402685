"""Tokenizers and processors built from the vocabularies of other programs."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from hf_captioners.architectures import get_architecture
from hf_captioners.hub.safe_unpickling import Record, read_pickle
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
from hf_captioners.processing.word_tokenizer import LAYOUTS, word_tokenizer

from .infos_files import words_by_id
from .released import Released

# Names in a pickled vocabulary of the M2 code.
M2_VOCABULARY = frozenset({("data.vocab", "Vocab"), ("data.vocab", "_default_unk_index")})


def make_processor(architecture: str, released: Released, vocabulary: str | None) -> Any:
    """Build the processor of a converted captioner.

    Args:
        architecture: name of the architecture.
        released: what was read from the checkpoint.
        vocabulary: file of the vocabulary, or name of GPT-2's tokenizer; None: the checkpoint has the words.

    Raises:
        ValueError: size or order of the vocabulary differ from those of the checkpoint.
        OSError: it cannot be read.
    """
    layout, size = released.vocabulary, released.config.vocab_size
    if vocabulary is None:
        assert released.words is not None
        tokenizer = tokenizer_of_words(released.words, "the checkpoint", layout, size)
    elif layout == "gpt2":
        tokenizer = gpt2_tokenizer(vocabulary, released.config)
    else:
        words = read_words(Path(vocabulary), len(LAYOUTS[layout].before))
        tokenizer = tokenizer_of_words(words, vocabulary, layout, size)
    processor_class = get_architecture(architecture).load("Processor")
    return processor_class.for_config(released.config, CaptioningImageProcessor(), tokenizer, **released.processor)


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


def tokenizer_of_words(words: dict[int, str], source: str, layout: str, size: int) -> Any:
    """Build a word-level tokenizer with the token ids of a checkpoint.

    Args:
        words: the words by id.
        source: where they come from, for messages.
        layout: a layout of `hf_captioners.processing.word_tokenizer`.
        size: vocabulary size of the checkpoint.

    Raises:
        ValueError: ids are missing, or special tokens have different ids.
    """
    chosen = LAYOUTS[layout]
    first, count = len(chosen.before), size - len(chosen.before) - len(chosen.after)
    kept = [words.get(first + index) for index in range(count)]
    if None in kept:
        raise ValueError(
            f"{source} has no word for id {first + kept.index(None)}; the checkpoint has words from {first} to "
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
            f"{source} has {word!r} at id {index}, expected {special[word]}. It belongs to a different program."
        )
    return tokenizer


def read_words(path: Path, first: int) -> dict[int, str]:
    """Read a vocabulary file, word by id.

    Args:
        path: `.json` with `{word: id}`; `.pkl` with such a dictionary, a vocabulary of the M2 code or an infos file of
            ImageCaptioning.pytorch; or a text file with one word per line.
        first: id of the first line of a text file.

    Raises:
        ValueError: the file has a different form.
        OSError: it cannot be read.
    """
    if path.suffix == ".pkl":
        return pickled_words(path)
    try:
        text = path.read_text(encoding="utf-8")
        lines = {word: first + index for index, word in enumerate(text.splitlines())}
        ids: Any = json.loads(text) if path.suffix == ".json" else lines
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a vocabulary: {error}.") from error
    if not isinstance(ids, dict) or not all(isinstance(index, int) for index in ids.values()):
        raise ValueError(f"{path} is not of the form {{word: id}}.")
    return {index: str(word) for word, index in ids.items()}


def pickled_words(path: Path) -> dict[int, str]:
    """Read a vocabulary, word by id, from a pickle without running its code: dictionary, infos file or M2 vocabulary.

    Raises:
        ValueError: the file has a different form.
        OSError: it cannot be read.
    """
    content = read_pickle(path, records=M2_VOCABULARY)
    if isinstance(content, Record):  # an object with `itos`, the words in the order of their ids
        words = content.state.get("itos") if isinstance(content.state, dict) else None
        if not isinstance(words, list):
            raise ValueError(f"{path} contains a {content.source} without a list `itos` of words.")
        return {index: str(word) for index, word in enumerate(words)}
    if isinstance(content, dict) and isinstance(content.get("vocab"), dict):
        return words_by_id(path, content["vocab"])
    if not isinstance(content, dict) or not all(isinstance(index, int) for index in content.values()):
        raise ValueError(f"{path} is not of the form {{word: id}}.")
    return {index: str(word) for word, index in content.items()}

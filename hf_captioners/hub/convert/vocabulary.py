"""Vocabularies of other programs as tokenizers and processors."""

import json
from pathlib import Path
from typing import Any


def make_processor(architecture: str, released: Any, vocab: str) -> Any:
    """The processor of a converted captioner.

    Args:
        architecture: kind of captioner.
        released: what the converter made of the checkpoint.
        vocab: file of the vocabulary, or name of GPT-2's tokenizer.

    Raises:
        ValueError: the vocabulary has not the size or the order that the checkpoint was trained with.
        OSError: it cannot be read.
    """
    from hf_captioners.architectures import get_architecture
    from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor

    if released.vocabulary == "gpt2":
        tokenizer = gpt2_tokenizer(vocab, released.config)
    else:
        tokenizer = tokenizer_of_words(vocab, released.vocabulary, released.config.vocab_size)
    kind = get_architecture(architecture).load("Processor")
    return kind(CaptioningImageProcessor(), tokenizer, **released.processor)


def gpt2_tokenizer(vocab: str, config: Any) -> Any:
    """GPT-2's tokenizer with the begin, end and padding ids of a checkpoint.

    Raises:
        ValueError: it has another size. OSError: it cannot be read.
    """
    from transformers import AutoTokenizer

    from hf_captioners.processing.processing_visualgpt import prepare_gpt2_tokenizer

    tokenizer = AutoTokenizer.from_pretrained(vocab)
    size = config.text_config.vocab_size
    if len(tokenizer) != size:
        raise ValueError(f"The tokenizer {vocab} has {len(tokenizer)} tokens, the checkpoint {size}. Pass its own.")
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return prepare_gpt2_tokenizer(tokenizer, **ids)


def tokenizer_of_words(vocab: str, layout: str, size: int) -> Any:
    """A tokenizer of whole words with the ids of a checkpoint.

    Args:
        vocab: file with the words.
        layout: a layout of `hf_captioners.processing.word_tokenizer`.
        size: tokens of the checkpoint.

    Raises:
        ValueError: ids are missing or stand elsewhere.
    """
    from hf_captioners.processing.word_tokenizer import LAYOUTS, word_tokenizer

    chosen = LAYOUTS[layout]
    first, count = len(chosen.before), size - len(chosen.before) - len(chosen.after)
    words = read_words(Path(vocab), first)
    kept = [words.get(first + index) for index in range(count)]
    if None in kept:
        raise ValueError(
            f"{vocab} has no word for id {first + kept.index(None)}; the checkpoint has words from {first} to "
            f"{first + count - 1}. Pass the vocabulary that it was trained with."
        )
    tokenizer = word_tokenizer([str(word) for word in kept], layout)
    places = {word: first + count + index for index, word in enumerate(chosen.after)} | {
        word: index for index, word in enumerate(chosen.before)
    }
    moved = [word for index, word in words.items() if word in places and places[word] != index]
    if moved:
        raise ValueError(f"{vocab} has {moved[0]!r} at another id than {places[moved[0]]}; it is of another program.")
    return tokenizer


def read_words(path: Path, first: int) -> dict[int, str]:
    """Words by id.

    Args:
        path: `.json` with `{word: id}`, `.pkl` with such a dictionary, or a text file with one word a line.
        first: id of the first line of a text file.

    Raises:
        ValueError: it has another form. OSError: it cannot be read.
    """
    if path.suffix == ".pkl":
        from hf_captioners.hub.safe_unpickling import program_dictionary

        ids: Any = program_dictionary(path)
    elif path.suffix == ".json":
        ids = json.loads(path.read_text(encoding="utf-8"))
    else:
        ids = {word: first + index for index, word in enumerate(path.read_text(encoding="utf-8").splitlines())}
    if not isinstance(ids, dict) or not all(isinstance(index, int) for index in ids.values()):
        raise ValueError(f"{path} has another form than {{word: id}}.")
    return {index: str(word) for word, index in ids.items()}

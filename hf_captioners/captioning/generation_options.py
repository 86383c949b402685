"""Options of `generate()` as they are typed: their names are checked before a model is loaded."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import GenerationConfig

from hf_captioners.loading import expected_of_generation
from hf_captioners.modeling.generation_captioning import SEARCH_OPTIONS
from hf_captioners.names import did_you_mean

# Set by the pipeline, or about other outputs than captions.
NOT_OPTIONS = {"return_dict_in_generate", "transformers_version", "is_assistant"}


def known_options() -> set[str]:
    """Return the names of the options of `generate()` that change captions."""
    names = set(GenerationConfig().to_dict()) | set(vars(GenerationConfig())) | set(SEARCH_OPTIONS)
    return {name for name in names - NOT_OPTIONS if not name.startswith(("_", "output_"))}


def check_generation_options(options: Mapping[str, Any], argument: str = "generate") -> None:
    """Check the names of options, and those values that are numbers.

    Args:
        options: values by name.
        argument: name of the argument that has them, for messages.

    Raises:
        ValueError: a name is unknown (the message has the nearest one), or a value is wrong.
    """
    known = known_options()
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"`{argument}` has {name!r}, which is no option of generate().{did_you_mean(name, known)} See the "
                "documentation of transformers' GenerationConfig."
            )
        if value is not None and (expected := expected_of_generation(name, value)):
            raise ValueError(f"`{argument}` has {name}={value}, expected {expected}.")


def bad_words_ids(tokenizer: Any, words: Iterable[str]) -> list[list[int]]:
    """Return the tokens of words that must not occur, for the option `bad_words_ids` of `generate()`.

    Args:
        tokenizer: of the captioner.
        words: words, or several words with blanks between them.

    Returns:
        The tokens of each word as typed, in lower case and with a capital, at the begin of a caption and inside.
        Words that the vocabulary does not have cannot occur, and have none.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        forms = dict.fromkeys((word.strip(), word.strip().lower(), word.strip().capitalize()))
        for text in [f"{blank}{form}" for form in forms for blank in ("", " ")]:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if ids and tokenizer.unk_token_id not in ids:
                found[tuple(ids)] = None
    return [list(ids) for ids in found]


def bad_word_in(caption: str, words: Sequence[str]) -> str | None:
    """Return the first of some words that occurs in a caption, whatever its case; None if none does."""
    for word in words:
        if re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", caption, re.IGNORECASE):
            return word
    return None

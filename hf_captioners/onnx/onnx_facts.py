"""Metadata of an exported captioner (`captioner.json`) and decoding options, checked before any computation.

This file is part of every exported folder, see `onnx_captioner.py`.
"""

from __future__ import annotations

import hashlib
import json
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

FORMAT = 1  # of the exported folder
FACTS_FILE = "captioner.json"
TOKENIZER_FILE = "tokenizer.json"
ENCODER, DECODER = "encoder_model", "decoder_model_merged"
EXPORT_AGAIN = "Export the captioner again, or copy the whole folder again."
MAX_FACTS_BYTES = 2**20
# Limits of the facts of a folder; options that are typed may be larger, see `OPTIONS`.
MAX_SIDE = 4096  # pixels of an image's side, before and after cropping
MAX_BEAMS, MAX_NEW_TOKENS = 100, 1024
MAX_TOKEN = 2**31 - 1
MAX_LENGTH_PENALTY = 100  # its power of the length is a float64 for captions of 1,000 tokens


class Rule(NamedTuple):
    """A condition on a value, and its description for error messages."""

    fits: Callable[[Any], bool]
    expected: str

    def check(self, name: str, value: Any) -> None:
        """Raise a `ValueError` with name and value if the value breaks the rule."""
        if not self.fits(value):
            raise ValueError(f"`{name}` is {value!r:.60}, expected {self.expected}.")


def whole(low: int, high: int = MAX_TOKEN) -> Rule:
    """Return the rule that a value is an integer between `low` and `high`."""

    def fits(value: Any) -> bool:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= int(value) <= high

    return Rule(fits, f"a whole number from {low}" + ("" if high == MAX_TOKEN else f" to {high:,}"))


def number(low: float, high: float) -> Rule:
    """Return the rule that a value is a number between `low` and `high`; NaN is refused."""

    def fits(value: Any) -> bool:
        is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_real and bool(low <= value <= high)

    return Rule(fits, f"a number from {low:g} to {high:g}")


def several(rule: Rule, low: int = 0, high: int = 100_000) -> Rule:
    """Return the rule that a value is a list of `low` to `high` entries that each obey `rule`."""

    def fits(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and low <= len(value) <= high and all(map(rule.fits, value))

    size = f"{low} values, each " if low == high else ""
    return Rule(fits, f"a list of {size}{rule.expected}")


def optional(rule: Rule) -> Rule:
    """Return the rule that a value is None or obeys `rule`."""
    return Rule(lambda value: value is None or rule.fits(value), f"{rule.expected}, or null")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 200 and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_inner_path(value: Any) -> bool:
    if not isinstance(value, str) or not value or len(value) > 200 or not value.isprintable() or "\\" in value:
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts and ":" not in value


def _is_size(value: Any) -> bool:
    forms = ({"height", "width"}, {"shortest_edge"}, {"max_height", "max_width"})
    return isinstance(value, dict) and set(value) in forms and all(map(SIDE.fits, value.values()))


SIDE = whole(1, MAX_SIDE)
FLAG = Rule(lambda value: isinstance(value, bool), "true or false")
TEXT = Rule(_is_text, "text of at most 200 letters")
PATH = Rule(_is_inner_path, "the path of a file in the folder")
DIGEST = Rule(lambda value: isinstance(value, str) and len(value) == 64, "64 hexadecimal digits")
TOKEN = whole(0)
TOKENS = several(TOKEN)

OPTIONS = {
    "max_new_tokens": whole(1, 100_000),
    "min_new_tokens": whole(0),
    "min_length": whole(0),
    "num_beams": whole(1, 1000),
    "num_return_sequences": whole(1, 1000),
    "length_penalty": number(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "early_stopping": Rule(lambda value: isinstance(value, bool) or value == "never", "true, false or 'never'"),
    "do_sample": FLAG,
    "temperature": number(1e-6, 1e6),
    "top_k": whole(0),
    "top_p": number(1e-9, 1),
    "seed": optional(whole(0, 2**63 - 1)),
    "repetition_penalty": number(1e-3, 1e3),
    "no_repeat_ngram_size": whole(0),
    "bad_words_ids": several(several(TOKEN, 1)),
    "suppress_tokens": TOKENS,
    "begin_suppress_tokens": TOKENS,
    "no_immediate_repetition": FLAG,
    "bad_ending_ids": TOKENS,
    "trigram_penalty": number(-1e6, 1e6),
}
"""The rules of the fields of `GenerationOptions`."""
LIMITS = {
    "num_beams": whole(1, MAX_BEAMS),
    "num_return_sequences": whole(1, MAX_BEAMS),
    "max_new_tokens": whole(1, MAX_NEW_TOKENS),
}
"""Stricter rules of the options that a folder brings along."""
FACTS: dict[str, Any] = {
    "graphs": {ENCODER: PATH, DECODER: PATH},
    "tokens": {"start": TOKEN, "end": several(TOKEN, 1, 100), "pad": TOKEN},
    "text": {"lowercase": FLAG, "merge_repeated_words": FLAG, "prefix": TEXT},
    "generation": {},
    "reads_all_tokens": FLAG,
    "files": {},
    "image": Rule(lambda value: value is None or isinstance(value, dict), "an object, or null"),
}
"""The rules of `captioner.json`."""
IMAGE: dict[str, Any] = {
    "size": optional(
        Rule(_is_size, f"height and width, shortest_edge, or max_height and max_width, each from 1 to {MAX_SIDE:,}")
    ),
    "resample": whole(0, 5),
    "crop_size": optional(
        Rule(
            lambda value: _is_size(value) and set(value) == {"height", "width"},
            f"height and width, each from 1 to {MAX_SIDE:,}",
        )
    ),
    "rescale_factor": optional(number(-1e6, 1e6)),
    "image_mean": optional(several(number(-1e6, 1e6), 3, 3)),
    "image_std": optional(several(number(1e-6, 1e6), 3, 3)),
}
"""The rules of `image` in it."""


@dataclass
class GenerationOptions:
    """Options of decoding, with the names and the meaning of `generate()` of transformers.

    Beam search keeps finished hypotheses as transformers does. `seed` makes sampling repeatable; the numbers drawn
    are those of numpy, so samples are not those of torch.

    Raises:
        ValueError: a value is of a wrong type or out of range, or two options do not go together.
    """

    max_new_tokens: int = 32
    min_new_tokens: int = 0
    min_length: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: list[list[int]] = field(default_factory=list)
    suppress_tokens: list[int] = field(default_factory=list)
    begin_suppress_tokens: list[int] = field(default_factory=list)
    no_immediate_repetition: bool = False
    bad_ending_ids: list[int] = field(default_factory=list)
    trigram_penalty: float = 0.0

    def __post_init__(self) -> None:
        """Check the type and range of every option."""
        for name, rule in OPTIONS.items():
            rule.check(name, getattr(self, name))
        if self.do_sample and self.num_beams > 1:
            raise ValueError("`do_sample=True` with `num_beams` above 1 is not supported: pass `num_beams=1`.")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"`num_return_sequences` is {self.num_return_sequences} with `num_beams={self.num_beams}`: pass as "
                "many beams, or `do_sample=True`."
            )

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all options."""
        return [option.name for option in fields(cls)]

    def require_tokens(self, vocabulary: int) -> None:
        """Check that the token ids in all options are smaller than the vocabulary.

        Args:
            vocabulary: number of tokens.

        Raises:
            ValueError: one does not.
        """
        for name in ("suppress_tokens", "begin_suppress_tokens", "bad_ending_ids"):
            require_tokens(name, getattr(self, name), vocabulary)
        for words in self.bad_words_ids:
            require_tokens("bad_words_ids", words, vocabulary)


def require_tokens(name: str, tokens: Sequence[int], vocabulary: int) -> None:
    """Raise a `ValueError` that names the option if one of its token ids is not in the vocabulary."""
    if missing := [token for token in tokens if token >= vocabulary]:
        raise ValueError(f"`{name}` has the token {missing[0]}, and the captioner has {vocabulary:,} tokens.")


def read_facts(folder: Path) -> dict[str, Any]:
    """Read and check `captioner.json` of an exported captioner, and the SHA-256 digests of its files.

    Raises:
        FileNotFoundError: it is no exported folder, or a file is missing.
        ValueError: it is of a later version, a fact is wrong or above its limit, or a file has changed.
    """
    path = folder / FACTS_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {FACTS_FILE}: it is no exported captioner. Make one: hf-captioners export MODEL "
            "--output_dir DIR."
        )
    try:
        facts = _read_json(path)
        if isinstance(facts, dict) and "format" in facts and facts["format"] != FORMAT:
            raise ValueError(f"it has the format {facts['format']!r:.60}, expected {FORMAT}; update the library.")
        check_facts(facts)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or cannot be used: {_line(error)} {EXPORT_AGAIN}") from error
    for name, digest in facts["files"].items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} lacks {name}. {EXPORT_AGAIN}")
        if file_digest(folder / name) != digest:
            raise ValueError(f"{folder / name} is damaged, or is a file of another export. {EXPORT_AGAIN}")
    return facts


def _line(error: BaseException) -> str:
    """Return an error's message on one line, ending with a full stop."""
    text = " ".join(str(error).split())[:500] or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _read_json(path: Path) -> Any:
    if not path.is_file():  # a pipe would be waited for, and a device may have no end
        raise ValueError("it is no plain file.")
    with open(path, "rb") as file:
        content = file.read(MAX_FACTS_BYTES + 1)
    if len(content) > MAX_FACTS_BYTES:
        raise ValueError(f"it has more than {MAX_FACTS_BYTES:,} bytes.")
    return json.loads(content.decode("utf-8"))


def check_facts(facts: Any) -> None:
    """Check that the content of `captioner.json` has all entries with valid values.

    Raises:
        ValueError: a fact is missing, of a wrong type, or above its limit. The message has its name and its value.
    """
    _check_object("", facts, {"format": whole(FORMAT, FORMAT), **FACTS})
    if facts["image"] is not None:
        _check_object("image", facts["image"], IMAGE)
        if (facts["image"]["image_mean"] is None) != (facts["image"]["image_std"] is None):
            raise ValueError("`image` has one of `image_mean` and `image_std`, expected both or none.")
    for name, digest in facts["files"].items():
        PATH.check("files", name)
        DIGEST.check(f"files.{name}", digest)
    for name in (*facts["graphs"].values(), TOKENIZER_FILE):
        if name not in facts["files"]:
            raise ValueError(f"`files` lacks {name}.")
    generation = facts["generation"]
    for name, value in generation.items():
        if name not in OPTIONS:
            raise ValueError(f"`generation` has {name!r:.60}, which is no option of an exported captioner.")
        LIMITS.get(name, OPTIONS[name]).check(f"generation.{name}", value)
    options = GenerationOptions(**generation)
    positions = facts.get("positions")  # of folders of earlier versions: unknown
    optional(whole(1)).check("positions", positions)
    if positions is not None and options.max_new_tokens > positions:
        raise ValueError(
            f"`generation.max_new_tokens` is {options.max_new_tokens:,}, and the decoder has {positions:,} positions."
        )


def _check_object(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    """Check that a JSON object has the entries of `rules`, with values that obey them; more are allowed."""
    if not isinstance(value, dict):
        raise ValueError(f"{f'`{name}`' if name else 'it'} is {value!r:.60}, expected an object.")
    for key, rule in rules.items():
        label = f"{name}.{key}" if name else key
        if key not in value:
            raise ValueError(f"it lacks `{label}`.")
        if isinstance(rule, dict):
            _check_object(label, value[key], rule)
        else:
            rule.check(label, value[key])


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file as a hexadecimal string."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Parameters of caption requests: names, types and ranges, declared once for checks and OpenAPI."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hf_captioners.names import did_you_mean, listed

MAX_TEXT = 1000  # letters of a prompt or an instruction
FLAGS = {"true": True, "1": True, "false": False, "0": False}
OF_SAMPLING = ("temperature", "top_k", "top_p", "seed")


class Parameter(NamedTuple):
    """A parameter of caption requests.

    Args:
        kind: its type in JSON: `"string"`, `"integer"`, `"number"` or `"boolean"`.
        description: its effect, in one line.
        low: its least value.
        high: its largest value.
    """

    kind: str
    description: str
    low: float = 0
    high: float = 0

    @property
    def expected(self) -> str:
        """Description of the permitted values, for messages."""
        if self.kind == "string":
            return f"at most {MAX_TEXT:,} letters"
        if self.kind == "boolean":
            return "true or false"
        return f"a {'whole ' if self.kind == 'integer' else ''}number from {self.low:g} to {self.high:.10g}"

    def read(self, text: str) -> Any:
        """Parse a parameter's text value.

        Raises:
            ValueError: it states none, or one that is out of range.
        """
        if self.kind == "string":
            if len(text) > MAX_TEXT:
                raise ValueError(f"it has {len(text):,} letters")
            return text
        if self.kind == "boolean":
            return FLAGS[text.strip().lower()]
        value = int(text) if self.kind == "integer" else float(text)
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise ValueError("it is out of range")
        return value

    def schema(self) -> dict[str, Any]:
        """Return the parameter's JSON schema for OpenAPI."""
        limits: dict[str, Any] = {"minimum": self.low, "maximum": self.high}
        limits = {"boolean": {}, "string": {"maxLength": MAX_TEXT}}.get(self.kind, limits)
        return {"type": self.kind, **limits}


PARAMETERS = {
    "prompt": Parameter("string", "text that the caption begins with, from which it goes on"),
    "instruction": Parameter("string", "what the captioner is asked, if it is one that follows instructions"),
    "num_beams": Parameter("integer", "beams of the search; 1: the likeliest word at each step", 1, 16),
    "max_new_tokens": Parameter("integer", "most tokens of a caption, without the prompt", 1, 256),
    "num_return_sequences": Parameter("integer", "captions of the image, which come as lists if above 1", 1, 16),
    "length_penalty": Parameter("number", "above 0: a beam search prefers longer captions", -10, 10),
    "repetition_penalty": Parameter("number", "above 1: tokens that occurred are less likely", 0.01, 100),
    "no_repeat_ngram_size": Parameter("integer", "groups of so many tokens occur once; 0: no such limit", 0, 256),
    "do_sample": Parameter("boolean", "draw words at random by their probabilities"),
    "temperature": Parameter("number", "with do_sample: below 1, likely words become likelier", 0.01, 100),
    "top_k": Parameter("integer", "with do_sample: draw among so many of the likeliest tokens", 1, 1_000_000),
    "top_p": Parameter("number", "with do_sample: draw among the likeliest tokens of this probability", 0.0001, 1),
    "seed": Parameter("integer", "with do_sample: the same seed draws the same caption", 0, 2**53 - 1),
}
"""The parameters by name; numbers above the limits would let one request take memory and time of all others."""


def read_parameters(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parse and check the parameters of a request.

    Args:
        pairs: names and texts of its query and its form.

    Raises:
        ValueError: a name is unknown (the message has the nearest one) or given twice, or a value is wrong.
    """
    values: dict[str, Any] = {}
    for name, text in pairs:
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise ValueError(
                f"The parameter {name!r:.60} is unknown.{did_you_mean(name[:60], PARAMETERS)} Known are "
                f"{listed(PARAMETERS)}."
            )
        if name in values:
            raise ValueError(f"The parameter `{name}` is given twice; give it once.")
        try:
            values[name] = parameter.read(text)
        except (ValueError, KeyError, OverflowError):
            raise ValueError(f"`{name}` is {text!r:.60}, expected {parameter.expected}.") from None
    return values


def check_combination(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Check that the parameters of a request can be combined.

    Args:
        values: those of the request.
        defaults: `num_beams`, `num_return_sequences` and `do_sample` of the server, for those that it has not.

    Raises:
        ValueError: they do not; the message says what to give.
    """
    all_of = {**defaults, **values}
    beams, captions = int(all_of.get("num_beams") or 1), int(all_of.get("num_return_sequences") or 1)
    samples = bool(all_of.get("do_sample"))
    without_effect = [] if samples else [name for name in OF_SAMPLING if name in values]
    if without_effect:
        raise ValueError(
            f"`{without_effect[0]}` has no effect on a search: give `do_sample=true` too, or leave it out."
        )
    if captions > beams and not samples:
        raise ValueError(
            f"`num_return_sequences` is {captions} with `num_beams={beams}`: give as many beams, or `do_sample=true`."
        )

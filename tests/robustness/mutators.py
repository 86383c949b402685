"""Random changes of the bytes of files and of the values of JSON, from a seed."""

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)


def mutated(content: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> tuple[bytes, str]:
    """Change the bytes of a file in one or several places.

    Args:
        content: the file.
        rng: random numbers.
        others: contents of other files, of which parts are put in.

    Returns:
        The changed bytes, and the names of the changes.
    """
    changes = [rng.choice(CHANGES) for _ in range(rng.choice((1, 1, 1, 1, 2, 4)))]
    for change in changes:
        content = change(content, rng, others)
    return content, ", ".join(change.__name__ for change in changes)


def _place(content: bytes, rng: random.Random) -> int:
    """A random place, half of the time in the first 64 bytes, where headers are."""
    return rng.randrange(min(64, len(content)) if rng.random() < 0.3 else len(content)) if content else 0


def _span(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = _place(content, rng)
    return start, min(len(content), start + rng.choice((1, 2, 4, 8, 16, 64, 256, 4096)))


def flip_bits(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Flip single bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8) if changed else 0):
        changed[_place(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_bytes(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Set single bytes to random values or to the least and largest ones."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 16) if changed else 0):
        changed[_place(content, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed)


def set_number(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Overwrite bytes by a whole number of 1 to 8 bytes, as a declared size would be."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    number = (rng.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, order)
    start = _place(content, rng)
    return content[:start] + number + content[start + width :]


def cut(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Cut the end off."""
    return content[: rng.randint(0, len(content))]


def delete(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Delete a part."""
    start, stop = _span(content, rng)
    return content[:start] + content[stop:]


def repeat(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Repeat a part."""
    start, stop = _span(content, rng)
    return content[:stop] + content[start:stop] * rng.choice((1, 2, 10, 100)) + content[stop:]


def insert(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Insert random bytes."""
    start = _place(content, rng)
    return content[:start] + rng.randbytes(rng.choice((1, 2, 4, 16, 300))) + content[start:]


def fill(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Overwrite a part by zeros, by 255, or by spaces."""
    start, stop = _span(content, rng)
    return content[:start] + rng.choice((b"\0", b"\xff", b" ")) * (stop - start) + content[stop:]


def splice(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Put the end of another file after the beginning of this one, or a part of it in between."""
    other = rng.choice(others) if others else content
    start, first = _place(content, rng), _place(other, rng)
    if rng.random() < 0.5:
        return content[:start] + other[first:]
    return content[:start] + other[first : first + rng.randint(0, 512)] + content[start:]


def swap(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Swap two parts."""
    (a, b), (c, d) = sorted((_span(content, rng), _span(content, rng)))
    return content if b > c else content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


CHANGES: tuple[Callable[[bytes, random.Random, Sequence[bytes]], bytes], ...] = (
    *(flip_bits, set_bytes, set_number, cut, delete, repeat, insert, fill, splice, swap),
)

DEEP = "a deep list"  # replaced in the text of JSON by 100,000 brackets
ODD_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        -0.5,
        3,
        7,
        10**6,
        2**31,
        2**53,
        2**63,
        10**30,
        -(10**30),
        1e308,
        float("nan"),
    ),
    *(
        float("inf"),
        "",
        " ",
        "x",
        "0",
        "1e9",
        "null",
        "x" * 5000,
        "a\0b",
        "a\nb\tc",
        "\ud800",
        "\udcff",
        "\u202e\u2028",
    ),
    *("../../../../etc/passwd", "/etc/passwd", ".", "..", "/", "//x/y", "C:\\x", "file:///etc/passwd", "~", "$HOME"),
    *("http://127.0.0.1:9/x.png", "data:image/png;base64,AAAA", "<script>alert(1)</script>", "{{ 7 * 7 }}", "%s%n"),
    *([], {}, [None], [[]], [{}], {"": None}, {"a": {"b": []}}, ["x"] * 1000, [0] * 1000, DEEP),
)


def mutated_json(value: Any, rng: random.Random) -> tuple[str, str]:
    """Change the values of JSON in one or several places.

    Returns:
        The text, which may be no JSON any more, and where it was changed.
    """
    value, places = copy.deepcopy(value), []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value, place = _changed(value, rng)
        places.append(place)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text.replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000), "; ".join(places)


def _changed(value: Any, rng: random.Random, place: str = "") -> tuple[Any, str]:
    """Change a value, or one inside it."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = f"{place}.{key}"[:80]
        kind = rng.random()
        if kind < 0.12:
            value.pop(key)
            return value, f"{inner} removed"
        if kind < 0.2 and isinstance(value, dict):
            value[rng.choice(("", "a", key + "x", "\ud800", "__class__", "auto_map"))] = value.pop(key)
            return value, f"{inner} renamed"
        if kind < 0.26 and isinstance(value, list):
            value += [copy.deepcopy(value[key])] * rng.choice((1, 2, 50))
            return value, f"{inner} repeated"
        value[key], where = _changed(value[key], rng, inner)
        return value, where
    if isinstance(value, (int, float)) and rng.random() < 0.3:
        return rng.choice((value + 1, value - 1, -value, value * 1000, str(value), [value], float(value) + 0.5)), place
    if isinstance(value, str) and value and rng.random() < 0.3:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "\n", '"', ",", "\t", "\0", "\ud800", value, "\\", "/../")) + value[
            at:
        ], place
    chosen = rng.choice(ODD_VALUES)
    return copy.deepcopy(chosen), f"{place} = {chosen!r:.30}"

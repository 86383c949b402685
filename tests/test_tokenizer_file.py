"""Replacements of tokenizers: those of known ones pass, those that make a short text very long do not."""

import json

import pytest

from hf_captioners.tokenizer_file import require_limited_growth


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


@pytest.mark.parametrize(
    "rules",
    [
        None,
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")]},
        {"type": "Sequence", "normalizers": [replace("``", '"'), replace("''", '"'), replace(" {2,}", " ", "Regex")]},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
)
def test_rules_of_known_tokenizers(tmp_path, rules):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"normalizer": rules, "decoder": rules}))
    require_limited_growth(path)


@pytest.mark.parametrize(
    "rules",
    [
        [replace("a", "aa")] * 40,
        [replace("a", "a" * 101)],
        [replace(".", "ab" * 51, "Regex")],
        [replace("", "a" * 10)] * 2,
        [{"type": "Prepend", "prepend": "a" * 1000}],
        [{"type": "Sequence", "normalizers": [replace("a", "aaa")] * 3}, replace("a", "a" * 10)],
    ],
)
@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
def test_rules_that_make_a_text_very_long(tmp_path, part, rules):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({part: {"type": "Sequence", "rules": rules}}))
    with pytest.raises(ValueError, match=rf"tokenizer\.json .* its `{part}` make a text more than 100 times as long"):
        require_limited_growth(path)


@pytest.mark.parametrize("content", [None, b"", b"[1]", b"null", b"[" * 100_000, b"\xff"])
def test_a_damaged_file_is_left_to_the_library(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    require_limited_growth(tmp_path / "tokenizer.json")

"""Damaged recipes are refused with their file."""

import pytest

from hf_captioners.reproduce.recipe import Recipe

DAMAGES = {
    "not UTF-8": b"dataset: \xff\n",
    "no YAML": b"a: [1\n",
    "deep": b"a: " + b"[" * 5000 + b"]" * 5000,
    "no date": b"a: 2020-77-77\n",
    "a list": b"[1]\n",
    "empty": b"",
    "an object of Python": b"!!python/object/apply:os.system ['touch executed']\n",
    "zero bytes": b"a: \x00\n",
    "an alias within itself": b"a: &a {b: *a}\n",
    "a list within itself": b"model_config: &a [*a]\n",
    "a merged mapping within itself": b"model_config: &a {<<: *a}\n",
    "repeated mappings": b"a0: &a0 {x: 1}\n"
    + b"".join(b"a%d: &a%d {<<: [*a%d, *a%d]}\n" % (n, n, n - 1, n - 1) for n in range(1, 40)),
    "repeated lists": b"model_config: &a0 [x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 30)),
    "a regime of lists": b"reproduces: {paper: p, table: 1, row: r, regimes: {x: {arguments: [1]}}}\n",
    "no rows": b"rows: {}\n",
    "rows of numbers": b"rows: {1: 2}\n",
    "a row within itself": b"rows: &a {b: *a}\n",
    "a list of rows": b"rows: [{seed: 1}]\n",
    "names that are numbers": b"model_config: {1: 2}\n1: 2\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_recipes(damage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_bytes(DAMAGES[damage])
    with pytest.raises(ValueError, match=str(path)):
        Recipe.load(path)
    assert not (tmp_path / "executed").exists()

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
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_recipes(damage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_bytes(DAMAGES[damage])
    with pytest.raises(ValueError, match=str(path)):
        Recipe.load(path)
    assert not (tmp_path / "executed").exists()

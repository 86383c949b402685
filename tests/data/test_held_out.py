"""The names of held-out images are stored in a captioner's folder."""

import pytest
from datasets import Dataset

from hf_captioners.data.held_out import FILE, HeldOut


def test_stored_and_found_again(tmp_path):
    HeldOut(["b.jpg", "d.jpg"], seed=3).save(tmp_path)
    found = HeldOut.load(tmp_path)
    assert (list(found.image_ids), found.seed) == (["b.jpg", "d.jpg"], 3)
    rows = Dataset.from_dict({"image_id": ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]})
    assert found.of(rows)["image_id"][:] == ["b.jpg", "d.jpg"]
    with pytest.raises(ValueError, match="1 of 2 held-out images are not in this data set, first 'd.jpg'"):
        found.of(rows.select([0, 1]))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "[" * 100_000, '{"seed": 1}', '{"image_ids": 3, "seed": 1}', '{"image_ids": [3], "seed": 1}'],
    ids=["empty", "list", "deep", "no names", "number", "numbers"],
)
def test_damaged_files(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ValueError, match=f"{FILE} is damaged"):
        HeldOut.load(tmp_path)


def test_nothing_was_held_out(tmp_path):
    with pytest.raises(FileNotFoundError, match="held out no images"):
        HeldOut.load(tmp_path)

"""The names of held-out images are stored in a captioner's folder."""

import pytest
from datasets import Dataset

from hf_captioners.data.held_out import FILE, HeldOut
from hf_captioners.output_files import UnsafeFileError


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


def test_links_are_read_inside_of_the_folder_only(tmp_path):
    """And nothing is written through them."""
    folder, outside = tmp_path / "captioner", tmp_path / "elsewhere.json"
    folder.mkdir()
    HeldOut(["a.jpg"], seed=3).save(folder)
    (folder / FILE).rename(outside)
    (folder / FILE).symlink_to(outside)
    with pytest.raises(UnsafeFileError, match=f"{FILE} is not read: it leads to .*elsewhere.json"):
        HeldOut.load(folder)
    assert HeldOut.load(folder, follow_links=True).image_ids == ["a.jpg"]
    before = outside.read_text()
    with pytest.raises(UnsafeFileError, match=f"{FILE} is not written"):
        HeldOut(["b.jpg"], seed=4).save(folder)
    assert outside.read_text() == before and (folder / FILE).is_symlink()
    (folder / FILE).unlink()
    (folder / FILE).symlink_to("/dev/zero")
    with pytest.raises(UnsafeFileError, match="is a device"):
        HeldOut.load(folder, follow_links=True)

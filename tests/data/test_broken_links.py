"""Links that lead nowhere in a folder of images: named as missing images, and no fault of the whole data set."""

import json

from PIL import Image

from hf_captioners.data import DataReport, load_captions


def test_broken_links_and_loops_are_missing_images(tmp_path):
    """Images of git-annex that are not fetched are such links."""
    rows = [{"file_name": name, "captions": ["x"]} for name in ("a.png", "annexed.png", "loop.png")]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "annexed.png").symlink_to(".git/annex/objects/none.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    report = DataReport()
    loaded = load_captions("caption_folder", data_dir=str(tmp_path), split="train", report=report)
    assert loaded["image_id"][:] == ["a.png"]
    assert [(problem.kind, problem.line) for problem in report.problems] == [
        ("missing image", 2),
        ("missing image", 3),
    ]

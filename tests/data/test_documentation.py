"""The code of the pages on data runs, block after block, as a reader would run it."""

import json
import re
from pathlib import Path

import datasets

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("data.md", "published_data.md", "region_features.md")


def prepare(folder, image):
    """Make what the page assumes to be there."""
    for split in ("train", "validation"):
        image(folder / "my_images" / split / "001.jpg")
        line = {"file_name": "001.jpg", "captions": ["A dog runs on the beach.", "A wet dog."]}
        (folder / "my_images" / split / "metadata.jsonl").write_text(json.dumps(line) + "\n")
    entries = [
        {
            "filename": f"COCO_val2014_{number:012d}.jpg",
            "filepath": "val2014",
            "cocoid": number,
            "split": split,
            "sentences": [{"raw": "A dog.", "sentid": number, "tokens": ["a", "dog"]}],
        }
        for number, split in enumerate(("train", "restval", "val", "test"))
    ]
    (folder / "coco").mkdir()
    (folder / "coco" / "dataset_coco.json").write_text(json.dumps({"images": entries}))
    (folder / "cc").mkdir()
    (folder / "cc" / "Validation_GCC-1.1.0-Validation.tsv").write_text("a dog\thttp://127.0.0.1:9/dog.jpg\n")
    photos = {"photo": [str(folder / "my_images" / "train" / "001.jpg")], "alt": ["A dog."]}
    made = datasets.Dataset.from_dict(photos).cast_column("photo", datasets.Image())
    made.to_parquet(folder / "shards" / "train-0.parquet")


def test_every_block_runs(tmp_path, image, monkeypatch, capsys):
    prepare(tmp_path, image)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 9
    names = {}
    for block in blocks:
        exec(compile(block, "data.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "['A dog runs on the beach.', 'A wet dog.']" in printed and "001.jpg (24, 16)" in printed
    assert "{'train': 2, 'validation': 1, 'test': 1}" in printed
    assert "0 of 1 images are here (0.0%); 1 x no connection" in printed
    assert "(16, 3)" in printed and len(names["labelled"]) == 100 and len(names["texts"]) == 500
    assert "[['Ein Hund läuft über die Straße.'], ['Zwei Mädchen.']]" in printed
    assert len(names["small"]) == 1 and next(iter(names["shards"]["train"]))["captions"] == ["A dog."]
    assert names["batch"]["region_features"].shape == (8, 16, 3)

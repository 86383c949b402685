"""Images that cannot be read are named and left out of training and evaluation, which go on."""

import json
import shutil

import pytest
from datasets import Dataset, Features, Image, Value
from PIL import Image as PILImage

from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.data.readable import load_readable, unusable_images
from hf_captioners.data.report import DataReport

QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --captions_per_image 1"


@pytest.fixture
def damaged(images, tmp_path):
    """A folder of four images, one of which is cut off, one empty, and one not there."""
    folder = tmp_path / "data" / "test"
    shutil.copytree(images, folder)
    lines = (folder / "metadata.jsonl").read_text().splitlines()[:4]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    content = (folder / "scene_001.png").read_bytes()
    (folder / "scene_001.png").write_bytes(content[: len(content) // 2])
    (folder / "scene_002.png").write_bytes(b"")
    (folder / "scene_003.png").unlink()
    shutil.copytree(folder, tmp_path / "data" / "train")
    return tmp_path / "data"


def require_named(printed, folder):
    for line, name in ((2, "scene_001.png"), (3, "scene_002.png"), (4, "scene_003.png")):
        shown = [text for text in printed.splitlines() if text.startswith("left out") and name in text]
        assert any(f"{folder}/metadata.jsonl:{line}: " in text for text in shown), (name, printed)


def test_evaluation_goes_on(damaged, captioner, capsys):
    arguments = ["evaluate", captioner, str(damaged), "--max_new_tokens", "3", "--format", "json"]
    for more, status in (([], 0), (["--strict"], 1)):
        with pytest.warns(UserWarning, match="single image"):
            assert main([*arguments, *more]) == status
        printed = capsys.readouterr()
        assert json.loads(printed.out)["images"] == 1
        require_named(printed.err, damaged / "test")
        assert "6 row(s) were left out" in printed.err, "of both splits"


def test_training_goes_on(damaged, images, captioner, tmp_path, capsys):
    arguments = [
        "train",
        "--model",
        captioner,
        "--recipe",
        "none",
        "--output_dir",
        str(tmp_path / "run"),
        *QUICK.split(),
    ]
    arguments += ["--max_steps", "1", "--train_dir", str(damaged), "--validation_dir", str(images), "--resume"]
    for more, status in (([], 0), (["--strict"], 1)):
        assert main([*arguments, *more]) == status
        printed = capsys.readouterr()
        require_named(printed.err, damaged / "train")
        assert "6 row(s) were left out" in printed.err and (tmp_path / "run" / "model.safetensors").is_file()


def test_images_of_any_source_of_data_sets_are_checked(tmp_path):
    good = tmp_path / "good.png"
    PILImage.new("RGB", (8, 8)).save(good)
    rows = {"image": [{"bytes": good.read_bytes(), "path": None}, {"bytes": b"no image", "path": "b.png"}]}
    features = Features({"image": {"bytes": Value("binary"), "path": Value("string")}, "caption": Value("string")})
    stored = Dataset.from_dict(rows | {"caption": ["a", "b"]}, features=features).cast_column("image", Image())
    stored.to_parquet(tmp_path / "train.parquet")
    options = {"path": "parquet", "data_files": str(tmp_path / "train.parquet")}
    options |= {"image_column": "image", "caption_columns": ["caption"]}
    report = DataReport()
    splits = load_readable("by_columns", None, report=report, cache_dir=tmp_path / "cache", **options)
    assert splits["train"]["captions"] == [["a"]] and splits["train"][0]["image"].size == (8, 8)
    (problem,) = unusable_images(report)
    assert (problem.file, problem.line) == (
        "parquet/train",
        2,
    ) and "b.png of the row 'train-000000001'" in problem.message
    assert len(load_captions("by_columns", split="train", cache_dir=tmp_path / "cache", **options)) == 2

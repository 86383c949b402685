"""Creation of files that all later versions must be able to read: `python -m tests.frozen.make_frozen`.

They lie in `tests/frozen/VERSION`: an export, feature stores, and a training that was ended in its middle. Never
replace existing ones. Checkpoints of every architecture are in `tests/hub/frozen`.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import PIL.Image
from safetensors.numpy import save_file

from hf_captioners import __version__
from hf_captioners.cli import main
from hf_captioners.features.feature_store import StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.region_source import Regions
from hf_captioners.onnx import OnnxCaptioner

FOLDER = Path(__file__).parent
CAPTIONER = FOLDER.parent / "hub" / "frozen" / "show_attend_tell"
OPTIONS = {"num_beams": 3, "max_new_tokens": 6, "return_scores": True}
KINDS = ("float32", "float16", "int8")
STEPS = 4
# Typed in a folder with `captioner`, `images` and `run`.
TRAIN = ["train", "--model", "captioner", "--train_dir", "images", "--output_dir", "run", "--use_cpu", "--seed", "7"]
TRAIN += ["--recipe", "none", "--max_steps", str(STEPS), "--logging_steps", "1", "--per_device_train_batch_size", "4"]
TRAIN += ["--save_strategy", "steps", "--save_steps", "2", "--eval_strategy", "steps", "--eval_steps", "2"]
TRAIN += ["--generation_num_beams", "1", "--generation_max_new_tokens", "4", "--cache_features", "false"]


def draw_images(folder: Path) -> None:
    """Save six random noise images with captions in two splits."""
    folder.mkdir()
    random = np.random.default_rng(0)
    with (folder / "metadata.jsonl").open("w") as file:
        for number in range(6):
            pixels = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            PIL.Image.fromarray(pixels).save(folder / f"{number}.png")
            split = "train" if number < 4 else "validation"
            captions = ["a dog runs on the grass", "a red car in the street"]
            file.write(json.dumps({"file_name": f"{number}.png", "split": split, "captions": captions}) + "\n")


def losses_of(run: Path) -> list[float]:
    """Return the losses of a run's steps."""
    log = json.loads((run / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in log if "loss" in entry]


def make_export(folder: Path, images: Path) -> None:
    """Export a captioner, and save its captions of the images."""
    if main(["export", str(CAPTIONER), "--output_dir", str(folder)]):
        raise RuntimeError("The export failed.")
    for path in (*folder.glob("*.py"), folder / "README.md"):  # the code is the package's own here
        path.unlink()
    captions = OnnxCaptioner(folder)([str(path) for path in sorted(images.glob("*.png"))], **OPTIONS)
    (folder / "expected.json").write_text(json.dumps(captions, indent=1))


def make_feature_store(folder: Path) -> None:
    """Write regions of five images in every number format, and the values read back."""
    random = np.random.default_rng(1)
    for kind in KINDS:
        expected = {}
        with FeatureStoreWriter(folder / kind, StoreDescription("resnet/layer4", "r1", 16, kind)) as writer:
            for number in range(5):
                boxes = np.sort(random.random((number + 1, 2, 2), dtype=np.float32), axis=1).reshape(-1, 4)
                features = random.normal(size=(number + 1, 16)).astype(np.float32)
                writer.add(f"image {number}", Regions(features, boxes))
                expected |= {f"{number}.features": features, f"{number}.boxes": boxes}
        save_file(expected, folder / f"{kind}.safetensors")


def make_run(folder: Path) -> None:
    """Train; keep a checkpoint from the middle, the data record and all losses.

    `folder` has the folder `images`.
    """
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(CAPTIONER, Path(work, "captioner"))
        shutil.copytree(folder / "images", Path(work, "images"))
        here = Path.cwd()
        os.chdir(work)  # a run keeps the paths that were typed
        try:
            status = main(TRAIN)
        finally:
            os.chdir(here)
        if status:
            raise RuntimeError("The training failed.")
        run = Path(work, "run")
        unneeded = shutil.ignore_patterns("*.py", "*.jpg", "README.md")
        shutil.copytree(run / f"checkpoint-{STEPS // 2}", folder / f"checkpoint-{STEPS // 2}", ignore=unneeded)
        for name in ("training_data.json", "training_images.json"):
            shutil.copy(run / name, folder / name)
        (folder / "expected.json").write_text(json.dumps({"losses": losses_of(run)}, indent=1))


def make(folder: Path) -> None:
    """Create all files in a new folder."""
    folder.mkdir()
    (folder / "run").mkdir()
    draw_images(folder / "run" / "images")
    make_export(folder / "export", folder / "run" / "images")
    make_feature_store(folder / "feature_store")
    make_run(folder / "run")


if __name__ == "__main__":
    target = FOLDER / __version__
    if target.exists():
        sys.exit(f"{target} is frozen.")
    make(target)

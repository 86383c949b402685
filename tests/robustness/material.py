"""Data for the attacks: small images, data sets, models and captioners, made once per folder."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import torch

from hf_captioners.captioning.batches import load_pipeline
from tests.cli.dataset_folders import MAKERS, make_folder
from tests.cli.tiny_parts import draw_scenes, write_captioner, write_images, write_language_model, write_vision_model

from .isolated import write_stand_ins

SCENES = 6


class Material:
    """Intact files that attacks damage.

    Args:
        root: an empty folder, or one that a `Material` has filled.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stand_ins = root / "programs" / "bin"
        made = root / "made"
        torch.set_num_threads(1)  # threads do not survive a fork
        if not (root / "complete").exists():
            made.mkdir(parents=True)
            write_stand_ins(self.stand_ins)
            scenes = draw_scenes(made / "cache")
            for name in ("images", "language_model", "vision_model", "captioner"):
                (made / name).mkdir()
            write_images(made / "images", scenes)
            write_language_model(made / "language_model", scenes)
            write_vision_model(made / "vision_model")
            write_captioner(made / "captioner", str(made / "language_model"), str(made / "vision_model"))
            rows = [scenes[number] for number in range(SCENES)]
            (root / "datasets").mkdir()
            for name in MAKERS:
                if name != "scenes":
                    make_folder(name, root / "datasets" / name, rows)
            (root / "complete").touch()
        self.images = made / "images"
        self.captioner = str(made / "captioner")
        self.vision_model = str(made / "vision_model")
        self.language_model = str(made / "language_model")
        self.kept: dict[str, Any] = {}  # what attacks computed once

    @cached_property
    def pipeline(self) -> Any:
        """The pipeline of the captioner."""
        return load_pipeline(self.captioner, device="cpu")


def load_libraries() -> None:
    """Import the libraries in advance for forked processes."""
    import h5py  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import hf_captioners.cli.caption
    import hf_captioners.cli.convert
    import hf_captioners.cli.download_images
    import hf_captioners.cli.extract_features
    import hf_captioners.cli.train
    import hf_captioners.reproduce.recipe
    import hf_captioners.training.running
    import hf_captioners.training.scst.trainer  # noqa: F401

    datasets.disable_progress_bars()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

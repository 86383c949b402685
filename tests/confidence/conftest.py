"""Fixtures: hand-made calibrations, a calibrated captioner, and a captioner with known errors."""

import hashlib
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hf_captioners.confidence.calibration import Calibration
from hf_captioners.confidence.digests import captioner_digest
from hf_captioners.confidence.estimator import KINDS, Estimator, Logistic, WordRates
from hf_captioners.data.scene_world import COLOURS, SHAPES
from hf_captioners.data.scenes import OBJECT_LABELS
from tests.cli.conftest import captioner, images, language_model, offline, scenes, vision_model  # noqa: F401
from tests.hub.captioner_cases import save_captioner

EFFECTS = {"token": 0.4, "caption": 0.2, "word": 0.5, "beams": 1.5, "weighted_beams": 0.5, "samples": 0.7}


def calibration_of(folder: Path, num_beams: int = 3, samples: int = 4, kinds=tuple(KINDS)) -> Calibration:
    """Return a calibration with made-up weights, different for each kind of evidence."""
    estimators = {}
    for number, kind in enumerate(kinds):
        count = len(KINDS[kind])
        effects = np.array([0.1 * number, *(EFFECTS[name] for name in KINDS[kind])])
        words = Logistic(np.zeros(count), np.ones(count), effects)
        shape = Logistic(np.zeros(2), np.ones(2), np.array([0.0, 0.8, 0.9]))
        estimators[kind] = Estimator(kind, words, shape, Logistic(np.zeros(1), np.ones(1), np.array([0.2, 0.9])))
    rates = WordRates({"red": (10, 8), "circl": (6, 2)}, 0.5)
    return Calibration(captioner_digest(folder), estimators, rates, num_beams, samples, {"name": "drawn"}, {})


@pytest.fixture(scope="session")
def calibrated(once_a_run) -> str:
    """Folder of a tiny word-level captioner with a calibration for three beams."""

    def fill(folder: Path) -> None:
        save_captioner("transformer", folder)
        calibration_of(folder).save(folder)

    return str(once_a_run("calibrated_captioner", fill))


class DrawnCaptioner:
    """Captions scenes by colour and shape, with errors that its probabilities do not reveal.

    An image has a difficulty; a word is right with the probability 1 - difficulty, and the captioner gives it one
    whose log-odds are three times as large. Hypotheses and samples draw words anew.

    Args:
        folder: a directory with weights, to which a calibration is bound.
        rows: scenes, see `load_captions("scenes")`.
    """

    def __init__(self, folder: str, rows) -> None:
        self.model = SimpleNamespace(
            name_or_path=folder,
            generation_config=SimpleNamespace(num_beams=3, do_sample=False, num_return_sequences=1),
        )
        self.labels = {row["image"].tobytes(): OBJECT_LABELS[row["objects"][0]["label"]].split() for row in rows}

    def prepare(self, image, **options):
        """Return the pixels, by which the scene is recognised."""
        return {"pixels": image.tobytes()}

    def caption_prepared(self, items, num_return_sequences=1, do_sample=False, **options):
        """Return records of each image."""
        return [
            [self._record(item["pixels"], (do_sample, place)) for place in range(num_return_sequences)]
            for item in items
        ]

    def _record(self, pixels, place):
        draw = random.Random(str((hash_of(pixels), place)))
        difficulty = random.Random(hash_of(pixels)).uniform(0.02, 0.9)
        words, scores = ["a"], [-0.1]
        for truth, others in zip(self.labels[pixels], (COLOURS, SHAPES), strict=True):
            is_right = draw.random() > difficulty
            words.append(truth if is_right else draw.choice([one for one in others if one != truth]))
            odds = 3 * np.log((1 - difficulty) / difficulty)
            scores.append(float(-np.log1p(np.exp(-odds))))
        return {
            "generated_text": " ".join(words),
            "tokens": [*words, "</s>"],
            "token_scores": [*scores, -0.1],
            "score": sum(scores) - 0.1,
        }


def hash_of(pixels: bytes) -> int:
    """Return a number for an image, the same in every process."""
    return int.from_bytes(hashlib.sha256(pixels).digest()[:8], "little")


@pytest.fixture(scope="session")
def many_scenes(run_folder):
    """600 drawn images with five captions each."""
    from hf_captioners.data import load_captions

    options = {"num_images": {"train": 600}, "image_size": 32, "cache_dir": run_folder / "many_scenes"}
    return load_captions("scenes", split="train", **options)

"""`examples/train_detector.py`: a detector whose regions a captioner reads."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hf_captioners import load_captions
from hf_captioners.loading import load_vision_part

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


@pytest.fixture
def example(monkeypatch):
    """The example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_detector

    return train_detector


def test_a_detector_is_trained_and_measured(example, monkeypatch, tmp_path):
    typed = [
        "--output_dir",
        tmp_path,
        "--num_images",
        16,
        "--num_test_images",
        6,
        "--image_size",
        64,
        "--max_steps",
        2,
    ]
    monkeypatch.setattr(sys, "argv", ["train_detector.py", *map(str, typed), "--max_steps", "2"])
    example.main()
    figures = json.loads((tmp_path / "detection.json").read_text())
    assert 0 <= figures["map_50_95"] <= figures["map_50"] < 1 and figures["steps"] == 2
    detector, image_processor = load_vision_part(str(tmp_path))
    backbone, _ = load_vision_part(str(tmp_path / "backbone"))
    assert detector.config.model_type == "rt_detr" and backbone.config.model_type == "resnet"
    own = detector.model.backbone.model.state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in backbone.state_dict().items())
    assert image_processor.size["height"] == image_processor.size["width"] == 64


@pytest.mark.parametrize(("shift", "expected"), [(0, 1.0), (1, 0.0)])
def test_the_measure_knows_right_from_wrong(example, shift, expected):
    """Detections that are the truth have a precision of 1, and of 0 under other labels."""
    rows = load_captions("scenes", split="test", num_images={"test": 8}, image_size=64)
    labels = rows.features["objects"].feature["label"].names

    class Truth:
        """Stands for an image processor whose detections are the objects that were drawn."""

        def __call__(self, images, return_tensors=None):
            return {"pixel_values": torch.zeros(len(images), 3, 64, 64)}

        def post_process_object_detection(self, outputs, threshold, target_sizes):
            return [
                {
                    "labels": torch.tensor([(one["label"] + shift) % len(labels) for one in row["objects"]]),
                    "scores": torch.ones(len(row["objects"])),
                    "boxes": 64 * torch.tensor([one["box"] for one in row["objects"]]),
                }
                for row in rows
            ]

    model = torch.nn.Identity()
    model.config = SimpleNamespace(id2label=dict(enumerate(labels)))
    figures = example.average_precision(model, Truth(), rows)
    assert figures["map_50"] == pytest.approx(expected, abs=1e-6)

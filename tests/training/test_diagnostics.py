"""Diagnostics of evaluations: statistics of captions, gates, and images in logging tools."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from hf_captioners.training import CaptioningTrainingArguments
from hf_captioners.training.health import visual_gate_means


class Board(TrainerCallback):
    """Callback with a writer in an attribute, as that of TensorBoard in transformers."""

    def __init__(self):
        self.tb_writer, self.images, self.texts = self, [], []

    def add_image(self, tag, pixels, step, dataformats):
        self.images.append((tag, pixels.shape, step, dataformats))

    def add_text(self, tag, text, step):
        self.texts.append((tag, text, step))


class Tool:
    """Module that makes and logs images, as wandb and trackio do."""

    def __init__(self):
        self.logged = []

    @staticmethod
    def Image(image, caption):  # noqa: N802
        return (image.size, caption)

    def log(self, values):
        self.logged.append(values)


class Weights(TrainerCallback):
    def __init__(self):
        self._wandb = Tool()


def test_statistics_of_captions_are_logged(make_trainer):
    metrics = make_trainer().evaluate()
    assert 0 < metrics["eval_distinct"] <= 1
    assert 0 <= metrics["eval_bad_endings"] <= 1
    assert metrics["eval_length_ratio"] == pytest.approx(metrics["eval_length"] / 11, rel=0.5)
    assert not any("visual_gate" in name for name in metrics)


def test_examples_are_logged_with_their_gates(make_trainer, scenes):
    board, weights = Board(), Weights()
    metrics = make_trainer(callbacks=[board, weights], diagnostic_examples=2).evaluate()
    gates = [metrics[f"eval_visual_gate_{layer}"] for layer in range(2)]
    assert all(0 < gate < 1 for gate in gates)
    assert "eval_visual_gate_2" not in metrics
    assert board.images == [(f"evaluation/examples/{number}", (32, 32, 3), 0, "HWC") for number in range(2)]
    references = [captions[0] for captions in scenes["validation"]["captions"][:2]]
    assert all(reference in text for (_, text, _), reference in zip(board.texts, references, strict=True))
    (logged,) = weights._wandb.logged
    # trackio leaves out lists of images.
    assert [logged[f"evaluation/examples/{number}"][0] for number in range(2)] == [(32, 32), (32, 32)]


def test_stored_regions_have_gates_and_no_images_to_show(make_captioner, make_trainer, scenes):
    """There is nothing to draw, but the gates of the captions are measured."""

    generator = np.random.default_rng(0)
    rows = {
        name: Dataset.from_dict(
            {
                "captions": part["captions"],
                "regions": [{"features": generator.random((2, 3), np.float32)} for _ in range(len(part))],
            }
        )
        for name, part in scenes.items()
    }
    board = Board()
    model = make_captioner(vision_model=None, region_feature_size=3)
    options = {"train_rows": rows["train"], "eval_rows": rows["validation"], "diagnostic_examples": 2}
    metrics = make_trainer(model, callbacks=[board], **options).evaluate()
    assert board.images == board.texts == []
    assert all(0 < metrics[f"eval_visual_gate_{layer}"] < 1 for layer in range(2))


def test_only_visual_gates_are_measured():
    """Gates of other meanings and shapes, such as pooled intensities `[B * K, 2, H, T]`, are passed over."""
    real = torch.tensor([[True, True, False]])
    scored, other = SimpleNamespace(has_visual_scores=True), SimpleNamespace(has_visual_scores=False)
    gate = torch.tensor([[[0.2], [0.4], [1.0]]])
    assert visual_gate_means(scored, SimpleNamespace(gates=(gate,)), real) == pytest.approx([0.3])
    named = SimpleNamespace(gates=(SimpleNamespace(visual=gate),))
    assert visual_gate_means(other, named, real) == pytest.approx([0.3])
    assert visual_gate_means(other, SimpleNamespace(gates=(torch.ones(1, 2, 8, 3),)), real) == []
    assert visual_gate_means(other, SimpleNamespace(gates=None), real) == []


def test_a_negative_number_of_examples_is_refused(tmp_path):
    with pytest.raises(ValueError, match="diagnostic_examples"):
        CaptioningTrainingArguments(str(tmp_path), diagnostic_examples=-1)

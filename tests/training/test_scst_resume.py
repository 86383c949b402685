"""Cross-entropy and self-critical training in one run, which may be killed at any step."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.training import evaluation_loop, last_scst_checkpoint
from hf_captioners.training.scst.start import save_start
from tests.comparisons import assert_trained_alike

from .scst_settings import log_of, scst_trainer, share_of_o


class Kill(TrainerCallback):
    """End the run by an error at a step of one of its parts."""

    def __init__(self, part, step):
        self.part, self.step = part, step

    def on_step_end(self, args, state, control, **kwargs):
        part = "cross_entropy" if args.output_dir.endswith("cross_entropy") else "scst"
        if (part, state.global_step) == (self.part, self.step):
            raise KeyboardInterrupt


@pytest.fixture
def figures(monkeypatch):
    """Values of the next evaluations; 0 when none is left."""
    coming = []
    monkeypatch.setattr(evaluation_loop, "score_captions", lambda *_: {"cider_d": coming.pop(0) if coming else 0.0})
    return coming


@pytest.fixture
def make_trainer(make_captioner, processor, scenes, tmp_path):
    def make(output_dir="run", seed=0, **options):
        fields = {"captions_per_image": 1, "cross_entropy_batch_size": 6, "cross_entropy_learning_rate": 1e-3}
        return scst_trainer(
            make_captioner(seed), processor, scenes, tmp_path / output_dir, [share_of_o], **(fields | options)
        )

    return make


def weights_equal(first, second):
    return all(torch.equal(weight, second.state_dict()[name]) for name, weight in first.state_dict().items())


@pytest.mark.parametrize(
    ("part", "step", "found"),
    [
        pytest.param("cross_entropy", 3, "cross_entropy/checkpoint-2", marks=pytest.mark.slow),
        pytest.param("scst", 1, "start", marks=pytest.mark.slow),
        ("scst", 5, "checkpoint-4"),
    ],
    ids=["in cross-entropy", "before the first checkpoint", "later"],
)
def test_same_curve_and_weights_after_a_kill(make_trainer, figures, tmp_path, part, step, found):
    """2 epochs of 2 steps with cross-entropy, then 2 of 3 with rewards; a moving average, dropout, a divergence."""
    fields = {"scst_after_epochs": 2, "baseline": "moving_average", "kl_weight": 0.01, "sample_with_dropout": True}
    fields |= {"train_sampling_strategy": "group_by_length"}  # of the cross-entropy part
    fields |= {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    fields |= {"early_stopping_patience": None, "load_best_model_at_end": False}
    whole = make_trainer("whole", **fields)
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        make_trainer("killed", callbacks=[Kill(part, step)], **fields).train()
    checkpoint = last_scst_checkpoint(tmp_path / "killed")
    assert checkpoint == str(tmp_path / "killed" / found)
    resumed = make_trainer("killed", seed=5, **fields)
    resumed.train(resume_from_checkpoint=checkpoint)
    for name in ("loss", "reward", "baseline", "kl"):
        assert log_of(resumed, name) == pytest.approx(log_of(whole, name), abs=1e-5), name
    assert len(log_of(resumed, "loss")) == 6 and len(log_of(resumed, "eval_cider_d")) == 4
    assert_trained_alike(resumed.model, whole.model)


def test_patience_switches_to_self_critical_training_of_the_best_model(make_trainer, figures, tmp_path):
    """The second of four evaluations is the best one; two later self-critical training starts from it."""
    figures += [0.1, 0.3, 0.2, 0.2]
    trainer = make_trainer(scst_after_patience=2, num_train_epochs=1)
    trainer.train()
    log = json.loads(Path(tmp_path, "run/cross_entropy/trainer_state.json").read_text())
    assert log["epoch"] == 4 and log["best_global_step"] == 4
    assert log_of(trainer, "learning_rate") == [1e-3] * 3
    start = Path(tmp_path, "run/start/model.safetensors").read_bytes()
    assert start == Path(log["best_model_checkpoint"], "model.safetensors").read_bytes()


def test_the_start_stays_the_best_model_while_nothing_is_better(make_trainer, figures):
    figures += [0.5, 0.4, 0.3]
    trainer = make_trainer()
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.train()
    assert trainer.state.best_metric == 0.5
    trainer.save_model()
    facts = TrainingFacts.load(Path(trainer.args.output_dir))
    assert facts.saved_step == 0 and [one.figures["cider_d"] for one in facts.evaluations] == [0.5]
    assert re.findall(r"\| \*\*(\d)\*\* \|", Path(trainer.args.output_dir, "README.md").read_text()) == ["0"]
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.model.state_dict().items())
    figures += [0.5, 0.6, 0.3]
    trainer = make_trainer("other")
    trainer.train()
    assert trainer.state.best_metric == 0.6 and trainer.state.best_model_checkpoint.endswith("checkpoint-3")
    assert not weights_equal(trainer.model, make_trainer("third").model)


def test_patience_counts_from_the_start(make_trainer, figures):
    figures += [0.5, 0.4, 0.4, 0.4, 0.4]
    trainer = make_trainer(num_train_epochs=9, early_stopping_patience=2)
    trainer.train()
    assert trainer.state.epoch == 2


def test_checkpoints_of_others_are_refused(make_trainer, make_captioner, processor, scenes, figures, tmp_path):
    trainer = make_trainer("first", scst_after_epochs=1, num_train_epochs=1)
    trainer.train()
    foreign = tmp_path / "second" / "checkpoint-2"
    shutil.copytree(tmp_path / "first" / "cross_entropy" / "checkpoint-2", foreign)
    with pytest.raises(ValueError, match=r"not of self-critical training.*`model`"):
        make_trainer("second").train(resume_from_checkpoint=str(foreign))
    with pytest.raises(ValueError, match="Set `scst_after_epochs`"):
        make_trainer("first").train(str(tmp_path / "first" / "cross_entropy" / "checkpoint-2"))
    config = tmp_path / "first" / "checkpoint-3" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "blip"}))
    with pytest.raises(ValueError, match="a 'blip', and this is a 'captioning_visualgpt'"):
        make_trainer("first").train(resume_from_checkpoint=True)


def test_where_a_run_goes_on(tmp_path):
    assert last_scst_checkpoint(tmp_path) is None
    (tmp_path / ".start").mkdir()  # a kill while it was written
    assert last_scst_checkpoint(tmp_path) is None
    (tmp_path / "start").mkdir()
    assert last_scst_checkpoint(tmp_path) == str(tmp_path / "start")


def test_the_start_is_written_under_a_unique_name(tmp_path):
    """Two saves never share a temporary folder, and a failed one leaves the old `start` and nothing else."""
    names = []

    def save(folder, **_):
        names.append(folder)
        Path(folder).mkdir()
        Path(folder, "weights").write_text(str(len(names)))
        if len(names) == 3:
            raise OSError("no space left")

    for _ in range(2):
        save_start(save, tmp_path, is_main=True)
    with pytest.raises(OSError, match="no space left"):
        save_start(save, tmp_path, is_main=True)
    assert len(set(names)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
    assert (tmp_path / "start" / "weights").read_text() == "2"

"""A killed run resumes exactly."""

import os
from pathlib import Path

import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from torch.utils.data import BatchSampler
from transformers import TrainerCallback
from transformers.trainer_utils import rotate_checkpoints

from hf_captioners.training import evaluation_loop, last_complete_checkpoint
from hf_captioners.training.resume import remove_surplus_checkpoints
from tests.comparisons import assert_trained_alike
from tests.variants import slow_unless


class Kill(TrainerCallback):
    """End the run by an error at a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def scores(monkeypatch):
    monkeypatch.setattr(evaluation_loop, "score_captions", lambda *_: {"cider_d": 0.0})


def curve(trainer):
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    "saved_at", slow_unless(lambda step: step == 2, [2, 3, 5]), ids=["mid-epoch", "mid-second-epoch", "later"]
)
def test_same_curve_and_weights_after_a_kill(make_trainer, make_captioner, tmp_path, saved_at):
    """3 epochs of 3 steps with dropout, 2 of 5 captions drawn for each image; killed one step after a checkpoint."""
    fields = {
        "num_train_epochs": 3,
        "captions_per_image": 2,
        "per_device_train_batch_size": 8,
        "save_strategy": "steps",
        "save_steps": saved_at,
        "eval_strategy": "steps",
        "eval_steps": saved_at,
        "early_stopping_patience": None,
    }
    whole = make_trainer(make_captioner(), output_dir=str(tmp_path / "whole"), **fields)
    whole.train()
    killed = make_trainer(make_captioner(), [Kill(saved_at + 1)], output_dir=str(tmp_path / "killed"), **fields)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    resumed = make_trainer(make_captioner(seed=5), output_dir=str(tmp_path / "killed"), **fields)
    resumed.train(resume_from_checkpoint=last_complete_checkpoint(tmp_path / "killed"))
    assert [step for step, _ in curve(resumed)] == list(range(1, 10))
    losses = [loss for _, loss in curve(whole)]
    assert [loss for _, loss in curve(resumed)] == pytest.approx(losses, abs=1e-5)
    assert_trained_alike(resumed.model, whole.model)


def test_patience_counts_through_a_kill(make_trainer, make_captioner, monkeypatch):
    fields = {"num_train_epochs": 10, "early_stopping_patience": 3}
    figures = {1: 0.1, 2: 0.5, 3: 0.4, 4: 0.3, 5: 0.2, 6: 0.1}
    trainer = None
    monkeypatch.setattr(evaluation_loop, "score_captions", lambda *_: {"cider_d": figures[round(trainer.state.epoch)]})
    trainer = make_trainer(make_captioner(), [Kill(2 * 4 + 1)], **fields)  # in the fifth epoch of two steps
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer = make_trainer(make_captioner(), **fields)
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(trainer.args.output_dir))
    assert trainer.state.epoch == 5


def test_a_run_that_had_stopped_stays_stopped(make_trainer, make_captioner, monkeypatch):
    """A run killed after its last evaluation ends with its best model, without a further step."""
    fields = {"num_train_epochs": 10, "early_stopping_patience": 2, "save_total_limit": None}
    figures = {1: 0.1, 2: 0.5, 3: 0.4, 4: 0.3, 5: 0.9}
    trainer = None
    monkeypatch.setattr(evaluation_loop, "score_captions", lambda *_: {"cider_d": figures[round(trainer.state.epoch)]})
    trainer = make_trainer(make_captioner(), **fields)
    trainer.train()
    assert trainer.state.epoch == 4
    ended = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    for resume in (last_complete_checkpoint(trainer.args.output_dir), True):
        trainer = make_trainer(make_captioner(seed=5), **fields)
        result = trainer.train(resume_from_checkpoint=resume)
        assert (result.global_step, trainer.state.epoch, trainer.state.best_metric) == (8, 4, 0.5)
        for name, weight in trainer.model.state_dict().items():
            torch.testing.assert_close(weight, ended[name], atol=0, rtol=0, msg=name)
    trainer = make_trainer(make_captioner(), **(fields | {"early_stopping_patience": 3, "num_train_epochs": 5}))
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(trainer.args.output_dir))
    assert trainer.state.best_metric == 0.9, "with more patience it continues"


@pytest.mark.parametrize(
    ("last", "best", "limit", "left"),
    [
        (4, None, None, [1, 2, 3, 4, 5]),
        (4, None, 2, [3, 4, 5]),
        (4, 1, 2, [1, 4, 5]),
        (4, 1, 3, [1, 3, 4, 5]),
        (4, 2, 1, [2, 5]),
        (5, 5, 1, [5]),
        (5, None, 9, [1, 2, 3, 4, 5]),
    ],
)
def test_checkpoints_that_are_left_at_the_end(tmp_path, last, best, limit, left):
    """Checkpoints of later steps stay, and those of another run."""
    for run in ("run", "other"):
        for step in range(1, 6):
            (tmp_path / run / f"checkpoint-{step}").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-x").mkdir()
    best = best and f"moved/checkpoint-{best}"
    remove_surplus_checkpoints(tmp_path / "run", str(tmp_path / "other" / f"checkpoint-{last}"), best, limit)
    assert len(list(tmp_path.glob("*/checkpoint-?"))) == 11
    remove_surplus_checkpoints(tmp_path / "run", f"{tmp_path}/run/checkpoint-{last}", best, limit)
    assert sorted(tmp_path.glob("run/checkpoint-[0-9]")) == [tmp_path / "run" / f"checkpoint-{step}" for step in left]
    assert len(list(tmp_path.glob("other/*"))) == 5 and (tmp_path / "run" / "checkpoint-x").exists()


def test_the_limit_of_checkpoints_holds_after_a_kill_between_the_last_save_and_its_end(make_trainer, monkeypatch):
    fields = {"num_train_epochs": 3, "save_total_limit": 2, "early_stopping_patience": None}
    fields |= {"load_best_model_at_end": False}

    def kill(output_dir, **_):
        if "checkpoint-6" in os.listdir(output_dir):
            raise KeyboardInterrupt
        return rotate_checkpoints(output_dir=output_dir, **_)

    monkeypatch.setattr("transformers.trainer.rotate_checkpoints", kill)
    trainer = make_trainer(**fields)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    output = Path(trainer.args.output_dir)
    assert len(list(output.glob("checkpoint-*"))) == 3
    make_trainer(**fields).train(resume_from_checkpoint=True)
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]


def test_a_checkpoint_of_adapters_is_complete_too(tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    checkpoint.mkdir()
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.safetensors"):
        (checkpoint / name).write_text("")
    (checkpoint / "trainer_state.json").write_text("{}")
    assert last_complete_checkpoint(tmp_path) is None
    (checkpoint / "adapter_config.json").write_text("{}")
    assert last_complete_checkpoint(tmp_path) == str(checkpoint)


def test_a_half_written_checkpoint_is_passed_over(make_trainer):
    trainer = make_trainer(num_train_epochs=2)
    trainer.train()
    output = trainer.args.output_dir
    newest = last_complete_checkpoint(output)
    assert newest.endswith("checkpoint-4")
    for name, left in (("trainer_state.json", 100), ("trainer_state.json", None), ("optimizer.pt", None)):
        path = Path(newest, name)
        content = path.read_bytes()
        path.unlink()
        if left is not None:
            path.write_bytes(content[:left])
        assert last_complete_checkpoint(output).endswith("checkpoint-2"), name
        path.write_bytes(content)
    assert last_complete_checkpoint(output) == newest
    assert last_complete_checkpoint(f"{output}/none") is None


def test_the_sampler_learns_the_epoch_whatever_wraps_it(make_trainer):
    """With several processes, a loader that skips the first batches after a resume passes no epoch on."""
    trainer = make_trainer()
    sharded = BatchSamplerShard(BatchSampler(trainer.sampler, 2, False), num_processes=2, process_index=0)
    loader = skip_first_batches(DataLoaderShard(trainer.train_dataset, batch_sampler=sharded), 1)
    loader.set_epoch(4)
    assert trainer.sampler.epoch == 0
    trainer.state.epoch = 4.0
    trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
    assert trainer.sampler.epoch == 4

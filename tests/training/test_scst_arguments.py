"""Arguments of self-critical training: defaults that depend on the sampling, and refusals."""

import pytest

from hf_captioners.training import SCSTArguments


def test_beams_are_those_of_m2_and_samples_those_of_rennie(tmp_path):
    beams = SCSTArguments(str(tmp_path), sampling="beams", use_cpu=True)
    assert (beams.baseline, beams.document_frequency, beams.end_token_in_reward) == ("beam_mean", "per_caption", False)
    drawn = SCSTArguments(str(tmp_path), use_cpu=True)
    assert (drawn.baseline, drawn.document_frequency, drawn.end_token_in_reward) == (
        "leave_one_out",
        "per_image",
        True,
    )
    mixed = SCSTArguments(str(tmp_path), sampling="beams", baseline="greedy", end_token_in_reward=True, use_cpu=True)
    assert (mixed.baseline, mixed.document_frequency, mixed.end_token_in_reward) == ("greedy", "per_caption", True)


def test_cross_entropy_has_its_own_settings(tmp_path):
    arguments = SCSTArguments(str(tmp_path), scst_after_patience=3, early_stopping_patience=9, use_cpu=True)
    before = arguments.for_cross_entropy()
    assert (before.learning_rate, before.per_device_train_batch_size) == (1e-4, 25)
    assert (before.num_train_epochs, before.early_stopping_patience) == (100, 3)
    assert before.output_dir == str(tmp_path / "cross_entropy")
    assert before.feature_cache_dir is None and before.own_features == tmp_path / "features" == arguments.own_features
    assert (arguments.learning_rate, arguments.early_stopping_patience) == (1e-5, 9)
    assert arguments.output_dir == str(tmp_path)


def test_cross_entropy_has_its_own_schedule(tmp_path):
    """M2: Noam, then a constant rate."""
    own = {"cross_entropy_lr_scheduler_type": "noam", "cross_entropy_warmup_steps": 10000}
    arguments = SCSTArguments(str(tmp_path), scst_after_patience=5, use_cpu=True, push_to_hub=True, **own)
    before = arguments.for_cross_entropy()
    assert arguments.push_to_hub and not before.push_to_hub, "only what comes out of both parts is pushed"
    assert (before.lr_scheduler_type, before.warmup_steps) == ("noam", 10000)
    assert (arguments.lr_scheduler_type, arguments.warmup_steps) == ("constant", 0)
    decay = {"cross_entropy_lr_scheduler_type": "step_decay", "cross_entropy_lr_scheduler_kwargs": '{"factor": 0.5}'}
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"factor": 0.5, "patience": 3}}
    arguments = SCSTArguments(str(tmp_path), scst_after_patience=5, use_cpu=True, **decay, **plateau)
    assert arguments.for_cross_entropy().lr_scheduler_kwargs == {"factor": 0.5}
    assert arguments.lr_scheduler_kwargs == {"factor": 0.5, "patience": 3}
    same = SCSTArguments(str(tmp_path), scst_after_patience=5, lr_scheduler_type="linear", use_cpu=True)
    assert same.for_cross_entropy().lr_scheduler_type == "linear"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sampling": "beam"}, "`sampling` is 'beam', expected one of multinomial, beams"),
        ({"baseline": "mean"}, "`baseline` is 'mean'"),
        ({"loss_length": "tokens"}, "`loss_length`"),
        ({"cross_entropy_lr_scheduler_type": "vaswani"}, "'vaswani', expected one of noam, step_decay, linear"),
        ({"cross_entropy_lr_scheduler_kwargs": {"factor": 0.5}}, "options of `cross_entropy_lr_scheduler_type`"),
        ({"sampling": "beams", "temperature": 0.5}, "no meaning for `sampling='beams'`"),
        ({"num_samples": 1}, "at least 2 for the baseline 'leave_one_out'"),
        ({"num_samples": 0, "baseline": "greedy"}, "at least 1 for the baseline 'greedy'"),
        ({"baseline_momentum": 1.0}, "`baseline_momentum` is 1.0"),
        ({"kl_weight": -1.0}, "`kl_weight` is -1.0"),
        ({"cross_entropy_warmup_steps": -1}, "`cross_entropy_warmup_steps` is -1"),
        ({"temperature": 0.0}, "`temperature` is 0.0, expected more than 0"),
        ({"scst_after_epochs": 0}, "`scst_after_epochs` is 0"),
        ({"scst_after_patience": 2, "eval_strategy": "no"}, "`scst_after_patience` counts evaluations"),
    ],
)
def test_wrong_settings(tmp_path, fields, expected):
    with pytest.raises(ValueError, match=expected):
        SCSTArguments(str(tmp_path), use_cpu=True, **fields)

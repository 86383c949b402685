"""Training further on a few images: what changes, and what somebody chose stays."""

from types import SimpleNamespace

import pytest

from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.few_images import CROSS_ENTROPY, REWARDS, for_few_images
from hf_captioners.training.scst.arguments import SCSTArguments

CAPTIONER = SimpleNamespace()


@pytest.fixture
def arguments(tmp_path):
    return CaptioningTrainingArguments(str(tmp_path), use_cpu=True, seed=7)


def assert_cross_entropy(arguments, chosen, captioner=CAPTIONER):
    changed = for_few_images(arguments, chosen, captioner)
    expected = {**CROSS_ENTROPY, **{name: getattr(arguments, name) for name in chosen if name in CROSS_ENTROPY}}
    assert {name: getattr(changed, name) for name in CROSS_ENTROPY} == expected
    assert not isinstance(changed, SCSTArguments) and changed.seed == 7
    assert arguments.num_train_epochs == 100 and arguments.load_best_model_at_end, "the given ones stay as they are"


def test_cross_entropy_then_rewards_where_nothing_was_chosen(arguments):
    changed = for_few_images(arguments, {"output_dir", "seed", "use_cpu", "train_dir"}, CAPTIONER)
    assert isinstance(changed, SCSTArguments)
    assert {name: getattr(changed, name) for name in REWARDS} == REWARDS
    assert (changed.seed, changed.output_dir, changed.use_cpu) == (7, arguments.output_dir, True)


@pytest.mark.parametrize("chosen", ["learning_rate", "num_train_epochs", "start_weight", "scst"])
def test_a_setting_that_was_chosen_leaves_rewards_out(arguments, chosen):
    assert_cross_entropy(arguments, {"output_dir", "seed", chosen})


@pytest.mark.parametrize("captioner", [{"peft_config": {}}, {"captions_depend_on_batch": True}])
def test_captioners_that_are_not_rewarded(arguments, captioner):
    assert_cross_entropy(arguments, {"output_dir", "seed"}, SimpleNamespace(**captioner))


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED"])
def test_no_rewards_where_accelerate_shards_the_weights(arguments, monkeypatch, name):
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    assert_cross_entropy(arguments, {"output_dir", "seed"})


@pytest.mark.parametrize("chosen", ["max_steps", "eval_strategy", "save_strategy", "metric_for_best_model"])
def test_a_plan_of_ones_own_changes_nothing(arguments, chosen):
    assert for_few_images(arguments, {chosen}, CAPTIONER) is arguments


def test_self_critical_training_is_not_changed(tmp_path):
    arguments = SCSTArguments(str(tmp_path), use_cpu=True)
    assert for_few_images(arguments, set(), CAPTIONER) is arguments

"""Training further on a few images: what changes, and what somebody chose stays."""

import pytest

from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.few_images import SETTINGS, for_few_images
from hf_captioners.training.scst_arguments import SCSTArguments


@pytest.fixture
def arguments(tmp_path):
    return CaptioningTrainingArguments(str(tmp_path), use_cpu=True)


def test_what_was_not_chosen_changes_in_a_copy(arguments):
    changed = for_few_images(arguments, {"output_dir", "learning_rate"})
    expected = {**SETTINGS, "learning_rate": arguments.learning_rate}
    assert {name: getattr(changed, name) for name in SETTINGS} == expected
    assert arguments.num_train_epochs == 100 and arguments.load_best_model_at_end


@pytest.mark.parametrize("chosen", ["max_steps", "eval_strategy", "save_strategy", "metric_for_best_model"])
def test_a_plan_of_ones_own_changes_nothing(arguments, chosen):
    assert for_few_images(arguments, {chosen}) is arguments


def test_self_critical_training_is_not_changed(tmp_path):
    arguments = SCSTArguments(str(tmp_path), use_cpu=True)
    assert for_few_images(arguments, set()) is arguments

"""Recipes for training further on few images: when one is taken, what it sets, and that a given argument stays."""

from types import SimpleNamespace

import pytest

from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.few_images import AUTO, CROSS_ENTROPY, NONE, REWARDS, with_recipe
from hf_captioners.training.scst.arguments import SCSTArguments

CAPTIONER = SimpleNamespace()


@pytest.fixture
def make(tmp_path):
    """Make arguments; `scst=True` makes those of self-critical training."""

    def make_arguments(scst=False, **fields):
        kind = SCSTArguments if scst else CaptioningTrainingArguments
        return kind(str(tmp_path), use_cpu=True, seed=7, **fields)

    return make_arguments


def settings_of(arguments, names):
    return {name: getattr(arguments, name) for name in names}


def test_given_arguments_are_noted(make):
    assert make(learning_rate=1e-4).given == {"output_dir", "use_cpu", "seed", "learning_rate"}


@pytest.mark.parametrize("recipe", [AUTO, "few_images"])
def test_cross_entropy_then_rewards(make, recipe):
    changed, line = with_recipe(make(), recipe, CAPTIONER, 499)
    assert isinstance(changed, SCSTArguments)
    assert settings_of(changed, REWARDS) == REWARDS
    assert (changed.seed, changed.use_cpu) == (7, True)
    reason = "499 images, fewer than 500, train a given captioner" if recipe == AUTO else "it was chosen"
    assert line == f"Recipe few_images: {reason}. `recipe=none` trains without it."


@pytest.mark.parametrize(
    ("captioner", "images", "scst", "recipe"),
    [
        (CAPTIONER, 500, False, AUTO),  # enough images
        (CAPTIONER, None, False, AUTO),  # a stream
        (None, 10, False, AUTO),  # new parts
        (CAPTIONER, 10, True, AUTO),  # self-critical training has defaults of its own
        (CAPTIONER, 10, False, NONE),
    ],
)
def test_no_recipe(make, captioner, images, scst, recipe):
    arguments = make(scst)
    assert with_recipe(arguments, recipe, captioner, images) == (arguments, None)


# 1e-4 and 25 are the defaults without a recipe: to give them is no other thing than to give other values.
@pytest.mark.parametrize(
    "given",
    [{"learning_rate": 1e-4}, {"per_device_train_batch_size": 25}, {"max_steps": 7}, {"save_strategy": "epoch"}],
    ids=str,
)
def test_a_given_argument_overrides_just_itself(make, given):
    (name,) = given
    changed, _ = with_recipe(make(**given), AUTO, CAPTIONER, 10)
    assert isinstance(changed, SCSTArguments)
    expected = make(**given)
    assert settings_of(changed, REWARDS) == REWARDS | {name: getattr(expected, name)}


def test_epochs_take_the_place_of_steps(make):
    changed, _ = with_recipe(make(num_train_epochs=3), AUTO, CAPTIONER, 10)
    expected = REWARDS | {"max_steps": -1, "num_train_epochs": 3}
    assert settings_of(changed, expected) == expected


def test_given_arguments_of_self_critical_training(make):
    changed, _ = with_recipe(make(True, num_samples=3), "few_images", CAPTIONER, 10)
    assert changed.num_samples == 3 and settings_of(changed, REWARDS) == REWARDS


@pytest.mark.parametrize(
    ("captioner", "reason"),
    [
        ({"peft_config": {}}, "an adapter is trained"),
        ({"captions_depend_on_batch": True}, "its captions depend on the others of their batch"),
    ],
)
def test_cross_entropy_where_rewards_cannot_be_used(make, captioner, reason):
    arguments = make(learning_rate=5e-4)
    changed, line = with_recipe(arguments, AUTO, SimpleNamespace(**captioner), 10)
    assert not isinstance(changed, SCSTArguments)
    assert settings_of(changed, CROSS_ENTROPY) == CROSS_ENTROPY | {"learning_rate": 5e-4}
    assert line.startswith("Recipe few_images_cross_entropy: 10 images, ") and f"no rewards, as {reason}." in line
    assert arguments.num_train_epochs == 100 and arguments.load_best_model_at_end, "the given ones stay as they are"
    with pytest.raises(ValueError, match=f"`recipe=few_images` .* {reason}: pass `recipe=few_images_cross_entropy`"):
        with_recipe(arguments, "few_images", SimpleNamespace(**captioner), 10)


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED"])
def test_no_rewards_where_accelerate_shards_the_weights(make, monkeypatch, name):
    arguments = make()  # before, as Accelerate reads the environment, too
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    assert "its weights are sharded" in with_recipe(arguments, AUTO, CAPTIONER, 10)[1]


def test_scst_false_is_an_argument(make):
    arguments = make()
    arguments.given.add("scst")  # as `read_arguments` does
    assert with_recipe(arguments, AUTO, CAPTIONER, 10)[1].startswith("Recipe few_images_cross_entropy")


@pytest.mark.parametrize(
    ("recipe", "captioner", "given", "said"),
    [
        ("few_image", CAPTIONER, {}, "`recipe` is 'few_image', expected one of auto, few_images"),
        ("few_images", None, {}, "`recipe=few_images` trains a captioner further: pass `model` too"),
        ("few_images_cross_entropy", CAPTIONER, {"scst": True}, "`scst` and `recipe=.*` exclude each other"),
        (AUTO, CAPTIONER, {"metric_for_best_model": "cider_d"}, "`metric_for_best_model` needs evaluations"),
        (AUTO, CAPTIONER, {"early_stopping_patience": 2}, "`early_stopping_patience` needs evaluations"),
        (AUTO, CAPTIONER, {"eval_strategy": "epoch"}, "`eval_strategy=epoch` would not evaluate.*`start_weight=0`"),
    ],
)
def test_what_cannot_go_together_is_refused_in_a_line(make, recipe, captioner, given, said):
    with pytest.raises(ValueError, match=said) as refused:
        with_recipe(make(**given), recipe, captioner, 10)
    assert "\n" not in str(refused.value)


def test_evaluations_with_the_trained_weights(make):
    changed, _ = with_recipe(make(eval_strategy="epoch", start_weight=0.0), AUTO, CAPTIONER, 10)
    assert changed.eval_strategy == "epoch" and changed.max_steps == 100

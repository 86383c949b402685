"""Defaults, flags and refusals of the training arguments."""

import dataclasses

import pytest
from transformers import HfArgumentParser

from hf_captioners.training import CaptioningTrainingArguments
from hf_captioners.training.arguments import CaptioningTrainingArguments as Arguments


def test_defaults_are_the_published_ones(tmp_path):
    args = CaptioningTrainingArguments(str(tmp_path))
    assert (args.learning_rate, args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (1e-4, 0.9, 0.999, 1e-8)
    assert (args.weight_decay, args.max_grad_norm, args.per_device_train_batch_size) == (0.0, 1.0, 25)
    assert (args.lr_scheduler_type, args.num_train_epochs, args.early_stopping_patience) == ("constant", 100, 5)
    assert (args.generation_num_beams, args.generation_max_new_tokens) == (5, 20)
    assert (args.metric_for_best_model, args.greater_is_better, args.load_best_model_at_end) == ("cider_d", True, True)


def test_a_loss_is_better_when_it_is_smaller(tmp_path):
    assert CaptioningTrainingArguments(str(tmp_path), metric_for_best_model="loss").greater_is_better is False


def test_without_evaluation_there_is_no_best_model(tmp_path):
    assert not CaptioningTrainingArguments(str(tmp_path), eval_strategy="no").load_best_model_at_end


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"eval_strategy": "steps"}, ("steps", "steps", 500, 500, True)),
        ({"eval_strategy": "steps", "eval_steps": 7}, ("steps", "steps", 7, 7, True)),
        ({"eval_strategy": "steps", "logging_steps": 30}, ("steps", "steps", 30, 30, True)),
        ({"eval_strategy": "steps", "eval_steps": 5, "save_steps": 10}, ("steps", "steps", 5, 10, True)),
        ({"save_strategy": "steps", "save_steps": 40}, ("steps", "steps", 40, 40, True)),
        ({"save_strategy": "no"}, ("epoch", "no", None, 500, False)),
        ({"save_strategy": "best"}, ("epoch", "best", None, 500, True)),
        ({}, ("epoch", "epoch", None, 500, True)),
    ],
)
def test_evaluations_and_checkpoints_go_together(given, expected, tmp_path):
    args = CaptioningTrainingArguments(str(tmp_path), **given)
    strategies = (args.eval_strategy.value, args.save_strategy.value)
    assert (*strategies, args.eval_steps, args.save_steps, args.load_best_model_at_end) == expected
    again = dataclasses.replace(args)
    assert (again.eval_steps, again.save_steps) == expected[2:4]


def test_evaluations_and_checkpoints_that_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="`eval_strategy` is 'steps' and `save_strategy` 'epoch', .* leave one of"):
        CaptioningTrainingArguments(str(tmp_path), eval_strategy="steps", save_strategy="epoch")
    assert CaptioningTrainingArguments(
        str(tmp_path), eval_strategy="steps", save_strategy="epoch", load_best_model_at_end=False
    )


def test_every_argument_is_a_flag_with_help(tmp_path):
    parser = HfArgumentParser(Arguments)
    own = {field.name for field in dataclasses.fields(Arguments) if field.init}
    actions = {action.dest: action for action in parser._actions if action.dest in own}
    assert own - actions.keys() == set()
    assert [name for name, action in actions.items() if not action.help] == []
    flags = ["--output_dir", str(tmp_path), "--captions_per_image", "2", "--early_stopping_patience", "3"]
    (args,) = parser.parse_args_into_dataclasses(flags)
    assert (args.captions_per_image, args.early_stopping_patience) == (2, 3)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"predict_with_generate": True}, "generation_max_new_tokens"),
        ({"generation_config": "some/captioner"}, "generation_num_beams"),
        ({"include_for_metrics": ["loss"]}, "set `eval_metrics`"),
        ({"eval_metrics": ["bleu"]}, r"'cider_d', which `eval_metrics` \(bleu\) does not compute: add cider_d"),
        ({"eval_metrics": ["cider_d"], "metric_for_best_model": "eval_bleu_4"}, "add bleu to `eval_metrics`"),
        ({"eval_metrics": ["cider_e"]}, r"Did you mean `cider_d`\?"),
        ({"fp16_full_eval": True}, "precision of training"),
        ({"sortish_sampler": True}, "group_by_length"),
        ({"generation_max_length": 30}, "generation_max_new_tokens"),
        ({"remove_unused_columns": True}, "collator"),
        ({"feature_cache_dtype": "int8"}, "'int8'"),
        ({"captions_per_image": 0}, "captions_per_image"),
        ({"generation_max_new_tokens": 0}, "generation_max_new_tokens"),
        ({"early_stopping_patience": 0}, "early_stopping_patience"),
    ],
)
def test_unusable_arguments_are_refused(tmp_path, fields, expected):
    with pytest.raises(ValueError, match=expected):
        CaptioningTrainingArguments(str(tmp_path), **fields)

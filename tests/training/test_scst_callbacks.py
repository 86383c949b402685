"""Warnings of collapsing captions, once when the collapse begins."""

import logging
import re

import pytest
from transformers import TrainerControl, TrainerState

from hf_captioners.training import SCSTArguments
from hf_captioners.training.scst.callbacks import CollapseWarning, MovingAverage

HEALTHY = {"eval_distinct": 0.5, "eval_length": 10.0, "eval_bad_endings": 0.01, "eval_length_ratio": 1.05}
DRAWN = {"unfinished": 0.05, "distinct": 0.9, "advantage_std": 0.3}


@pytest.fixture
def warn_on(caplog, tmp_path):
    """Return the warnings of the callback for a log, entry by entry."""

    def watch(entries, **fields):
        caplog.clear()
        arguments, state, callback = (
            SCSTArguments(str(tmp_path), use_cpu=True, **fields),
            TrainerState(),
            CollapseWarning(),
        )
        with caplog.at_level(logging.WARNING):
            for entry in entries:
                state.log_history.append(entry)
                event = callback.on_evaluate if "eval_distinct" in entry else callback.on_log
                event(arguments, state, TrainerControl())
        return [record.message for record in caplog.records]

    return watch


@pytest.mark.parametrize(
    ("changed", "fields", "said"),
    [
        ({"eval_distinct": 0.39}, {}, "become alike: 39.0% .* 50.0% at the start. Lower `learning_rate` .now 1e-05."),
        ({"eval_bad_endings": 0.04}, {}, "are truncated: 4.0% .* Lower `learning_rate`"),
        ({"eval_bad_endings": 0.04}, {"end_token_in_reward": False}, "Set `end_token_in_reward` to True"),
        ({"eval_length_ratio": 0.89}, {}, "wrong length: 10.0 words, 0.89 times the references' .at the start 1.05"),
        ({"eval_length_ratio": 1.11}, {}, "wrong length"),
    ],
)
def test_evaluation(warn_on, changed, fields, said):
    messages = warn_on([HEALTHY, HEALTHY, HEALTHY | changed, HEALTHY | changed, HEALTHY, HEALTHY | changed], **fields)
    assert len(messages) == 2  # when it begins, and when it begins again
    assert all(re.search(said, message) for message in messages)


def test_what_is_still_healthy_raises_no_warning(warn_on):
    edge = {"eval_distinct": 0.41, "eval_length": 9.1, "eval_bad_endings": 0.029, "eval_length_ratio": 0.91}
    assert warn_on([HEALTHY, edge]) == []
    too_long = HEALTHY | {"eval_length_ratio": 1.3}
    assert warn_on([too_long, too_long | {"eval_length_ratio": 1.2}]) == []  # towards the references
    assert warn_on([DRAWN, DRAWN | {"unfinished": 0.2, "advantage_std": 0.01}]) == []


def test_training(warn_on):
    (message,) = warn_on([DRAWN, DRAWN | {"unfinished": 0.3}], end_token_in_reward=False)
    assert "lose their end token: 30%" in message and "set `end_token_in_reward` to True" in message
    (message,) = warn_on([DRAWN, DRAWN | {"advantage_std": 0.0, "distinct": 0.02}])
    assert "nothing to learn" in message and "(distinct: 2%)" in message


def test_moving_average():
    average = MovingAverage(0.9)
    assert average.value == 0
    average.update(2.0)
    assert average.value == pytest.approx(2.0)
    average.update(1.0)
    assert average.value == pytest.approx((0.9 * 2 + 1) / 1.9)
    other, state = MovingAverage(0.9), TrainerState()
    state.stateful_callbacks = {"MovingAverage": average.state()}
    other.on_train_begin(None, state, None)
    assert other.value == average.value

"""Callbacks of self-critical training: initial evaluation, moving average of rewards, collapse warnings."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.utils import logging

from .arguments import SCSTArguments

logger = logging.get_logger(__name__)

MIN_DISTINCT = 0.8  # of the share at the start
MORE_BAD_ENDINGS = 0.02
OTHER_LENGTH = 0.1  # of the references
MORE_UNFINISHED = 0.2
NO_DIFFERENCE = 1e-6


class MovingAverage(TrainerCallback, ExportableState):
    """Exponential moving average of the mean reward per step, stored in checkpoints.

    Args:
        momentum: share of the old average that is kept at each step.
    """

    def __init__(self, momentum: float) -> None:
        self.momentum, self.total, self.weight = momentum, 0.0, 0.0

    @property
    def value(self) -> float:
        """Bias-corrected average; 0 before the first step."""
        return self.total / self.weight if self.weight else 0.0

    def update(self, mean_reward: float) -> None:
        """Update the average with the mean reward of a step."""
        self.total = self.momentum * self.total + (1 - self.momentum) * mean_reward
        self.weight = self.momentum * self.weight + (1 - self.momentum)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"args": {"momentum": self.momentum}, "attributes": {"total": self.total, "weight": self.weight}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the average from the checkpoint."""
        kept = state.stateful_callbacks[type(self).__name__]["attributes"]
        self.total, self.weight = kept["total"], kept["weight"]


class InitialEvaluation(TrainerCallback):
    """Callback that evaluates the model before self-critical training, as the first candidate for the best.

    Args:
        evaluate: function that evaluates and logs.
        folder: folder of that model.
    """

    def __init__(self, evaluate: Callable[[], dict[str, float]], folder: str) -> None:
        self.evaluate, self.folder = evaluate, folder

    def on_train_begin(  # type: ignore[override]
        self, args: SCSTArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Evaluate the model, unless the run is resumed."""
        if state.global_step:
            return
        figure = self.evaluate()[args.best_metric_key]
        if args.load_best_model_at_end:
            state.best_metric, state.best_model_checkpoint, state.best_global_step = figure, self.folder, 0


class CollapseWarning(TrainerCallback):
    """Callback that warns, with advice, when captions collapse compared with the first log values."""

    def __init__(self) -> None:
        self.raised: set[str] = set()

    def on_evaluate(  # type: ignore[override]
        self, args: SCSTArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the captions of the evaluation images for collapse."""
        figures = [entry for entry in state.log_history if "eval_distinct" in entry]
        if len(figures) < 2:
            return
        first, last = figures[0], figures[-1]
        remedy = f"Lower `learning_rate` (now {args.learning_rate:g}), or raise `entropy_weight` or `kl_weight`."
        self._warn(
            "alike",
            last["eval_distinct"] < MIN_DISTINCT * first["eval_distinct"],
            f"Captions become alike: {last['eval_distinct']:.1%} of those of the evaluation images are distinct, "
            f"{first['eval_distinct']:.1%} at the start. {remedy}",
        )
        ends = "Set `end_token_in_reward` to True: the reward does not penalise truncated captions."
        self._warn(
            "endings",
            last["eval_bad_endings"] > first["eval_bad_endings"] + MORE_BAD_ENDINGS,
            f"Captions are truncated: {last['eval_bad_endings']:.1%} end in a word like `a` or `with`, "
            f"{first['eval_bad_endings']:.1%} at the start. {remedy if args.end_token_in_reward else ends}",
        )
        if "eval_length_ratio" not in first or "eval_length_ratio" not in last:  # no reference has words
            return
        off, off_at_start = (abs(entry["eval_length_ratio"] - 1) for entry in (last, first))
        self._warn(
            "length",
            off > max(OTHER_LENGTH, off_at_start),
            f"Captions have a wrong length: {last['eval_length']:.1f} words, {last['eval_length_ratio']:.2f} times "
            f"the references' (at the start {first['eval_length_ratio']:.2f}). The reward favours that: check "
            "`reward_funcs` and their weights.",
        )

    def on_log(  # type: ignore[override]
        self, args: SCSTArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check the sampled training captions for collapse."""
        figures = [entry for entry in state.log_history if "unfinished" in entry]
        if not figures or figures[-1] is not state.log_history[-1]:
            return
        first, last = figures[0], figures[-1]
        count = "" if args.end_token_in_reward else " and set `end_token_in_reward` to True"
        self._warn(
            "unfinished",
            last["unfinished"] > first["unfinished"] + MORE_UNFINISHED,
            f"Captions lose their end token: {last['unfinished']:.0%} of the samples have none within "
            f"{args.generation_max_new_tokens} tokens, {first['unfinished']:.0%} at the start. Lower `learning_rate` "
            f"(now {args.learning_rate:g}){count}.",
        )
        self._warn(
            "nothing to learn",
            last["advantage_std"] < NO_DIFFERENCE,
            "All captions of an image have the same reward, so there is nothing to learn: they are all alike "
            f"(distinct: {last['distinct']:.0%}), or the reward does not distinguish them.",
        )

    def _warn(self, alarm: str, is_so: bool, text: str) -> None:
        """Warn once when a condition begins, not at every step while it lasts."""
        if is_so and alarm not in self.raised:
            logger.warning(text)
        (self.raised.add if is_so else self.raised.discard)(alarm)

"""Progress messages of training: size before the start, estimated time, evaluations on one line."""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from hf_captioners.work_progress import MinuteLines, duration, has_terminal

from .few_images import FEW_IMAGES
from .instructed_encoding import InstructedEncoder
from .streams import StreamedPairs

MEASURED_STEPS = 5  # after the first one, which also prepares the device
Say = Callable[[str], None]
SHOWN = ("loss", "eval_loss", "eval_cider_d", "eval_bleu_4", "reward", "eval_mean_average_precision")


def describe_run(trainer: Any, started_from: str) -> list[str]:
    """Return lines about a run: what is trained, on which data, for how long, and the output folder.

    Args:
        trainer: a `CaptioningTrainer` with training data.
        started_from: what the captioner starts from, such as its parts.
    """
    args, pairs = trainer.args, trainer.train_dataset
    if isinstance(pairs, StreamedPairs):
        return _describe_stream(trainer, started_from)
    images = len(getattr(pairs, "images", pairs))
    batch = _batch_of(args)
    per_epoch = max(1, math.ceil(len(trainer.sampler) / batch))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * args.num_train_epochs)
    captions = sum(map(len, pairs.images.captions)) if hasattr(pairs, "images") else len(pairs)
    lines = [
        f"A {type(trainer.base_model).__name__} from {started_from}.",
        *_parts_of(trainer),
        f"Training on {images:,} images with {captions:,} captions{_evaluation_of(trainer)}.",
        f"At most {steps:,} steps in batches of {batch:,}, {per_epoch:,} steps an epoch{_stop_of(args)}.",
    ]
    counts = trainer.count_captions()
    if counts is not None and counts.line is not None:
        lines.append(counts.line)
    if getattr(args, "begins_with_cross_entropy", False):
        part = args.for_cross_entropy()
        phase = f"at most {part.num_train_epochs:g} epochs of cross-entropy on {captions:,} pairs{_stop_of(part)}"
        lines.append(f"Before these steps, {phase}.")
    if not isinstance(trainer.encoder, InstructedEncoder):
        lines.append(_parameters_of(trainer.model))
    if getattr(args, "start_weight", 0):
        lines.append(f"At the end, {args.start_weight:.0%} of each weight is that of the captioner before training.")
    if has_bfloat16_products() and args.device.type == "cpu" and not (args.bf16 or args.fp16):
        lines.append("This CPU multiplies in bfloat16: `bf16=True` is faster, and less exact.")
    lines.append(f"The captioner will be in {args.output_dir}.")
    if images < FEW_IMAGES and args.max_steps <= 0 and args.num_train_epochs > 20:
        lines.append(
            f"With {images:,} images a captioner soon repeats what it has seen; `num_train_epochs=20` is a shorter "
            "first try."
        )
    return lines


def has_bfloat16_products() -> bool:
    """True if this CPU multiplies in bfloat16 natively; on other CPUs autocast is slower."""
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check is not None and check() for check in checks)


def _describe_stream(trainer: Any, started_from: str) -> list[str]:
    args, batch = trainer.args, _batch_of(trainer.args)
    return [
        f"A {type(trainer.base_model).__name__} from {started_from}.",
        f"Training on a stream of images{_evaluation_of(trainer)}.",
        f"{args.max_steps:,} steps in batches of {batch:,}: {args.max_steps * batch:,} pairs of image and caption"
        f"{_stop_of(args)}.",
        _parameters_of(trainer.model),
        f"The captioner will be in {args.output_dir}.",
    ]


def _batch_of(args: Any) -> int:
    return int(args.per_device_train_batch_size * max(1, args.world_size) * args.gradient_accumulation_steps)


def _evaluation_of(trainer: Any) -> str:
    rows = trainer.eval_dataset
    if rows is None or isinstance(rows, Mapping) or not hasattr(rows, "__len__"):
        return ""
    held_out = " held-out" if str(getattr(rows, "split", "")) == "held_out" else ""
    if _evaluates(trainer.args):
        return f"; evaluated on {len(rows):,}{held_out} images"
    return f"; {len(rows):,}{held_out} images are left for an evaluation of the result"


def _evaluates(args: Any) -> bool:
    return bool(args.eval_strategy != "no")


def _stop_of(args: Any) -> str:
    if args.early_stopping_patience is None or not _evaluates(args):
        return ""
    best = str(args.metric_for_best_model).removeprefix("eval_")
    return f"; it stops after {args.early_stopping_patience} evaluations without a better {best}"


def _parts_of(trainer: Any) -> list[str]:
    """Return the numbers of trained and frozen parameters in each part of an instruction-following model.

    Weights of adapters count as those of the part that they change.
    """
    if not isinstance(trainer.encoder, InstructedEncoder):
        return []
    trained: Counter[str] = Counter()
    frozen: Counter[str] = Counter()
    for name, weight in trainer.model.named_parameters():
        part = re.sub(r"^(base_model\.model\.)?(model\.(?!model\.)|model\.)?", "", name).split(".")[0]
        (trained if weight.requires_grad else frozen)[part] += weight.numel()
    texts = [", ".join(f"{part} {count:,}" for part, count in counts.items()) for counts in (trained, frozen)]
    return [f"Trained weights: {texts[0]}; frozen: {texts[1] or 'none'}."]


def _parameters_of(model: Any) -> str:
    """Return the numbers of trained and frozen parameters, and the names of the frozen parts."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if not frozen:
        return f"Trained parameters: {trained:,}, none are frozen."
    count = sum(parameter.numel() for parameter in frozen.values())
    in_vision = sum(parameter.numel() for name, parameter in frozen.items() if "vision" in name)
    part = " (vision model)" if in_vision == count else ""
    return f"Trained parameters: {trained:,}; frozen: {count:,}{part}."


def readable(logs: Mapping[str, Any]) -> str | None:
    """Return a log entry on one line; None if it has none of the usual metrics."""
    figures = [f"{name.replace('_', ' ')} {float(logs[name]):.4f}" for name in SHOWN if name in logs]
    if not figures:
        return None
    epoch = f"epoch {float(logs['epoch']):.2f}: " if "epoch" in logs else ""
    return epoch + ", ".join(figures)


class TimeEstimate(TrainerCallback):
    """Callback that reports the estimated duration of the run and of an evaluation.

    Args:
        say: receives the lines.
    """

    def __init__(self, say: Say) -> None:
        self.say = say
        self.first: tuple[int, float] | None = None
        self.is_told = False
        self.step_end = 0.0
        self.evaluations = 0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure the duration of the first steps."""
        self.step_end = time.monotonic()
        if self.first is None:
            self.first = (state.global_step, self.step_end)
        elif not self.is_told and state.global_step - self.first[0] >= MEASURED_STEPS:
            seconds = (self.step_end - self.first[1]) / (state.global_step - self.first[0])
            remaining = state.max_steps - state.global_step
            self.is_told = True
            self.say(
                f"A step takes {seconds:.2g} s: the {remaining:,} steps that are left take at most "
                f"{duration(remaining * seconds)}, without evaluations."
            )

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure the duration of the first evaluation."""
        self.evaluations += 1
        if self.evaluations == 1 and self.step_end:
            self.say(f"An evaluation takes {duration(time.monotonic() - self.step_end)}.")


class _Bar(ProgressCallback):
    """Progress bar of transformers without log entries."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print nothing: `ReadableLog` reports log entries."""


class _Lines(TrainerCallback):
    """Callback that reports progress as text, at most one line a minute, where there is no terminal."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.steps: MinuteLines | None = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count a step; steps before a resume do not count towards the speed."""
        if self.steps is None:
            self.steps = MinuteLines("training", "steps", state.max_steps - state.global_step + 1, self.say)
        self.steps.update(1)


class ReadableLog(TrainerCallback):
    """Callback that reports the usual metrics of each log entry on one line.

    Args:
        say: receives the lines.
    """

    def __init__(self, say: Say) -> None:
        self.say = say

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Report the metrics."""
        line = readable(logs or {})
        if state.is_world_process_zero and line is not None:
            self.say(line)


def log_progress(trainer: Trainer, say: Say, started_from: str) -> None:
    """Report the plan of a run now, and its progress and metrics during training."""
    for line in describe_run(trainer, started_from):
        say(line)
    report_progress(trainer, say)
    if hasattr(trainer, "say"):  # it has a cross-entropy part, which is a trainer of its own
        trainer.say = say


def report_progress(trainer: Trainer, say: Say) -> None:
    """Replace transformers' progress callbacks by one-line reports of time and metrics.

    transformers shows no progress where its warnings are silenced, as commands do; here it is hidden only if
    `disable_tqdm` is given.
    """
    args = trainer.args
    args.disable_tqdm = args.disable_tqdm and "disable_tqdm" in getattr(args, "given", ())
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    if not args.disable_tqdm:
        trainer.add_callback(_Bar() if has_terminal() else _Lines(say))
    trainer.add_callback(TimeEstimate(say))
    trainer.add_callback(ReadableLog(say))

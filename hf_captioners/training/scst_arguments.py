"""What can be said about self-critical training."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer_utils import IntervalStrategy

from .arguments import CaptioningTrainingArguments
from .rewards import REWARDS
from .schedules import SCHEDULE_NAMES

SAMPLINGS = ("multinomial", "beams")
BASELINES = ("greedy", "beam_mean", "leave_one_out", "moving_average")
LOSS_LENGTHS = ("longest", "real")
CROSS_ENTROPY_FOLDER = "cross_entropy"


@dataclass
class SCSTArguments(CaptioningTrainingArguments):
    """Arguments of `SCSTTrainer`: all of `CaptioningTrainingArguments`, and those of self-critical training.

    `learning_rate`, `per_device_train_batch_size` (images here, not pairs), `num_train_epochs` and
    `early_stopping_patience` are those of self-critical training; `generation_max_new_tokens` is also the longest
    sampled caption. `group_captions`, `captions_per_image` and `max_caption_tokens` are those of the cross-entropy
    epochs before it, if there are any.

    Args:
        sampling: `"multinomial"` draws captions independently of each other (Rennie et al. 2017); `"beams"` takes all
            captions of a beam search (M2, VisualGPT).
        num_samples: K, captions of an image (or beams); published: 5.
        temperature: of `"multinomial"`; the captions are scored under the same temperature. Nothing else bends the
            distribution: the whole vocabulary takes part.
        sample_with_dropout: draw captions with dropout, as the released codes do. Default: without; the pass that
            gives the gradient has it in either case.
        baseline: `"greedy"`, the reward of the most probable caption (Rennie et al. 2017); `"beam_mean"`, the mean
            over the image's K captions (M2, VisualGPT); `"leave_one_out"`, the mean over its other K - 1 captions
            (Luo 2020, ZoDIAC); `"moving_average"`, the mean reward of former steps. None: `beam_mean` with beams,
            `leave_one_out` otherwise.
        baseline_momentum: share that `"moving_average"` keeps at each step.
        reward_funcs: names among cider_d, bleu_4, meteor, rouge_l; functions are given to the trainer.
        reward_weights: one for each reward; None counts all once.
        document_frequency: what CIDEr-D weighs n-grams by: `"per_image"` or `"per_caption"`, counted in the training
            captions with images or captions for documents, or a file of `DocumentFrequency.save`. None:
            `per_caption` with beams (M2, VisualGPT), `per_image` otherwise (ImageCaptioning.pytorch, AoANet, ZoDIAC).
        end_token_in_reward: let CIDEr-D and BLEU-4 count n-grams over the end of a caption; a caption that was cut
            off loses them. None: False with beams, True otherwise, as in the same papers.
        loss_length: `"longest"` divides a caption's log-probability by the longest length possible (M2, VisualGPT;
            unbiased), `"real"` the batch's by its number of real tokens (ImageCaptioning.pytorch, AoANet, ZoDIAC).
        kl_weight: weight of the divergence, a token, from the model that self-critical training began with.
        entropy_weight: weight of the entropy a token, which keeps captions varied.
        scst_after_epochs: train with cross-entropy first, for so many epochs at most. None with no
            `scst_after_patience`: begin self-critical training at once.
        scst_after_patience: train with cross-entropy first, until so many evaluations brought nothing better
            (published: 5). The best model goes on.
        cross_entropy_learning_rate, cross_entropy_batch_size: of that first part (VisualGPT: 1e-4, 25 pairs).
        cross_entropy_lr_scheduler_type, cross_entropy_warmup_steps: of that first part; None: as for the second (M2:
            `"noam"`, 10,000, and a constant rate behind it).
        cross_entropy_lr_scheduler_kwargs: options of `cross_entropy_lr_scheduler_type`.

    Raises:
        ValueError: a value is outside of its range, or two do not go together.
    """

    learning_rate: float = field(
        default=1e-5, metadata={"help": "Initial learning rate (VisualGPT: 1e-5; M2, ZoDIAC: 5e-6)."}
    )
    per_device_train_batch_size: int = field(
        default=10, metadata={"help": "Images in a batch, for each device (M2, ZoDIAC: 10)."}
    )
    sampling: str = field(default="multinomial", metadata={"help": f"How captions are drawn: {', '.join(SAMPLINGS)}."})
    num_samples: int = field(default=5, metadata={"help": "Captions drawn of an image."})
    temperature: float = field(default=1.0, metadata={"help": "Temperature of multinomial sampling."})
    sample_with_dropout: bool = field(
        default=False, metadata={"help": "Draw captions with dropout, as the released codes do."}
    )
    baseline: str | None = field(
        default=None,
        metadata={"help": f"{', '.join(BASELINES)}; default: beam_mean with beams, else leave_one_out."},
    )
    baseline_momentum: float = field(
        default=0.9, metadata={"help": "Share that the moving average keeps at each step."}
    )
    reward_funcs: list[str] = field(
        default_factory=lambda: ["cider_d"], metadata={"help": f"Rewards among {', '.join(REWARDS)}."}
    )
    reward_weights: list[float] | None = field(
        default=None, metadata={"help": "A weight for each reward; default: 1 each."}
    )
    document_frequency: str | None = field(
        default=None,
        metadata={"help": "per_image, per_caption or a file; default: per_caption with beams, per_image otherwise."},
    )
    end_token_in_reward: bool | None = field(
        default=None,
        metadata={"help": "Count the end token in CIDEr-D and BLEU-4; default: not with beams, otherwise yes."},
    )
    loss_length: str = field(
        default="longest",
        metadata={"help": "Divide by the longest caption's length or by the real tokens: longest, real."},
    )
    kl_weight: float = field(default=0.0, metadata={"help": "Weight of the divergence from the starting model."})
    entropy_weight: float = field(default=0.0, metadata={"help": "Weight of the entropy a token."})
    scst_after_epochs: float | None = field(
        default=None, metadata={"help": "Cross-entropy first, for so many epochs at most."}
    )
    scst_after_patience: int | None = field(
        default=None, metadata={"help": "Cross-entropy first, until so many evaluations brought nothing better."}
    )
    cross_entropy_learning_rate: float = field(
        default=1e-4, metadata={"help": "Learning rate of the cross-entropy part (VisualGPT: 1e-4)."}
    )
    cross_entropy_batch_size: int = field(
        default=25, metadata={"help": "Pairs of image and caption in its batches (VisualGPT: 25)."}
    )
    cross_entropy_lr_scheduler_type: str | None = field(
        default=None, metadata={"help": "Its schedule (M2: noam); default: that of the self-critical part."}
    )
    cross_entropy_lr_scheduler_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Options of that schedule, as a JSON mapping."}
    )
    cross_entropy_warmup_steps: float | None = field(
        default=None, metadata={"help": "Its warm-up (M2: 10000); default: that of the self-critical part."}
    )

    # those that may be typed as JSON
    _VALID_DICT_FIELDS = (*CaptioningTrainingArguments._VALID_DICT_FIELDS, "cross_entropy_lr_scheduler_kwargs")

    def __post_init__(self) -> None:
        """Check, choose what depends on the kind of sampling, then as for cross-entropy."""
        with_beams = self.sampling == "beams"
        if self.baseline is None:
            self.baseline = "beam_mean" if with_beams else "leave_one_out"
        if self.document_frequency is None:
            self.document_frequency = "per_caption" if with_beams else "per_image"
        if self.end_token_in_reward is None:
            self.end_token_in_reward = not with_beams
        self._check_choices()
        self._check_numbers()
        super().__post_init__()
        if self.scst_after_patience is not None and self.eval_strategy == IntervalStrategy.NO:
            raise ValueError("`scst_after_patience` counts evaluations, and `eval_strategy` is 'no'.")

    def _check_choices(self) -> None:
        choices_of: dict[str, tuple[str | None, ...]] = {
            "sampling": SAMPLINGS,
            "baseline": BASELINES,
            "loss_length": LOSS_LENGTHS,
            "cross_entropy_lr_scheduler_type": (*SCHEDULE_NAMES, None),
        }
        for name, choices in choices_of.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"`{name}` is {value!r}, expected one of {', '.join(filter(None, choices))}.")
        if self.cross_entropy_lr_scheduler_kwargs and self.cross_entropy_lr_scheduler_type is None:
            raise ValueError(
                "`cross_entropy_lr_scheduler_kwargs` are options of `cross_entropy_lr_scheduler_type`: name it, too."
            )
        if self.sampling == "beams" and self.temperature != 1:
            raise ValueError(f"`temperature={self.temperature}` has no meaning for `sampling='beams'`; leave it 1.")

    def _check_numbers(self) -> None:
        least = 1 if self.baseline in ("greedy", "moving_average") else 2
        if self.num_samples < least:
            raise ValueError(
                f"`num_samples` is {self.num_samples}, expected at least {least} for the baseline {self.baseline!r}."
            )
        if not 0 <= self.baseline_momentum < 1:
            raise ValueError(f"`baseline_momentum` is {self.baseline_momentum}, expected 0 up to below 1.")
        for name in ("kl_weight", "entropy_weight", "cross_entropy_warmup_steps"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"`{name}` is {getattr(self, name)}, expected at least 0.")
        above_zero = ("temperature", "scst_after_epochs", "scst_after_patience")
        for name in (*above_zero, "cross_entropy_learning_rate", "cross_entropy_batch_size"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` is {value}, expected more than 0.")

    @property
    def begins_with_cross_entropy(self) -> bool:
        """Whether there are cross-entropy epochs before self-critical training."""
        return self.scst_after_epochs is not None or self.scst_after_patience is not None

    def for_cross_entropy(self) -> CaptioningTrainingArguments:
        """The arguments of the cross-entropy part, which has its own folder below `output_dir`."""
        arguments = copy.copy(self)
        arguments.output_dir = str(Path(str(self.output_dir), CROSS_ENTROPY_FOLDER))
        arguments.feature_cache_dir = self.feature_cache_dir or str(Path(str(self.output_dir), "features"))
        arguments.learning_rate = self.cross_entropy_learning_rate
        arguments.per_device_train_batch_size = self.cross_entropy_batch_size
        arguments.push_to_hub = False  # only what comes out of both parts
        if self.cross_entropy_lr_scheduler_type is not None:
            arguments.lr_scheduler_type = self.cross_entropy_lr_scheduler_type
            arguments.lr_scheduler_kwargs = self.cross_entropy_lr_scheduler_kwargs
        if self.cross_entropy_warmup_steps is not None:
            arguments.warmup_steps = self.cross_entropy_warmup_steps
        arguments.early_stopping_patience = self.scst_after_patience
        arguments.num_train_epochs = self.scst_after_epochs or CaptioningTrainingArguments.num_train_epochs
        arguments.max_steps = -1
        return arguments

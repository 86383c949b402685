"""Arguments of self-critical training."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer_utils import IntervalStrategy

from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.optimization import SCHEDULE_NAMES
from hf_captioners.training.rewards.functions import check_rewards, reward_names

SAMPLINGS = ("multinomial", "beams")
BASELINES = ("greedy", "beam_mean", "leave_one_out", "moving_average")
LOSS_LENGTHS = ("longest", "real")
CROSS_ENTROPY_FOLDER = "cross_entropy"
NEW_PARTS = (
    "Self-critical training (`scst`) rewards captions that the captioner samples, and a captioner of new parts "
    "samples random words. Set `scst_after_patience=5` (or `scst_after_epochs`) to train with cross-entropy first, or "
    "pass a trained captioner (`model`)."
)


@dataclass
class SCSTArguments(CaptioningTrainingArguments):
    """Arguments of `SCSTTrainer`: `CaptioningTrainingArguments`, and further ones for self-critical training.

    `learning_rate`, `per_device_train_batch_size` (images here, not pairs), `num_train_epochs` and
    `early_stopping_patience` apply to self-critical training; `generation_max_new_tokens` is also the maximum length
    of sampled captions. `group_captions`, `captions_per_image` and `max_caption_tokens` apply to the cross-entropy
    epochs before it, if there are any.

    Args:
        sampling: `"multinomial"` samples captions independently (Rennie et al. 2017); `"beams"` takes all captions of
            a beam search (M2, VisualGPT).
        num_samples: K, captions per image (or beams); published: 5.
        temperature: of `"multinomial"`; the captions are scored under the same temperature. Nothing else changes the
            distribution, and the whole vocabulary is used.
        sample_with_dropout: sample captions with dropout, as the released code does. Default: without. The pass that
            computes the gradient always uses dropout.
        baseline: `"greedy"`, the reward of the most probable caption (Rennie et al. 2017); `"beam_mean"`, the mean
            over the image's K captions (M2, VisualGPT); `"leave_one_out"`, the mean over its other K - 1 captions
            (Luo 2020, ZoDIAC); `"moving_average"`, the exponential moving average of earlier rewards. None:
            `beam_mean` with beams, `leave_one_out` otherwise.
        baseline_momentum: momentum of `"moving_average"`.
        reward_funcs: names among cider_d, bleu, rouge_l, meteor, self_retrieval and others of `reward_names`, or
            `module:function` of one's own; functions can be passed to the trainer.
        reward_weights: one per reward; None gives each the weight 1.
        document_frequency: document frequencies of CIDEr-D: `"per_image"` or `"per_caption"`, counted in the training
            captions with images or captions as documents, or a file of `DocumentFrequency.save`. None:
            `per_caption` with beams (M2, VisualGPT), `per_image` otherwise (ImageCaptioning.pytorch, AoANet, ZoDIAC).
        end_token_in_reward: count n-grams over the end of a caption in CIDEr-D and BLEU-4; captions without an end
            token lose them. None: False with beams, True otherwise, as in the same papers.
        loss_length: `"longest"` divides a caption's log-probability by the maximum length (M2, VisualGPT; unbiased),
            `"real"` divides the batch's by its number of real tokens (ImageCaptioning.pytorch, AoANet, ZoDIAC).
        kl_weight: weight of the divergence per token from the model that self-critical training started from.
        entropy_weight: weight of the entropy per token, which keeps captions varied.
        scst_after_epochs: train with cross-entropy first, for at most this number of epochs. If this and
            `scst_after_patience` are None, self-critical training starts at once.
        scst_after_patience: train with cross-entropy first, until this number of evaluations showed no improvement
            (published: 5). Self-critical training starts from the best model.
        cross_entropy_learning_rate, cross_entropy_batch_size: of the cross-entropy part (VisualGPT: 1e-4, 25 pairs).
        cross_entropy_lr_scheduler_type, cross_entropy_warmup_steps: of the cross-entropy part; None: those of the
            self-critical part (M2: `"noam"` with 10,000 steps, then a constant rate).
        cross_entropy_lr_scheduler_kwargs: options of `cross_entropy_lr_scheduler_type`.

    Raises:
        ValueError: a value is outside its range, or two values exclude each other.
    """

    learning_rate: float = field(
        default=1e-5, metadata={"help": "Initial learning rate (VisualGPT: 1e-5; M2, ZoDIAC: 5e-6)."}
    )
    per_device_train_batch_size: int = field(
        default=10, metadata={"help": "Images in a batch, for each device (M2, ZoDIAC: 10)."}
    )
    sampling: str = field(default="multinomial", metadata={"help": "Sampling of captions.", "choices": SAMPLINGS})
    num_samples: int = field(default=5, metadata={"help": "Captions sampled per image."})
    temperature: float = field(default=1.0, metadata={"help": "Temperature of multinomial sampling."})
    sample_with_dropout: bool = field(
        default=False, metadata={"help": "Sample captions with dropout, as the released code does."}
    )
    baseline: str | None = field(
        default=None,
        metadata={
            "help": "Baseline of the rewards; default: beam_mean with beams, else leave_one_out.",
            "choices": BASELINES,
        },
    )
    baseline_momentum: float = field(default=0.9, metadata={"help": "Momentum of the moving average."})
    reward_funcs: list[str] = field(
        default_factory=lambda: ["cider_d"],
        metadata={"help": f"Rewards: {', '.join(reward_names())}, or module:function of your own."},
    )
    reward_weights: list[float] | None = field(
        default=None, metadata={"help": "One weight per reward; default: 1 each."}
    )
    document_frequency: str | None = field(
        default=None,
        metadata={"help": "per_image, per_caption or a file; default: per_caption with beams, per_image otherwise."},
    )
    end_token_in_reward: bool | None = field(
        default=None,
        metadata={"help": "Count the end token in CIDEr-D and BLEU-4; default: False with beams, else True."},
    )
    loss_length: str = field(
        default="longest",
        metadata={"help": "Divide by the maximum length or by the number of real tokens.", "choices": LOSS_LENGTHS},
    )
    kl_weight: float = field(default=0.0, metadata={"help": "Weight of the divergence from the starting model."})
    entropy_weight: float = field(default=0.0, metadata={"help": "Weight of the entropy per token."})
    scst_after_epochs: float | None = field(
        default=None, metadata={"help": "Train with cross-entropy first, for at most this number of epochs."}
    )
    scst_after_patience: int | None = field(
        default=None, metadata={"help": "Train with cross-entropy first, until N evaluations showed no improvement."}
    )
    cross_entropy_learning_rate: float = field(
        default=1e-4, metadata={"help": "Learning rate of the cross-entropy part (VisualGPT: 1e-4)."}
    )
    cross_entropy_batch_size: int = field(
        default=25, metadata={"help": "Batch size of that part in pairs of image and caption (VisualGPT: 25)."}
    )
    cross_entropy_lr_scheduler_type: str | None = field(
        default=None,
        metadata={
            "help": "Schedule of that part (M2: noam); default: that of the self-critical part.",
            "choices": SCHEDULE_NAMES,
        },
    )
    cross_entropy_lr_scheduler_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Options of that schedule, as a JSON mapping."}
    )
    cross_entropy_warmup_steps: float | None = field(
        default=None, metadata={"help": "Warm-up steps of that part (M2: 10000); default: as the self-critical part."}
    )

    # arguments that may be passed as JSON on the command line
    _VALID_DICT_FIELDS = (*CaptioningTrainingArguments._VALID_DICT_FIELDS, "cross_entropy_lr_scheduler_kwargs")

    def __post_init__(self) -> None:
        """Set defaults that depend on the sampling method, check all arguments, and initialise the base class."""
        with_beams = self.sampling == "beams"
        if self.baseline is None:
            self.baseline = "beam_mean" if with_beams else "leave_one_out"
        if self.document_frequency is None:
            self.document_frequency = "per_caption" if with_beams else "per_image"
        if self.end_token_in_reward is None:
            self.end_token_in_reward = not with_beams
        check_rewards(self.reward_funcs)
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
                "`cross_entropy_lr_scheduler_kwargs` are options of `cross_entropy_lr_scheduler_type`: set it, too."
            )
        if self.sampling == "beams" and self.temperature != 1:
            raise ValueError(f"`temperature={self.temperature}` has no meaning for `sampling='beams'`; leave it 1.")

    def _check_numbers(self) -> None:
        minimum = 1 if self.baseline in ("greedy", "moving_average") else 2
        if self.num_samples < minimum:
            raise ValueError(
                f"`num_samples` is {self.num_samples}, expected at least {minimum} for the baseline {self.baseline!r}."
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
        """True if cross-entropy epochs precede self-critical training."""
        return self.scst_after_epochs is not None or self.scst_after_patience is not None

    def for_cross_entropy(self) -> CaptioningTrainingArguments:
        """Return the arguments of the cross-entropy phase, whose output is a folder in `output_dir`."""
        arguments = copy.copy(self)
        arguments.output_dir = str(Path(str(self.output_dir), CROSS_ENTROPY_FOLDER))
        arguments._own_features = self.own_features
        arguments.learning_rate = self.cross_entropy_learning_rate
        arguments.per_device_train_batch_size = self.cross_entropy_batch_size
        arguments.push_to_hub = False  # only the result of both parts is pushed
        if self.cross_entropy_lr_scheduler_type is not None:
            arguments.lr_scheduler_type = self.cross_entropy_lr_scheduler_type
            arguments.lr_scheduler_kwargs = self.cross_entropy_lr_scheduler_kwargs
        if self.cross_entropy_warmup_steps is not None:
            arguments.warmup_steps = self.cross_entropy_warmup_steps
        arguments.early_stopping_patience = self.scst_after_patience
        arguments.num_train_epochs = self.scst_after_epochs or CaptioningTrainingArguments.num_train_epochs
        arguments.max_steps = -1
        return arguments

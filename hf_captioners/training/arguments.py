"""Training arguments: transformers' `Seq2SeqTrainingArguments` and additional ones for captioning."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_captioners.metrics.caption_tokenizers import TOKENIZERS
from hf_captioners.metrics.registry import DEFAULT_METRICS, METRICS, find_metrics, metric_of
from hf_captioners.names import did_you_mean

from .optimization import OPTIMIZERS, SCHEDULE_NAMES, SCHEDULES, sampling_probability

STATISTICS = ("distinct", "length", "length_ratio", "bad_endings")
"""Statistics of captions that every evaluation reports."""


def require_best_metric(name: str, metrics: Sequence[Any]) -> None:
    """Check that evaluations compute `metric_for_best_model`: a metric in `eval_metrics`, the loss or a statistic.

    Args:
        name: `metric_for_best_model`, with or without `eval_`.
        metrics: `eval_metrics`.

    Raises:
        ValueError: they do not. The message has the nearest name, or the metric to add.
    """
    best = name.removeprefix("eval_")
    selected = find_metrics(metrics)
    known = {score: metric for metric, function in METRICS.items() for score in (function.titles or [metric])}
    computed = [score for score, metric in known.items() if metric in selected]
    needed = metric_of(best)
    if needed is not None and needed not in selected:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, which `eval_metrics` ({', '.join(selected)}) does not compute: "
            f"add {needed} to `eval_metrics`, or choose the best model by another metric."
            f"{did_you_mean(best, [*computed, 'loss'])}"
        )
    has_own = any(function not in METRICS for function in selected)  # which may compute scores of any name
    if best not in (*computed, "loss", *STATISTICS) and not has_own:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, expected one of {', '.join([*computed, 'loss', *STATISTICS])}."
            f"{did_you_mean(best, [*computed, 'loss'])}"
        )


LICENSE = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
FEATURE_DTYPES = ("float16", "float32")
STRATEGIES = ("eval_strategy", "save_strategy")

# Arguments of transformers that evaluation by captions does not use, and what to set instead.
_GENERATES = "evaluation always generates; set `generation_max_new_tokens` and `generation_num_beams`"
_SCORES = "evaluation scores captions; set `eval_metrics`"
_PRECISION = "evaluation runs in the precision of training; set `bf16` or `fp16`"
NOT_USED = {
    **dict.fromkeys(("predict_with_generate", "generation_max_length", "generation_config"), _GENERATES),
    **dict.fromkeys(("prediction_loss_only", "include_for_metrics", "batch_eval_metrics"), _SCORES),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), _PRECISION),
    "sortish_sampler": "batch captions of one length with `train_sampling_strategy='group_by_length'`",
}


@dataclass
class CaptioningTrainingArguments(Seq2SeqTrainingArguments):
    """Arguments of `CaptioningTrainer`: `Seq2SeqTrainingArguments` with VisualGPT's defaults, and more fields.

    The defaults are those of the released VisualGPT script: AdamW with learning rate 1e-4, betas 0.9 and 0.999,
    epsilon 1e-8, no weight decay, constant rate, gradient norm clipped at 1, batches of 25 pairs of image and caption,
    at most 100 epochs, early stopping after 5 evaluations without a better CIDEr-D, 5 beams and 20 tokens in
    evaluation.

    Args:
        lr_scheduler_type: a schedule of transformers, or a published one: `"noam"` (Vaswani et al., 2017; M2, ETA),
            `"step_decay"` (AoANet, Image Transformer). `lr_scheduler_kwargs` are the arguments of the functions in
            `hf_captioners.training.optimization`.
        optim: an optimizer of transformers, or one of Show, Attend and Tell's program: `"arctic_adam"` (learning rate
            2e-4), `"arctic_rmsprop"` (1e-4), `"adadelta"` (1). Adam as papers describe it is the default: AdamW
            without decay.
        max_grad_value: clip every element of a gradient to this size (AoANet, ZoDIAC: 0.1) instead of its norm;
            `max_grad_norm` becomes 0.
        scheduled_sampling_increase: increase of the share of words that the captioner samples itself (AoANet: 0.05),
            every `scheduled_sampling_every` epochs, up to `scheduled_sampling_max` (Bengio et al., 2015). For
            captioners of this library; 0 disables scheduled sampling.
        vision_learning_rate: learning rate of a vision model that is trained (`freeze_vision=False`); None: that of
            all other parameters. The common re-implementation of Show, Attend and Tell uses 1e-4, and 4e-4 elsewhere.
        captions_per_image: captions per image in one epoch, drawn anew each epoch from the seed; None uses all.
        stream_buffer_size: of streamed training data: pairs of image and caption in the buffer that mixes them.
        group_captions: put the captions of an image into one batch, and encode the image once for all of them: less
            work for the visual encoder, less variety in a batch. For captioners of this library; the batch size,
            which counts captions, should be a multiple of the captions per image.
        max_caption_tokens: maximum length of training captions in tokens, end token included; longer captions are cut
            and keep the end token.
        instruction: of captioners of transformers that caption by an instruction: what they are asked about every
            image, in training and evaluation; None: the default of their family.
        cache_features: with a frozen vision model, compute its features once per image and store them.
        feature_cache_dir: folder of the stored features. None: `HF_HOME/hf_captioners/features`, which all runs of a
            user share.
        feature_cache_gb: most gigabytes (10^9 bytes) of the folder that all runs share; those that were not used for
            longest are removed. Features of one data set that are larger, or all of them with 0, are stored in
            `OUTPUT_DIR/features` instead. `feature_cache_dir` has no limit.
        feature_cache_dtype: `"float16"` (default, half the space) or `"float32"` (exactly what the model computed).
        generation_num_beams: number of beams in evaluation (published: 5).
        generation_max_new_tokens: maximum caption length in evaluation, in tokens (published: 20). `hf-captioners
            train` saves a new captioner with at least this length.
        eval_metrics: names of the metrics of evaluations, or `module:function` of one's own, see
            `compute_caption_metrics`.
        caption_tokenizer: tokenizer of the metrics of evaluations and of rewards, see `compute_caption_metrics`. A new
            vocabulary of words follows it: words between blanks (`"ptb"`, `"none"`), words by the rules of Unicode
            (`"unicode"`), or characters (`"characters"`).
        language: language of the captions, a code such as `de`, for the card and the results.
        license: licence of the trained weights for the card, an identifier of the Hub such as `apache-2.0`.
        evaluate_loss: also report the loss on the evaluation captions (`eval_loss`).
        save_captions: write the captions of each evaluation to `OUTPUT_DIR/captions/`.
        diagnostic_examples: number of evaluation images to show with their captions in TensorBoard, trackio or
            Weights & Biases (`report_to`) at each evaluation; the visual gate of each layer is logged for them.
        start_weight: share of the weights before training in those that are saved, whose rest are the trained ones
            (Wortsman et al., 2022): a captioner that is trained further on few images keeps more of what it knew.
            With self-critical training after cross-entropy, each part ends with such a mean.
            Evaluations during training would not be of the saved weights, so `eval_strategy` must be `"no"`.
        early_stopping_patience: evaluations without a better `metric_for_best_model` before training stops; None
            disables early stopping (published: 5).

    Attributes:
        given: names of the arguments that were given; a recipe of `few_images` sets only others.

    With `eval_strategy="no"` or `save_strategy="no"` there is no best model, and `load_best_model_at_end` becomes
    False. Otherwise, where only one of `eval_strategy` and `save_strategy` is given, the other one is equal, and so
    are `eval_steps` and `save_steps`.

    Raises:
        ValueError: an argument of the base class is set that this library's evaluation replaces, a metric is unknown,
            or a value is outside its range.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "Initial learning rate (VisualGPT: 1e-4)."})
    lr_scheduler_type: str = field(  # type: ignore[assignment]
        default="constant",
        metadata={"help": "Schedule of the learning rate (VisualGPT: constant).", "choices": SCHEDULE_NAMES},
    )
    per_device_train_batch_size: int = field(
        default=25, metadata={"help": "Pairs of image and caption in a batch, for each device (VisualGPT: 25)."}
    )
    per_device_eval_batch_size: int = field(
        default=25, metadata={"help": "Images in an evaluation batch, for each device."}
    )
    num_train_epochs: float = field(default=100.0, metadata={"help": "Maximum number of epochs (VisualGPT: 100)."})
    eval_strategy: IntervalStrategy | str = field(default="epoch", metadata={"help": "When to evaluate."})
    save_strategy: SaveStrategy | str = field(default="epoch", metadata={"help": "When to save a checkpoint."})
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints to keep: the best and the newest ones."}
    )
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Load the best checkpoint at the end."})
    metric_for_best_model: str | None = field(
        default="cider_d", metadata={"help": "Metric of the best model: cider_d, bleu_4 or loss, among others."}
    )
    greater_is_better: bool | None = field(
        default=None, metadata={"help": "Whether larger is better; default: True unless the metric ends in loss."}
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must stay False: the collator turns images and captions into tensors."}
    )
    use_cache: bool = field(
        default=True, metadata={"help": "`use_cache` in the configuration of saved checkpoints; unused in training."}
    )
    optim: str = field(  # type: ignore[assignment]
        default=Seq2SeqTrainingArguments.default_optim,
        metadata={"help": f"Optimizer of transformers, or {', '.join(OPTIMIZERS)} (Show, Attend and Tell's program)."},
    )
    max_grad_value: float | None = field(
        default=None, metadata={"help": "Clip each gradient element to this size (AoANet: 0.1) instead of the norm."}
    )
    scheduled_sampling_increase: float = field(
        default=0.0, metadata={"help": "Scheduled sampling: increase of the sampled share (AoANet: 0.05); 0: off."}
    )
    scheduled_sampling_every: int = field(default=5, metadata={"help": "Epochs between two increases (AoANet: 5)."})
    scheduled_sampling_max: float = field(
        default=0.5, metadata={"help": "Maximum share of sampled words (AoANet: 0.5)."}
    )
    vision_learning_rate: float | None = field(
        default=None, metadata={"help": "Learning rate of a trained vision model; default: `learning_rate`."}
    )
    captions_per_image: int | None = field(
        default=None, metadata={"help": "Captions per image in one epoch, drawn at random; default: all."}
    )
    stream_buffer_size: int = field(
        default=1000, metadata={"help": "Pairs in the buffer that mixes streamed training data (--streaming)."}
    )
    group_captions: bool = field(
        default=False, metadata={"help": "Keep the captions of an image in one batch and encode it once (faster)."}
    )
    max_caption_tokens: int | None = field(
        default=None, metadata={"help": "Maximum length of training captions in tokens, end token included."}
    )
    instruction: str | None = field(
        default=None,
        metadata={"help": "What --model is asked about every image, if it captions by an instruction."},
    )
    cache_features: bool = field(
        default=True, metadata={"help": "Compute the features of a frozen vision model once per image and store them."}
    )
    feature_cache_dir: str | None = field(
        default=None,
        metadata={"help": "Folder of stored features; default: one that all runs share, see hf-captioners cache."},
    )
    feature_cache_gb: float = field(
        default=10.0,
        metadata={"help": "Most gigabytes of the stored features that all runs share; 0: OUTPUT_DIR/features."},
    )
    feature_cache_dtype: str = field(
        default="float16", metadata={"help": "Data type of stored features.", "choices": FEATURE_DTYPES}
    )
    generation_num_beams: int | None = field(default=5, metadata={"help": "Beams in evaluation (VisualGPT: 5)."})
    generation_max_new_tokens: int = field(
        default=20, metadata={"help": "Maximum caption length in evaluation, in tokens (VisualGPT: 20)."}
    )
    eval_metrics: list[str] = field(
        default_factory=lambda: list(DEFAULT_METRICS),
        metadata={
            "help": f"Metrics of evaluations: {', '.join(METRICS)}, or module:function of your own; default: "
            f"{' '.join(DEFAULT_METRICS)}."
        },
    )
    caption_tokenizer: str = field(
        default="ptb",
        metadata={
            "help": "Words of metrics, rewards and new vocabularies: ptb (English), none (words between blanks), "
            "characters (Chinese, Japanese, Thai), unicode (Korean, Arabic, Hindi, German).",
            "choices": TOKENIZERS,
        },
    )
    language: str | None = field(
        default=None, metadata={"help": "Language of the captions for the card and the results: a code such as de."}
    )
    license: str | None = field(
        default=None, metadata={"help": "Licence of the weights for the card: an identifier such as apache-2.0."}
    )
    evaluate_loss: bool = field(default=True, metadata={"help": "Also report the loss in evaluation."})
    save_captions: bool = field(
        default=True, metadata={"help": "Write the captions of each evaluation to OUTPUT_DIR/captions."}
    )
    diagnostic_examples: int = field(
        default=0, metadata={"help": "Evaluation images to log with captions and gates to the tools of report_to."}
    )
    start_weight: float = field(
        default=0.0, metadata={"help": "Share of the weights before training in those that are saved."}
    )
    early_stopping_patience: int | None = field(
        default=5, metadata={"help": "Evaluations without improvement before training stops (VisualGPT: 5)."}
    )

    given: set[str] = field(init=False, repr=False, compare=False)
    _own_features: Path | None = field(init=False, default=None, repr=False, compare=False)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Record the names of the arguments that the caller passes explicitly."""
        arguments = super().__new__(cls)
        names = [one.name for one in fields(cls) if one.init] if args else []
        arguments.given = {*names[: len(args)], *kwargs}
        return arguments

    @property
    def own_features(self) -> Path:
        """The default folder of this run's cached features."""
        return self._own_features or Path(str(self.output_dir), "features")

    def __post_init__(self) -> None:
        """Check the arguments of this library, then those of transformers."""
        for name, instead in NOT_USED.items():
            if getattr(self, name):
                raise ValueError(f"`{name}` is not used: {instead}.")
        if self.remove_unused_columns:
            raise ValueError(
                "`remove_unused_columns=True` removes images and captions that the collator needs; leave it False."
            )
        if self.use_cpu or not torch.accelerator.is_available():
            self.dataloader_pin_memory = False  # torch warns about it at every epoch
        self._check_metrics()
        if self.feature_cache_gb < 0:
            raise ValueError(f"`feature_cache_gb` is {self.feature_cache_gb}, expected 0 or more.")
        if self.feature_cache_dtype not in FEATURE_DTYPES:
            raise ValueError(
                f"`feature_cache_dtype` is {self.feature_cache_dtype!r}, expected one of {', '.join(FEATURE_DTYPES)}."
            )
        if self.lr_scheduler_type not in SCHEDULE_NAMES:
            raise ValueError(
                f"`lr_scheduler_type` is {self.lr_scheduler_type!r}, expected one of {', '.join(SCHEDULE_NAMES)}."
            )
        for name in (
            "captions_per_image",
            "max_caption_tokens",
            "generation_max_new_tokens",
            "early_stopping_patience",
            "scheduled_sampling_every",
            "stream_buffer_size",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is {value}, expected at least 1.")
        for name in ("scheduled_sampling_increase", "scheduled_sampling_max", "start_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}, expected 0 to 1.")
        if self.diagnostic_examples < 0:
            raise ValueError(f"`diagnostic_examples` is {self.diagnostic_examples}, expected at least 0.")
        for name in ("max_grad_value", "vision_learning_rate"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` is {value}, expected more than 0.")
        if not self.metric_for_best_model:
            raise ValueError("`metric_for_best_model` is empty, expected for instance cider_d or loss.")
        if self.eval_strategy in (IntervalStrategy.NO, "no"):
            self.load_best_model_at_end = False
        self._pair_strategies()
        if self.max_grad_value is not None:
            self.max_grad_norm = 0.0
        self._post_init_with_published_names()

    def _pair_strategies(self) -> None:
        """Give evaluations and checkpoints the same schedule if only one is set, so that the best model is saved.

        Raises:
            ValueError: both are given and differ.
        """
        plans = {name: str(getattr(getattr(self, name), "value", getattr(self, name))) for name in STRATEGIES}
        if plans["save_strategy"] == "no" and "load_best_model_at_end" not in self.given:
            self.load_best_model_at_end = False
        if not self.load_best_model_at_end or plans["save_strategy"] == "best":
            return
        for name, counterpart in (STRATEGIES, STRATEGIES[::-1]):
            if name in self.given and counterpart not in self.given:
                setattr(self, counterpart, plans[name])
                plans[counterpart] = plans[name]
        if plans["eval_strategy"] != plans["save_strategy"]:
            raise ValueError(
                f"`eval_strategy` is {plans['eval_strategy']!r} and `save_strategy` {plans['save_strategy']!r}, and "
                "the best evaluation is loaded at the end: leave one of them out, or pass "
                "`load_best_model_at_end=False`."
            )
        if plans["eval_strategy"] == "steps" and not {"eval_steps", "save_steps"} <= self.given:
            name = "save_steps" if "save_steps" in self.given else "eval_steps"
            steps = getattr(self, name) or self.logging_steps
            for name in ("eval_steps", "save_steps"):
                setattr(self, name, steps)

    def _check_metrics(self) -> None:
        """Check the metric names, and that evaluations compute the metric of the best model."""
        find_metrics(self.eval_metrics)
        if self.caption_tokenizer not in TOKENIZERS:
            raise ValueError(
                f"`caption_tokenizer` is {self.caption_tokenizer!r}, expected one of {', '.join(TOKENIZERS)}."
            )
        if self.language is not None and not LANGUAGE_CODE.fullmatch(self.language):
            raise ValueError(f"`language` is {self.language!r}, expected a code such as de, zh or pt-BR.")
        if self.license is not None and not LICENSE.fullmatch(self.license):
            raise ValueError(f"`license` is {self.license!r}, expected an identifier of the Hub such as apache-2.0.")
        if self.eval_strategy not in (IntervalStrategy.NO, "no"):
            require_best_metric(str(self.metric_for_best_model), self.eval_metrics)

    def _post_init_with_published_names(self) -> None:
        """Run transformers' checks, with schedules and optimizers hidden whose names transformers does not know."""
        published = {}
        for name, known, accepted in (("lr_scheduler_type", SCHEDULES, "constant"), ("optim", OPTIMIZERS, "sgd")):
            if getattr(self, name) in known:
                published[name] = getattr(self, name)
                setattr(self, name, accepted)
        super().__post_init__()
        if self.fp16 and self.device.type == "cpu":
            raise ValueError(
                "`fp16` needs a GPU, and this run computes on the CPU: leave it out, or pass `bf16`, which CPUs have."
            )
        for name, value in published.items():
            setattr(self, name, value)

    def scheduled_sampling_probability(self, epoch: float) -> float:
        """Return the probability of scheduled sampling in an epoch (counted from 0)."""
        return sampling_probability(
            epoch, self.scheduled_sampling_increase, self.scheduled_sampling_every, self.scheduled_sampling_max
        )

    @property
    def best_metric_key(self) -> str:
        """Key of `metric_for_best_model` in the log, such as `eval_cider_d`."""
        return f"eval_{str(self.metric_for_best_model).removeprefix('eval_')}"

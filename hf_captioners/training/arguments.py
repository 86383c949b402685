"""What can be said about a training run: the arguments of transformers' trainer, and those of captioning."""

from dataclasses import dataclass, field

from transformers import Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy, SchedulerType

FEATURE_DTYPES = ("float16", "float32")


@dataclass
class CaptioningTrainingArguments(Seq2SeqTrainingArguments):
    """Arguments of `CaptioningTrainer`: all of `Seq2SeqTrainingArguments`, with the defaults of VisualGPT's training.

    Defaults of the released VisualGPT script: AdamW with learning rate 1e-4, betas 0.9 and 0.999, epsilon 1e-8, no
    weight decay, constant rate, gradient norm cut at 1, batches of 25 pairs of picture and caption, at most 100
    epochs, stopped after 5 evaluations without a better CIDEr-D, beams of 5 and 20 tokens in evaluation.

    Args:
        captions_per_picture: captions of each picture seen in one epoch, drawn anew each epoch from the seed; None
            sees all of them.
        group_captions: put the captions of a picture that an epoch sees into one batch, and encode the picture once
            for all of them: less work for the visual encoder, less variety in a batch. For captioners of this
            library; the batch size, which counts captions, should be a multiple of their number.
        max_caption_tokens: longest caption to learn, end token included; longer ones are cut and keep the end token.
        cache_features: with a frozen vision model, compute its features once a picture and store them.
        feature_cache_dir: where they are stored; default `OUTPUT_DIR/features`. It may be shared by several runs.
        feature_cache_dtype: `"float16"` (default, half the space) or `"float32"` (exactly what the model computed).
        generation_num_beams: beams in evaluation (published: 5).
        generation_max_new_tokens: longest caption in evaluation, in tokens (published: 20).
        evaluate_loss: also report the loss on the evaluation captions (`eval_loss`).
        save_captions: write the captions of each evaluation to `OUTPUT_DIR/captions/`.
        early_stopping_patience: evaluations without a better `metric_for_best_model` before training stops; None
            never stops early (published: 5).

    With `eval_strategy="no"` there is no best model, so `load_best_model_at_end` becomes False.

    Raises:
        ValueError: an argument of the base class that evaluation by this library replaces is set, or a value is
            outside of its range.
    """

    learning_rate: float = field(default=1e-4, metadata={"help": "Initial learning rate (VisualGPT: 1e-4)."})
    lr_scheduler_type: SchedulerType | str = field(
        default="constant", metadata={"help": "Learning rate schedule (VisualGPT: constant)."}
    )
    per_device_train_batch_size: int = field(
        default=25, metadata={"help": "Pairs of picture and caption in a batch, for each device (VisualGPT: 25)."}
    )
    per_device_eval_batch_size: int = field(
        default=25, metadata={"help": "Pictures in an evaluation batch, for each device."}
    )
    num_train_epochs: float = field(default=100.0, metadata={"help": "Largest number of epochs (VisualGPT: 100)."})
    eval_strategy: IntervalStrategy | str = field(default="epoch", metadata={"help": "When to evaluate."})
    save_strategy: IntervalStrategy | str = field(default="epoch", metadata={"help": "When to save a checkpoint."})
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints to keep: the best one and the newest others."}
    )
    load_best_model_at_end: bool = field(default=True, metadata={"help": "End with the best checkpoint."})
    metric_for_best_model: str | None = field(
        default="cider_d", metadata={"help": "What is best: cider_d, bleu_4 or loss, among others."}
    )
    greater_is_better: bool | None = field(
        default=None, metadata={"help": "Whether larger is better; default: True unless the metric ends in loss."}
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must stay False: the collator turns pictures and captions into tensors."}
    )
    use_cache: bool = field(
        default=True, metadata={"help": "`use_cache` in the configuration of saved checkpoints; not used in training."}
    )
    captions_per_picture: int | None = field(
        default=None, metadata={"help": "Captions of each picture in one epoch, drawn at random; default: all."}
    )
    group_captions: bool = field(
        default=False, metadata={"help": "Keep the captions of a picture in one batch and encode it once (faster)."}
    )
    max_caption_tokens: int | None = field(
        default=None, metadata={"help": "Longest caption to learn, in tokens with the end token; longer ones are cut."}
    )
    cache_features: bool = field(
        default=True, metadata={"help": "Compute the features of a frozen vision model once and store them."}
    )
    feature_cache_dir: str | None = field(
        default=None, metadata={"help": "Where features are stored; default: OUTPUT_DIR/features."}
    )
    feature_cache_dtype: str = field(default="float16", metadata={"help": "float16 or float32."})
    generation_num_beams: int | None = field(default=5, metadata={"help": "Beams in evaluation (VisualGPT: 5)."})
    generation_max_new_tokens: int = field(
        default=20, metadata={"help": "Longest caption in evaluation, in tokens (VisualGPT: 20)."}
    )
    evaluate_loss: bool = field(default=True, metadata={"help": "Also evaluate the loss."})
    save_captions: bool = field(
        default=True, metadata={"help": "Write the captions of each evaluation to OUTPUT_DIR/captions."}
    )
    early_stopping_patience: int | None = field(
        default=5, metadata={"help": "Stop after so many evaluations without a better one (VisualGPT: 5)."}
    )

    def __post_init__(self) -> None:
        """Check what this library adds, then as in transformers."""
        if self.predict_with_generate or self.generation_max_length is not None:
            raise ValueError(
                "`predict_with_generate` and `generation_max_length` are not used: evaluation always generates. Set "
                "`generation_max_new_tokens` and `generation_num_beams`."
            )
        if self.remove_unused_columns:
            raise ValueError(
                "`remove_unused_columns=True` would take pictures and captions away from the collator; leave it False."
            )
        if self.feature_cache_dtype not in FEATURE_DTYPES:
            raise ValueError(
                f"`feature_cache_dtype` is {self.feature_cache_dtype!r}, expected one of {', '.join(FEATURE_DTYPES)}."
            )
        for name in (
            "captions_per_picture",
            "max_caption_tokens",
            "generation_max_new_tokens",
            "early_stopping_patience",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is {value}, expected at least 1.")
        if not self.metric_for_best_model:
            raise ValueError("`metric_for_best_model` is empty, expected for instance cider_d or loss.")
        if self.eval_strategy in (IntervalStrategy.NO, "no"):
            self.load_best_model_at_end = False
        super().__post_init__()

    @property
    def best_metric_key(self) -> str:
        """The key of `metric_for_best_model` in the log, as `eval_cider_d`."""
        return f"eval_{str(self.metric_for_best_model).removeprefix('eval_')}"

"""`CaptioningTrainer`: cross-entropy training of captioners with evaluation of generated captions."""

import dataclasses
import inspect
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerCallback, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType, TrainOutput
from transformers.utils import logging

from hf_captioners.architectures import Purpose
from hf_captioners.loading import require_supported_model
from hf_captioners.metrics.caption_tokenizers import caption_tokenizer, require_blanks
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.pipelines.image_captioning import is_native_processor

from .arguments import CaptioningTrainingArguments
from .callbacks import ElementClipping, EpochCallback, StopWithoutProgress
from .caption_checks import CaptionCounts, check_training_captions
from .card_writer import CardWriter
from .choosing import best_evaluation, equal_metric
from .collator import CaptionCollator, caption_encoder
from .evaluation_loop import CaptionEvaluationTrainer
from .health import (
    require_finite_loss,
    require_finite_weights,
    require_short_captions,
    require_targets,
    warn_of_wordless,
)
from .images import CaptionedImages, CaptionPairs, CaptionSampler
from .instructed_encoding import InstructedEncoder
from .optimization import OPTIMIZERS, SCHEDULES, RunLength, StartWeights, make_schedule, set_own_rate
from .resume import (
    STATE,
    final_state,
    last_complete_checkpoint,
    load_weights,
    remove_surplus_checkpoints,
    restore_best_checkpoint,
    why_finished,
)
from .scheduled_sampling import mix_in_samples
from .streams import StreamedPairs, require_stream_arguments

logger = logging.get_logger(__name__)

SAMPLING_STRATEGIES = ("random", "group_by_length")


class CaptioningTrainer(CaptionEvaluationTrainer):
    """Trainer for captioners with `generate()` and a teacher-forced `forward`.

    It trains the captioners of this library and those of transformers in `TRANSFORMERS_CAPTIONERS`, whole or in an
    adapter of PEFT (`peft.get_peft_model`), which is then what checkpoints hold.

    Args:
        model: the captioner.
        args: see `CaptioningTrainingArguments`.
        train_dataset, eval_dataset: captioned images with `captions` and `image` or `regions`, as `load_captions` and
            `with_regions` return them; `eval_dataset` may be a dictionary of several data sets. Streams of images
            (`load_captions(..., streaming=True)`) are trained on as `StreamedPairs` says; those of evaluations are
            read into memory.
        processing_class: the processor; saved with every checkpoint. See `ImageTextProcessor` for models without one.
        callbacks: further callbacks.
        optimizers: an optimizer and a schedule instead of those of the arguments.

    Attributes:
        tokenize_captions: the tokenizer of all evaluations and rewards of this trainer, `args.caption_tokenizer`.

    Raises:
        ValueError: the model is not supported, there is no usable processor, the data sets lack columns, or the model
            does not support label smoothing.

    Example:

    ```python
    from hf_captioners import CaptioningTrainer, CaptioningTrainingArguments

    trainer = CaptioningTrainer(
        model,
        CaptioningTrainingArguments("my_captioner", num_train_epochs=1),
        train_dataset=images["train"],
        eval_dataset=images["validation"],
        processing_class=processor,
    )
    trainer.train()
    print(trainer.evaluate()["eval_cider_d"])
    print(trainer.caption(images["validation"], num_beams=3)[0])
    ```
    """

    lr_scheduler: Any
    purpose: Purpose = Purpose.TRAINING
    _streamed: type[StreamedPairs] = StreamedPairs

    def __init__(
        self,
        model: PreTrainedModel,
        args: CaptioningTrainingArguments,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | IterableDataset | dict[str, Dataset] | None = None,
        processing_class: Any = None,
        callbacks: Sequence[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        require_supported_model(model, self.purpose)
        if processing_class is None:
            raise ValueError("`processing_class` is missing: pass the captioner's processor.")
        if args.train_sampling_strategy not in SAMPLING_STRATEGIES:
            raise ValueError(
                f"`train_sampling_strategy={args.train_sampling_strategy!r}` is not supported, expected "
                f"{' or '.join(map(repr, SAMPLING_STRATEGIES))}."
            )
        by_length = args.train_sampling_strategy == "group_by_length"
        if by_length and args.group_captions:
            raise ValueError("`group_captions` and `train_sampling_strategy='group_by_length'` exclude each other.")
        is_own = is_native_processor(processing_class)
        if args.group_captions and not is_own:
            raise ValueError(f"`group_captions` needs a captioner of this library, got a {type(model).__name__}.")
        for name in ("scheduled_sampling_increase", "vision_learning_rate"):
            if getattr(args, name) and not is_own:
                raise ValueError(f"`{name}` needs a captioner of this library, got a {type(model).__name__}.")
        if args.vision_learning_rate and (model.config.vision_config is None or model.config.freeze_vision):
            raise ValueError("`vision_learning_rate` needs a vision model that is trained: set `freeze_vision=False`.")
        if isinstance(train_dataset, IterableDataset):
            require_stream_arguments(args)
        if train_dataset is not None and not any(weight.requires_grad for weight in model.parameters()):
            raise ValueError(
                "No weight of the captioner is trained: all are frozen. To train the adapter of a captioner, load it "
                "with `peft.PeftModel.from_pretrained(base, adapter, is_trainable=True)`."
            )
        self._is_own = is_own
        self.tokenize_captions = caption_tokenizer(args.caption_tokenizer)  # shared: it caches split words
        _smooth_inside(model, args.label_smoothing_factor, is_own)
        self.encoder = caption_encoder(processing_class, model, args.max_caption_tokens, args.instruction)
        self._counts: CaptionCounts | None = None
        self.card = CardWriter()
        super().__init__(
            model=model,
            args=args,
            data_collator=self._make_collator(args),
            train_dataset=None if train_dataset is None else self._make_training_items(train_dataset, args),
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=[self.card, *(callbacks or ())],
            optimizers=optimizers,
        )
        keep_boxes_exact(getattr(self.accelerator.state, "fsdp_plugin", None))
        if self.accelerator.device.type == "cpu" and (args.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true"):
            raise ValueError("FSDP does nothing on CPUs, where Accelerate ignores it: leave `fsdp` out, or use a GPU.")
        self._start = self._copy_start(args.start_weight) if args.start_weight else None
        self.label_smoother = None
        # The base class assumes that a model with `**kwargs` divides by `num_items_in_batch`. For one that does not,
        # gradients would be too large by the number of accumulated batches.
        counts_inside = "num_items_in_batch" in inspect.signature(self.base_model.forward).parameters
        self.model_accepts_loss_kwargs = counts_inside or isinstance(self.encoder, InstructedEncoder)
        if self.train_dataset is not None and not self._is_streamed:
            seed = args.seed if args.data_seed is None else args.data_seed
            self.sampler = CaptionSampler(
                self.train_dataset.image_of,
                args.captions_per_image,
                seed,
                together=args.group_captions,
                lengths=self.train_dataset.lengths if by_length else None,
                batch_size=args.per_device_train_batch_size,
            )
            self.add_callback(EpochCallback(self.sampler))
        if args.max_grad_value is not None:
            self.add_callback(ElementClipping(args.max_grad_value))
        if args.early_stopping_patience is not None and args.eval_strategy != IntervalStrategy.NO:
            better = bool(args.greater_is_better)
            self.add_callback(StopWithoutProgress(args.early_stopping_patience, args.best_metric_key, better))

    def _make_collator(self, args: Any) -> CaptionCollator:
        return CaptionCollator(self.encoder, share_images=args.group_captions)

    def _make_training_items(self, rows: Dataset | IterableDataset, args: Any) -> Any:
        if isinstance(rows, IterableDataset):
            return self._make_stream(rows, args)
        return self._make_items(rows)

    def _make_stream(self, rows: IterableDataset, args: Any) -> Any:
        return self._streamed(
            rows,
            args.seed if args.data_seed is None else args.data_seed,
            args.per_device_train_batch_size,
            args.captions_per_image,
            args.stream_buffer_size,
            args.process_index,
            args.world_size,
            self.encoder.declared_inputs,
        )

    @property
    def _is_streamed(self) -> bool:
        return isinstance(self.train_dataset, StreamedPairs)

    def _make_items(self, rows: Dataset) -> Any:
        return CaptionPairs(CaptionedImages(rows, declared_inputs=self.encoder.declared_inputs))

    def _get_train_sampler(self, train_dataset: Any = None) -> CaptionSampler:
        return self.sampler

    def get_train_dataloader(self) -> DataLoader:
        """Return the data loader of pairs; uncached features are computed first."""
        if self._is_streamed:  # which shares the pairs among processes itself
            args = self.args
            return DataLoader(
                self.train_dataset,
                args.per_device_train_batch_size,
                collate_fn=self.data_collator,
                num_workers=args.dataloader_num_workers,
                prefetch_factor=args.dataloader_prefetch_factor if args.dataloader_num_workers else None,
            )
        if self.train_dataset is not None:
            self.attach_features(self.train_dataset.images)
        return super().get_train_dataloader()

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: PreTrainedModel | None = None) -> tuple[Any, Any]:
        """Return the optimizer class for the argument `optim`, and its keyword arguments."""
        if args.optim not in OPTIMIZERS:
            return CaptionEvaluationTrainer.get_optimizer_cls_and_kwargs(args, model)
        kind, options = OPTIMIZERS[args.optim]
        return kind, {"lr": args.learning_rate, **options}

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Create the optimizer; `vision_learning_rate` sets the vision model's learning rate."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self.args.vision_learning_rate is not None:
            set_own_rate(optimizer, self.base_model.get_encoder().vision.parameters(), self.args.vision_learning_rate)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Create a schedule of transformers or `SCHEDULES`; plateau schedules watch `metric_for_best_model`."""
        if self.args.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU:
            mode = "max" if self.args.greater_is_better else "min"
            self.args.lr_scheduler_kwargs = {"mode": mode} | (self.args.lr_scheduler_kwargs or {})
        if self.lr_scheduler is None and self.args.lr_scheduler_type in SCHEDULES:
            run = RunLength(
                steps_per_epoch=self._steps_per_epoch,
                warmup_steps=self.args.get_warmup_steps(num_training_steps),
                hidden_size=getattr(self.base_model.config, "hidden_size", None),
            )
            self.lr_scheduler = make_schedule(
                str(self.args.lr_scheduler_type), optimizer or self.optimizer, run, self.args.lr_scheduler_kwargs
            )
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    @property
    def _steps_per_epoch(self) -> int:
        if self._is_streamed:  # the run is one epoch
            return int(self.args.max_steps)
        batches = math.ceil(len(self.sampler) / (self.args.per_device_train_batch_size * self.args.world_size))
        return max(1, math.ceil(batches / self.args.gradient_accumulation_steps))

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the loss, with scheduled sampling if it is on."""
        probability = self.args.scheduled_sampling_probability(self.state.epoch or 0)
        if probability and model.training:
            words = mix_in_samples(self.base_model, inputs, probability)
            inputs = {**inputs, "decoder_input_ids": words, "use_cache": False}
        if not isinstance(self.encoder, InstructedEncoder):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**inputs)
        loss = outputs.loss  # the mean over the tokens of this batch
        if num_items_in_batch is not None:  # tokens of all accumulated batches, of all processes
            loss = loss * (inputs["labels"] != IGNORED_LABEL).sum() / num_items_in_batch
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Compute loss and gradients of a batch.

        Raises:
            DivergenceError: the loss is not finite.
            ValueError: all labels of the batch are ignored.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not bool(torch.isfinite(loss).all()):
            step = self.state.global_step + 1
            require_targets(inputs.get("labels"), step)
            require_finite_loss(float(loss.sum()), f"The loss at step {step}", self)
        if getattr(self.base_model, "is_untrained", False):
            self.base_model.is_untrained = False
        return loss

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if not self._is_sharded:
            require_finite_weights(self)
        super()._save(output_dir, state_dict)

    @property
    def _is_sharded(self) -> bool:
        return bool(self.is_deepspeed_enabled or self.is_fsdp_enabled)

    @property
    def _is_plain(self) -> bool:
        """True if checkpoints hold the whole model, or whole adapter, unsharded."""
        has_own_adapter = isinstance(self.model, PreTrainedModel) and hasattr(self.model, "peft_config")
        return not has_own_adapter and not self._is_sharded

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train as transformers does; a run that ended at the checkpoint makes no further step.

        Args:
            resume_from_checkpoint: a checkpoint, or True for the newest one.
            **kwargs: see `Trainer.train`.
        """
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = last_complete_checkpoint(str(self.args.output_dir))
        if checkpoint and not self._is_sharded:
            state = TrainerState.load_from_json(str(Path(checkpoint, STATE)))
            if reason := self.why_finished(state):
                logger.warning(f"The run had finished at {checkpoint} ({reason}): no further step is made.")
                output = self._end_at(checkpoint, state)
                self._average_with_start()
                return output
            if self._is_streamed:
                self.train_dataset.skipped_batches = state.global_step * self.args.gradient_accumulation_steps
        self._check_captions()
        output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        self._average_with_start()
        if sentence := equal_metric(self.state.log_history, self.args.best_metric_key):
            logger.warning(sentence)
        return output

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether the last evaluation is the best, see `best_evaluation`."""
        if super()._determine_best_metric(metrics, trial):
            return True
        key, better = self.args.best_metric_key, bool(self.args.greater_is_better)
        age, best = best_evaluation(self.state.log_history, key, better)
        if age or best is None or best[key] != self.state.best_metric:
            return False
        if self.args.save_strategy != SaveStrategy.NO:
            self.state.best_global_step = self.state.global_step
        return True

    def _copy_start(self, share: float) -> StartWeights:
        if self.args.eval_strategy != IntervalStrategy.NO:
            raise ValueError(
                f"`start_weight={share}` changes the weights after training, so that evaluations during training are "
                "not of the saved captioner. Set `eval_strategy` to 'no', and evaluate what is saved."
            )
        if self._is_sharded or hasattr(self.model, "peft_config"):
            raise ValueError(
                "`start_weight` averages the weights of a whole model: leave it out with shards or adapters."
            )
        return StartWeights(self.model, share)

    def _average_with_start(self) -> None:
        if self._start is not None:
            self._start.average_into(self.model)

    def _check_captions(self) -> None:
        """Check the training and evaluation captions before training; see also `caption_checks`."""
        self.count_captions()
        if isinstance(self.train_dataset, CaptionPairs):
            warn_of_wordless(self.train_dataset.images)
            require_short_captions(self.train_dataset.images, self.encoder, self.base_model, "training")
        rows = self.eval_dataset
        for part in rows.values() if isinstance(rows, dict) else [rows] if rows is not None else []:
            self.check_evaluation(part)

    def count_captions(self) -> CaptionCounts | None:
        """Count known and unknown tokens of the training captions (cached); None for streams.

        Raises:
            ValueError: see `check_training_captions`.
        """
        images = getattr(self.train_dataset, "images", None)
        if self._counts is None and images is not None:
            texts = [text for captions in images.captions for text in captions]
            is_new = bool(getattr(self.base_model, "is_untrained", False))
            self._counts = check_training_captions(texts, self.processing_class, self.args, is_new)
        return self._counts

    def check_evaluation(self, rows: Dataset, name: str = "evaluation") -> None:
        """Check before training that a data set can be evaluated.

        Args:
            rows: captioned images.
            name: of the data set, for the message.

        Raises:
            ValueError: captions are too long for the loss that `evaluate_loss` asks for, or have no blanks between
                words for the PTB tokenizer.
        """
        texts = [text for captions in self._wrapped(rows).captions for text in captions]
        require_blanks(texts, self.args.caption_tokenizer, "caption_tokenizer")
        if self.args.evaluate_loss:
            require_short_captions(self._wrapped(rows), self.encoder, self.base_model, name)

    def why_finished(self, state: TrainerState) -> str | None:
        """Return why a run is finished: steps, epochs or patience; None if steps are left."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, StopWithoutProgress) and callback.is_due(state):
                return f"{callback.patience} evaluations without a better `{callback.metric}`"
        return why_finished(state, self.args)

    def restore_final(self) -> bool:
        """Load the final model of a finished run from the output directory; return whether there is one.

        Returns:
            Whether there is one. False: the run has steps left with these arguments, its final save is missing, or the
            model is sharded, so that it is restored from checkpoints only.
        """
        output = str(self.args.output_dir)
        state = final_state(output) if self._is_plain else None
        if state is None or (reason := self.why_finished(state)) is None:
            return False
        logger.warning(f"The run in {output} has finished ({reason}): there is nothing to resume.")
        self._load_from_checkpoint(output)
        self._take_over(state)
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self.card.saved_step = state.best_global_step
        return True

    def _end_at(self, checkpoint: str, state: TrainerState) -> TrainOutput:
        """Restore the final model of a finished run without training."""
        self._load_from_checkpoint(checkpoint)
        restore_best_checkpoint(state, checkpoint)
        self._take_over(state)
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load_best_model()
        if self.args.should_save:
            args, best = self.args, state.best_model_checkpoint
            remove_surplus_checkpoints(str(args.output_dir), checkpoint, best, args.save_total_limit)
        return TrainOutput(state.global_step, float("nan"), {"epoch": state.epoch})

    def _take_over(self, state: TrainerState) -> None:
        state.is_local_process_zero = self.is_local_process_zero()
        state.is_world_process_zero = self.is_world_process_zero()
        self.state = state

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self._is_plain:
            load_weights(self.model, resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        self.card.saved_step = self.state.best_global_step
        if self._is_plain:
            load_weights(self.model, self.state.best_model_checkpoint)
        else:
            super()._load_best_model()


def _smooth_inside(model: PreTrainedModel, label_smoothing: float, is_own: bool) -> None:
    """Configure label smoothing in the model: the smoother of transformers removes labels that captioners need.

    Raises:
        ValueError: the model is not of this library, whose loss reads the configuration in every step.
    """
    if not is_own and not label_smoothing:
        return
    if not is_own:
        raise ValueError(
            f"`label_smoothing_factor={label_smoothing}` is not supported for a {type(model).__name__}; leave it 0."
        )
    if model.config.label_smoothing not in (0, label_smoothing):
        logger.warning(
            f"`label_smoothing_factor` is {label_smoothing} and takes the place of {model.config.label_smoothing}, "
            "which this captioner was configured with or trained with before."
        )
    if label_smoothing and getattr(model.config, "probability_floor", 0):
        raise ValueError(
            f"`label_smoothing_factor={label_smoothing}` has no meaning for a captioner with `probability_floor` "
            f"{model.config.probability_floor}; leave one of them 0."
        )
    model.config.label_smoothing = label_smoothing


def keep_boxes_exact(fsdp_plugin: Any) -> None:
    """Keep FSDP from casting module inputs, so that boxes stay in float32.

    The captioners of this library convert pixels and features themselves. In low precision, boxes that lie next to
    each other become equal, and the relations between regions change.

    Args:
        fsdp_plugin: Accelerate's plugin, or None.
    """
    policy = getattr(fsdp_plugin, "mixed_precision_policy", None)
    if policy is None:
        return
    fields = {field.name for field in dataclasses.fields(policy)}
    exact = {name: False for name in ("cast_forward_inputs", "cast_root_forward_inputs") if name in fields}
    fsdp_plugin.mixed_precision_policy = dataclasses.replace(policy, **exact)

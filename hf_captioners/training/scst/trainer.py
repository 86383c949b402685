"""`SCSTTrainer`: self-critical training of captioners, alone or after cross-entropy epochs."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from datasets import Dataset, IterableDataset
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from hf_captioners.architectures import Purpose
from hf_captioners.training.collator import CaptionCollator
from hf_captioners.training.evaluation import caption_statistics
from hf_captioners.training.health import visual_gate_means
from hf_captioners.training.images import CaptionedImages
from hf_captioners.training.progress import Say, report_progress
from hf_captioners.training.resume import load_weights
from hf_captioners.training.rewards.functions import SELF_RETRIEVAL, Reward, named_reward
from hf_captioners.training.rewards.references import TrainingReferences
from hf_captioners.training.rewards.weighted_sum import RewardRows, RewardSum, StreamedRewardRows
from hf_captioners.training.streams import StreamedImages, StreamedPairs, require_columns, rows_of_captions
from hf_captioners.training.trainer import CaptioningTrainer

from .arguments import NEW_PARTS, SCSTArguments
from .callbacks import CollapseWarning, InitialEvaluation, MovingAverage
from .loss import SAMPLE_BASELINES, sample_baseline, self_critical_loss
from .sampling import CaptionSamples, CaptionSampling
from .self_retrieval import SelfRetrieval
from .start import START_FOLDER, check_is_of_scst, last_scst_checkpoint, phase_of, save_start
from .token_scores import TokenScores


class NumberedImages(TorchDataset):
    """Data set with one item per image: the image and its row number.

    Args:
        images: the images.
    """

    lengths = None  # captions are not sampled yet: `group_by_length` applies to the cross-entropy part

    def __init__(self, images: CaptionedImages) -> None:
        self.images = images
        self.image_of = np.arange(len(images))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return an image with its `row`."""
        return {**self.images[row], "row": row}


class NumberedCollator(CaptionCollator):
    """Collator that adds `row` `[B]` to batches of `NumberedImages`; others as in `CaptionCollator`.

    Batches of `StreamedImages` also get their `examples`, a list of B dictionaries.
    """

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the model inputs of B images with their row numbers."""
        batch: dict[str, Any] = super().__call__(items)
        if "row" in items[0] and "caption" not in items[0]:
            batch["row"] = torch.tensor([item["row"] for item in items])
        if "example" in items[0]:
            batch["examples"] = [item["example"] for item in items]
        return batch


@dataclass(frozen=True)
class RewardBatch:
    """Rewards of N sampled captions.

    Args:
        figures: `[N, functions]`, unweighted rewards.
        ended: `[N]`, whether each caption has an end token.
        statistics: see `caption_statistics`.
    """

    figures: Tensor
    ended: Tensor
    statistics: dict[str, float]


class SCSTTrainer(CaptioningTrainer):
    """Trainer that optimises rewards of sampled captions (self-critical training, Rennie et al., CVPR 2017).

    Each step samples K captions per image without a graph, scores them asynchronously, and computes the gradient in
    one pass over them. With `scst_after_epochs` or `scst_after_patience` the run starts with cross-entropy.

    Args:
        model: the captioner; trained with cross-entropy before, unless this run starts with it.
        args: see `SCSTArguments`.
        train_dataset: captioned images as `load_captions` returns them. Rewards receive its other columns.
        eval_dataset, processing_class, callbacks: see `CaptioningTrainer`. Callbacks also run in cross-entropy epochs.
        reward_funcs: names, `module:function`, or functions `(completions, references, images=None, **columns) ->
            list[float | None]`, instead of `args.reward_funcs`, see `hf_captioners.training.rewards`.
        optimizers: optimizer and schedule of self-critical training.

    Attributes:
        say: receives lines on the progress of the cross-entropy part, see `log_progress`. None: transformers' own.

    Raises:
        ValueError: see `CaptioningTrainer`, `RewardSum` and `MetricReward`; or an image has no caption.

    Example:

    ```python
    from hf_captioners import SCSTArguments, SCSTTrainer


    def brevity(completions, references, **columns):
        return [1 / max(1, len(text.split())) for text in completions]


    trainer = SCSTTrainer(
        model,
        SCSTArguments("my_rewarded_captioner", num_train_epochs=1, reward_weights=[1.0, 0.1]),
        train_dataset=images["train"],
        eval_dataset=images["validation"],
        processing_class=processor,
        reward_funcs=["cider_d", brevity],
    )
    trainer.train()
    ```
    """

    args: SCSTArguments
    purpose = Purpose.REWARDS
    _streamed: type[StreamedPairs] = StreamedImages

    def __init__(
        self,
        model: PreTrainedModel,
        args: SCSTArguments,
        train_dataset: Dataset | IterableDataset,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        processing_class: Any = None,
        reward_funcs: Sequence[str | Reward] | None = None,
        callbacks: Sequence[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        if getattr(model, "captions_depend_on_batch", False):
            raise ValueError(
                "A caption of this model depends on the other captions of its batch, so that one pass over sampled "
                "captions does not give their gradient. Load it with a setting that does not couple the batch: "
                "`model_config`: `intensity_pool=mean` for ZoDIAC."
            )
        super().__init__(model, args, train_dataset, eval_dataset, processing_class, callbacks, optimizers)
        self._rows, self._callbacks = train_dataset, list(callbacks or ())
        self.rewards = self._make_rewards(args.reward_funcs if reward_funcs is None else reward_funcs)
        self.sampling = CaptionSampling(
            self.model,
            self.base_model,
            processing_class,
            args.generation_max_new_tokens,
            self.encoder,
            by_pieces=not args.torch_compile,
        )
        self.start_folder = str(Path(str(args.output_dir), START_FOLDER))
        self.add_callback(MovingAverage(args.baseline_momentum))
        self.add_callback(CollapseWarning())
        if args.eval_strategy != IntervalStrategy.NO:
            self.add_callback(InitialEvaluation(self.evaluate, self.start_folder))
        self.say: Say | None = None
        self._reference: Any = None
        self._figures: dict[str, list[float]] = {}
        self._worker = ThreadPoolExecutor(1)

    @property
    def moving_average(self) -> MovingAverage:
        """Moving average of rewards; looked up each time, as transformers may replace the object on resuming."""
        return next(one for one in self.callback_handler.callbacks if isinstance(one, MovingAverage))

    def _make_collator(self, args: Any) -> CaptionCollator:
        return NumberedCollator(self.encoder)

    def _make_items(self, rows: Dataset) -> Any:
        return NumberedImages(CaptionedImages(rows, declared_inputs=self.encoder.declared_inputs))

    def _make_rewards(self, functions: Sequence[str | Reward]) -> RewardSum:
        names = [name_of(function) for function in functions]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"Several rewards are called {', '.join(sorted(repeated))}, so the log could not distinguish them: "
                "give each function a `__name__` of its own."
            )
        captions, rows = self._captions_and_rows()
        prepared = TrainingReferences(captions, bool(self.args.end_token_in_reward), self.tokenize_captions)
        functions_by_name = {name_of(function): self._make_reward(function, prepared) for function in functions}
        return RewardSum(functions_by_name, self.args.reward_weights, rows)

    def _captions_and_rows(self) -> tuple[Sequence[Sequence[str]], RewardRows]:
        """Return the captions of each image, and the rows for reward functions; a stream is read once."""
        if isinstance(self._rows, IterableDataset):
            captions = [texts for texts in rows_of_captions(self._rows) if texts]
            return captions, StreamedRewardRows(require_columns(self._rows))
        images = self.train_dataset.images
        rows = self._rows if images.source is None else self._rows.with_format(None)  # no reward reads regions
        return images.captions, RewardRows(rows, images.captions)

    def _make_reward(self, function: str | Reward, prepared: TrainingReferences) -> Reward:
        if not isinstance(function, str):
            return function
        if function == SELF_RETRIEVAL:
            return SelfRetrieval(None, self.processing_class)
        return named_reward(function, prepared, str(self.args.document_frequency))

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train; cross-entropy epochs come first if the arguments ask for them.

        Args:
            resume_from_checkpoint: a checkpoint of either part of a run, or its `start` folder; True takes that of
                `last_scst_checkpoint`.
            **kwargs: see `Trainer.train`.

        Raises:
            ValueError: the checkpoint is of a different trainer or model, or the captioner was never trained.
        """
        output_dir = str(self.args.output_dir)
        resume = last_scst_checkpoint(output_dir) if resume_from_checkpoint is True else resume_from_checkpoint or None
        phase = None if resume is None else phase_of(resume, output_dir)
        if phase == "scst":
            check_is_of_scst(str(resume), type(self.moving_average).__name__)
        else:
            self._make_start(resume, phase)
            # Random numbers must not depend on the cross-entropy part, nor on where it was interrupted.
            set_seed(self.args.seed, device_specific=True)
        judges = [
            reward
            for reward in self.rewards.functions.values()
            if isinstance(reward, SelfRetrieval) and reward.is_open
        ]
        if self.args.kl_weight or judges:
            self._reference = self._load_reference()
        for judge in judges:
            judge.model = self._reference
        return super().train(resume_from_checkpoint=resume if phase == "scst" else None, **kwargs)

    def _make_start(self, resume: str | None, phase: str | None) -> None:
        """Load or train the initial model of self-critical training, and save it in `start`."""
        if phase == "start":
            self._load_from_checkpoint(str(resume))
            return
        if self.args.begins_with_cross_entropy:
            self._train_with_cross_entropy(resume)
        elif resume is None and getattr(self.base_model, "is_untrained", False):
            raise ValueError(NEW_PARTS)
        elif phase == "cross_entropy":
            raise ValueError(
                f"The checkpoint {resume} is of the cross-entropy part of a run. Set `scst_after_epochs` or "
                "`scst_after_patience` as before, or start from its model (`model`) with a different `output_dir`."
            )
        save_start(self.save_model, str(self.args.output_dir), self.is_world_process_zero())
        self.accelerator.wait_for_everyone()

    def _train_with_cross_entropy(self, resume: str | None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError(
                "A model that is sharded over processes cannot switch from cross-entropy to self-critical training in "
                "one run. Train with cross-entropy first, then start from that model."
            )
        trainer = CaptioningTrainer(
            self.model,
            self.args.for_cross_entropy(),
            train_dataset=self._rows,
            eval_dataset=self.eval_dataset,
            processing_class=self.processing_class,
            callbacks=self._callbacks,
        )
        if self.say is not None:
            report_progress(trainer, self.say)
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_state()

    def _load_reference(self) -> PreTrainedModel:
        if not self._is_plain:
            raise ValueError(
                f"`kl_weight` and the reward {SELF_RETRIEVAL} need a whole model in each process; leave them out."
            )
        reference = copy.deepcopy(self.model).eval().requires_grad_(False)
        load_weights(reference, self.start_folder)
        return reference.to(self.args.device)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the self-critical loss of a batch of numbered images."""
        rows = inputs["row"].tolist()
        images = {name: value for name, value in inputs.items() if name not in ("row", "examples")}
        if isinstance(self.rewards.rows, StreamedRewardRows):
            self.rewards.rows.present = dict(zip(rows, inputs["examples"], strict=True))
        samples = self._draw(images)
        rewards = self._reward(samples, rows)
        greedy = None
        if self.args.baseline == "greedy":
            greedy = self._reward(self.sampling.greedy(images, self.accelerator.autocast()), rows)
        scores, outputs = self._scores(model, images, samples)
        advantages = self._advantages(rewards, greedy, scores.logprobs.device)
        by_image = (len(rows), self.args.num_samples, -1)
        length = self.args.generation_max_new_tokens if self.args.loss_length == "longest" else None
        loss = self_critical_loss(scores.logprobs.view(by_image), samples.real.view(by_image), advantages, length)
        loss = loss + self._regularisers(scores, samples.real.sum())
        gates = visual_gate_means(self.base_model, outputs, samples.real)
        if gates:
            self._note("visual_gate", sum(gates) / len(gates))
        return (loss, outputs) if return_outputs else loss

    def _draw(self, images: dict[str, Tensor]) -> CaptionSamples:
        args, precision = self.args, self.accelerator.autocast()
        if args.sampling == "beams":
            return self.sampling.beams(images, precision, args.num_samples, args.sample_with_dropout)
        return self.sampling.multinomial(
            images, precision, args.num_samples, args.temperature, args.sample_with_dropout
        )

    def _reward(self, samples: CaptionSamples, rows: list[int]) -> "Future[RewardBatch]":
        """Compute the rewards of captions asynchronously."""
        tokens, ended = samples.tokens.cpu(), samples.ended.cpu()
        row = np.repeat(rows, len(tokens) // len(rows)).tolist()

        def work() -> RewardBatch:
            completions = self.encoder.decode(tokens)
            words = self.tokenize_captions(completions)  # once, for all rewards and the statistics
            figures = self.rewards(completions, row, ended.tolist(), words)
            return RewardBatch(figures, ended, caption_statistics(words))

        return self._worker.submit(work)

    def _advantages(
        self,
        rewards: "Future[RewardBatch]",
        greedy: "Future[RewardBatch] | None",
        device: torch.device,
    ) -> Tensor:
        """Compute the advantages `[B, K]`, rewards minus baseline, and record both for the log."""
        rewarded = rewards.result()
        total = self.rewards.total(rewarded.figures).view(-1, self.args.num_samples)  # [B, K]
        scored = ~total.isnan()
        # Captions that every reward skipped count as the mean of the image's others and have no advantage.
        total = torch.where(scored, total, total.nanmean(1, keepdim=True).nan_to_num(0.0))
        if greedy is not None:
            baseline = self.rewards.total(greedy.result().figures)[:, None].expand_as(total)
            scored, baseline = scored & ~baseline.isnan(), baseline.nan_to_num(0.0)
        elif self.args.baseline in SAMPLE_BASELINES:
            baseline = sample_baseline(str(self.args.baseline), total)
        else:
            baseline = torch.full_like(total, self.moving_average.value)
        mean = self.accelerator.reduce(total.mean().to(device), "mean")
        self.moving_average.update(float(mean))
        advantages = (total - baseline) * scored
        for name, column in zip(self.rewards.functions, rewarded.figures.T, strict=True):
            if not column.isnan().all():
                self._note(f"reward_{name}", float(column.nanmean()))
        self._note("reward", float(total.mean()))
        self._note("baseline", float(baseline.mean()))
        self._note("advantage_std", float(advantages.std(correction=0)))
        self._note("unfinished", float((~rewarded.ended).float().mean()))
        for name, figure in rewarded.statistics.items():
            self._note(name, figure)
        return advantages.to(device)

    def _scores(self, model: Any, images: dict[str, Tensor], samples: CaptionSamples) -> tuple[TokenScores, Any]:
        """Compute the token scores that the loss needs, and the model's output."""
        args = self.args
        return self.sampling.scores(
            model,
            images,
            samples,
            args.temperature,
            with_entropy=bool(args.entropy_weight),
            reference=self._reference if args.kl_weight else None,
            precision=self.accelerator.autocast,
        )

    def _regularisers(self, scores: TokenScores, tokens: Tensor) -> Tensor:
        """Compute the weighted KL divergence and entropy per token."""
        extra = scores.logprobs.new_zeros(())
        if scores.divergences is not None:
            divergence = scores.divergences.sum() / tokens
            self._note("kl", float(divergence.detach()))
            extra = extra + self.args.kl_weight * divergence
        if scores.entropies is not None:
            entropy = scores.entropies.sum() / tokens
            self._note("entropy", float(entropy.detach()))
            extra = extra - self.args.entropy_weight * entropy
        return extra

    def _note(self, name: str, figure: float) -> None:
        """Record a value of this step for the next log entry."""
        self._figures.setdefault(name, []).append(figure)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as transformers does, and add the recorded values, averaged over all processes, to training entries."""
        if "loss" in logs and self._figures:
            means = torch.tensor([sum(values) / len(values) for values in self._figures.values()])
            means = self.accelerator.reduce(means.to(self.args.device), "mean")
            logs |= dict(zip(self._figures, means.tolist(), strict=True))
            self._figures = {}
        super().log(logs, start_time)


def name_of(function: str | Callable[..., Any]) -> str:
    """Return the name of a reward function in the log."""
    if isinstance(function, str):
        return function.rpartition(":")[2]
    return getattr(function, "__name__", type(function).__name__)

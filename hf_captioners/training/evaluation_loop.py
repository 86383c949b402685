"""Evaluation of captioners by generated captions: the part of `CaptioningTrainer` without training."""

import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader, Subset
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedModel, TrainerControl
from transformers.trainer_utils import speed_metrics

from hf_captioners.data.schema import REGIONS
from hf_captioners.features.agreement import require_own_features
from hf_captioners.features.cache import FeatureCache, can_cache
from hf_captioners.features.shared_cache import GIGABYTE, SharedCache
from hf_captioners.metrics.caption_tokenizers import CaptionTokenizer
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.processing.image_reading import read_image
from hf_captioners.work_progress import progress_of

from .collator import CaptionEncoder
from .evaluation import (
    MetricResult,
    caption_batch,
    generation_config_for,
    packed_weights,
    score_captions,
    write_captions,
)
from .health import CaptionedExample, require_finite_loss, scored_words, show_examples, visual_gate_means
from .hub_trainer import HubTrainer
from .images import CaptionedImages, CaptionPairs
from .streams import in_memory


class CaptionEvaluationTrainer(HubTrainer):
    """Trainer that evaluates a captioner by its generated captions.

    Attributes:
        encoder: encodes images and captions, and decodes tokens.
        tokenize_captions: the tokenizer of all evaluations and rewards, `args.caption_tokenizer`.
    """

    control: TrainerControl
    encoder: CaptionEncoder
    tokenize_captions: CaptionTokenizer
    _is_own: bool
    _feature_cache: FeatureCache | None = None

    @property
    def base_model(self) -> PreTrainedModel:
        """The captioner without adapter layers."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def attach_features(self, images: CaptionedImages) -> None:
        """Replace images by stored features, if the vision model is frozen and caching is on."""
        if images.source is not None:
            require_own_features(self.base_model, self.processing_class, images.source)
        usable = self.args.cache_features and can_cache(self.base_model) and images.image_column != REGIONS
        if not usable or images.features is not None:
            return
        if self._feature_cache is None:
            args = self.args
            is_shared = args.feature_cache_dir is None and args.feature_cache_gb > 0
            self._feature_cache = FeatureCache(
                args.feature_cache_dir or args.own_features,
                self.base_model,
                self.processing_class,
                args.feature_cache_dtype,
                workers=args.dataloader_num_workers,
                shared=SharedCache(limit=int(args.feature_cache_gb * GIGABYTE)) if is_shared else None,
            )
        with self.args.main_process_first(local=False, desc="features"):
            images.features = self._feature_cache.features_of(images.rows)

    def evaluate(
        self,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Caption every image once and score the captions against all references.

        Args:
            eval_dataset: captioned images, or several data sets by name; default: the trainer's own.
            ignore_keys: not used; there are no model outputs to gather.
            metric_key_prefix: prefix of the names of the metrics.
            **gen_kwargs: generation settings of this evaluation. Captions are searched, also where the generation
                configuration of the captioner samples; `do_sample=True` samples, by `seed` (default: training's).

        Returns:
            The scores of `eval_metrics` in natural units (`eval_bleu_1` to `eval_bleu_4`, `eval_rouge_l`,
            `eval_cider_d`), `eval_loss` if it is evaluated, speed, and statistics of the captions: `eval_distinct`,
            `eval_length` in words, `eval_length_ratio`, `eval_bad_endings`.

        Raises:
            DivergenceError: the loss is not finite.
        """
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, dict):
            parts = [
                self.evaluate(part, metric_key_prefix=f"{metric_key_prefix}_{name}", **gen_kwargs)
                for name, part in rows.items()
            ]
            return {name: value for part in parts for name, value in part.items()}
        if rows is None:
            raise ValueError("There is no data set to evaluate on: pass `eval_dataset`.")
        started = time.time()
        images = self._images_of(rows)
        captions, figures = self._measure(images, self.args.eval_metrics, None, gen_kwargs)
        if self.args.diagnostic_examples:
            figures |= self._diagnose(images, captions)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        metrics.update(speed_metrics(metric_key_prefix, started, num_samples=len(images)))
        if self.args.save_captions and self.is_world_process_zero():
            name = f"{metric_key_prefix}-{self.state.global_step:07d}.jsonl"
            write_captions(Path(self.args.output_dir, "captions", name), images.image_ids, captions)
        self._note_on_card(metric_key_prefix, rows, captions, figures, gen_kwargs)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def test(
        self, rows: Dataset, metrics: Sequence[str] | None = None, tokenizer: str | None = None, **gen_kwargs: Any
    ) -> MetricResult:
        """Caption a test set; the next saved card reports the metrics.

        Args:
            rows: captioned images.
            metrics: see `compute_caption_metrics`; default: those of `evaluate`, `args.eval_metrics`.
            tokenizer: see `compute_caption_metrics`; default: that of `evaluate`, `args.caption_tokenizer`.
            **gen_kwargs: generation settings.

        Returns:
            The metrics and statistics of `evaluate`, without a prefix and without speed, and their `conditions`.
        """
        metric_names = self.args.eval_metrics if metrics is None else metrics
        captions, figures = self._measure(self._images_of(rows), metric_names, tokenizer, gen_kwargs)
        self._note_on_card("test", rows, captions, figures, gen_kwargs)
        return figures

    def _measure(
        self, images: CaptionedImages, metrics: Sequence[str], tokenizer: str | None, gen_kwargs: dict[str, Any]
    ) -> tuple[list[str], MetricResult]:
        """Caption images and compute all metrics for `evaluate` and `test`."""
        captions = self._caption_images(images, **gen_kwargs)
        default = self.args.caption_tokenizer
        tokenize = self.tokenize_captions if tokenizer in (None, default) else None
        figures = score_captions(captions, images.captions, metrics, tokenizer or default, tokenize)
        if self.args.evaluate_loss:
            figures["loss"] = self.caption_loss(images)
            require_finite_loss(figures["loss"], f"The evaluation loss at step {self.state.global_step}", self)
        return captions, figures

    def _note_on_card(
        self, name: str, rows: Dataset, captions: list[str], figures: MetricResult, given: dict[str, Any]
    ) -> None:
        images = self._images_of(rows)
        scored = partial(self._scored_words, images, captions)
        settings = self._generation_settings(given)
        self.card.note_evaluation(self.state.global_step, name, rows, images, captions, figures, settings, scored)

    @torch.no_grad()
    def _diagnose(self, images: CaptionedImages, captions: list[str]) -> dict[str, float]:
        """Log the first images with their captions to the tools in `report_to`.

        Returns:
            The mean visual gate of each layer over these captions, for captioners with such gates.
        """
        rows = range(min(self.args.diagnostic_examples, len(images)))
        if self.is_world_process_zero() and "image" in images.rows.column_names:
            examples = [
                CaptionedExample(read_image(images.rows[row]["image"]), captions[row], images.captions[row])
                for row in rows
            ]
            show_examples(self.callback_handler.callbacks, examples, self.state.global_step)
        if not self._is_own:
            return {}
        batch = self._captioned_batch(images, captions, rows)
        with self.accelerator.autocast():
            outputs = self.base_model(**batch, output_gates=True)
        means = visual_gate_means(self.base_model, outputs, batch["labels"] != IGNORED_LABEL)
        return {f"visual_gate_{layer}": mean for layer, mean in enumerate(means)}

    def _scored_words(self, images: CaptionedImages, captions: list[str], row: int) -> list[tuple[str, float]]:
        """Return the words of a caption with their visual scores, if the captioner computes such scores."""
        if not getattr(self.base_model, "has_visual_scores", False) or not captions[row]:
            return []
        with self.accelerator.autocast():
            return scored_words(
                self.base_model, self.processing_class, **self._captioned_batch(images, captions, [row])
            )

    def _captioned_batch(self, images: CaptionedImages, captions: list[str], rows: Iterable[int]) -> dict[str, Any]:
        """Return the model inputs for images with their generated captions; the model is set to evaluation mode."""
        self.model.eval()
        batch = self.data_collator([{**images[row], "caption": captions[row]} for row in rows])
        return self._prepare_inputs({name: value for name, value in batch.items() if name != "row"})

    def caption(self, rows: Dataset, **gen_kwargs: Any) -> list[str]:
        """Generate the best caption of every image of a data set.

        Processes share the work, and each returns all captions.

        Args:
            rows: captioned images, see the class.
            **gen_kwargs: generation settings, see `evaluate`; default: those of the arguments.

        Returns:
            One caption per row, in the order of the rows.
        """
        return self._caption_images(self._images_of(rows), **gen_kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: `PredictionOutput` of transformers holds token ids and logits, not captions.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "`predict` is not supported: call trainer.caption(rows) for captions, or trainer.test(rows) for metrics."
        )

    def _caption_images(self, images: CaptionedImages, **gen_kwargs: Any) -> list[str]:
        settings = self._generation_settings(gen_kwargs)
        seed = settings.pop("seed", None)
        config = generation_config_for(self.base_model, settings)
        self.model.eval()
        captions: list[str] = []
        with packed_weights(self.model):
            for batch in self._own_share(images, "captions", "image"):
                tokens = caption_batch(self.model, batch, config, self.accelerator.autocast(), seed)
                captions += self.encoder.decode(self.encoder.without_prompt(tokens, batch))
        shares = gather_object([captions]) if self.args.world_size > 1 else [captions]
        # Process p captioned the rows p, p + world size, ...
        return [shares[row % len(shares)][row // len(shares)] for row in range(len(images))]

    def _generation_settings(self, given: dict[str, Any]) -> dict[str, Any]:
        settings = {
            "num_beams": self.args.generation_num_beams,
            "max_new_tokens": self.args.generation_max_new_tokens,
        }
        # None keeps the model's own setting.
        settings = {name: value for name, value in (settings | given).items() if value is not None}
        return {"seed": self.args.seed} | settings if settings.get("do_sample") else settings

    @torch.no_grad()
    def caption_loss(self, images: CaptionedImages) -> float:
        """Compute the mean negative log-likelihood per token of all references.

        Label smoothing and other loss settings have no effect. For captioners of transformers it is the mean of their
        own loss.
        """
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64)  # loss, tokens
        for batch in self._own_share(CaptionPairs(images, skip_uncaptioned=True), "loss", "caption"):
            real = batch["labels"] != IGNORED_LABEL
            with self.accelerator.autocast():
                outputs = self.model(**batch)
            if self._is_own:
                targets = batch["labels"][real]
                loss = torch.nn.functional.cross_entropy(outputs.logits[real].float(), targets, reduction="sum")
            else:
                loss = outputs.loss * real.sum()
            total += torch.tensor([loss.item(), real.sum().item()], dtype=torch.float64)
        total = self.accelerator.reduce(total.to(self.args.device, torch.float32))
        return float(total[0] / total[1])

    def _images_of(self, rows: Dataset) -> CaptionedImages:
        """Return the data set wrapped as `CaptionedImages`, with stored features where used."""
        images = self._wrapped(rows)
        self.attach_features(images)
        return images

    def _wrapped(self, rows: Dataset) -> CaptionedImages:
        """Return the data set wrapped as `CaptionedImages`, cached per data set."""
        if not hasattr(self, "_evaluated"):
            self._evaluated: dict[int, tuple[Dataset, CaptionedImages]] = {}
        if id(rows) not in self._evaluated:
            stored = in_memory(rows) if isinstance(rows, IterableDataset) else rows
            self._evaluated[id(rows)] = rows, CaptionedImages(stored, declared_inputs=self.encoder.declared_inputs)
        return self._evaluated[id(rows)][1]

    def _own_share(self, items: TorchDataset, work: str, unit: str) -> Any:
        """Yield the batches of the data set that this process evaluates, on its device."""
        share = Subset(items, range(self.args.process_index, len(items), self.args.world_size))  # type: ignore[arg-type]
        loader = DataLoader(
            share,
            self.args.per_device_eval_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            generator=torch.Generator().manual_seed(0),  # leaves the run's own random numbers alone
        )
        hidden = self.args.disable_tqdm or not self.is_local_process_zero()
        with progress_of(f"evaluation: {work}", unit, len(share), bool(hidden), leave=False) as progress:
            for place, batch in enumerate(loader):
                yield self._prepare_inputs(batch)
                size = self.args.per_device_eval_batch_size
                progress.update(min(size, len(share) - place * size))

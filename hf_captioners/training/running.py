"""Training of a captioner from arguments: load the data, build the model, train, test, save."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, IterableDataset
from transformers import TrainerCallback, set_seed
from transformers.trainer_utils import IntervalStrategy

from hf_captioners.data.training_images import TrainingImages
from hf_captioners.hub.card_facts import PublishedFacts
from hf_captioners.loading import require_supported
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.metrics.compute import with_control
from hf_captioners.metrics.registry import find_metrics
from hf_captioners.output_files import (
    as_json,
    explain_write_errors,
    only_run_in,
    read_text_inside,
    require_writable_folder,
    write_text,
)
from hf_captioners.processing.vocabulary import attribute_words

from .arguments import CaptioningTrainingArguments
from .choosing import best_evaluation
from .data_arguments import DataArguments, fit_to_features, load_training_data, with_oracle_attributes
from .data_record import resumed_data
from .evaluation import MetricResult
from .few_images import AUTO, NONE, with_recipe
from .hub_trainer import ADVICE
from .large_models import with_lora
from .packages import require_packages
from .progress import Say, log_progress
from .resume import STATE, last_complete_checkpoint, require_complete
from .scst.arguments import NEW_PARTS, SCSTArguments
from .scst.start import last_scst_checkpoint
from .scst.trainer import SCSTTrainer
from .starting import ModelArguments, check_parts, start_captioner, with_new_words
from .streams import require_stream_arguments, rows_of_captions
from .trainer import CaptioningTrainer

NUM_ATTRIBUTES = 1000  # words that may be attributes (Entangled Transformer, section 5.2)
TRAIN_RESULTS = "train_results.json"
TEST_RESULTS = "test_results.json"
CONDITIONS = ("variants", "document_frequency", "tokenizer")  # of `MetricResult`
SUBSET = "subset.json"
NOTHING_TO_RESUME = "No complete checkpoint: starting from the beginning."
Comparison = Callable[[Mapping[int, Mapping[str, float]]], PublishedFacts]
"""Puts the metrics of runs, by seed, beside a published row; see `Recipe.comparison` in `hf_captioners.reproduce`."""


@dataclass
class TestArguments:
    """Arguments for testing a trained captioner.

    Args:
        test_split: split to caption. None: no test.
        test_metrics: names of metrics, see `compute_caption_metrics`. None: those of evaluations (`eval_metrics`).
        shuffled_control: add `cider_d_shuffled` to the metrics, see `shuffled_cider_d`.
        test_tokenizer: tokenizer of the test, see `compute_caption_metrics`. None: `caption_tokenizer`.

    Raises:
        ValueError: a metric is unknown.
    """

    __test__ = False  # not a class of tests, whatever pytest makes of its name

    test_split: str | None = field(
        default=None, metadata={"help": "Caption this split after training and write test_results.json."}
    )
    test_metrics: list[str] | None = field(
        default=None, metadata={"help": "Metrics of the test; default: those of --eval_metrics."}
    )
    shuffled_control: bool = field(
        default=False,
        metadata={
            "help": "Add cider_d_shuffled to the test: the same captions against the references of the next image."
        },
    )
    test_tokenizer: Literal["ptb", "none", "characters", "unicode"] | None = field(
        default=None, metadata={"help": "Tokenizer of the test; default: that of evaluations, --caption_tokenizer."}
    )

    def __post_init__(self) -> None:
        """Check the metric names."""
        find_metrics(self.test_metrics or ())

    def metrics(self, of_evaluations: Sequence[str]) -> list[str]:
        """Return the names of the metrics of the final test; the default is the metrics of the evaluations."""
        asked = of_evaluations if self.test_metrics is None else self.test_metrics
        return with_control(asked, self.shuffled_control)


@dataclass
class TrainingResult:
    """Result of `train_captioner`.

    Args:
        trainer: the trainer, with the saved model.
        metrics: metrics of the training loop: `train_loss`, `train_runtime`, ...
        test_metrics: metrics of the test split in natural units. None: there was no test.
        resumed_from: the checkpoint that the run resumed from, if any.
        had_finished: whether the run had finished before it was resumed, so that nothing was trained.
    """

    trainer: CaptioningTrainer
    metrics: dict[str, float]
    test_metrics: MetricResult | None = None
    resumed_from: str | None = None
    had_finished: bool = False

    @property
    def best_evaluation(self) -> dict[str, Any] | None:
        """Log entry of the best evaluation by `metric_for_best_model`; None without evaluations."""
        arguments = self.trainer.args
        history, better = self.trainer.state.log_history, bool(arguments.greater_is_better)
        return best_evaluation(history, arguments.best_metric_key, better)[1]


def train_captioner(
    model_arguments: ModelArguments,
    data_arguments: DataArguments,
    training_arguments: CaptioningTrainingArguments,
    test_arguments: TestArguments | None = None,
    recipe: str = AUTO,
    resume: bool = False,
    reproduces: Comparison | None = None,
    say: Say | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> TrainingResult:
    """Train a captioner and save it in `output_dir` with a card; test it if a test split is given.

    Arguments are checked before images are read. A finished run that is resumed is not trained any further.

    Args:
        model_arguments: the architecture and the models that the captioner starts from.
        data_arguments: the data set.
        training_arguments: `SCSTArguments` for self-critical training, `CaptioningTrainingArguments` otherwise.
        test_arguments: the test after training. Its metrics are written to `test_results.json` and to the card.
        recipe: named settings for the training arguments that are not given, see `hf_captioners.training.few_images`:
            `"few_images"`, `"few_images_cross_entropy"`, `"lora"`, `"none"`, or `"auto"`: `"lora"` for a captioner of
            more than a billion parameters, else one of the others if fewer than 500 images train a given captioner.
        resume: resume from the last complete checkpoint in `output_dir`, if any.
        reproduces: compares the metrics of the test with a published row; the card shows both.
        say: receives lines about plan, time and figures; the first one names the recipe, if any. None: nothing.
        callbacks: further callbacks of the trainer.

    Raises:
        ValueError: an argument has a wrong value or is not used by the captioner, a checkpoint is of a different type,
            images are missing, or the data changed since the run began.
        FileExistsError: `output_dir` holds a run, and neither `resume` nor `resume_from_checkpoint` is set.
        BlockingIOError: another run is writing into `output_dir`.
        ImportError: a package is not installed that an argument needs.
        OSError: a file cannot be read or written.

    Example:
        ```python
        from hf_captioners.training.arguments import CaptioningTrainingArguments
        from hf_captioners.training.data_arguments import DataArguments
        from hf_captioners.training.running import train_captioner
        from hf_captioners.training.starting import ModelArguments
        result = train_captioner(
            ModelArguments(language_model="distilgpt2", vision_model="timm:resnet50.a1_in1k"),
            DataArguments(train_dir="my_images"),
            CaptioningTrainingArguments("my_captioner", num_train_epochs=3),
        )
        result.best_evaluation["eval_cider_d"]
        ```
    """
    require_packages(vars(training_arguments) | vars(model_arguments) | vars(data_arguments))
    test, output = test_arguments or TestArguments(), Path(str(training_arguments.output_dir))
    require_writable_folder(output)
    if model_arguments.model is not None:  # before any image is read
        require_supported(model_arguments.model, trainer_class(training_arguments).purpose)
    is_main = training_arguments.process_index == 0
    say = say if say is not None and is_main else _discard
    variants = _try_metrics(training_arguments, test)
    tokenizer = test.test_tokenizer or training_arguments.caption_tokenizer
    with only_run_in(output, is_main), explain_write_errors(output, ADVICE):
        earlier = checkpoint_to_resume(training_arguments, resume)
        start = _Start(model_arguments, data_arguments, training_arguments, recipe, resume)
        test_rows = data_arguments.test_rows(test.test_split) if test.test_split else None
        train_rows, validation_rows = load_training_data(data_arguments, training_arguments.seed)
        rows = {"training": train_rows} | ({} if validation_rows is None else {"evaluation": validation_rows})
        changed_data = resumed_data(output, earlier, rows, data_arguments.allow_changed_data, is_main)
        model, processor = start.captioner(train_rows)
        for line in filter(None, (start.recipe_line, start.words_line)):
            say(line)
        _require_evaluation_rows(validation_rows, start.training_arguments)
        checkpoint = checkpoint_to_resume(start.training_arguments, resume)
        if data_arguments.attributes is not None:
            _require_attributes_read(data_arguments.attributes, model, processor)
            train_rows, validation_rows, test_rows = _with_attributes(train_rows, validation_rows, test_rows)
        if resume:
            say(f"Resuming from {checkpoint}." if checkpoint else NOTHING_TO_RESUME)
        data = {"train_dataset": train_rows, "eval_dataset": validation_rows, "processing_class": processor}
        trainer = trainer_class(start.training_arguments)(model, start.training_arguments, callbacks=callbacks, **data)
        trainer.card.changed_data = changed_data
        if test_rows is not None:
            trainer.check_evaluation(test_rows, "test")
        if is_main:
            _save_image_lists(data_arguments, train_rows, output, model_arguments.model, checkpoint)
        if say is not _discard:
            log_progress(trainer, say, start.model_arguments.description)
        result = _train_and_save(trainer, checkpoint)
        if test_rows is not None:
            written = known_test_metrics(output, test, variants, tokenizer) if result.had_finished else None
            result.test_metrics = written or test_captioner(trainer, test_rows, test, reproduces)
    return result


def _require_evaluation_rows(rows: Any, arguments: CaptioningTrainingArguments) -> None:
    plan = IntervalStrategy(arguments.eval_strategy)
    if rows is None and plan != IntervalStrategy.NO:
        raise ValueError(
            f"`eval_strategy` is {plan.value!r}, and no images are held out for evaluations: pass `eval_strategy=no`, "
            "and the length of the training with `num_train_epochs` or `max_steps`."
        )


def _save_image_lists(
    data: DataArguments, rows: Dataset | IterableDataset, output: Path, start: str | None, checkpoint: str | None
) -> None:
    """Write lists of the subset, held-out and all training images, including earlier runs, to the output folder."""
    if data.drawn is not None:
        data.drawn.save(output / SUBSET)
    if data.held_out is not None:
        data.held_out.save(output)
    if isinstance(rows, IterableDataset):
        return
    before = [folder for folder in (start, output if checkpoint is not None else None) if folder is not None]
    TrainingImages.of(rows).union_with(*before).save(output)


def _require_attributes_read(attributes: Any, model: Any, processor: Any) -> None:
    if "attributes" not in getattr(processor, "input_columns", ()):
        raise ValueError(
            f"`attributes={attributes}`: a {type(model).__name__} reads no attributes. Leave it out, or pass "
            "`architecture=eta`."
        )


def trainer_class(training_arguments: CaptioningTrainingArguments) -> type[CaptioningTrainer]:
    """Return the trainer class for training arguments."""
    return SCSTTrainer if isinstance(training_arguments, SCSTArguments) else CaptioningTrainer


def _discard(line: str) -> None:
    """Ignore a progress message."""


class _Start:
    """Captioner and training arguments of a run, checked before data is read.

    A given captioner is loaded at once; one of new parts is built after the data are read, as its vocabulary may be
    that of the training captions.
    """

    def __init__(
        self,
        model: ModelArguments,
        data: DataArguments,
        training: CaptioningTrainingArguments,
        recipe: str,
        resume: bool,
    ) -> None:
        model, training, lora_line = with_lora(model, training, recipe)
        recipe = recipe if lora_line is None else NONE
        self.model_arguments, self.data, self.recipe = model, data, recipe
        self.given: tuple[Any, Any] | None = None
        self.words_line: str | None = None
        if data.streaming and recipe in (AUTO, NONE):
            require_stream_arguments(training)
        if model.model is None:
            check_parts(model, data.features is not None)
        else:
            set_seed(training.seed)
            self.given = start_captioner(model)
        self.training_arguments, self.recipe_line = with_recipe(training, recipe, self._initial_model)
        self.recipe_line = lora_line or self.recipe_line
        if data.streaming:
            require_stream_arguments(self.training_arguments)
        new_parts_sample = self.given is None and isinstance(training, SCSTArguments)
        if new_parts_sample and not training.begins_with_cross_entropy and not resume:
            raise ValueError(NEW_PARTS)

    @property
    def _initial_model(self) -> Any:
        return None if self.given is None else self.given[0]

    def captioner(self, train_rows: Dataset | IterableDataset) -> tuple[Any, Any]:
        """Return model and processor; apply the recipe for few training images, if it is due."""
        fit_to_features(self.model_arguments, self.data)
        set_seed(self.training_arguments.seed)
        if self.given is None:
            captions = (caption for captions in _captions_of(train_rows) for caption in captions)
            tokenizer = self.training_arguments.caption_tokenizer
            model, processor = start_captioner(self.model_arguments, captions, tokenizer)
            # A saved captioner must not cut captions that its evaluations did not, such as those of many characters.
            length = model.generation_config.max_new_tokens or 0
            model.generation_config.max_new_tokens = max(length, self.training_arguments.generation_max_new_tokens)
            return model, processor
        texts = (caption for captions in _captions_of(train_rows) for caption in captions)
        *parts, self.words_line = with_new_words(self.model_arguments, *self.given, texts)
        self.given = parts[0], parts[1]
        if self.recipe == AUTO and not self.data.streaming:
            self.training_arguments, self.recipe_line = with_recipe(
                self.training_arguments, AUTO, self._initial_model, len(train_rows)
            )
        return self.given


def _try_metrics(training: CaptioningTrainingArguments, test: TestArguments) -> dict[str, str]:
    """Check early that the metrics can be computed here: METEOR, for example, needs tables.

    Returns:
        The exact variants of the metrics of the test; none without a test.
    """
    captions = ["a dog", "a cat"]
    references = [[text] for text in captions]
    compute_caption_metrics(captions, references, training.eval_metrics)
    if not test.test_split:
        return {}
    names = test.metrics(training.eval_metrics)
    return compute_caption_metrics(captions, references, names)["variants"]


def _captions_of(rows: Dataset | IterableDataset) -> Iterable[list[str]]:
    """Return the captions of each image; a stream is read once for them."""
    return rows_of_captions(rows) if isinstance(rows, IterableDataset) else rows["captions"]


def _with_attributes(train_rows: Any, *other_rows: Any) -> list[Any]:
    """Add attributes to training and evaluation rows: words of each image's own captions."""
    words = attribute_words((text for texts in train_rows["captions"] for text in texts), NUM_ATTRIBUTES)
    return [None if rows is None else with_oracle_attributes(rows, words) for rows in (train_rows, *other_rows)]


def _train_and_save(trainer: CaptioningTrainer, checkpoint: str | None) -> TrainingResult:
    """Train and save the captioner; a finished run is loaded without writing anything."""
    chosen = trainer.args.resume_from_checkpoint
    if checkpoint is not None and not chosen and trainer.restore_final():
        path = Path(str(trainer.args.output_dir), TRAIN_RESULTS)
        metrics = json.loads(read_text_inside(path)) if path.is_file() else {}
        return TrainingResult(trainer, metrics, resumed_from=checkpoint, had_finished=True)
    if trainer.is_world_process_zero():
        Path(str(trainer.args.output_dir), STATE).unlink(missing_ok=True)  # of an earlier run, or of fewer steps
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    trainer.save_model()
    trainer.save_metrics("train", metrics)
    trainer.save_state()  # last: a run with this file is finished
    return TrainingResult(trainer, metrics, resumed_from=checkpoint)


def known_test_metrics(
    output: Path, test: TestArguments, scores: Collection[str], tokenizer: str
) -> MetricResult | None:
    """Return the metrics in a finished run's `test_results.json`.

    Args:
        output: folder of the run.
        test: the test.
        scores: names of the scores that the test has.
        tokenizer: its tokenizer.

    Returns:
        None: they are missing, older than the final model, or of a different test.
    """
    path = output / TEST_RESULTS
    if not path.is_file() or path.stat().st_mtime_ns < (output / STATE).stat().st_mtime_ns:
        return None
    content = json.loads(read_text_inside(path))
    if not set(scores) <= set(content.get("variants", {})) or (content.get("split"), content.get("tokenizer")) != (
        test.test_split,
        tokenizer,
    ):
        return None
    conditions = {name: content[name] for name in CONDITIONS if name in content}
    metrics = MetricResult({name: value for name, value in content.items() if isinstance(value, float)})
    metrics.conditions = conditions
    return metrics


def test_captioner(
    trainer: CaptioningTrainer, rows: Any, test: TestArguments, reproduces: Comparison | None = None
) -> MetricResult:
    """Caption a test split, write `test_results.json`, and save the model with a card of the metrics.

    Args:
        trainer: the trainer of a trained captioner.
        rows: captioned images.
        test: metrics and tokenizer.
        reproduces: see `train_captioner`.
    """
    metrics = trainer.test(rows, test.metrics(trainer.args.eval_metrics), test.test_tokenizer)
    if reproduces is not None:
        trainer.card.reproduces = reproduces({trainer.args.seed: metrics})
    if trainer.is_world_process_zero():
        language = {"language": trainer.args.language} if trainer.args.language else {}
        content = {**metrics.conditions, **metrics, **language, "split": test.test_split, "images": len(rows)}
        write_text(Path(str(trainer.args.output_dir), TEST_RESULTS), as_json(content) + "\n")
    trainer.save_model()
    return metrics


test_captioner.__test__ = False  # type: ignore[attr-defined]


def checkpoint_to_resume(training_arguments: CaptioningTrainingArguments, resume: bool) -> str | None:
    """Return the checkpoint to resume from: the named one, or the last complete one of `output_dir`.

    Args:
        training_arguments: `resume_from_checkpoint` names a checkpoint.
        resume: whether to resume at all if none is named.

    Returns:
        The folder of the checkpoint. None: there is no complete one, so that the run starts from the beginning.

    Raises:
        FileExistsError: there is a run in `output_dir`, and it shall not be resumed.
        FileNotFoundError, ValueError: see `require_complete`.
    """
    output = str(training_arguments.output_dir)
    named = training_arguments.resume_from_checkpoint
    if named:
        require_complete(named)
        return str(named)
    checkpoint = last_checkpoint(training_arguments)
    existing = checkpoint or next(Path(output).glob("checkpoint-*"), None)
    if existing is not None and not resume:
        raise FileExistsError(
            f"{output} holds a run already ({existing}). Pass `resume` to resume it, or a different `output_dir`."
        )
    return checkpoint


def last_checkpoint(training_arguments: CaptioningTrainingArguments) -> str | None:
    """Return the last complete checkpoint in `output_dir`; None without one."""
    find = last_scst_checkpoint if isinstance(training_arguments, SCSTArguments) else last_complete_checkpoint
    return find(str(training_arguments.output_dir))

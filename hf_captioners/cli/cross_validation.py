"""`hf-captioners train --folds N`: cross-validation, followed by training on all images."""

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_captioners.captioning.comparison import System
    from hf_captioners.training.running import TrainingResult

OFFERED_BELOW = 150  # images, of which a tenth says little
DEFAULT_FOLDS = 5
PAGE, FIGURES = "comparison.html", "cross_validation.json"
# Of the last training only.
NOT_OF_PARTS = ("test_split", "push_to_hub", "hub_model_id")


class CrossValidation:
    """Cross-validation: for each part of the images, a captioner trained on the other parts captions the part.

    Each part's captions are written to `OUTPUT_DIR/cross_validation`, and its captioner is removed then. A run that is
    interrupted goes on with the part that was being trained.

    Args:
        values: arguments of the training, see `read_arguments`.
        folds: number of parts.
        resume: go on with an earlier cross-validation in the output directory.
        say: receives lines about the progress.

    Attributes:
        done: number of parts that are captioned.

    Raises:
        ValueError: the arguments do not go together with a cross-validation, or the captioner of `--model` was trained
            on each of the images.
        FileExistsError: the output directory holds a run, and `resume` is not set.
    """

    def __init__(self, values: Mapping[str, Any], folds: int, resume: bool, say: Callable[[str], None]) -> None:
        from hf_captioners.captioning.comparison import without_trained
        from hf_captioners.training.cross_validation import CrossValidationPlan, require_no_run, rows_to_divide
        from hf_captioners.training.parser import read_arguments

        for name in ("validation_share", "resume_from_checkpoint"):
            if values.get(name) is not None:
                raise ValueError(f"`folds` and `{name}` exclude each other; give one.")
        self.values, self.resume, self.say = values, resume, say
        self.arguments = read_arguments(values)
        self.start: str | None = self.arguments.model.model
        self.output = str(self.arguments.training.output_dir)
        require_no_run(self.arguments.training, resume)
        self.rows = rows_to_divide(self.arguments.data, self.arguments.training)
        plan = CrossValidationPlan.of(self.rows, folds, self.arguments.training.seed, values)
        self.parts = plan.parts
        # Images of an earlier training of `--model` are trained on, and no figure is about them.
        starts = [] if self.start is None else [self.start]
        self.scored, self.known = without_trained(starts, self.rows)
        self.folder = plan.settle(self.output, resume)
        self.done = 0

    def run(self, callbacks: Sequence[Any], reproduces: Any = None) -> "TrainingResult":
        """Train and caption for each part, then train on all images.

        Args:
            callbacks: of each trainer.
            reproduces: of the last training, see `train_captioner`.
        """
        from hf_captioners.training.parser import read_arguments
        from hf_captioners.training.running import train_captioner

        count = len(self.parts)
        in_training = len(self.rows) - max(map(len, self.parts))
        self.say(
            f"Cross-validation: {count} trainings on {in_training:,} or more of {len(self.rows):,} images, each of "
            "which captions the others, and then a training on all."
        )
        values = {name: value for name, value in self.values.items() if name not in NOT_OF_PARTS}
        for number, names in enumerate(self.parts, 1):
            started = time.monotonic()
            file, place = self.folder / f"captions_{number}.json", self.folder / f"part_{number}"
            if file.exists():
                self.done = number
                self.say(f"Part {number} of {count} is captioned already.")
                shutil.rmtree(place, ignore_errors=True)
                continue
            self.say(f"Part {number} of {count}: {len(names):,} images are captioned by a training on the others.")
            arguments = read_arguments({**values, "output_dir": str(place)})
            arguments.data.excluded = names
            resume = self.resume and place.exists()
            train_captioner(*arguments, resume=resume, say=self.say, callbacks=callbacks)
            self._caption(str(place), set(names), file)
            shutil.rmtree(place)
            self.done = number
            seconds = (time.monotonic() - started) * (count - number + 1)
            self.say(f"Part {number} of {count} is captioned. {left(count - number, seconds)}")
        self.arguments.data.excluded = []
        further = {"reproduces": reproduces, "say": self.say, "callbacks": callbacks}
        return train_captioner(*self.arguments, resume=self.resume, **further)

    def _caption(self, source: str, names: set[str], file: Path) -> None:
        """Caption images with a captioner and write the captions to a file."""
        from hf_captioners.output_files import write_text

        places = [place for place, name in enumerate(self.scored["image_id"]) if name in names]
        captions = {}
        if places:
            matched = self._system(source, self.scored.select(places)).matched
            captions = dict(zip(matched.images, matched.predictions, strict=True))
        write_text(file, json.dumps(captions, indent=1, ensure_ascii=False) + "\n")

    def _system(self, source: str, rows: "Dataset") -> "System":
        from hf_captioners.captioning.comparison import system_of

        training = self.arguments.training
        loading: dict[str, Any] = {"device": "cpu"} if training.use_cpu else {}
        options = {} if training.instruction is None else {"instruction": training.instruction}
        return system_of(source, rows, training.per_device_eval_batch_size, options, **loading)

    def report(self) -> str:
        """Compute the metrics, write them and a page of captions, and return lines for printing."""
        from hf_captioners.captioning.comparison import Comparison, System
        from hf_captioners.captioning.scoring import MetricSettings
        from hf_captioners.metrics.caption_files import CaptionTable, match_captions
        from hf_captioners.output_files import as_json, write_text

        captions: dict[str, list[str]] = {}
        for number in range(1, len(self.parts) + 1):
            of_part = json.loads((self.folder / f"captions_{number}.json").read_text(encoding="utf-8"))
            captions |= {name: [text] for name, text in of_part.items()}
        references = dict(zip(self.scored["image_id"], self.scored["captions"], strict=True))
        matched = match_captions(CaptionTable(captions, {}), CaptionTable(references, {}))
        new = System(
            self.output,
            matched,
            f"each image was captioned by one of {len(self.parts)} captioners that were not trained on it",
        )
        training = self.arguments.training
        settings = MetricSettings(training.eval_metrics, training.caption_tokenizer)
        systems = [new]
        if self.start is not None:
            systems.append(self._system(self.start, self.scored))
            systems[1].training = self.known[self.start]
        comparison = Comparison(systems, settings)
        write_text(self.folder / FIGURES, as_json(comparison.figures) + "\n")
        write_text(page := self.folder / PAGE, comparison.page(self.scored))
        return (
            f"\nCross-validation with {len(self.parts)} parts:\n{comparison.table()}\n"
            f"The captions side by side: {page}"
        )


def left(parts: int, seconds: float) -> str:
    """Return a sentence about the remaining training runs and their time."""
    from hf_captioners.work_progress import duration

    subject = f"{parts} more part{'' if parts == 1 else 's'} and the training" if parts else "The training"
    return f"{subject} on all images: about {duration(seconds)}."


def offer(result: "TrainingResult", images: int, seconds: float) -> str | None:
    """Return a suggestion to cross-validate after training on few images; None if there are enough images.

    Args:
        result: the training.
        images: number of images, with those that were held out.
        seconds: that it took.
    """
    from hf_captioners.work_progress import duration

    if images >= OFFERED_BELOW or images < 2 * DEFAULT_FOLDS:
        return None
    arguments = result.trainer.args
    more = ""
    if (best := result.best_evaluation) is not None:
        more = " --eval_strategy no"
        if arguments.max_steps <= 0:
            more += f" --num_train_epochs {max(1, math.ceil(best['epoch']))}"
    cost = f"{DEFAULT_FOLDS}-fold cross-validation: {DEFAULT_FOLDS + 1} trainings"
    if not result.had_finished and result.resumed_from is None:
        cost += f", about {duration((DEFAULT_FOLDS + 1) * seconds)}; this one took {duration(seconds)}"
    flags = f"--folds {DEFAULT_FOLDS} --output_dir {arguments.output_dir}_folds{more}"
    return f"For figures on all {images:,} images, repeat the command with {flags} ({cost})."

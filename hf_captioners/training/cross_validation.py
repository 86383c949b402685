"""Cross-validation: each part of a data set is captioned by a model trained on the other parts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from hf_captioners.data.schema import IMAGE_ID
from hf_captioners.output_files import MAX_TABLE_BYTES, read_text_inside, write_text

from .arguments import CaptioningTrainingArguments
from .data_arguments import DataArguments, load_training_data
from .data_record import describe_rows
from .resume import final_state
from .running import last_checkpoint

FOLDER = "cross_validation"  # in the output directory
PLAN = "plan.json"


@dataclass(frozen=True)
class CrossValidationPlan:
    """Plan of a cross-validation; a resumed run must have the same plan.

    Args:
        parts: the ids of the images of each part.
        seed: seed with which they were drawn.
        data: description of the images, see `describe_rows`.
        arguments: the arguments of the trainings as text, by name.
    """

    parts: Sequence[Sequence[str]]
    seed: int
    data: Mapping[str, Any]
    arguments: Mapping[str, str]

    @classmethod
    def of(cls, rows: Dataset, folds: int, seed: int, arguments: Mapping[str, Any]) -> "CrossValidationPlan":
        """Make a plan: divide the images at random.

        Raises:
            ValueError: there are fewer images than parts, or a training would have fewer than two images.
        """
        texts = {name: str(value) for name, value in sorted(arguments.items()) if name != "output_dir"}
        return cls(draw_parts(rows[IMAGE_ID], folds, seed), seed, describe_rows(rows), texts)

    def settle(self, output_dir: str | Path, resume: bool) -> Path:
        """Write the plan to the output folder, or check that a resumed run has the same plan.

        Args:
            output_dir: output directory of the run.
            resume: go on with an earlier cross-validation, if any.

        Returns:
            The folder of the cross-validation.

        Raises:
            FileExistsError: there is one, and `resume` is not set.
            ValueError: it has other images, captions or arguments, or its plan is damaged.
        """
        folder = Path(output_dir, FOLDER)
        path = folder / PLAN
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
            return folder
        if not resume:
            raise FileExistsError(
                f"{output_dir} holds a cross-validation already ({path}). Pass `resume` to go on with it, or a "
                "different `output_dir`."
            )
        try:
            before = dict(json.loads(read_text_inside(path, limit=MAX_TABLE_BYTES)))
        except (ValueError, RecursionError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}). Pass a different `output_dir`.") from error
        plan = json.loads(json.dumps(asdict(self)))
        nouns = {"data": "images or captions", "arguments": "arguments", "parts": "numbers of parts"}
        for name, noun in nouns.items():
            if before.get(name) != plan[name]:
                raise ValueError(
                    f"{folder} was begun with other {noun}. Repeat the first command with "
                    "`resume`, or pass a different `output_dir`."
                )
        return folder


def draw_parts(names: Sequence[str], folds: int, seed: int) -> list[list[str]]:
    """Divide images at random into parts whose sizes differ by at most one.

    Raises:
        ValueError: there are fewer images than parts, or a training would have fewer than two images.

    Examples:
        >>> from hf_captioners.training.cross_validation import draw_parts
        >>> sorted(map(len, draw_parts(["a", "b", "c", "d", "e"], folds=2, seed=0)))
        [2, 3]
    """
    if folds < 2 or len(names) < folds or len(names) - -(-len(names) // folds) < 2:
        raise ValueError(
            f"`folds` is {folds}, and there are {len(names):,} images: expected 2 or more, at most one for each "
            "image, and at least 2 images in each training."
        )
    order = np.random.default_rng(seed).permutation(len(names))
    return [[names[place] for place in sorted(order[first::folds])] for first in range(folds)]


def require_no_run(training: CaptioningTrainingArguments, resume: bool) -> None:
    """Check, before training, that the final model can be written to its output folder.

    Raises:
        FileExistsError: the output directory holds a run, and `resume` is not set.
    """
    if not resume and (final_state(str(training.output_dir)) or last_checkpoint(training)):
        raise FileExistsError(f"{training.output_dir} holds a run already. Pass a different `output_dir`.")


def rows_to_divide(data: DataArguments, training: CaptioningTrainingArguments) -> Dataset:
    """Load the images for cross-validation.

    Raises:
        ValueError: the arguments do not go together with a cross-validation.
    """
    for name in ("streaming", "validation_dir", "attributes"):
        if getattr(data, name):
            raise ValueError(f"`folds` and `{name}` exclude each other; give one.")
    if training.world_size > 1:
        raise ValueError(f"`folds` needs one process, there are {training.world_size}.")
    data.excluded = []
    rows, _ = load_training_data(data, training.seed)
    assert isinstance(rows, Dataset)
    return rows

"""The pictures to train on and to evaluate with."""

import logging
from dataclasses import dataclass, field

from datasets import Dataset, DatasetDict

from hf_captioners.data import load_captions

logger = logging.getLogger(__name__)


@dataclass
class TrainingData:
    """Where the pictures are.

    Args:
        dataset: a name that `load_captions` knows.
        train_dir: its folder: pictures with captions, or a folder for each split.
        validation_dir: a folder of evaluation pictures; default: the split `validation`, else a share held out.
        validation_share: the share of pictures to hold out where there is no other source.
    """

    dataset: str = field(default="caption_folder", metadata={"help": "Name of the data set's form."})
    train_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with pictures and metadata.jsonl (or .csv, captions.txt), or with split folders."},
    )
    validation_dir: str | None = field(
        default=None, metadata={"help": "Folder of evaluation pictures; default: the folder's own validation split."}
    )
    validation_share: float = field(
        default=0.1, metadata={"help": "Share of pictures held out for evaluation where there are no others."}
    )


def load_training_data(data: TrainingData, seed: int) -> tuple[Dataset, Dataset]:
    """Load training and evaluation pictures.

    Args:
        data: where they are.
        seed: decides which pictures are held out.

    Raises:
        ValueError: there are no pictures to train on, or too few to hold some out.
        FileNotFoundError: a folder or its captions are missing.
    """
    if data.train_dir is None and data.dataset == "caption_folder":
        raise ValueError("`--train_dir` is missing: the folder with your pictures and their captions.")
    splits = load_captions(data.dataset, data_dir=data.train_dir)
    assert isinstance(splits, DatasetDict)
    if "train" not in splits:
        raise ValueError(f"{data.train_dir} has the splits {', '.join(splits)}, and none to train on ('train').")
    train = splits["train"]
    if data.validation_dir is not None:
        others = load_captions(data.dataset, data_dir=data.validation_dir)
        return train, others["validation"] if "validation" in others else others[next(iter(others))]
    if "validation" in splits:
        return train, splits["validation"]
    return hold_out(train, data.validation_share, seed)


def hold_out(rows: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Divide pictures at random; what was done is logged.

    Raises:
        ValueError: the share is outside of (0, 1), or fewer than two pictures would be left on a side.
    """
    if not 0 < share < 1:
        raise ValueError(f"`--validation_share` is {share}, expected a number between 0 and 1.")
    count = round(len(rows) * share)
    if count < 2 or len(rows) - count < 2:
        raise ValueError(
            f"Of {len(rows)} pictures a share of {share} cannot be held out for evaluation: at least 2 are needed on "
            "each side. Add pictures, or pass --validation_dir."
        )
    parts = rows.train_test_split(test_size=count, seed=seed)
    logger.warning(
        f"There are no evaluation pictures: {count} of {len(rows)} were held out at random (seed {seed}). Pass "
        "--validation_dir to choose them."
    )
    return parts["train"], parts["test"]

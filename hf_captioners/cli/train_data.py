"""The pictures to train on and to evaluate with."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, DatasetDict

from hf_captioners.data import load_captions
from hf_captioners.data.feature_store import STORE_FILE, FeatureStore
from hf_captioners.data.loading import generation_defaults
from hf_captioners.data.regions_column import with_regions
from hf_captioners.named_values import read_named_values
from hf_captioners.training.starting import StartingPoint

logger = logging.getLogger(__name__)


@dataclass
class TrainingData:
    """Where the pictures are.

    Args:
        dataset: a name that `load_captions` knows.
        data_dir: its folder.
        train_dir: the same, for your own pictures with captions, or a folder for each split.
        data_options: options of the data set, as `name=value`.
        features: stored features that take the place of the pictures: a folder with one feature store for each split,
            as `hf-captioners extract-features` writes it, or one store for all.
        validation_dir: a folder of evaluation pictures; default: the split `validation`, else a share held out.
        validation_share: the share of pictures to hold out where there is no other source.
    """

    dataset: str = field(default="caption_folder", metadata={"help": "Name of the data set's form."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder of the data set."})
    train_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with pictures and metadata.jsonl (or .csv, captions.txt), or with split folders."},
    )
    data_options: list[str] = field(
        default_factory=list,
        metadata={"help": "Options of the data set: name=value ..., as protocol=r2gen max_views=2."},
    )
    features: str | None = field(
        default=None, metadata={"help": "Folder of stored features (see extract-features), used instead of pictures."}
    )
    validation_dir: str | None = field(
        default=None, metadata={"help": "Folder of evaluation pictures; default: the folder's own validation split."}
    )
    validation_share: float = field(
        default=0.1, metadata={"help": "Share of pictures held out for evaluation where there are no others."}
    )

    def __post_init__(self) -> None:
        """Check that the arguments go together."""
        if self.data_dir is not None and self.train_dir is not None:
            raise ValueError("`--data_dir` and `--train_dir` both name the folder of the data set; give one.")
        if self.features is not None and self.validation_dir is not None:
            raise ValueError(
                "`--features` and `--validation_dir` exclude each other: put the evaluation pictures into a folder "
                "`validation` of the data set, and extract both."
            )

    @property
    def folder(self) -> str | None:
        """Folder of the data set."""
        return self.data_dir or self.train_dir

    def load(self, folder: str | None) -> DatasetDict:
        """Load all splits of the data set from a folder."""
        splits = load_captions(self.dataset, data_dir=folder, **read_named_values(self.data_options, "--data_options"))
        assert isinstance(splits, DatasetDict)
        return splits

    @property
    def generation_arguments(self) -> dict[str, int]:
        """Training arguments that a data set of long texts has other defaults of."""
        return {f"generation_{name}": value for name, value in generation_defaults(self.dataset).items()}

    def with_features(self, rows: Dataset, split: str) -> Dataset:
        """Rows of a split with their stored features in the place of pictures, if features are used."""
        return rows if self.features is None else with_regions(rows, self.store_of(split))

    def store_of(self, split: str) -> FeatureStore:
        """The stored features of a split.

        Raises:
            FileNotFoundError: there are none.
        """
        assert self.features is not None
        places = [Path(self.features), Path(self.features, split)]
        found = next((place for place in places if (place / STORE_FILE).is_file()), None)
        if found is None:
            raise FileNotFoundError(
                f"{places[1]} is no feature store, nor is {places[0]}. Extract the split: hf-captioners "
                f"extract-features ... --split {split} --output {self.features}"
            )
        return FeatureStore(found)


def load_training_data(data: TrainingData, seed: int) -> tuple[Dataset, Dataset]:
    """Load training and evaluation pictures, or their stored features.

    Args:
        data: where they are.
        seed: decides which pictures are held out.

    Raises:
        ValueError: there are no pictures to train on, or too few to hold some out.
        FileNotFoundError: a folder or its captions are missing.
    """
    if data.folder is None and data.dataset == "caption_folder":
        raise ValueError("`--train_dir` is missing: the folder with your pictures and their captions.")
    splits = data.load(data.folder)
    if "train" not in splits:
        raise ValueError(f"{data.folder} has the splits {', '.join(splits)}, and none to train on ('train').")
    train = splits["train"]
    if data.validation_dir is not None:
        others = data.load(data.validation_dir)
        return train, others["validation"] if "validation" in others else others[next(iter(others))]
    if "validation" in splits:
        return data.with_features(train, "train"), data.with_features(splits["validation"], "validation")
    train, validation = hold_out(train, data.validation_share, seed)
    return data.with_features(train, "train"), data.with_features(validation, "train")


def fit_to_features(start: StartingPoint, data: TrainingData) -> None:
    """Where features take the place of a vision model, let the captioner's configuration have their size."""
    if data.features is not None and start.model is None and start.vision_model is None:
        size = data.store_of("train").description.feature_size
        start.model_config = [f"region_feature_size={size}", *start.model_config]


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

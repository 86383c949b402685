"""The images to train on and to evaluate with."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, DatasetDict

from hf_captioners.data import load_captions
from hf_captioners.data.loading import generation_defaults
from hf_captioners.data.subsets import CaptionSubset, draw_subset
from hf_captioners.features.region_forms import open_regions
from hf_captioners.features.region_source import RegionSource
from hf_captioners.features.regions_column import with_regions
from hf_captioners.named_values import read_named_values
from hf_captioners.training.starting import ModelArguments

logger = logging.getLogger(__name__)


@dataclass
class DataArguments:
    """Where the images are.

    Args:
        dataset: a name that `load_captions` knows.
        data_dir: its folder.
        train_dir: the same, for your own images with captions, or a folder for each split.
        data_options: options of the data set, as `name=value`.
        features: stored features that take the place of the images: a folder with one feature store for each split,
            as `hf-captioners extract-features` writes it, or one source for all, in any form of `open_regions`.
        validation_dir: a folder of evaluation images; default: the split `validation`, else a share held out.
        validation_share: the share of images to hold out where there is no other source.
        train_share: the share of the training captions, or images, to learn from; drawn by seed.
        share_unit: what it counts: `caption` (pairs of image and caption, as VisualGPT) or `image`.
        share_seed: which ones; default: the seed of the run.
        subset: a list of captions or images to learn from, which an earlier run left as `subset.json`.
    """

    dataset: str = field(default="caption_folder", metadata={"help": "Name of the data set's form."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder of the data set."})
    train_dir: str | None = field(
        default=None,
        metadata={"help": "Folder with images and metadata.jsonl (or .csv, captions.txt), or with split folders."},
    )
    data_options: list[str] = field(
        default_factory=list,
        metadata={"help": "Options of the data set: name=value ..., as protocol=r2gen max_views=2."},
    )
    features: str | None = field(
        default=None,
        metadata={
            "help": "Region features, used instead of images: what extract-features wrote, or a TSV, HDF5 or folder "
            "of bottom-up features."
        },
    )
    validation_dir: str | None = field(
        default=None, metadata={"help": "Folder of evaluation images; default: the folder's own validation split."}
    )
    validation_share: float = field(
        default=0.1, metadata={"help": "Share of images held out for evaluation where there are no others."}
    )

    train_share: float | None = field(
        default=None, metadata={"help": "Learn from this share of the training captions only (one percent: 0.01)."}
    )
    share_unit: str = field(default="caption", metadata={"help": "What the share counts: caption or image."})
    share_seed: int | None = field(
        default=None, metadata={"help": "Which captions the share holds; default: the seed of the run."}
    )
    subset: str | None = field(
        default=None, metadata={"help": "Learn from the captions of this list: subset.json of an earlier run."}
    )

    def __post_init__(self) -> None:
        """Check that the arguments go together."""
        self.drawn: CaptionSubset | None = None
        self._opened: dict[Path, RegionSource | None] = {}
        if self.subset is not None and self.train_share is not None:
            raise ValueError("`--subset` and `--train_share` both say what to learn from; give one.")
        if self.data_dir is not None and self.train_dir is not None:
            raise ValueError("`--data_dir` and `--train_dir` both name the folder of the data set; give one.")
        if self.features is not None and self.validation_dir is not None:
            raise ValueError(
                "`--features` and `--validation_dir` exclude each other: put the evaluation images into a folder "
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

    def reduced(self, rows: Dataset, seed: int) -> Dataset:
        """The share of the training rows that was asked for; what was drawn is kept in `drawn`.

        Raises:
            ValueError: see `draw_subset` and `CaptionSubset.of`.
        """
        if self.subset is not None:
            self.drawn = CaptionSubset.load(self.subset)
        elif self.train_share is not None:
            number = seed if self.share_seed is None else self.share_seed
            self.drawn = draw_subset(rows, self.train_share, self.share_unit, number)  # type: ignore[arg-type]
        return rows if self.drawn is None else self.drawn.of(rows)

    def test_rows(self, split: str) -> Dataset:
        """The images of another split, or their stored features.

        Raises:
            ValueError: there is no such split.
        """
        splits = self.load(self.folder)
        if split not in splits:
            raise ValueError(f"`--test_split {split}`: {self.folder or self.dataset} has {', '.join(splits)}.")
        return self.with_features(splits[split], split)

    def with_features(self, rows: Dataset, split: str) -> Dataset:
        """Rows of a split with their stored features in the place of images, if features are used."""
        return rows if self.features is None else with_regions(rows, self.regions_of(split))

    def regions_of(self, split: str) -> RegionSource:
        """The stored features of a split.

        Raises:
            FileNotFoundError: there are none.
        """
        assert self.features is not None
        places = [Path(self.features), Path(self.features, split)]
        for place in places:
            if place not in self._opened:  # a TSV is read from end to end to find its images: once for all splits
                self._opened[place] = open_regions(place)
        found = next((source for place in places if (source := self._opened[place]) is not None), None)
        if found is None:
            raise FileNotFoundError(
                f"{places[1]} is no feature store, nor is {places[0]}, nor a TSV, HDF5 or folder of region features. "
                f"Extract the split: hf-captioners extract-features ... --split {split} --output {self.features}"
            )
        return found


def load_training_data(data: DataArguments, seed: int) -> tuple[Dataset, Dataset]:
    """Load training and evaluation images, or their stored features.

    Args:
        data: where they are.
        seed: decides which images are held out.

    Raises:
        ValueError: there are no images to train on, or too few to hold some out.
        FileNotFoundError: a folder or its captions are missing.
    """
    if data.folder is None and data.dataset == "caption_folder":
        raise ValueError("`--train_dir` is missing: the folder with your images and their captions.")
    splits = data.load(data.folder)
    if "train" not in splits:
        raise ValueError(f"{data.folder} has the splits {', '.join(splits)}, and none to train on ('train').")
    train = splits["train"]
    if data.validation_dir is not None:
        train = data.reduced(train, seed)
        others = data.load(data.validation_dir)
        return train, others["validation"] if "validation" in others else others[next(iter(others))]
    if "validation" in splits:
        train = data.reduced(train, seed)
        return data.with_features(train, "train"), data.with_features(splits["validation"], "validation")
    train, validation = hold_out(train, data.validation_share, seed)
    train = data.reduced(train, seed)
    return data.with_features(train, "train"), data.with_features(validation, "train")


def fit_to_features(start: ModelArguments, data: DataArguments) -> None:
    """Where features take the place of a vision model, let the captioner's configuration have their size."""
    if data.features is not None and start.model is None and start.vision_model is None:
        size = data.regions_of("train").feature_size
        start.model_config = {"region_feature_size": size} | start.config_fields()  # type: ignore[assignment]


def hold_out(rows: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Divide images at random; what was done is logged.

    Raises:
        ValueError: the share is outside of (0, 1), or fewer than two images would be left on a side.
    """
    if not 0 < share < 1:
        raise ValueError(f"`--validation_share` is {share}, expected a number between 0 and 1.")
    count = round(len(rows) * share)
    if count < 2 or len(rows) - count < 2:
        raise ValueError(
            f"Of {len(rows)} images a share of {share} cannot be held out for evaluation: at least 2 are needed on "
            "each side. Add images, or pass --validation_dir."
        )
    parts = rows.train_test_split(test_size=count, seed=seed)
    logger.warning(
        f"There are no evaluation images: {count} of {len(rows)} were held out at random (seed {seed}). Pass "
        "--validation_dir to choose them."
    )
    return parts["train"], parts["test"]

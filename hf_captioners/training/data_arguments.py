"""Data of a training run: arguments, splits, held-out images, subsets and stored features."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, NamedSplit

from hf_captioners.data import load_captions
from hf_captioners.data.generated_captions import require_captions_of_people
from hf_captioners.data.held_out import HELD_OUT, HeldOut
from hf_captioners.data.loading import generation_defaults
from hf_captioners.data.readable import load_readable, unusable_images
from hf_captioners.data.recognition import recognised
from hf_captioners.data.report import DataReport, Problem
from hf_captioners.data.subsets import CaptionSubset, draw_subset
from hf_captioners.features.formats import open_split_regions
from hf_captioners.features.region_source import RegionSource
from hf_captioners.features.regions_column import region_source_of, with_regions
from hf_captioners.names import read_named_values
from hf_captioners.processing.vocabulary import attribute_labels
from hf_captioners.training.starting import ModelArguments

logger = logging.getLogger(__name__)

STORED_ONLY = ("features", "train_share", "subset", "attributes")  # arguments that need rows by their number


@dataclass
class DataArguments:
    """Arguments for the data of a training run.

    Args:
        dataset: name of a data set of `load_captions`.
        data_dir: folder of the data set.
        train_dir: the same, for your own images with captions, with or without a folder per split, in any form of
            `hf_captioners.data.recognition`.
        data_options: options of the data set, as `name=value` entries or as a mapping.
        streaming: read the images while training instead of storing them first: for data sets that do not fit on the
            disk, or are on the Hub. The run needs `max_steps`, and evaluation images from a split `validation` or
            `validation_dir`. See `hf_captioners.training.streams`.
        follow_links: read tables and text files that are symbolic links out of the folder of the data set.
        features: stored features instead of images: a folder with one feature store per split, as
            `hf-captioners extract-features` writes it, or one source for all splits, see `open_regions`.
        attributes: `"oracle"`: the captioner reads the words of an image's own captions as attributes (Entangled
            Transformer, Table 2), among the 1,000 most frequent ones of the training captions. None: those of the
            column `attributes`, or else those that the captioner detects.
        validation_dir: folder of evaluation images. None: the split `validation`, or else held-out training images.
        validation_share: share of training images to hold out if there are no evaluation images.
        train_share: share of the training captions or images to train on, drawn at random.
        share_unit: unit of `train_share`: `caption` (pairs of image and caption, as VisualGPT) or `image`.
        share_seed: seed of that subset. None: the seed of the run.
        subset: list of captions or images to train on: the `subset.json` of an earlier run.
        train_on_generated: take text files beside images also if a captioner wrote them and nobody changed them.
        allow_changed_data: resume although images or captions changed since the run began; the card says so.

    Attributes:
        left_out: rows that were left out because their image is missing or cannot be read.
        held_out: the images that were held out for evaluation, if any.
        excluded: ids of images that are not trained on, to be set before loading. The run then has no evaluation
            images and holds out none. None: it has some.

    Raises:
        ValueError: two arguments exclude each other.
    """

    dataset: str = field(default="caption_folder", metadata={"help": "Name of the data set."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder of the data set."})
    train_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder with images and a table (metadata.jsonl, captions.csv, .xlsx), or with split folders; or "
            "a table, COCO's folder, tar or Parquet shards, a saved data set."
        },
    )
    data_options: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Options of the data set: name=value ..., for example protocol=r2gen max_views=2.",
            "action": "extend",
        },
    )
    follow_links: bool = field(
        default=False,
        metadata={"help": "Read tables and text files that are symbolic links out of the folder of the data set."},
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read images while training, from a data set of any size; needs --max_steps."}
    )
    features: str | None = field(
        default=None,
        metadata={
            "help": "Region features instead of images: the output of extract-features, or a TSV, HDF5 or folder of "
            "bottom-up features."
        },
    )
    attributes: Literal["oracle"] | None = field(
        default=None,
        metadata={"help": "oracle: read the words of the captions as attributes instead of detected ones."},
    )
    validation_dir: str | None = field(
        default=None, metadata={"help": "Folder of evaluation images; default: the validation split of the data set."}
    )
    validation_share: float = field(
        default=0.1,
        metadata={"help": "Share of training images held out for evaluation if there are no evaluation images."},
    )

    train_share: float | None = field(
        default=None, metadata={"help": "Train on this share of the training captions only (one percent: 0.01)."}
    )
    share_unit: str = field(
        default="caption", metadata={"help": "Unit of --train_share.", "choices": ("caption", "image")}
    )
    share_seed: int | None = field(
        default=None, metadata={"help": "Seed of the subset; default: the seed of the run."}
    )
    subset: str | None = field(
        default=None, metadata={"help": "Train on the captions of this list: subset.json of an earlier run."}
    )

    train_on_generated: bool = field(
        default=False,
        metadata={"help": "Train also on text files that a captioner wrote and nobody changed."},
    )
    allow_changed_data: bool = field(
        default=False,
        metadata={"help": "Resume although images or captions changed since the run began; the card says so."},
    )

    def __post_init__(self) -> None:
        """Check for arguments that exclude each other."""
        self.drawn: CaptionSubset | None = None
        self.left_out: list[Problem] = []
        self.held_out: HeldOut | None = None
        self.excluded: Sequence[str] | None = None
        self._opened: dict[Path, RegionSource | None] = {}
        if self.subset is not None and self.train_share is not None:
            raise ValueError("`subset` and `train_share` exclude each other; give one.")
        if self.data_dir is not None and self.train_dir is not None:
            raise ValueError("`data_dir` and `train_dir` are both the folder of the data set; give one.")
        for name in STORED_ONLY:
            if self.streaming and getattr(self, name) is not None:
                raise ValueError(f"`streaming` and `{name}` exclude each other: a stream is read once, in its order.")
        if self.features is not None and self.validation_dir is not None:
            raise ValueError(
                "`features` and `validation_dir` exclude each other: put the evaluation images into a folder "
                "`validation` of the data set, and extract both."
            )

    @property
    def folder(self) -> str | None:
        """Path of the data set's folder."""
        return self.data_dir or self.train_dir

    def load(self, folder: str | None, split: str | None = None) -> Any:
        """Load one or all splits of the data set; unreadable images are left out and recorded in `left_out`."""
        options, report = read_named_values(self.data_options, "data_options"), DataReport()
        if self.follow_links:
            options["follow_links"] = True
        source = recognised(self.dataset, folder, options)
        if source.name == "caption_folder" and source.data_dir is not None and source.data_dir.is_dir():
            require_captions_of_people(
                source.data_dir, source.options.get("metadata_file"), self.train_on_generated, self.follow_links
            )
        if self.streaming:
            return load_captions(self.dataset, data_dir=folder, split=split, streaming=True, **options)
        if self.features is None:
            rows = load_readable(self.dataset, folder, split, report=report, **options)
        else:
            rows = load_captions(self.dataset, data_dir=folder, split=split, report=report, **options)
        self.left_out += [problem for problem in unusable_images(report) if problem not in self.left_out]
        return rows

    @property
    def generation_arguments(self) -> dict[str, int]:
        """Data-set-specific generation defaults, for example for radiology reports, as training arguments."""
        return {f"generation_{name}": value for name, value in generation_defaults(self.dataset).items()}

    def reduced(self, rows: Dataset, seed: int) -> Dataset:
        """Draw the requested subset of the training data, and store it in `drawn`.

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
        """Load the images, or stored features, of the test split.

        Raises:
            ValueError: there is no such split.
        """
        return self.with_features(self.load(self.folder, split), split)

    def with_features(self, rows: Dataset, split: str) -> Dataset:
        """Replace images by stored features, if the arguments name a feature file."""
        return rows if self.features is None else with_regions(rows, self.regions_of(split))

    def regions_of(self, split: str) -> RegionSource:
        """Open the stored features of a split.

        Raises:
            FileNotFoundError: there are none.
        """
        assert self.features is not None
        return open_split_regions(self.features, split, self._opened)


def load_training_data(data: DataArguments, seed: int) -> tuple[Dataset, Dataset | None]:
    """Load training and evaluation images, or their stored features.

    Args:
        data: arguments of the data.
        seed: seed of the held-out split.

    Returns:
        Training rows and evaluation rows; None if `data.excluded` asks for none.

    Raises:
        ValueError: there is no training split, it has too few images for a held-out split, or `data.excluded` is set
            and the data set has evaluation images.
        FileNotFoundError: a folder or its captions are missing.
    """
    if data.folder is None and data.dataset == "caption_folder":
        raise ValueError("`train_dir` is missing: the folder with your images and their captions.")
    splits = data.load(data.folder)
    if "train" not in splits:
        raise ValueError(f"The splits of {data.folder} are {', '.join(splits)}, expected a split 'train'.")
    train = splits["train"]
    if data.excluded is not None:
        if "validation" in splits:
            raise ValueError(f"{data.folder} has a split 'validation': leave out `folds`, or remove that split.")
        train = data.reduced(train, seed)
        left_out = set(data.excluded)
        kept = [row for row, name in enumerate(train["image_id"]) if name not in left_out]
        return data.with_features(train.select(kept), "train"), None
    if data.validation_dir is not None:
        train = data.reduced(train, seed)
        held_out = data.load(data.validation_dir)
        return train, held_out["validation"] if "validation" in held_out else held_out[next(iter(held_out))]
    if data.streaming and "validation" not in splits:
        raise ValueError(
            f"`streaming`: {data.folder or data.dataset} has no split 'validation', and images of a stream cannot "
            f"be held out at random; its splits are {', '.join(splits)}. Pass `validation_dir`."
        )
    if "validation" in splits:
        train = data.reduced(train, seed)
        return data.with_features(train, "train"), data.with_features(splits["validation"], "validation")
    train, validation = hold_out(train, data.validation_share, seed)
    data.held_out = HeldOut(list(validation["image_id"]), seed)
    train = data.reduced(train, seed)
    return data.with_features(train, "train"), data.with_features(validation, "train")


def with_oracle_attributes(rows: Dataset, words: Sequence[str]) -> Dataset:
    """Add the column `attributes`: words of an image's own captions that are in `words`, most frequent first."""
    labels = attribute_labels(rows["captions"], words)
    column = [[words[index] for index in of_image.nonzero()[0]] for of_image in labels]
    source = region_source_of(rows)
    rows = rows.with_format(None)
    rows = rows.remove_columns([name for name in ("attributes",) if name in rows.column_names])
    rows = rows.add_column("attributes", column)
    return rows if source is None else with_regions(rows, source)


def fit_to_features(start: ModelArguments, data: DataArguments) -> None:
    """Set `region_feature_size` of a new captioner to the size of its stored features."""
    if data.features is not None and start.model is None and start.vision_model is None:
        size = data.regions_of("train").feature_size
        start.model_config = {"region_feature_size": size} | start.config_fields()  # type: ignore[assignment]


def hold_out(rows: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split a data set at random into training and held-out images, and log the numbers.

    Args:
        rows: captioned images.
        share: share to hold out, between 0 and 1.
        seed: seed of the split.

    Raises:
        ValueError: the share is out of range, or a side would have fewer than two images.
    """
    if not 0 < share < 1:
        raise ValueError(f"`validation_share` is {share}, expected a number between 0 and 1.")
    count = round(len(rows) * share)
    if count < 2 or len(rows) - count < 2:
        raise ValueError(
            f"A share of {share} of {len(rows)} images cannot be held out: training and evaluation need at least 2 "
            "images each. Add images, or pass `validation_dir`."
        )
    parts = rows.train_test_split(test_size=count, seed=seed)
    parts["test"]._split = NamedSplit(HELD_OUT)  # what cards call it
    logger.warning(
        f"There are no evaluation images: {count} of {len(rows)} were held out at random (seed {seed}). Pass "
        "`validation_dir` to choose them."
    )
    return parts["train"], parts["test"]

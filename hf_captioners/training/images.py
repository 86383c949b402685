"""Captioned images as training data: images, image-caption pairs, and the order of the pairs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset as ArrowDataset
from torch.utils.data import Dataset, Sampler

from hf_captioners.data.image_feature import with_allowed_formats
from hf_captioners.data.schema import REGIONS, image_column
from hf_captioners.features.region_rows import RELATIONS, RegionRows
from hf_captioners.features.regions_column import region_source_of


class CaptionedImages(Dataset):
    """Data set with one item per image: `{"image": ...}`, `{"images": [...]}`, `{"regions": ...}` or features.

    Args:
        rows: a map-style data set with the columns `captions` (a list of strings) and `image`, `images` (several
            views, which become one set of regions) or `regions`, as `load_captions` and `with_regions` return it.
        features: stored features that replace the images.
        declared_inputs: inputs that the model reads besides the image, name to layout, see
            `CaptioningConfig.encoder_inputs`; columns of these names are put into the items as
            `{"declared": {NAME: value}}`, and relations of stored regions too.

    Raises:
        TypeError: the data set cannot be indexed by row.
        ValueError: a column is missing, or there are no rows.
    """

    def __init__(
        self,
        rows: ArrowDataset,
        features: RegionRows | None = None,
        declared_inputs: Mapping[str, str] | None = None,
    ) -> None:
        if not hasattr(rows, "column_names") or not hasattr(rows, "__len__"):
            raise TypeError(
                f"Expected a data set that is indexed by row, as `load_captions(..., split=...)` returns it; got a "
                f"{type(rows).__name__}. Streamed data sets cannot be shuffled, counted and resumed."
            )
        self.source = region_source_of(rows)
        rows = rows if self.source is None else rows.with_format(None)
        self.image_column = REGIONS if self.source is not None else image_column(rows.column_names)
        if "captions" not in rows.column_names or self.image_column is None:
            raise ValueError(
                f"The data set has the columns {rows.column_names}, expected `captions` (a list of texts) and "
                "`image`, `images` or `regions`. Rename yours: rows.rename_column(...)."
            )
        if not len(rows):
            raise ValueError("The data set has no rows.")
        self.rows = with_allowed_formats(rows.select_columns([self.image_column] if self.source is None else []))
        self.captions: list[list[str]] = list(rows["captions"])
        names = [name for name in declared_inputs or {} if name in rows.column_names]
        self.declared: dict[str, list[Any]] = {name: list(rows[name]) for name in names}
        self.relation_names = [name for name, layout in (declared_inputs or {}).items() if layout == "relation"]
        ids = rows["image_id"] if "image_id" in rows.column_names else range(len(rows))
        self.image_ids = [str(image_id) for image_id in ids]
        self.features = features if self.source is None else RegionRows(self.source, self.image_ids)

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return the item of an image."""
        item: dict[str, Any] = dict(self.features[row]) if self.features is not None else self.rows[row]
        declared = {name: values[row] for name, values in self.declared.items()}
        if (relations := item.pop(RELATIONS, None)) is not None:
            declared |= dict.fromkeys(self.relation_names, relations)
        if declared:
            item["declared"] = declared
        return item


class CaptionPairs(Dataset):
    """Data set with one item per image-caption pair: the image's item and the `caption`.

    Args:
        images: the images.
        skip_uncaptioned: leave out images without captions instead of refusing them.

    Raises:
        ValueError: an image has no caption.
    """

    def __init__(self, images: CaptionedImages, skip_uncaptioned: bool = False) -> None:
        self.images = images
        counts = np.array([len(captions) for captions in images.captions])
        if not (skip_uncaptioned or counts.all()):
            row = int(np.argmin(counts))
            raise ValueError(f"The image {images.image_ids[row]!r} (row {row}) has no caption to train on.")
        self.image_of = np.repeat(np.arange(len(counts)), counts)
        self.first_pair = np.cumsum(counts) - counts

    @property
    def lengths(self) -> np.ndarray:
        """Number of words of each pair's caption."""
        return np.array([len(caption.split()) for captions in self.images.captions for caption in captions])

    def __len__(self) -> int:
        return len(self.image_of)

    def __getitem__(self, pair: int) -> dict[str, Any]:
        """Return the item of a pair: the image, its `row`, and the `caption`."""
        row = int(self.image_of[pair])
        caption = self.images.captions[row][pair - int(self.first_pair[row])]
        return {**self.images[row], "row": row, "caption": caption}


class CaptionSampler(Sampler[int]):
    """Sampler of pairs whose order depends on seed and epoch only, so that resumed runs repeat it.

    Args:
        image_of: the image of every pair, `CaptionPairs.image_of`.
        captions_per_image: captions per image in one epoch; None takes all.
        seed: seed of the order and the choice of captions.
        together: whether the captions of an image follow each other.
        lengths: length of every pair's caption, to batch captions of one length (Show, Attend and Tell, section 4.3);
            the order of the batches is random.
        batch_size: size of these batches.
    """

    def __init__(
        self,
        image_of: Sequence[int],
        captions_per_image: int | None,
        seed: int,
        together: bool = False,
        lengths: Sequence[int] | None = None,
        batch_size: int = 1,
    ) -> None:
        self.image_of = np.asarray(image_of)
        self.captions_per_image = captions_per_image
        self.together = together
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for which the next order is drawn."""
        self.epoch = epoch

    def __len__(self) -> int:
        counts = np.bincount(self.image_of)
        return int(counts.sum() if self.captions_per_image is None else counts.clip(max=self.captions_per_image).sum())

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self.seed, self.epoch))
        pairs = generator.permutation(len(self.image_of))
        if self.captions_per_image is not None:
            pairs = pairs[_rank_within(self.image_of[pairs]) < self.captions_per_image]
        if self.together:
            place = generator.permutation(self.image_of.max() + 1)
            pairs = pairs[np.argsort(place[self.image_of[pairs]], kind="stable")]
        if self.lengths is not None:
            pairs = self._by_length(pairs, self.lengths, generator)
        return iter(pairs.tolist())

    def _by_length(self, pairs: np.ndarray, lengths: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Group pairs of similar caption length into batches and shuffle these; an incomplete batch comes last."""
        pairs = pairs[np.argsort(lengths[pairs], kind="stable")]
        whole = len(pairs) // self.batch_size * self.batch_size
        batches = generator.permutation(pairs[:whole].reshape(-1, self.batch_size))
        return np.concatenate((batches.reshape(-1), pairs[whole:]))


def _rank_within(groups: np.ndarray) -> np.ndarray:
    """Return for each entry the number of earlier entries in the same group."""
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - starts
    return ranks

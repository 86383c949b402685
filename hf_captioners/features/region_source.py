"""Interface of readers of precomputed regions, and the regions of one image."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class MissingRegionsError(KeyError):
    """Error of an image that has no regions in a source."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Regions:
    """Regions of one image: features, and boxes, relations, scores and views if the source has them.

    Attributes:
        features: [R, D], one row per region.
        boxes: [R, 4] float32, normalised corners x1, y1, x2, y2 in 0..1; None if the source lacks them, or
            has them in pixels without the size of the image.
        relations: [R, R] relations between regions (Image Transformer: 1 the row's region contains the column's,
            3 is inside it, 2 neither), if the source has them.
        scores: [R] float32, confidence of a detector per region, in 0..1; None if the source has no scores.
        views: [R] int64, the view of a study that each region is in; None: there is one view.
    """

    features: np.ndarray
    boxes: np.ndarray | None = None
    relations: np.ndarray | None = None
    scores: np.ndarray | None = None
    views: np.ndarray | None = None

    def ordered(self, order: np.ndarray) -> Regions:
        """Return the regions numbered `order`, in this order."""
        boxes, scores, views = (
            None if values is None else values[order] for values in (self.boxes, self.scores, self.views)
        )
        relations = None if self.relations is None else self.relations[order][:, order]
        return Regions(self.features[order], boxes, relations, scores, views)

    @classmethod
    def of_views(cls, views: Sequence[Regions]) -> Regions:
        """Join the regions of several views of one object, view after view."""
        if len(views) == 1:
            return views[0]
        boxes = [view.boxes for view in views if view.boxes is not None]
        scores = [view.scores for view in views if view.scores is not None]
        return cls(
            np.concatenate([view.features for view in views]),
            np.concatenate(boxes) if len(boxes) == len(views) else None,
            scores=np.concatenate(scores) if len(scores) == len(views) else None,
            views=np.repeat(np.arange(len(views)), [len(view.features) for view in views]),
        )

    def as_entry(self) -> dict[str, np.ndarray]:
        """Return the regions as a dictionary that processors accept."""
        optional = {"boxes": self.boxes, "views": self.views, "relations": self.relations}
        return {"features": self.features} | {name: values for name, values in optional.items() if values is not None}


# Numbers of one image (R x D) that a reader accepts by default: 64 MiB as float32.
MAX_NUMBERS = 2**24


class RegionSource(abc.ABC, Mapping[str, Regions]):
    """Base class of readers of regions, a mapping from `image_id` to `Regions`.

    An image that the source lacks raises `MissingRegionsError`; regions are never invented. Regions that are empty,
    misshapen or not finite raise a `ValueError` that names the image.
    """

    #: name of the source in messages
    name: str
    _first: tuple[str, int] | None = None  # the first image that was read, and its D

    @abc.abstractmethod
    def ids(self) -> Mapping[str, Any]:
        """Return the image ids in the order of the source, with the positions of their regions."""

    @abc.abstractmethod
    def regions(self, image_id: str) -> Regions:
        """Read the regions of an image whose id is in the source."""

    @property
    def feature_size(self) -> int:
        """Number of features per region (D), taken from the first image."""
        return self[next(iter(self))].features.shape[1]

    def stored(self, image_id: str) -> Regions:
        """Return the regions of an image as stored: possibly read-only and in a smaller data type.

        Raises:
            MissingRegionsError: the source has no such image.
        """
        return self[image_id]

    def __getitem__(self, image_id: str) -> Regions:
        if str(image_id) not in self.ids():
            few = ", ".join(list(self.ids())[:3])
            raise MissingRegionsError(
                f"{self.name} has no regions of the image {image_id!r}; it has {len(self):,} images ({few}, ...). "
                "Leave the image out, or extract it."
            )
        regions = self.regions(str(image_id))
        self.require_sound(str(image_id), regions)
        return regions

    def require_sound(self, image_id: str, regions: Regions) -> None:
        """Raise an error unless an image has regions, with matching shapes and finite numbers.

        Raises:
            ValueError: they are empty, their arrays do not fit each other, or a number is not finite.
        """
        shape = regions.features.shape
        if len(shape) != 2 or not all(shape):
            raise ValueError(
                f"The features of the image {image_id!r} in {self.name} have the shape {list(shape)}; expected [R, D] "
                "with at least one region and one feature. Extract the image again, or leave it out."
            )
        first, size = self._first or (image_id, shape[1])
        if shape[1] != size:
            raise ValueError(
                f"The image {image_id!r} in {self.name} has {shape[1]} features per region, the image {first!r} has "
                f"{size}. Extract both with the same model, or leave one out."
            )
        expected = {"boxes": (shape[0], 4), "relations": (shape[0], shape[0]), "scores": (shape[0],)}
        for name, expected_shape in {"features": shape, **expected}.items():
            values = getattr(regions, name)
            if values is None:
                continue
            if values.shape != expected_shape:
                raise ValueError(
                    f"The {name} of the image {image_id!r} in {self.name} have the shape {list(values.shape)}; "
                    f"expected {list(expected_shape)} for {shape[0]} regions."
                )
            if not all_finite(values):
                raise ValueError(
                    f"The {name} of the image {image_id!r} in {self.name} are not all finite (NaN, infinite, or too "
                    "large for float32). Extract the image again, or leave it out."
                )
        self._first = first, size

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids())

    def __len__(self) -> int:
        return len(self.ids())

    def __contains__(self, image_id: object) -> bool:
        return str(image_id) in self.ids()


def normalised(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Convert boxes [R, 4] from pixels to shares of the image's width and height.

    Raises:
        ValueError: the size is not positive, or the boxes have a different shape.
    """
    width, height = size
    if not (width > 0 and height > 0):
        raise ValueError(f"an image has the size {width} x {height}, expected positive numbers of pixels")
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes have the shape {list(boxes.shape)}, expected [R, 4]")
    return (boxes / np.array([width, height, width, height])).astype(np.float32)


def all_finite(values: np.ndarray) -> bool:
    """Return True if all numbers are finite; the sum is tested first, which is several times as fast."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float32)) or np.isfinite(values).all())


def as_float32(values: np.ndarray, place: str, max_numbers: int = MAX_NUMBERS) -> np.ndarray:
    """Convert numbers to float32; those that are too large become infinite.

    Args:
        values: floats or integers.
        place: their location, for messages.
        max_numbers: the largest number of elements.

    Raises:
        ValueError: they are no numbers, or too many.
    """
    require_numbers(values.shape, values.dtype, place, max_numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, np.float32)


def require_numbers(shape: Sequence[int], dtype: np.dtype, place: str, max_numbers: int = MAX_NUMBERS) -> None:
    """Check the declared size and type of an array before it is read into memory.

    Raises:
        ValueError: they are no floats or integers, or more than `max_numbers`.
    """
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise ValueError(f"{place} has the data type {dtype}; expected floating point numbers or integers.")
    if math.prod(shape) > max_numbers:
        raise ValueError(
            f"{place} has the shape {list(shape)}, {math.prod(shape):,} numbers; at most {max_numbers:,} are read for "
            "one image. If the file is right, open it with a larger max_numbers=..."
        )

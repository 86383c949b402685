"""Regions of images that were computed beforehand, and the interface of their readers."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class MissingRegionsError(KeyError):
    """An image has no regions in a source."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Regions:
    """The regions of one image.

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
        """Return the regions in a different order, or some of them."""
        boxes, scores, views = (
            None if values is None else values[order] for values in (self.boxes, self.scores, self.views)
        )
        relations = None if self.relations is None else self.relations[order][:, order]
        return Regions(self.features[order], boxes, relations, scores, views)

    @classmethod
    def of_views(cls, views: Sequence[Regions]) -> Regions:
        """Return the regions of several views of one object as one set, view after view."""
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
        """Return the regions of one image in the form that processors accept."""
        others = {"boxes": self.boxes, "views": self.views, "relations": self.relations}
        return {"features": self.features} | {name: values for name, values in others.items() if values is not None}


class RegionSource(abc.ABC, Mapping[str, Regions]):
    """Regions by `image_id`.

    An image that the source lacks raises `MissingRegionsError`; regions are never invented.
    """

    #: name of the source in messages
    name: str

    @abc.abstractmethod
    def ids(self) -> Mapping[str, Any]:
        """Return the ids in the order of the source, with the position of their regions."""

    @abc.abstractmethod
    def regions(self, image_id: str) -> Regions:
        """Read the regions of an image that the source has."""

    @property
    def feature_size(self) -> int:
        """Features per region (D), taken from the first image."""
        return self[next(iter(self))].features.shape[1]

    def stored(self, image_id: str) -> Regions:
        """Return the regions of an image as they are stored, which may be read-only and in a smaller data type.

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
        return self.regions(str(image_id))

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids())

    def __len__(self) -> int:
        return len(self.ids())

    def __contains__(self, image_id: object) -> bool:
        return str(image_id) in self.ids()


def normalised(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Divide boxes in pixels by the size (width, height) of their image."""
    width, height = size
    return (boxes / np.array([width, height, width, height])).astype(np.float32)

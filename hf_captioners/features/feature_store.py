"""Feature store: regions of many images in memory-mapped safetensors shards, with the name of their extractor.

    store/store.json                   extractor and its revision, size and kind of the features
    store/regions-00000.safetensors    `features` [N, D] of all images one after the other, `boxes` [N, 4],
                                       `scores` [N], `views` [N], `counts` [P] regions per image, and the ids in the
                                       header

A safetensors shard is one block of numbers after a short header. The position of an image is computed; one copy
reads its regions from the page cache, which all processes share. A shard appears under its name when it is complete;
a writer that was killed resumes with the next one. torch maps the files: it converts half precision several times as
fast as numpy and, unlike `mmap`, keeps no file open, so a store may have more shards than a process may open files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from hf_captioners.output_files import read_text_inside, write_text

from .region_source import MissingRegionsError, Regions, RegionSource
from .stored_shard import StoredShard

STORE_FILE = "store.json"
SHARD_PATTERN = "regions-*.safetensors"
FORMAT = 1
StoredKind = Literal["float32", "float16", "int8"]
DESCRIPTION_ADVICE = "Copy it from the store that it belongs to, or extract the images again into a different folder."
# What each field of store.json may hold.
FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "extractor": lambda value: isinstance(value, str),
    "revision": lambda value: isinstance(value, str),
    "feature_size": lambda value: type(value) is int and value > 0,
    "kind": lambda value: value in ("float32", "float16", "int8"),
    "boxes": lambda value: isinstance(value, bool),
    "scores": lambda value: isinstance(value, bool),
}


class OtherExtractorError(ValueError):
    """Error of features that come from a different extractor than the model was trained on."""


@dataclass(frozen=True)
class StoreDescription:
    """Description of a feature store (`store.json`): extractor, revision, sizes and data type.

    Attributes:
        extractor: name of the model that computed the features, with the settings that change them (layer, grid, ...).
        revision: revision of that model, or a digest of it.
        feature_size: D.
        kind: stored data type. `float16` rounds by at most 2^-11 of a value; `int8` by at most half a step, 1/254
            of the largest value of the region.
        boxes: whether regions have boxes.
        scores: whether regions have scores.
    """

    extractor: str
    revision: str
    feature_size: int
    kind: StoredKind = "float32"
    boxes: bool = True
    scores: bool = False

    def check_extractor(self, extractor: str, revision: str | None = None) -> None:
        """Raise an `OtherExtractorError` unless features come from this extractor.

        Raises:
            OtherExtractorError: the extractor or (if given) the revision differs.
        """
        if self.extractor != extractor or revision not in (None, self.revision):
            expected = extractor if revision is None else f"{extractor} (revision {revision})"
            raise OtherExtractorError(
                f"The store has features of {self.extractor} (revision {self.revision}); the model was trained on "
                f"those of {expected}. Extract the images again with that one."
            )

    def write(self, folder: Path) -> None:
        """Write the description atomically."""
        write_text(folder / STORE_FILE, json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")

    def open_shard(self, path: Path) -> StoredShard:
        """Memory-map a shard of the store.

        Raises:
            ValueError: the file is damaged, or does not fit the description.
        """
        shard = StoredShard(path)
        shard.require(self.feature_size, self.kind, self.boxes, self.scores)
        return shard

    @classmethod
    def read(cls, folder: Path) -> StoreDescription:
        """Read the description of a store.

        Raises:
            FileNotFoundError: there is no store.
            ValueError: the store has a different format, or the description is damaged.
        """
        path = folder / STORE_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{folder} is not a feature store: it has no {STORE_FILE}.")
        try:
            content = json.loads(read_text_inside(path, follow_links=True))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}. {DESCRIPTION_ADVICE}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path} is damaged: it holds {content!r:.40}, expected an object. {DESCRIPTION_ADVICE}")
        if (version := content.pop("format", None)) != FORMAT:
            raise ValueError(f"{path} has the format {version!r:.40}; this version reads format {FORMAT}.")
        for field in fields(cls):
            if field.name not in content and field.default is MISSING:
                raise ValueError(f"{path} is damaged: it has no `{field.name}`. {DESCRIPTION_ADVICE}")
        for name, value in content.items():
            if name not in FIELD_CHECKS or not FIELD_CHECKS[name](value):
                raise ValueError(f"{path} is damaged: it has {name!r:.40}: {value!r:.60}. {DESCRIPTION_ADVICE}")
        return cls(**content)


class FeatureStore(RegionSource):
    """Reader of a feature store.

    Args:
        folder: the store.
        extractor: the extractor that a model needs; None accepts any.
        revision: its revision; None accepts any.

    Raises:
        FileNotFoundError: there is no store.
        OtherExtractorError: the features come from a different extractor.
        ValueError: an image occurs twice, or a file of the store is damaged.

    Examples:
        >>> import numpy as np
        >>> from hf_captioners.features.feature_store import FeatureStore, StoreDescription
        >>> from hf_captioners.features.feature_store_writer import FeatureStoreWriter
        >>> from hf_captioners.features.region_source import Regions
        >>> with FeatureStoreWriter("features", StoreDescription("ones", "1", 8, boxes=False)) as writer:
        ...     writer.add("photo", Regions(np.ones((5, 8), np.float32)))
        >>> FeatureStore("features", extractor="ones")["photo"].features.shape
        (5, 8)
    """

    def __init__(self, folder: str | Path, extractor: str | None = None, revision: str | None = None) -> None:
        self.folder = Path(folder)
        self.name = str(folder)
        self.description = StoreDescription.read(self.folder)
        if extractor is not None:
            self.description.check_extractor(extractor, revision)
        self._shards = [self.description.open_shard(path) for path in sorted(self.folder.glob(SHARD_PATTERN))]
        self._has_views = any("views" in shard.arrays for shard in self._shards)
        self._sound: set[str] = set()  # images whose numbers were checked by this process
        self._places: dict[str, tuple[int, int, int]] = {}
        for number, shard in enumerate(self._shards):
            for image_id, start, count in zip(shard.ids, shard.starts.tolist(), shard.counts.tolist(), strict=True):
                if image_id in self._places:
                    raise ValueError(f"{self.folder} has the image {image_id} twice.")
                self._places[image_id] = (number, start, start + count)

    def __reduce__(self) -> tuple[type[FeatureStore], tuple[Path]]:
        return FeatureStore, (self.folder,)

    def ids(self) -> Mapping[str, tuple[int, int, int]]:
        """Return the image ids, each with shard, first row and end."""
        return self._places

    def shards_of(self, image_ids: Iterable[str]) -> set[Path]:
        """Return the shards that hold the regions of images; ids that are not stored are ignored."""
        numbers = {self._places[image_id][0] for image_id in image_ids if image_id in self._places}
        return {self._shards[number].path for number in numbers}

    def regions(self, image_id: str) -> Regions:
        """Read the regions of an image, as float32."""
        number, start, stop = self._places[image_id]
        features = np.empty((stop - start, self.description.feature_size), np.float32)
        self._copy(number, start, stop, features)
        beside = {name: values[start:stop].copy() for name, values in self._beside_features(number).items()}
        return Regions(features, **beside)

    def require_sound(self, image_id: str, regions: Regions) -> None:
        """Check the regions of an image on the first read of each process.

        Raises:
            ValueError: a number is not finite.
        """
        if image_id not in self._sound:
            super().require_sound(image_id, regions)
            self._sound.add(image_id)

    def stored(self, image_id: str) -> Regions:
        """Return the regions of an image as stored: float16 features stay float16, and nothing is copied.

        Raises:
            MissingRegionsError: the store does not have the image.
            ValueError: its regions are damaged.
        """
        if self.description.kind == "int8":
            return self[image_id]
        number, start, stop = self._place(image_id)
        beside = {name: values[start:stop] for name, values in self._beside_features(number).items()}
        regions = Regions(self._shards[number].arrays["features"][start:stop], **beside)
        self.require_sound(image_id, regions)
        return regions

    def read_batch(
        self, image_ids: Sequence[str], max_regions: int, out: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Read the regions of several images into one padded array.

        Args:
            image_ids: B ids.
            max_regions: R; further regions of an image are left out.
            out: float32 array [B, R, D] to write into, which saves allocating memory; None: a new one.

        Returns:
            `region_features` [B, R, D] float32, zero where padded; `region_mask` [B, R] bool; `region_boxes`
            [B, R, 4] if there are boxes; `region_views` [B, R] int64 if an image has several views.

        Raises:
            MissingRegionsError: the store does not have an image.
            ValueError: the regions of an image are damaged, or `out` has a different shape or type.
        """
        shape = (len(image_ids), max_regions, self.description.feature_size)
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.shape != shape or out.dtype != np.float32:
            raise ValueError(f"`out` is {out.dtype} {out.shape}; expected float32 {shape}.")
        counts = np.empty(len(image_ids), np.int64)
        boxes = np.zeros((*shape[:2], 4), np.float32) if self.description.boxes else None
        views = np.zeros(shape[:2], np.int64) if self._has_views else None
        for row, image_id in enumerate(image_ids):
            number, start, stop = self._place(image_id)
            stop = min(stop, start + max_regions)
            counts[row] = stop - start
            if image_id not in self._sound:
                self[image_id]  # checks all regions
            self._copy(number, start, stop, out[row, : stop - start])
            out[row, stop - start :] = 0
            if boxes is not None:
                boxes[row, : stop - start] = self._shards[number].arrays["boxes"][start:stop]
            if views is not None:
                views[row, : stop - start] = self._beside_features(number)["views"][start:stop]
        batch = {"region_features": out, "region_mask": np.arange(max_regions) < counts[:, None]}
        others = {"region_boxes": boxes, "region_views": views}
        return batch | {name: values for name, values in others.items() if values is not None}

    def _place(self, image_id: str) -> tuple[int, int, int]:
        try:
            return self._places[image_id]
        except KeyError:
            self[image_id]  # raises with the full message
            raise MissingRegionsError(image_id) from None

    def _beside_features(self, number: int) -> dict[str, np.ndarray]:
        """Return the arrays of a shard beside features: boxes [N, 4], scores [N] and views [N]."""
        arrays = self._shards[number].arrays
        names = [name for name in ("boxes", "scores", "views") if name in arrays]
        beside: dict[str, np.ndarray] = {name: arrays[name] for name in names}
        if self._has_views and "views" not in arrays:
            beside["views"] = np.zeros(len(arrays["features"]), np.int64)
        return beside

    def _copy(self, number: int, start: int, stop: int, out: np.ndarray) -> None:
        """Copy the features of a shard's rows into float32 `out` [stop - start, D]."""
        if self.description.kind == "float32":  # numpy copies faster than torch
            np.copyto(out, self._shards[number].arrays["features"][start:stop])
            return
        tensors, target = self._shards[number].tensors, torch.from_numpy(out)
        if self.description.kind == "int8":
            torch.mul(tensors["features"][start:stop], tensors["scales"][start:stop, None], out=target)
        else:
            target.copy_(tensors["features"][start:stop])

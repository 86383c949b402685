"""Data sets whose rows have the regions of their images, and the computation of these regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import PIL.Image
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset
from tqdm.auto import tqdm

from hf_captioners.data.report import DataReport, ProblemKind
from hf_captioners.data.schema import IMAGE, IMAGE_ID, IMAGES, REGIONS

from .feature_store_writer import FeatureStoreWriter
from .region_source import MissingRegionsError, Regions, RegionSource


def with_regions(
    dataset: Dataset, source: RegionSource, allow_missing: bool = False, report: DataReport | None = None
) -> Dataset:
    """Add the regions of its image to each row, read when the row is accessed.

    Args:
        dataset: rows with `image_id`.
        source: a feature store, or a reader of region features.
        allow_missing: leave out images without regions instead of raising an error.
        report: receives the images that were left out.

    Returns:
        The data set with a column `regions` of `{"features": [R, D], "boxes": [R, 4]}` instead of `image`.

    Raises:
        MissingRegionsError: images have no regions and `allow_missing` is off.
        ValueError: no image has regions.

    Example:

    >>> import numpy as np
    >>> from hf_captioners.data import load_captions
    >>> from hf_captioners.features.feature_store import FeatureStore, StoreDescription
    >>> from hf_captioners.features.feature_store_writer import FeatureStoreWriter
    >>> from hf_captioners.features.regions_column import Regions, with_regions
    >>> scenes = load_captions("scenes", split="train", num_images={"train": 4}, image_size=32)
    >>> with FeatureStoreWriter("features", StoreDescription("ones", "1", 8, boxes=False)) as writer:
    ...     for image_id in scenes["image_id"]:
    ...         writer.add(image_id, Regions(np.ones((5, 8), np.float32)))
    >>> rows = with_regions(scenes, FeatureStore("features"))
    >>> rows[0]["regions"]["features"].shape
    (5, 8)
    """
    ids = dataset[IMAGE_ID][:]
    present = [row for row, image_id in enumerate(ids) if image_id in source]
    missing = [image_id for image_id in ids if image_id not in source]
    if missing and not allow_missing:
        raise MissingRegionsError(
            f"{source.name} has no regions of {len(missing):,} of {len(ids):,} images, such as "
            f"{', '.join(missing[:3])}. Extract them, or pass allow_missing=True to leave them out."
        )
    if not present:
        raise ValueError(f"{source.name} has regions of none of the {len(ids):,} images (such as {ids[0]}).")
    if report is not None:
        for image_id in missing:
            report.add(ProblemKind.MISSING_IMAGE, source.name, None, f"no regions of {image_id}")
    chosen = dataset.select(present) if missing else dataset
    chosen = chosen.remove_columns([name for name in (IMAGE, IMAGES) if name in chosen.column_names])
    return chosen.with_transform(_AddRegions(source))


def region_source_of(dataset: Dataset) -> RegionSource | None:
    """Return the source that `with_regions` added to a data set; None if there is none."""
    transform = dataset.format["format_kwargs"].get("transform")
    return transform.source if isinstance(transform, _AddRegions) else None


class _AddRegions:
    def __init__(self, source: RegionSource) -> None:
        self.source = source

    def __call__(self, rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        if IMAGE_ID not in rows:  # a different column is read alone
            return dict(rows)
        return {**rows, REGIONS: [self.source[image_id].as_entry() for image_id in rows[IMAGE_ID]]}


def store_regions(
    dataset: Dataset | Iterable[Mapping[str, Any]],
    extract: Callable[[Any], list[Regions]],
    writer: FeatureStoreWriter,
    batch_size: int = 32,
    prepare: Callable[[list[PIL.Image.Image]], Any] = list,
    workers: int = 0,
    ids: Sequence[str] | None = None,
) -> int:
    """Compute the regions of all images that a store does not have yet, with progress.

    Args:
        dataset: rows with `image_id` and `image` (or `images`: the regions of all views become one set); for several
            processes, `dataset.shard(processes, rank)` in each, with `writer=rank`. A stream of such rows may be given
            too.
        extract: computes the regions of what `prepare` returned, one entry per image.
        writer: the writer of the store, opened as a context manager by the caller.
        batch_size: rows at a time.
        prepare: turns decoded images into the input of `extract`, in the workers.
        workers: processes that decode and prepare images.
        ids: names to store rows under instead of `image_id`. A row whose name is stored already, or occurred
            before, is left out.

    Returns:
        The number of computed rows.

    Raises:
        ValueError: an image is missing or cannot be read, or extracted regions do not fit the store.
    """
    if workers and not isinstance(dataset, Dataset):
        raise ValueError(f"`workers` is {workers}, but a stream is read by one process: pass workers=0.")
    computed = 0
    loader = DataLoader(
        _remaining(dataset, writer.done, ids),
        batch_size,
        num_workers=workers,
        collate_fn=partial(_prepared, prepare=prepare),
        generator=torch.Generator().manual_seed(0),  # draws nothing from the caller's random numbers
    )
    for names, counts, batch in tqdm(loader, desc="regions", unit="batch", disable=None):
        views = iter(extract(batch))
        joined = [Regions.of_views(list(islice(views, count))) for count in counts]
        writer.add_batch(zip(names, joined, strict=True))
        computed += len(names)
    return computed


def _remaining(
    dataset: Dataset | Iterable[Mapping[str, Any]], done: set[str], ids: Sequence[str] | None
) -> TorchDataset:
    """Yield the rows that are not stored yet, each once, as pairs of a name and its views."""
    if not isinstance(dataset, Dataset):
        return _Stream(dataset, done)
    names = dataset[IMAGE_ID][:] if ids is None else ids
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        if name not in done:
            first.setdefault(name, row)
    column = IMAGES if IMAGES in dataset.column_names else IMAGE
    return _Rows(dataset.select_columns([column]), column, list(first.items()))


class _Rows(TorchDataset):
    def __init__(self, dataset: Dataset, column: str, places: list[tuple[str, int]]) -> None:
        self.dataset, self.column, self.places = dataset, column, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[str, list[Any]]:
        name, row = self.places[index]
        try:
            return name, _views(self.dataset[row][self.column], name)
        except (OSError, SyntaxError) as error:  # PIL reports some broken files as SyntaxError
            raise ValueError(f"The image {name} (row {row}) cannot be read: {error}") from error


class _Stream(IterableDataset):
    def __init__(self, rows: Iterable[Mapping[str, Any]], done: set[str]) -> None:
        self.rows, self.done = rows, frozenset(done)

    def __iter__(self) -> Iterator[tuple[str, list[Any]]]:
        for row in self.rows:
            if row[IMAGE_ID] not in self.done:
                yield row[IMAGE_ID], _views(row[IMAGES] if IMAGES in row else row[IMAGE], row[IMAGE_ID])


def _views(images: Any, name: str) -> list[Any]:
    views = list(images) if isinstance(images, (list, tuple)) else [images]
    if not views or any(view is None for view in views):
        raise ValueError(f"The row {name} has no image (loaded with with_images=False?).")
    return views


def _prepared(
    items: list[tuple[str, list[Any]]], prepare: Callable[[list[PIL.Image.Image]], Any]
) -> tuple[list[str], list[int], Any]:
    names, views = zip(*items, strict=True)
    return list(names), [len(some) for some in views], prepare([view for some in views for view in some])

"""Data sets with regions of their images in each row, and the computation of these regions."""

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

from hf_captioners.data.image_feature import with_allowed_formats
from hf_captioners.data.report import DataReport, ProblemKind
from hf_captioners.data.schema import IMAGE, IMAGE_ID, IMAGES, REGIONS
from hf_captioners.processing.image_reading import read_image
from hf_captioners.work_progress import progress_of

from .feature_store_writer import FeatureStoreWriter
from .region_source import MissingRegionsError, Regions, RegionSource


def with_regions(
    dataset: Dataset, source: RegionSource, allow_missing: bool = False, report: DataReport | None = None
) -> Dataset:
    """Add a column of regions to a data set, read from the source when a row is accessed.

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

    Examples:
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
    """Return the region source that `with_regions` added to a data set; None if there is none."""
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
    skipped: dict[str, str] | None = None,
) -> int:
    """Compute the regions of all images that a feature store lacks, with a progress bar.

    Batches are formed of all rows, and what is stored is left out of them: a resumed call forms the batches of an
    uninterrupted one.

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
        skipped: receives the images that cannot be read, by name, with the reasons. None: the first one raises an
            error.

    Returns:
        The number of computed rows.

    Raises:
        ValueError: an image is missing or cannot be read, or extracted regions do not fit the store.
        ChildProcessError: a process that reads images was killed.
    """
    if workers and not isinstance(dataset, Dataset):
        raise ValueError(f"`workers` is {workers}, but a stream is read by one process: pass workers=0.")
    rows, batches = _remaining(dataset, writer.done, ids, batch_size)
    loader = DataLoader(
        rows,
        **batches,
        num_workers=workers,
        collate_fn=partial(_prepared, prepare=prepare),
        generator=torch.Generator().manual_seed(0),  # draws nothing from the caller's random numbers
        worker_init_fn=partial(_set_pixel_limit, PIL.Image.MAX_IMAGE_PIXELS),
    )
    total = sum(map(len, batches["batch_sampler"])) if "batch_sampler" in batches else None
    computed = 0
    with progress_of("image features", "image", total) as progress:
        for names, counts, batch, faults in _alive(loader):
            if faults and skipped is None:
                raise ValueError(next(iter(faults.values())))
            if faults and skipped is not None:
                skipped |= faults
            if names:
                views = iter(extract(batch))
                joined = [Regions.of_views(list(islice(views, count))) for count in counts]
                writer.add_batch(zip(names, joined, strict=True))
                computed += len(names)
            progress.update(len(names) + len(faults))
    return computed


def _set_pixel_limit(pixels: int | None, worker: int) -> None:
    PIL.Image.MAX_IMAGE_PIXELS = pixels


def _alive(loader: Iterable[Any]) -> Iterator[Any]:
    """Iterate over a loader's batches; explain the error if a worker process was killed."""
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ChildProcessError(
            f"A process that reads images was killed ({error}), often because the memory is exhausted. Pass fewer "
            "`workers` or a smaller `batch_size`, and repeat the command: it resumes, and what is stored is kept."
        ) from error


def _remaining(
    dataset: Dataset | Iterable[Mapping[str, Any]], done: set[str], ids: Sequence[str] | None, batch_size: int
) -> tuple[TorchDataset, dict[str, Any]]:
    """Return a torch data set of (image name, views) without repetitions, and batching arguments of its loader."""
    if not isinstance(dataset, Dataset):
        return _Stream(dataset, done), {"batch_size": batch_size}
    names = dataset[IMAGE_ID][:] if ids is None else ids
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        first.setdefault(name, row)
    places = list(first.items())
    batches = [range(start, min(start + batch_size, len(places))) for start in range(0, len(places), batch_size)]
    remaining = [[place for place in batch if places[place][0] not in done] for batch in batches]
    column = IMAGES if IMAGES in dataset.column_names else IMAGE
    rows = with_allowed_formats(dataset.select_columns([column]))
    return _Rows(rows, column, places), {"batch_sampler": [batch for batch in remaining if batch]}


class _Rows(TorchDataset):
    def __init__(self, dataset: Dataset, column: str, places: list[tuple[str, int]]) -> None:
        self.dataset, self.column, self.places = dataset, column, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[str, list[Any] | str]:
        """Return the image name and its views; the reason instead of views if it cannot be read."""
        name, row = self.places[index]
        try:
            views = _views(self.dataset[row][self.column], name)
            return name, [read_image(view) if isinstance(view, PIL.Image.Image) else view for view in views]
        except MissingImageError as error:
            return name, str(error)
        except Exception as error:  # decoders raise errors of many types
            return name, f"The image {name} (row {row}) cannot be read: {error}"


class _Stream(IterableDataset):
    def __init__(self, rows: Iterable[Mapping[str, Any]], done: set[str]) -> None:
        self.rows, self.done = rows, frozenset(done)

    def __iter__(self) -> Iterator[tuple[str, list[Any]]]:
        for row in self.rows:
            if row[IMAGE_ID] not in self.done:
                yield row[IMAGE_ID], _views(row[IMAGES] if IMAGES in row else row[IMAGE], row[IMAGE_ID])


class MissingImageError(ValueError):
    """Error of a row without an image."""


def _views(images: Any, name: str) -> list[Any]:
    views = list(images) if isinstance(images, (list, tuple)) else [images]
    if not views or any(view is None for view in views):
        raise MissingImageError(f"The row {name} has no image (loaded with with_images=False?).")
    return views


def _prepared(
    items: list[tuple[str, list[Any] | str]], prepare: Callable[[list[PIL.Image.Image]], Any]
) -> tuple[list[str], list[int], Any, dict[str, str]]:
    """Prepare a batch: names, numbers of views, model inputs, and the reasons of images that cannot be read."""
    faults = {name: views for name, views in items if isinstance(views, str)}
    read = {name: views for name, views in items if not isinstance(views, str)}
    try:
        prepared = _prepared_views(read, prepare)
    except Exception:
        for name in list(read):
            try:
                prepare(read[name])
            except Exception as error:
                faults[name] = f"The image {name} cannot be prepared: {error}"
                del read[name]
        prepared = _prepared_views(read, prepare)
    return list(read), [len(views) for views in read.values()], prepared, faults


def _prepared_views(read: Mapping[str, list[Any]], prepare: Callable[[list[PIL.Image.Image]], Any]) -> Any:
    return prepare([view for views in read.values() for view in views]) if read else None

"""Extraction of a data set's region features: one feature store per split, by one or several processes."""

from pathlib import Path

from accelerate import PartialState
from datasets import Dataset

from .extraction import RegionExtractor
from .feature_store import StoredKind
from .feature_store_writer import FeatureStoreWriter
from .regions_column import store_regions


def extract_split(
    rows: Dataset,
    extractor: RegionExtractor,
    folder: Path,
    kind: StoredKind = "float16",
    batch_size: int = 8,
    workers: int = 0,
    state: PartialState | None = None,
    skipped: dict[str, str] | None = None,
) -> tuple[int, float]:
    """Compute the region features of a split that its feature store lacks.

    Several processes (`accelerate launch`) share the images, and each writes shards of its own. An interrupted call is
    resumed by the next one.

    Args:
        rows: captioned images.
        extractor: computes the regions; its model is on the device that shall compute.
        folder: the feature store.
        kind: data type of the stored features: `"float32"`, `"float16"` or `"int8"`.
        batch_size: rows per batch, for each process.
        workers: processes that read images, for each process.
        state: the processes. None: those of `accelerate`.
        skipped: receives the images of this process that cannot be read, by name, with the reasons. None: the first
            one raises an error.

    Returns:
        How many images this process computed, and the largest rounding error of their features.
    """
    state = state or PartialState()
    own_rows = rows.shard(state.num_processes, state.process_index)
    with state.main_process_first():  # one process creates the store
        writer = FeatureStoreWriter(folder, extractor.description(kind), state.process_index)
    with writer:
        computed = store_regions(own_rows, extractor, writer, batch_size, extractor.prepare, workers, skipped=skipped)
    state.wait_for_everyone()
    return computed, writer.largest_error


def unique_images(rows: Dataset) -> Dataset:
    """Drop rows whose image occurs in an earlier row, from a data set with one row per caption."""
    first: dict[str, int] = {}
    for row, image_id in enumerate(rows["image_id"]):
        first.setdefault(image_id, row)
    return rows if len(first) == len(rows) else rows.select(first.values())

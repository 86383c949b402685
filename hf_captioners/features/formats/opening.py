"""Opening of region features by their path, in any supported format."""

from pathlib import Path

from hf_captioners.features.feature_store import STORE_FILE, FeatureStore
from hf_captioners.features.region_source import MAX_NUMBERS, RegionSource

from .bottom_up import BottomUpTsv
from .folder import RegionFolder
from .hdf5 import DetectionsHdf5

TSV_ENDINGS = (".tsv", ".tsv.gz")
HDF5_ENDINGS = (".hdf5", ".h5")


def open_regions(path: str | Path, max_numbers: int = MAX_NUMBERS) -> RegionSource | None:
    """Open a feature store, a TSV or HDF5 file of bottom-up features, or a folder with one file per image.

    Args:
        path: a folder that `extract-features` wrote, a file that ends in .tsv, .tsv.gz, .hdf5 or .h5, or a folder of
            .npz or .npy files. Files are read with the defaults of their readers: without boxes if the
            file lacks the sizes of images.
        max_numbers: largest number of features of one image (R x D); larger arrays are refused before they are read.

    Returns:
        The regions; None if the path has none of these formats.

    Raises:
        ValueError: the file is damaged, or has no regions.
        ImportError: it is HDF5, and h5py is not installed.
    """
    path = Path(path)
    if (path / STORE_FILE).is_file():
        return FeatureStore(path)
    if path.is_file() and path.name.endswith(TSV_ENDINGS):
        return BottomUpTsv(path, max_numbers)
    if path.is_file() and path.name.endswith(HDF5_ENDINGS):
        return DetectionsHdf5(path, max_numbers=max_numbers)
    if path.is_dir() and any(file.suffix in RegionFolder.SUFFIXES for file in path.iterdir()):
        return RegionFolder(path, max_numbers=max_numbers)
    return None


def open_split_regions(
    path: str | Path, split: str, opened: dict[Path, RegionSource | None] | None = None
) -> RegionSource:
    """Open the regions of a split: one source for all splits, or a folder with one source per split.

    Args:
        path: see `open_regions`, or a folder of such sources by split, as `extract-features` writes it.
        split: name of the split.
        opened: sources that were opened before; a TSV is scanned for its images, which is done once for all splits.

    Raises:
        FileNotFoundError: there are none.
        ValueError, ImportError: see `open_regions`.
    """
    opened = {} if opened is None else opened
    places = [Path(path), Path(path, split)]
    for place in places:
        if place not in opened:
            opened[place] = open_regions(place)
    source_of_split = next((source for place in places if (source := opened[place]) is not None), None)
    if source_of_split is None:
        raise FileNotFoundError(
            f"{places[1]} is no feature store, nor is {places[0]}, nor a TSV, HDF5 or folder of region features. "
            f"Extract the split: hf-captioners extract-features ... --split {split} --output {path}"
        )
    return source_of_split

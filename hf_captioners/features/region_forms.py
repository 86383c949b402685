"""Region features by their path, whatever form they have."""

from pathlib import Path

from .feature_store import STORE_FILE, FeatureStore
from .region_source import RegionSource
from .regions_bottom_up import BottomUpTsv
from .regions_folder import RegionFolder
from .regions_hdf5 import DetectionsHdf5

TSV_ENDINGS = (".tsv", ".tsv.gz")
HDF5_ENDINGS = (".hdf5", ".h5")


def open_regions(path: str | Path) -> RegionSource | None:
    """Open a feature store, a TSV or HDF5 file of bottom-up features, or a folder with one file an image.

    Args:
        path: a folder that `extract-features` wrote, a file that ends in .tsv, .tsv.gz, .hdf5 or .h5, or a folder of
            .npz or .npy files. Files are read as their readers read them by default: without boxes where the size of
            an image is not in them.

    Returns:
        The regions; None where there is nothing of these forms.

    Raises:
        ValueError: the file is damaged, or holds no regions.
        ImportError: it is HDF5, and h5py is not installed.
    """
    path = Path(path)
    if (path / STORE_FILE).is_file():
        return FeatureStore(path)
    if path.is_file() and path.name.endswith(TSV_ENDINGS):
        return BottomUpTsv(path)
    if path.is_file() and path.name.endswith(HDF5_ENDINGS):
        return DetectionsHdf5(path)
    if path.is_dir() and any(file.suffix in RegionFolder.SUFFIXES for file in path.iterdir()):
        return RegionFolder(path)
    return None

"""Readers of region features from other projects: TSV of bottom-up attention, HDF5, folders of arrays."""

from .opening import open_regions, open_split_regions

__all__ = ["open_regions", "open_split_regions"]

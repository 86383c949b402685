"""Regions beside captions, and computing them."""

import numpy as np
import pytest

from hf_captioners.data import DataReport
from hf_captioners.data.feature_store import FeatureStore, StoreDescription
from hf_captioners.data.feature_store_writer import FeatureStoreWriter
from hf_captioners.data.region_source import MissingRegionsError, Regions
from hf_captioners.data.regions_column import store_regions, with_regions

DESCRIPTION = StoreDescription("mean colour", "1", 3, boxes=False)


@pytest.fixture
def dataset(load):
    return load("scenes", split="train", num_images={"train": 12}, image_size=32)


def mean_colours(seen):
    def extract(pictures):
        seen.append(len(pictures))
        return [Regions(np.asarray(picture, np.float32).mean(axis=0)) for picture in pictures]

    return extract


def test_computed_once_and_read_beside_captions(dataset, tmp_path):
    seen = []
    with FeatureStoreWriter(tmp_path, DESCRIPTION, shard_bytes=32 * 3 * 4 * 5) as writer:
        assert store_regions(dataset.select(range(5)), mean_colours(seen), writer, batch_size=4) == 5
    with FeatureStoreWriter(tmp_path, DESCRIPTION) as writer:
        assert store_regions(dataset, mean_colours(seen), writer, batch_size=4) == 7
    assert seen == [4, 1, 4, 3]
    beside = with_regions(dataset, FeatureStore(tmp_path))
    row = beside[7]
    assert row["captions"] == dataset[7]["captions"] and "image" not in row
    np.testing.assert_allclose(row["regions"]["features"], np.asarray(dataset[7]["image"], np.float32).mean(axis=0))
    assert [entry["features"].shape for entry in beside[:2]["regions"]] == [(32, 3), (32, 3)]


def test_missing_pictures_raise_or_are_counted(dataset, tmp_path):
    with FeatureStoreWriter(tmp_path, DESCRIPTION) as writer:
        store_regions(dataset.select(range(5)), mean_colours([]), writer)
    store = FeatureStore(tmp_path)
    with pytest.raises(MissingRegionsError, match="no regions of 7 of 12 pictures, such as train-0-000005"):
        with_regions(dataset, store)
    report = DataReport()
    assert len(with_regions(dataset, store, allow_missing=True, report=report)) == 5
    assert report.counts() == {"missing picture": 7}
    with pytest.raises(ValueError, match="regions of none of the 7 pictures"):
        with_regions(dataset.select(range(5, 12)), store, allow_missing=True)

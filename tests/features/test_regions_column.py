"""Regions beside captions, and computing them."""

import numpy as np
import pytest
from datasets import Dataset, Features, Image, List, Value

from hf_captioners.data import DataReport
from hf_captioners.features.feature_store import FeatureStore, StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.region_source import MissingRegionsError, Regions
from hf_captioners.features.regions_column import store_regions, with_regions

DESCRIPTION = StoreDescription("mean colour", "1", 3, boxes=False)


@pytest.fixture
def dataset(load):
    return load("scenes", split="train", num_images={"train": 12}, image_size=32)


def mean_colours(seen):
    def extract(images):
        seen.append(len(images))
        return [Regions(np.asarray(image, np.float32).mean(axis=0)) for image in images]

    return extract


def test_computed_once_and_read_beside_captions(dataset, tmp_path):
    seen = []
    with FeatureStoreWriter(tmp_path, DESCRIPTION, shard_bytes=32 * 3 * 4 * 5) as writer:
        assert store_regions(dataset.select(range(5)), mean_colours(seen), writer, batch_size=4) == 5
    with FeatureStoreWriter(tmp_path, DESCRIPTION) as writer:
        assert store_regions(dataset, mean_colours(seen), writer, batch_size=4) == 7
    assert seen == [4, 1, 3, 4]  # without the images of each batch that are stored
    beside = with_regions(dataset, FeatureStore(tmp_path))
    row = beside[7]
    assert row["captions"] == dataset[7]["captions"] and "image" not in row
    np.testing.assert_allclose(row["regions"]["features"], np.asarray(dataset[7]["image"], np.float32).mean(axis=0))
    assert [entry["features"].shape for entry in beside[:2]["regions"]] == [(32, 3), (32, 3)]


def test_missing_images_raise_or_are_counted(dataset, tmp_path):
    with FeatureStoreWriter(tmp_path, DESCRIPTION) as writer:
        store_regions(dataset.select(range(5)), mean_colours([]), writer)
    store = FeatureStore(tmp_path)
    with pytest.raises(MissingRegionsError, match="no regions of 7 of 12 images, such as train-0-000005"):
        with_regions(dataset, store)
    report = DataReport()
    assert len(with_regions(dataset, store, allow_missing=True, report=report)) == 5
    assert report.counts() == {"missing image": 7}
    with pytest.raises(ValueError, match="regions of none of the 7 images"):
        with_regions(dataset.select(range(5, 12)), store, allow_missing=True)


def test_views_of_a_row_become_one_set_of_regions(dataset, tmp_path):
    images = dataset["image"]
    rows = Dataset.from_dict(
        {"image_id": ["a", "b"], "images": [images[:2], images[2:3]], "captions": [["x"], ["y"]]},
        features=Features({"image_id": Value("string"), "images": List(Image()), "captions": List(Value("string"))}),
    )
    seen = []
    with FeatureStoreWriter(tmp_path, DESCRIPTION) as writer:
        assert store_regions(rows, mean_colours(seen), writer) == 2
    assert seen == [3]
    store = FeatureStore(tmp_path)
    assert [len(store[name].features) for name in "ab"] == [64, 32]
    assert store["a"].views.tolist() == [0] * 32 + [1] * 32 and store["b"].views.tolist() == [0] * 32
    assert store.read_batch(["b", "a"], 40)["region_views"].sum(1).tolist() == [0, 8]
    np.testing.assert_allclose(store["a"].features[32:], np.asarray(images[1], np.float32).mean(axis=0))
    assert with_regions(rows, store).column_names == ["image_id", "captions"]


def test_rows_of_one_image_are_computed_once(dataset, tmp_path):
    seen = []
    with FeatureStoreWriter(tmp_path, DESCRIPTION) as writer:
        ids = [str(row // 3) for row in range(12)]
        assert store_regions(dataset, mean_colours(seen), writer, batch_size=3, ids=ids) == 4
    assert seen == [3, 1]
    first_of_third = np.asarray(dataset[6]["image"], np.float32).mean(axis=0)
    np.testing.assert_allclose(FeatureStore(tmp_path)["2"].features, first_of_third)


def test_a_stream_and_workers(dataset, tmp_path):
    with FeatureStoreWriter(tmp_path / "stream", DESCRIPTION) as writer:
        assert store_regions(iter(dataset), mean_colours([]), writer, batch_size=5) == 12
        with pytest.raises(ValueError, match="stream is read by one process"):
            store_regions(iter(dataset), mean_colours([]), writer, workers=1)
    with FeatureStoreWriter(tmp_path / "workers", DESCRIPTION) as writer:
        assert store_regions(dataset, mean_colours([]), writer, batch_size=5, workers=2) == 12
    shards = [next((tmp_path / name).glob("regions-*")).read_bytes() for name in ("stream", "workers")]
    assert shards[0] == shards[1]


def test_images_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    rows = Dataset.from_dict({"image_id": ["p1", "p2"], "image": [str(tmp_path / "broken.jpg"), None]})
    rows = rows.cast_column("image", Image())
    for row, message in ((0, r"image p1 \(row 0\) cannot be read"), (1, "row p2 has no image")):
        with (
            FeatureStoreWriter(tmp_path / "store", DESCRIPTION) as writer,
            pytest.raises(ValueError, match=message),
        ):
            store_regions(rows.select([row]), mean_colours([]), writer)

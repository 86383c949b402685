"""The feature store: equal bytes, interruptions at any moment, different extractors, flat memory."""

import itertools
import os
import pickle
import random
import resource
import signal
import sys
import tracemalloc

import numpy as np
import pytest
from safetensors import safe_open

from hf_captioners.features.feature_store import (
    SHARD_PATTERN,
    FeatureStore,
    OtherExtractorError,
    StoreDescription,
    StoredShard,
)
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.region_source import MissingRegionsError, Regions
from hf_captioners.output_files import UnsafeFileError

SMALL = StoreDescription("resnet/layer4", "r1", 16)


def regions_of(number, size=16):
    rng = np.random.default_rng(number)
    count = int(rng.integers(1, 9))
    boxes = np.sort(rng.random((count, 2, 2), dtype=np.float32), axis=1).reshape(count, 4)
    return Regions(rng.normal(size=(count, size)).astype(np.float32), boxes)


def write(folder, numbers, description=SMALL, **options):
    with FeatureStoreWriter(folder, description, **options) as writer:
        for number in numbers:
            if str(number) not in writer.done:
                writer.add(str(number), regions_of(number))
    return writer


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


def test_what_was_written_is_read_to_the_byte(tmp_path):
    write(tmp_path, range(50), shard_bytes=4000)
    store = FeatureStore(tmp_path)
    assert len(contents(tmp_path)) > 3 and list(store) == [str(number) for number in range(50)]
    for number in random.Random(0).sample(range(50), 50):
        found, given = store[str(number)], regions_of(number)
        assert found.features.tobytes() == given.features.tobytes() and found.boxes.tobytes() == given.boxes.tobytes()
    batch = store.read_batch(["3", "44", "7"], 5)
    for row, number in enumerate((3, 44, 7)):
        given = regions_of(number)
        count = min(5, len(given.features))
        assert batch["region_mask"][row].tolist() == [True] * count + [False] * (5 - count)
        assert batch["region_features"][row, :count].tobytes() == given.features[:count].tobytes()
        assert not batch["region_features"][row, count:].any()
        assert batch["region_boxes"][row, :count].tobytes() == given.boxes[:count].tobytes()
    again = np.full((3, 5, 16), np.nan, np.float32)
    assert store.read_batch(["3", "44", "7"], 5, out=again)["region_features"] is again
    assert again.tobytes() == batch["region_features"].tobytes()
    copied = pickle.loads(pickle.dumps(store))
    assert copied["9"].features.tobytes() == regions_of(9).features.tobytes()


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_features_that_lie_column_by_column(tmp_path, kind):
    """As those of a convolution do after `flatten(2).transpose(1, 2)`."""
    given = [regions_of(number) for number in range(6)]
    for folder, order in (("rows", "C"), ("columns", "F")):
        with FeatureStoreWriter(tmp_path / folder, StoreDescription("resnet", "r1", 16, kind)) as writer:
            for number, regions in enumerate(given):
                arrays = (np.array(values, order=order) for values in (regions.features, regions.boxes))
                writer.add(str(number), Regions(*arrays))
    rows, columns = FeatureStore(tmp_path / "rows"), FeatureStore(tmp_path / "columns")
    for number, regions in enumerate(given):
        np.testing.assert_array_equal(columns[str(number)].features, rows[str(number)].features)
        np.testing.assert_array_equal(columns[str(number)].boxes, regions.boxes)


def test_shards_are_ordinary_safetensors(tmp_path):
    write(tmp_path, range(5))
    with safe_open(tmp_path / "regions-000-00000.safetensors", "np") as shard:
        assert sorted(shard.keys()) == ["boxes", "counts", "features"]
        assert shard.get_tensor("counts").tolist() == [len(regions_of(number).features) for number in range(5)]


@pytest.mark.parametrize("kind, bound", [("float16", 2**-11), ("int8", 1 / 254)])
def test_rounded_kinds_state_their_error(tmp_path, kind, bound):
    writer = write(tmp_path, range(50), StoreDescription("resnet/layer4", "r1", 16, kind))
    store = FeatureStore(tmp_path)
    largest = 0.0
    for number in range(50):
        found, given = store[str(number)].features, regions_of(number).features
        reference = np.abs(given) if kind == "float16" else np.abs(given).max(axis=1, keepdims=True)
        assert (np.abs(found - given) <= reference * bound * 1.001 + 1e-7).all()
        largest = max(largest, float(np.abs(found - given).max()))
    assert 0 < largest == pytest.approx(writer.largest_error, rel=1e-5)


def kill_after(calls):
    """Kill this process at its call number `calls` of a function, whatever the speed of the machine."""
    left = itertools.count(calls, -1)

    def count(frame, event, _):
        if event in ("call", "c_call") and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def test_killed_at_twenty_moments_and_resumed(tmp_path):
    """A writer is killed twenty times, each time at a random call; the bytes are those of an uninterrupted one."""
    write(tmp_path / "whole", range(200), shard_bytes=2000)
    chance = random.Random(3)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            kill_after(chance.randint(1, 3000))
            write(tmp_path / "killed", range(200), shard_bytes=2000)
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the writer finished before it was killed"
        chance.random()
    assert (
        1 < len(list((tmp_path / "killed").glob(SHARD_PATTERN))) < len(list((tmp_path / "whole").glob(SHARD_PATTERN)))
    )
    write(tmp_path / "killed", range(200), shard_bytes=2000)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert list((tmp_path / "killed").glob(".regions-*")) == [], "incomplete shards are removed"


def test_images_computed_together_lie_in_one_shard(tmp_path):
    """A resumed run forms the same batches."""
    with FeatureStoreWriter(tmp_path, SMALL, shard_bytes=1) as writer:
        for first in range(0, 10, 4):
            writer.add_batch((str(number), regions_of(number)) for number in range(first, min(first + 4, 10)))
    shards = [StoredShard(path).ids for path in sorted(tmp_path.glob(SHARD_PATTERN))]
    assert shards == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9"]]


def test_a_lost_shard_is_written_again_without_changing_others(tmp_path):
    write(tmp_path, range(6), shard_bytes=1)
    (tmp_path / "regions-000-00002.safetensors").unlink()
    assert "2" not in FeatureStore(tmp_path)
    write(tmp_path, range(6), shard_bytes=1)
    store = FeatureStore(tmp_path)
    assert sorted(store) == ["0", "1", "2", "3", "4", "5"]
    for number in range(6):
        assert store[str(number)].features.tobytes() == regions_of(number).features.tobytes()


def test_more_shards_than_files_may_be_open(tmp_path):
    write(tmp_path, range(100), shard_bytes=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        store = FeatureStore(tmp_path)
        assert all(store[str(number)].features.shape[1] == 16 for number in range(100))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_full_disk_is_reported_and_the_store_can_be_completed(tmp_path):
    write(tmp_path / "whole", range(50), shard_bytes=2000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # no file may become larger
    try:
        with pytest.raises(OSError, match=r"regions-000-00000\.safetensors could not be written: .*Free some space"):
            write(tmp_path / "store", range(50), shard_bytes=2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (tmp_path / "store").glob("*regions*")] == []
    write(tmp_path / "store", range(50), shard_bytes=2000)
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


def test_one_writer_at_a_time(tmp_path):
    with FeatureStoreWriter(tmp_path, SMALL) as first:
        first.add("0", regions_of(0))
        with pytest.raises(BlockingIOError, match=r"Another process is writing .* \(writer 0\)"):
            FeatureStoreWriter(tmp_path, SMALL, patience=0.1)
        write(tmp_path, [1], writer=1)
    assert sorted(write(tmp_path, [2]).done) == ["0", "1", "2"]


@pytest.mark.parametrize("name", ["store.json", ".writer-000.lock"])
def test_a_store_is_not_written_through_links(tmp_path, name):
    folder, outside = tmp_path / "store", tmp_path / "outside"
    folder.mkdir()
    (folder / name).symlink_to(outside)
    with pytest.raises(UnsafeFileError, match=f"{name} is not written: it is a symbolic link"):
        write(folder, [0])
    assert not outside.exists()


def test_scores_are_kept_where_the_store_has_them(tmp_path):
    scored = StoreDescription("detector", "r1", 16, "int8", scores=True)
    given = regions_of(3)
    scores = np.linspace(1, 0.5, len(given.features), dtype=np.float32)
    with FeatureStoreWriter(tmp_path, scored) as writer:
        writer.add("3", Regions(given.features, given.boxes, scores=scores))
        with pytest.raises(ValueError, match="scores of 4 are missing; the store has"):
            writer.add("4", regions_of(4))
    for found in (FeatureStore(tmp_path)["3"], FeatureStore(tmp_path).stored("3")):
        assert found.scores.tobytes() == scores.tobytes() and found.boxes.tobytes() == given.boxes.tobytes()


def test_stored_features_are_read_without_a_copy(tmp_path):
    write(tmp_path, range(5), StoreDescription("x", "r", 16, "float16"))
    store = FeatureStore(tmp_path)
    found = store.stored("3")
    assert found.features.dtype == np.float16 and not found.features.flags.owndata
    np.testing.assert_array_equal(found.features, regions_of(3).features.astype(np.float16))
    with pytest.raises(ValueError, match="read-only"):
        found.features[0] = 0


def test_several_writers_fill_one_store(tmp_path):
    for writer in range(3):
        write(tmp_path, range(writer, 30, 3), writer=writer, shard_bytes=1000)
    store = FeatureStore(tmp_path)
    assert sorted(map(int, store)) == list(range(30))
    assert store["17"].features.tobytes() == regions_of(17).features.tobytes()


def test_features_of_a_different_extractor_are_refused(tmp_path):
    write(tmp_path, range(3))
    assert len(FeatureStore(tmp_path, "resnet/layer4", "r1")) == len(FeatureStore(tmp_path, "resnet/layer4")) == 3
    with pytest.raises(
        OtherExtractorError, match=r"features of resnet/layer4 \(revision r1\).* trained on those of vit"
    ):
        FeatureStore(tmp_path, "vit")
    with pytest.raises(OtherExtractorError, match=r"revision r2"):
        FeatureStore(tmp_path, "resnet/layer4", "r2")
    with pytest.raises(ValueError, match="holds StoreDescription.*Use a different folder"):
        FeatureStoreWriter(tmp_path, StoreDescription("vit", "r1", 16))


def test_wrong_regions_and_missing_images(tmp_path):
    good = regions_of(0)
    with FeatureStoreWriter(tmp_path, SMALL) as writer:
        writer.add("0", good)
        for image_id, regions, message in (
            ("0", good, "has the image 0 already"),
            ("1", Regions(good.features[:, :3], good.boxes), r"expected \[R, 16\]"),
            ("1", Regions(good.features[:0], good.boxes[:0]), "with at least one region"),
            ("1", Regions(good.features * np.nan, good.boxes), "not all finite"),
            ("1", Regions(good.features), "boxes of 1 are missing"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.add(image_id, regions)
    store = FeatureStore(tmp_path)
    with pytest.raises(MissingRegionsError, match="no regions of the image '1'; it has 1 images"):
        store["1"]
    with pytest.raises(MissingRegionsError, match="no regions of the image '1'"):
        store.read_batch(["0", "1"], 3)
    with pytest.raises(ValueError, match=r"`out` is float32 \(1, 2, 3\); expected float32 \(1, 3, 16\)"):
        store.read_batch(["0"], 3, out=np.zeros((1, 2, 3), np.float32))
    with pytest.raises(FileNotFoundError, match="is not a feature store"):
        FeatureStore(tmp_path / "nowhere")
    large = StoreDescription("x", "r", 16, "float16", boxes=False)
    with (
        pytest.raises(ValueError, match="too large for float16"),
        FeatureStoreWriter(tmp_path / "half", large) as writer,
    ):
        writer.add("a", Regions(np.full((1, 16), 1e6, np.float32)))


def test_memory_stays_flat_while_writing(tmp_path):
    """The arrays that are alive after 400 and after 4,000 images (16 MB) differ by less than two shards."""
    description = StoreDescription("x", "r", 256, "float32", boxes=False)
    peaks = []
    tracemalloc.start()
    try:
        with FeatureStoreWriter(tmp_path, description, shard_bytes=2**18) as writer:
            for number in range(4_000):
                writer.add(str(number), Regions(np.full((4, 256), number, np.float32)))
                if number in (399, 3_999):
                    peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2**20, f"{(peaks[1] - peaks[0]) / 2**20:.1f} MiB more"


def test_batches_are_those_of_the_released_reader(tmp_path):
    """Random reads of up to 50 x 2048 regions, padded to 50, equal those that M2's released loader makes of its file.

    `benchmarks/data.py` measures the speed of both.
    """
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    with (
        FeatureStoreWriter(tmp_path, StoreDescription("x", "r", 2048, boxes=False)) as writer,
        h5py.File(tmp_path / "m2.hdf5", "w") as file,
    ):
        for number in range(30):
            features = np.maximum(rng.normal(size=(int(rng.integers(10, 61)), 2048)), 0).astype(np.float32)
            writer.add(str(number), Regions(features))
            file[f"{number}_features"] = features
    store, file = FeatureStore(tmp_path), h5py.File(tmp_path / "m2.hdf5", "r")

    def released(ids):
        rows = []
        for image_id in ids:
            row = file[f"{image_id}_features"][()]
            missing = 50 - len(row)
            row = np.concatenate([row, np.zeros((missing, 2048))]) if missing > 0 else row[:50]
            rows.append(row.astype(np.float32))
        return np.stack(rows)

    out = np.empty((20, 50, 2048), np.float32)
    for _ in range(5):
        ids = [str(number) for number in rng.integers(0, 30, 20)]
        assert (released(ids) == store.read_batch(ids, 50, out=out)["region_features"]).all()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_named_pipe_in_the_place_of_a_shard_is_named(tmp_path):
    """A reader would wait for its other end."""
    with FeatureStoreWriter(tmp_path, StoreDescription("extractor", "1", 4)) as writer:
        writer.add("a", Regions(np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)))
    (shard,) = tmp_path.glob("regions-*.safetensors")
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(UnsafeFileError, match=r"regions-.*safetensors is a named pipe"):
        FeatureStore(tmp_path)

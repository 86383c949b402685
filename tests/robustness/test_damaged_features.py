"""Damaged feature files of every format: refused with the file, and the image or array, and without taking memory."""

import base64
import gzip
import json
import re
import resource
import subprocess
import sys
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from hf_captioners.features.feature_store import FeatureStore, StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.formats import open_regions
from hf_captioners.features.formats.bottom_up import BottomUpTsv
from hf_captioners.features.formats.folder import RegionFolder
from hf_captioners.features.region_source import Regions

SIZE = 8
SHARD = "regions-000-00000.safetensors"


def write_store(folder, kind="float32"):
    rng = np.random.default_rng(0)
    with FeatureStoreWriter(folder, StoreDescription("x", "1", SIZE, kind, scores=True)) as writer:
        for count in (3, 5, 7):
            numbers = rng.random((count, SIZE), np.float32)
            writer.add(f"image{count}", Regions(numbers, rng.random((count, 4), np.float32), scores=numbers[:, 0]))
    return folder / SHARD


def read_all(folder):
    store = FeatureStore(folder)
    for name in store:
        store[name]
        store.stored(name)
    store.read_batch(list(store), 4)


def change_header(shard, change):
    """Write a shard whose header a function changed; the numbers stay."""
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header = change(header) or header
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    shard.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def put(array, **values):
    return lambda header: header[array].update(values)


def ids(value):
    return lambda header: header["__metadata__"].update(ids=value)


def overlapping(header):
    first = header["boxes"]["data_offsets"][0]
    header["scores"]["data_offsets"] = [first, first + 60]


HEADERS = {
    "half for single precision": (put("features", dtype="F16"), "`features` of the shape"),
    "integers for single precision": (put("features", dtype="I64"), "`features`"),
    "unknown type": (put("features", dtype="F4"), "description of `features` cannot be read"),
    "type of no text": (put("features", dtype=["F32"]), "description of `features` cannot be read"),
    "fewer rows": (put("features", shape=[14, SIZE]), "`features` of the shape"),
    "turned shape": (put("features", shape=[SIZE, 15]), "`boxes` has the shape|`features` has|`scores` has"),
    "negative shape": (put("features", shape=[-15, -SIZE]), "`features` of the shape"),
    "huge shape": (put("features", shape=[10**12, 10**12]), "`features` of the shape"),
    "no shape": (put("features", shape=None), "description of `features` cannot be read"),
    "overlap": (overlapping, "overlap or have gaps"),
    "past the end": (put("scores", data_offsets=[10**9, 10**9 + 60]), "overlap or have gaps"),
    "no features": (lambda header: header.pop("features") and None, "no array `features`"),
    "no counts": (lambda header: header.pop("counts") and None, "no array `counts`"),
    "no scores": (lambda header: header.pop("scores") and None, "overlap or have gaps|bytes"),
    "other array": (lambda header: header.update(more=header["boxes"]), "it has the array 'more'"),
    "no ids": (lambda header: header.pop("__metadata__") and None, "image ids in its header cannot be read"),
    "ids that are no JSON": (ids("[["), "image ids in its header cannot be read"),
    "deep ids": (ids("[" * 100_000), "image ids in its header cannot be read"),
    "ids that are numbers": (ids("[1, 2, 3]"), "image ids in its header are no list of texts"),
    "an id too few": (ids('["a", "b"]'), "`counts` has the shape .* with 2 images"),
    "an id twice": (ids('["a", "b", "a"]'), "has the image a twice"),
    "a list": (lambda header: [header], "its header is a list"),
}


@pytest.mark.parametrize("fault", HEADERS)
def test_headers_of_shards(tmp_path, fault):
    shard = write_store(tmp_path)
    change, message = HEADERS[fault]
    change_header(shard, change)
    with pytest.raises(ValueError, match=message) as refusal:
        read_all(tmp_path)
    assert str(shard if "twice" not in message else tmp_path) in str(refusal.value)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_shards_that_are_cut_anywhere(tmp_path, kind):
    shard = write_store(tmp_path, kind)
    read_all(tmp_path)
    content = shard.read_bytes()
    for length in [*range(0, 16, 3), *range(16, len(content), 17), len(content) - 1]:
        shard.write_bytes(content[:length])
        with pytest.raises(ValueError, match=re.escape(f"{shard} is damaged")):
            FeatureStore(tmp_path)
        with pytest.raises(ValueError, match=re.escape(f"{shard} is damaged")):
            FeatureStoreWriter(tmp_path, StoreDescription("x", "1", SIZE, kind, scores=True))
    shard.write_bytes(content + b"1234")
    with pytest.raises(ValueError, match="the file has"):
        FeatureStore(tmp_path)


@pytest.mark.parametrize("counts", [(10**9, 5, 7), (3, 5, 6), (3, 5, 8), (0, 8, 7), (-1, 9, 7), (2**62, 2**62, 15)])
def test_counts_that_do_not_fit(tmp_path, counts):
    shard = write_store(tmp_path)
    content = shard.read_bytes()
    right, wrong = (np.array(values, np.int64).tobytes() for values in ((3, 5, 7), counts))
    assert content.count(right) == 1
    shard.write_bytes(content.replace(right, wrong))
    with pytest.raises(ValueError, match=f"{SHARD} is damaged: (the image 'image.' has|`counts` add up)"):
        FeatureStore(tmp_path)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", ["features", "boxes", "scores"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_of_shards_that_are_not_finite(tmp_path, name, value, kind):
    shard = write_store(tmp_path, kind)
    content = bytearray(shard.read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    entry = header["scales" if (name, kind) == ("features", "int8") else name]
    bad = np.array(value, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).tobytes()
    start = 8 + length + entry["data_offsets"][0]  # the first image
    content[start : start + len(bad)] = bad
    shard.write_bytes(content)
    store = FeatureStore(tmp_path)
    for read in (store.__getitem__, store.stored, lambda image_id: store.read_batch([image_id], 2)):
        with pytest.raises(ValueError, match=f"{name} of the image 'image3' in .* are not all finite"):
            read("image3")
    assert store.read_batch(["image5", "image7"], 4)["region_features"].shape == (2, 4, SIZE)


@pytest.mark.parametrize(
    "content",
    ["null", "[]", "{", "7", "[" * 100_000, "\ufeff{}", '{"format": 1}', '{"format": [1]}']
    + [
        json.dumps({"format": 1, "extractor": "x", "revision": "1", "feature_size": SIZE, "kind": "float32"} | wrong)
        for wrong in (
            *({"feature_size": value} for value in (10**12, -1, 0, 8.0, "8", None, True)),
            *({"kind": value} for value in ("float64", None, [])),
            *({"boxes": "yes"}, {"scores": 1}, {"extractor": None}, {"revision": 3}, {"more": 1}),
        )
    ],
)
def test_descriptions_of_stores(tmp_path, content):
    write_store(tmp_path)
    (tmp_path / "store.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"store.json (is damaged|has the format)|is damaged: .* store.json"):
        FeatureStore(tmp_path)


ONES = np.ones((3, SIZE), np.float32)
ARRAYS = {
    "NaN": (np.full((3, SIZE), np.nan), "features of the image '7' .* are not all finite"),
    "infinite": (np.full((3, SIZE), -np.inf), "are not all finite"),
    "too large": (np.full((3, SIZE), 1e300), "too large for float32"),
    "no regions": (np.ones((0, SIZE)), r"have the shape \[0, 8\]"),
    "no features": (np.ones((3, 0)), r"have the shape \[0, 0\]"),
    "one dimension": (np.ones(SIZE), r"7.np. has the shape \[8\]"),
    "four dimensions": (np.ones((1, 3, 3, SIZE)), "7.np. has the shape"),
    "a number": (np.array(1.0), r"7.np. has the shape \[\]"),
    "complex": (ONES.astype(complex), "7.np. cannot be read: .*data type complex"),
    "dates": (ONES.astype("datetime64[s]"), "data type datetime64"),
    "texts": (ONES.astype(str), "data type"),
    "records": (np.zeros((3, SIZE), [("a", float)]), "data type"),
    "objects": (ONES.astype(object), "data type object"),
    "other size": (np.ones((3, SIZE + 1)), "has 9 features per region, the image '1' has 8"),
}


@pytest.mark.parametrize("ending", ["npz", "npy"])
@pytest.mark.parametrize("fault", ARRAYS)
def test_arrays_of_a_folder(tmp_path, fault, ending):
    array, message = ARRAYS[fault]
    np.save(tmp_path / "1.npy", ONES)
    np.savez(tmp_path / "7.npz", feat=array) if ending == "npz" else np.save(tmp_path / "7.npy", array)
    source = open_regions(tmp_path)
    source["1"]
    with pytest.raises(ValueError, match=message):
        source["7"]


def npy(shape, content=b"", descr="<f4"):
    head = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + content


def test_declared_sizes_take_no_memory(tmp_path):
    """Sizes of terabytes, and archives that decompress to 70 MB, are refused before memory is taken."""
    for name, shape in {
        "a": (10**9, 2048),
        "b": (2**40,) * 2,
        "c": (0, 10**30),
        "d": (-1, -1),
        "e": (2**23, 2),
    }.items():
        (tmp_path / f"{name}.npy").write_bytes(npy(shape))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("feat.npy", npy((8_300, 2048)) + bytes(8_300 * 2048 * 4))
    with zipfile.ZipFile(tmp_path / "declared.npz", "w") as archive:
        archive.writestr("feat.npy", npy((10**5, 8)))
    source = RegionFolder(tmp_path)
    tracemalloc.start()
    try:
        for image_id in source:
            with pytest.raises(ValueError, match=rf"{image_id}.np. (cannot be read|has the shape)|image '{image_id}'"):
                source[image_id]
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert RegionFolder(tmp_path, max_numbers=2**27)["bomb"].features.shape == (8_300, 2048)


def test_array_files_that_are_cut_or_changed(tmp_path):
    np.savez_compressed(tmp_path / "7.npz", feat=np.random.default_rng(0).random((3, SIZE)))
    content = (tmp_path / "7.npz").read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for length in range(0, len(content), 7):
        changed = bytearray(content)
        changed[int(rng.integers(len(content)))] ^= int(rng.integers(1, 256))
        for damaged in (content[:length], bytes(changed)):
            (tmp_path / "7.npz").write_bytes(damaged)
            try:
                RegionFolder(tmp_path)["7"]
            except ValueError as error:
                assert "7.npz" in str(error) or "image '7'" in str(error)
                refused += 1
    assert refused > len(content) // 7


def coded(values):
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def line(image_id="7", width=10, height=10, count=3, boxes=None, features=None):
    boxes = np.ones((3, 4)) if boxes is None else boxes
    features = ONES if features is None else features
    return "\t".join([image_id, str(width), str(height), str(count), coded(boxes), coded(features)])


LINES = {
    "NaN": (line(features=ONES * np.nan), "features of the image '7' .* not all finite"),
    "NaN in boxes": (line(boxes=np.full((3, 4), np.nan)), "boxes of the image '7' .* not all finite"),
    "no width": (line(width=0), "The width of 7 in .*x.tsv is b'0'"),
    "negative height": (line(height=-1), "The height of 7"),
    "width of no number": (line(width="wide"), "The width of 7"),
    "width of many digits": (line(width="1" * 5000), "The width of 7"),
    "no regions": (line(count=0), "The count of 7"),
    "too many regions": (line(count=10**8), "record of 7 in .* cannot be decoded"),
    "no features": (line(features=[]), "features of the image '7' .* have the shape"),
}


@pytest.mark.parametrize("fault", LINES)
def test_records_of_tsv_files(tmp_path, fault):
    text, message = LINES[fault]
    (tmp_path / "x.tsv").write_text(line("1") + "\n" + text + "\n")
    source = open_regions(tmp_path / "x.tsv")
    assert source["1"].features.shape == (3, SIZE)
    with pytest.raises(ValueError, match=message):
        source["7"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.tsv is empty"),
        (b"\n\nabc\n", "x.tsv:3: the line begins with b'abc'"),
        (b"\xff\xfe\t" + b"1" * 30, "x.tsv:1: the image id .* is not UTF-8"),
        (b"\t" * 30, "x.tsv:1: the line begins with b''"),
    ],
)
def test_tsv_files_without_records(tmp_path, content, message):
    (tmp_path / "x.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_regions(tmp_path / "x.tsv")


def test_a_byte_order_mark_is_no_part_of_an_id(tmp_path):
    (tmp_path / "x.tsv").write_text(line("1") + "\n" + line("2"), encoding="utf-8-sig")
    assert list(BottomUpTsv(tmp_path / "x.tsv")) == ["1", "2"]


def test_long_records_are_refused_before_they_are_decoded(tmp_path):
    (tmp_path / "x.tsv").write_text(line())
    with pytest.raises(ValueError, match="about 24 numbers in one column; at most 20 are read"):
        BottomUpTsv(tmp_path / "x.tsv", max_numbers=20)["7"]


def test_compressed_tsv_files_are_streamed_with_a_limit(tmp_path):
    """200 MB from 200 kB are refused in a process that may not take 100 MB more than it has after the imports."""
    path = tmp_path / "x.tsv.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(200):
            file.write(bytes(2**20))
    program = f"""
import resource
from hf_captioners.features.formats.bottom_up import BottomUpTsv
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    BottomUpTsv({str(path)!r})
except ValueError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    *message, grown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert re.search(r"x.tsv.gz cannot be decompressed: it has more than 67,108,864 bytes.*gzip_limit", message[0])
    assert int(grown) < 100 * 1024, f"{int(grown):,} kB"
    content = gzip.compress((line("1") + "\n" + line("2")).encode())
    path.write_bytes(content)
    assert list(BottomUpTsv(path)) == ["1", "2"]
    with pytest.raises(ValueError, match="more than 100 bytes"):
        BottomUpTsv(path, gzip_limit=100)
    for damaged in (content[:-9], content[:20] + b"xxxx" + content[24:], b"no gzip"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x.tsv.gz cannot be decompressed"):
            BottomUpTsv(path)


@pytest.fixture
def hdf5(tmp_path):
    """Write an HDF5 file by a function, and return the error of reading the image 7."""
    h5py = pytest.importorskip("h5py")

    def error_of(write):
        path = tmp_path / f"x{len(list(tmp_path.iterdir()))}.hdf5"
        with h5py.File(path, "w") as file:
            file["1_features"] = ONES
            write(file)
        source = open_regions(path)
        source["1"]
        with pytest.raises(ValueError) as refusal:
            source["7"]
        assert str(path) in str(refusal.value)
        return str(refusal.value)

    return error_of


def test_hdf5_reads_no_other_file(tmp_path, hdf5):
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret"
    secret.write_bytes(ONES.tobytes())
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["7_features"] = ONES

    def external(file):
        file.create_dataset("7_features", (3, SIZE), "f4", external=[(str(secret), 0, secret.stat().st_size)])

    def virtual(file):
        layout = h5py.VirtualLayout((3, SIZE), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "7_features", (3, SIZE))
        file.create_virtual_dataset("7_features", layout)

    def linked(file):
        file["7_features"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "7_features")

    def linked_twice(file):
        file["there"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/")
        file["7_features"] = h5py.SoftLink("/there/7_features")

    def boxes(file):
        file["7_features"] = ONES
        file["7_size"] = [1, 1]
        file["7_boxes"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "7_features")

    for write in (external, virtual):
        assert "its numbers are in a different file" in hdf5(write)
    for write in (linked, linked_twice, boxes):
        assert "it is a link, which may lead to a different file" in hdf5(write)


def h5py_empty():
    return pytest.importorskip("h5py").Empty("f4")


def test_compressed_chunks_have_the_size_that_is_stated(tmp_path, hdf5):
    """HDF5 itself takes memory for whatever a chunk becomes: here 400 MB of 400 kB."""

    def longer(file):
        values = file.create_dataset("7_features", (3, SIZE), "f4", chunks=(3, SIZE), compression="gzip")
        packer = zlib.compressobj(9)
        parts = [packer.compress(ONES.tobytes()), *(packer.compress(bytes(2**20)) for _ in range(400)), packer.flush()]
        values.id.write_direct_chunk((0, 0), b"".join(parts))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "a chunk is stated as 96 bytes and decompresses to more" in hdf5(longer)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024

    def twice(file):
        settings = pytest.importorskip("h5py").h5p.create(pytest.importorskip("h5py").h5p.DATASET_CREATE)
        settings.set_chunk((3, SIZE))
        settings.set_deflate(9)
        settings.set_deflate(9)
        file.create_dataset("7_features", data=ONES, dcpl=settings)

    assert "it is stored with the filters [1, 1] of HDF5" in hdf5(twice)


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "lzf"}, {"shuffle": True}], ids=str)
def test_compressed_hdf5_files_are_read(tmp_path, options):
    h5py = pytest.importorskip("h5py")
    numbers = np.random.default_rng(0).random((400, 512), np.float32)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("7_features", data=numbers, fletcher32=True, chunks=(100, 512), **options)
    np.testing.assert_array_equal(open_regions(tmp_path / "x.hdf5")["7"].features, numbers[:400])


HDF5 = {
    "NaN": (lambda file: file.create_dataset("7_features", data=ONES * np.nan), "not all finite"),
    "no regions": (lambda file: file.create_dataset("7_features", (0, SIZE), "f4"), r"have the shape \[0, 8\]"),
    "one dimension": (lambda file: file.create_dataset("7_features", data=np.ones(8)), "expected 2 dimensions"),
    "a billion rows": (
        lambda file: file.create_dataset("7_features", (10**9, 2048), "f4"),
        "2,048,000,000,000 numbers",
    ),
    "rows without storage": (lambda file: file.create_dataset("7_features", (10, SIZE), "f4"), "0 bytes are stored"),
    "large chunks": (
        lambda file: file.create_dataset("7_features", (1, SIZE), "f4", chunks=(2**26, SIZE), maxshape=(None, SIZE)),
        "one of its chunks has the shape",
    ),
    "a group": (lambda file: file.create_group("7_features"), "expected an array"),
    "texts": (lambda file: file.create_dataset("7_features", data=[[b"a", b"b"]]), "data type"),
    "no shape": (lambda file: file.create_dataset("7_features", data=h5py_empty()), "the shape None"),
}


@pytest.mark.parametrize("fault", HDF5)
def test_data_sets_of_hdf5_files(hdf5, fault):
    write, message = HDF5[fault]
    assert re.search(message, hdf5(write))


def test_hdf5_files_that_are_cut_or_changed(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(4):
            file.create_dataset(f"{number}_features", data=ONES, compression="gzip")
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for trial in range(120):
        changed = bytearray(content[: int(rng.integers(1, len(content)))] if trial % 3 == 0 else content)
        for place in rng.integers(0, len(changed), 20):
            changed[place] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            for regions in open_regions(path).values():
                assert regions.features.shape[1:] == (SIZE,)
        except ValueError as error:
            assert "x.hdf5" in str(error)
            refused += 1
    assert refused > 40

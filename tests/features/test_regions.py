"""Readers of regions: three records in every format, and the special cases of each."""

import base64
import gzip
import pickle

import numpy as np
import pytest

from hf_captioners.features.formats import open_regions
from hf_captioners.features.formats.bottom_up import BottomUpTsv
from hf_captioners.features.formats.folder import RegionFolder
from hf_captioners.features.formats.hdf5 import DetectionsHdf5
from hf_captioners.features.region_source import MissingRegionsError

SIZES = {"391895": (640, 360), "522418": (640, 480), "184613": (500, 336)}
COUNTS = {"391895": 3, "522418": 5, "184613": 2}


@pytest.fixture
def records():
    rng = np.random.default_rng(0)
    made = {}
    for image_id, (width, height) in SIZES.items():
        corners = np.sort(rng.random((COUNTS[image_id], 2, 2), dtype=np.float32), axis=1).reshape(-1, 4)
        boxes = (corners * np.array([width, height, width, height])).astype(np.float32)
        made[image_id] = (rng.random((COUNTS[image_id], 8), dtype=np.float32), boxes)
    return made


def coded(array):
    return base64.b64encode(array.tobytes()).decode()


def original_line(image_id, features, boxes):
    width, height = SIZES[image_id]
    return "\t".join([image_id, str(width), str(height), str(len(boxes)), coded(boxes), coded(features)])


def lxmert_line(image_id, features, boxes):
    width, height = SIZES[image_id]
    scores = coded(np.zeros(len(boxes), np.float32))
    middle = [str(height), str(width), scores, scores, scores, scores, str(len(boxes))]
    return "\t".join([image_id, *middle, coded(boxes), coded(features)])


def write_tsv(path, records, line=original_line, end="\r\n"):
    content = "".join(line(image_id, *record) + end for image_id, record in records.items()).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_folder(folder, records):
    for name in ("att", "box", "flag"):
        (folder / name).mkdir(parents=True)
    for image_id, (features, boxes) in records.items():
        np.savez(folder / "att" / f"{image_id}.npz", feat=features)
        np.save(folder / "box" / f"{image_id}.npy", boxes)
        np.save(folder / "flag" / f"{image_id}.npy", np.arange(len(boxes) ** 2).reshape(len(boxes), -1))
    return folder


def assert_same(source, records):
    assert set(source) == set(records) and len(source) == len(records)
    for image_id, (features, boxes) in records.items():
        width, height = SIZES[image_id]
        found = source[image_id]
        assert found.features.dtype == np.float32 and found.features.tobytes() == features.tobytes()
        np.testing.assert_allclose(found.boxes * [width, height, width, height], boxes, rtol=1e-6)
        found.features[0, 0] = 1  # may be written


@pytest.mark.parametrize("name", ["karpathy.tsv", "karpathy.tsv.0", "karpathy.tsv.gz"])
@pytest.mark.parametrize("line", [original_line, lxmert_line])
def test_tsv(tmp_path, records, name, line):
    assert_same(BottomUpTsv(write_tsv(tmp_path / name, records, line)), records)


def test_every_reader_can_be_sent_to_another_process(tmp_path, records):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "detections.hdf5", "w") as file:
        for image_id, (features, _) in records.items():
            file[f"{image_id}_features"] = features
    write_folder(tmp_path / "folder", records)
    for path in (write_tsv(tmp_path / "part.tsv", records), tmp_path / "detections.hdf5", tmp_path / "folder" / "att"):
        source = open_regions(path)
        sent = pickle.loads(pickle.dumps(source))
        assert sent.name == source.name and sorted(sent) == sorted(records)
        for image_id, (features, _) in records.items():
            np.testing.assert_array_equal(sent[image_id].features, features)


def test_tsv_in_parts_with_repeats(tmp_path, records):
    first, *others = records
    parts = [
        write_tsv(tmp_path / "a.tsv.0", {first: records[first]}),
        write_tsv(tmp_path / "a.tsv.1", {name: records[name] for name in (first, *others)}),
    ]
    source = BottomUpTsv(parts)
    assert source.repeated == 1
    assert_same(source, records)
    write_tsv(parts[0], {first: (records[first][0] + 1, records[first][1])})
    with pytest.raises(ValueError, match=r"a.tsv.1:1: the image 391895 occurs twice with different regions"):
        BottomUpTsv(parts)


def test_folder(tmp_path, records):
    folder = write_folder(tmp_path / "bu", records)
    assert_same(RegionFolder(folder / "att", folder / "box", SIZES), records)
    np.savez(folder / "att" / "184613.npz", z=records["184613"][0])
    np.save(folder / "att" / "7.npy", np.ones((2, 3, 8)))
    source = RegionFolder(folder / "att")
    assert source["184613"].features.tobytes() == records["184613"][0].tobytes() and source["184613"].boxes is None
    assert source["7"].features.shape == (6, 8)
    np.savez(folder / "att" / "184613.npz", other=records["184613"][0])
    with pytest.raises(ValueError, match=r"184613.npz cannot be read: it has the arrays \['other'\]; expected `feat`"):
        source["184613"]


def test_folder_options_of_the_released_code(tmp_path, records):
    folder = write_folder(tmp_path / "bu", records)
    features, boxes = records["522418"]
    unit = RegionFolder(folder / "att", normalise=True)["522418"].features
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    source = RegionFolder(folder / "att", folder / "box", SIZES, flag_dir=folder / "flag", append_boxes=True)
    found = source["522418"]
    x1, y1, x2, y2 = (boxes / np.array([640, 480, 640, 480])).T
    area = (x2 - x1) * (y2 - y1)
    order = np.argsort(-area)
    np.testing.assert_allclose(found.features[:, -1], area[order], rtol=1e-5)
    np.testing.assert_allclose(found.features[:, :8], features[order])
    assert found.relations[0, 1] == order[0] * 5 + order[1]
    with pytest.raises(ValueError, match="Boxes need both box_dir=... and sizes=..."):
        RegionFolder(folder / "att", folder / "box")


def write_hdf5(path, records, **more):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for image_id, (features, boxes) in records.items():
            file[f"{image_id}_features"], file[f"{image_id}_boxes"] = features, boxes
            for name, values in more.items():
                file[f"{image_id}_{name}"] = values[image_id]
    return path


def test_hdf5(tmp_path, records):
    scores = {name: np.random.default_rng(1).random((COUNTS[name], 4)) for name in records}
    path = write_hdf5(tmp_path / "coco_detections.hdf5", records, cls_prob=scores)
    assert_same(DetectionsHdf5(path, sizes=SIZES), records)
    assert DetectionsHdf5(path)["391895"].boxes is None, "pixels without a size are not passed on"
    found = DetectionsHdf5(path, max_regions=2, sort_by_score=True)["522418"].features
    best = np.argsort(-scores["522418"].max(axis=1))[:2]
    assert found.tobytes() == records["522418"][0][best].tobytes()
    again = pickle.loads(pickle.dumps(DetectionsHdf5(path)))
    assert again["184613"].features.tobytes() == records["184613"][0].tobytes()
    with pytest.raises(ValueError, match="no data sets named <id>_grids"):
        DetectionsHdf5(path, part="grids")


def test_hdf5_of_dlct(tmp_path, records):
    grids = {name: np.full((49, 8), 7, np.float32) for name in records}
    sizes = {name: np.array(SIZES[name]) for name in records}
    path = write_hdf5(tmp_path / "x.hdf5", records, grids=grids, size=sizes)
    assert DetectionsHdf5(path, part="grids")["391895"].features.shape == (49, 8)
    assert DetectionsHdf5(path)["391895"].boxes.tobytes() == records["391895"][1].tobytes(), "normalised already"


def test_missing_images_are_never_invented(tmp_path, records):
    folder = write_folder(tmp_path / "bu", records)
    for source in (BottomUpTsv(write_tsv(tmp_path / "x.tsv", records)), RegionFolder(folder / "att")):
        assert "5" not in source and source.get("5") is None
        with pytest.raises(MissingRegionsError, match="has no regions of the image '5'; it has 3 images"):
            source["5"]


def test_damaged_records_are_named(tmp_path, records):
    line = original_line("391895", *records["391895"])
    for wrong, message in ((line[:-7], "cannot be decoded"), (line + "\tx", "has 7 columns; expected 6")):
        (tmp_path / "x.tsv").write_text(wrong + "\n")
        with pytest.raises(ValueError, match=f"391895 in .*x.tsv {message}"):
            BottomUpTsv(tmp_path / "x.tsv")["391895"]


def test_a_processor_takes_them(tmp_path, records):
    from hf_captioners.processing.processing_captioning import batch_regions

    source = BottomUpTsv(write_tsv(tmp_path / "x.tsv", records))
    batch = batch_regions([source[name].as_entry() for name in records])
    assert batch["region_features"].shape == (3, 5, 8) and batch["region_mask"].sum(axis=1).tolist() == [3, 5, 2]
    assert batch["region_boxes"].max() <= 1


def test_real_layouts_agree(material):
    source = material / "bottom_up"
    tsv = BottomUpTsv(source / "layout.tsv.gz")
    assert list(tsv) == ["391895", "522418", "184613"] and tsv.repeated == 1
    assert [len(regions.features) for regions in tsv.values()] == [10, 36, 61]
    others = [RegionFolder(source / "cocobu_att", source / "cocobu_box", SIZES)]
    try:
        others.append(DetectionsHdf5(source / "m2_layout.hdf5", sizes=SIZES))
    except ImportError:
        print("h5py is not installed: the HDF5 form is not compared")
    for other in others:
        for image_id in SIZES:
            assert other[image_id].features.tobytes() == tsv[image_id].features.tobytes()
            assert other[image_id].boxes.tobytes() == tsv[image_id].boxes.tobytes()
            mean = np.load(source / "cocobu_fc" / f"{image_id}.npy")
            np.testing.assert_allclose(tsv[image_id].features.mean(axis=0), mean, atol=1e-6)

"""Feature extraction with bad images, odd names, killed processes and full disks."""

import json
import os
import resource
import shutil
import signal
import sys

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Image

from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.features.extraction import GridExtractor
from hf_captioners.features.feature_store import FeatureStore, StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.region_source import Regions
from hf_captioners.features.regions_column import store_regions
from hf_captioners.output_files import unquoted_name

DESCRIPTION = StoreDescription("mean colours", "1", 3, "float32", boxes=False)


def extract(folder, output, model, *typed):
    arguments = ["extract-features", "--data_dir", str(folder), "--output", str(output), "--vision_model", model]
    return main([*arguments, "--use_cpu", *typed])


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


@pytest.fixture
def folder(images, tmp_path, monkeypatch):
    """The images, with a cache of their own."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return shutil.copytree(images, tmp_path / "photos")


def colours(images):
    return [Regions(np.asarray(image, np.float32).mean(axis=0)) for image in images]


def rows_of(folder, names):
    rows = Dataset.from_dict({"image_id": names, "image": [str(folder / name) for name in names]})
    return rows.cast_column("image", Image())


def test_bad_images_are_named_and_the_others_extracted(folder, vision_model, tmp_path, capsys):
    """Also one that becomes bad after the data set was read."""
    (folder / "scene_001.png").write_bytes((folder / "scene_001.png").read_bytes()[:60])
    (folder / "scene_002.png").unlink()
    (folder / "scene_003.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for expected, typed in ((1, []), (1, []), (0, ["--allow_skipped"])):
        assert extract(folder, tmp_path / "features", vision_model, *typed) == expected
        err = capsys.readouterr().err
        assert "3 image(s) could not be read" in err
        for number in (1, 2, 3):
            assert len([line for line in err.splitlines() if f"scene_00{number}" in line and "not extr" in line]) == 1
    assert sorted(FeatureStore(tmp_path / "features" / "train")) == [
        f"scene_00{number}.png" for number in (0, *range(4, 10))
    ]


def test_images_that_break_after_the_data_set_was_read(images, tmp_path):
    folder = shutil.copytree(images, tmp_path / "photos")
    rows = rows_of(folder, [f"scene_00{number}.png" for number in range(6)])
    (folder / "scene_002.png").write_bytes(b"no image")
    skipped = {}
    with FeatureStoreWriter(tmp_path / "store", DESCRIPTION) as writer:
        assert store_regions(rows, colours, writer, batch_size=2, workers=1, skipped=skipped) == 5
    assert list(skipped) == ["scene_002.png"] and "scene_002.png" in skipped["scene_002.png"]
    with (
        FeatureStoreWriter(tmp_path / "store", DESCRIPTION) as writer,
        pytest.raises(ValueError, match=r"The image scene_002.png \(row 2\) cannot be read"),
    ):
        store_regions(rows, colours, writer, batch_size=2)


def test_a_killed_extraction_with_bad_images_resumes_to_the_same_shards(images, tmp_path):
    """Bad images do not move the others into other batches."""
    folder = shutil.copytree(images, tmp_path / "photos")
    names = [f"scene_00{number}.png" for number in range(10)]
    rows = rows_of(folder, names)
    for number in (0, 4):
        (folder / names[number]).write_bytes(b"no image")

    def fill(store, stop=None):
        seen = []

        def extracted(images):
            seen.append(len(images))
            if len(seen) == stop:
                raise KeyboardInterrupt
            return colours(images)

        with FeatureStoreWriter(tmp_path / store, DESCRIPTION, shard_bytes=1) as writer:
            store_regions(rows, extracted, writer, batch_size=3, skipped={})
        return seen

    assert fill("whole") == [2, 2, 3, 1]
    with pytest.raises(KeyboardInterrupt):
        fill("killed", stop=3)
    assert fill("killed") == [3, 1]
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_an_image_that_cannot_be_prepared_is_named(images, tmp_path):
    rows = rows_of(images, [f"scene_00{number}.png" for number in range(4)])
    third = np.asarray(PIL.Image.open(images / "scene_002.png").convert("RGB"))

    def prepare(views):
        if any(np.array_equal(np.asarray(view), third) for view in views):
            raise RuntimeError("too narrow")
        return views

    skipped = {}
    with FeatureStoreWriter(tmp_path, DESCRIPTION) as writer:
        assert store_regions(rows, colours, writer, batch_size=4, prepare=prepare, skipped=skipped) == 3
    assert list(skipped) == ["scene_002.png"] and "cannot be prepared: too narrow" in skipped["scene_002.png"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are not UTF-8")
def test_names_of_any_bytes_are_extracted(folder, vision_model, tmp_path, capsys):
    names = [os.fsdecode(b"latin\xff.png"), "tab\tname.png", '"quoted".png']
    with open(folder / "metadata.jsonl", "w") as file:
        for name in names:
            shutil.copy(folder / "scene_000.png", folder / name)
            file.write(json.dumps({"file_name": name, "captions": ["a dog"]}) + "\n")
    for path in folder.glob("scene_*.png"):
        path.unlink()
    rows = load_captions("caption_folder", data_dir=folder, split="train")
    assert [row["image"].size for row in rows] == [(32, 32)] * 3
    assert extract(folder, tmp_path / "features", vision_model) == 0, capsys.readouterr().err
    stored = list(FeatureStore(tmp_path / "features" / "train"))
    assert '"latin\\udcff.png"' in stored and unquoted_name('"latin\\udcff.png"') == names[0]
    assert {"tab\tname.png", '"quoted".png'} < set(stored)


def test_a_killed_reading_process_is_explained(folder, vision_model, tmp_path, capsys, monkeypatch):
    main_process, prepare = os.getpid(), GridExtractor.prepare

    def killed(self, images):
        if os.getpid() != main_process:
            os.kill(os.getpid(), signal.SIGKILL)
        return prepare(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(GridExtractor, "prepare", killed)
        assert extract(folder, tmp_path / "features", vision_model, "--workers", "1") == 2
    err = capsys.readouterr().err
    assert "A process that reads images was killed" in err and "`--workers`" in err
    assert extract(folder, tmp_path / "features", vision_model, "--workers", "1") == 0


def test_a_full_disk_is_explained_and_resumed(images, tmp_path):
    """A limit of the size of files stands for the full disk."""
    rows = rows_of(images, [f"scene_00{number}.png" for number in range(4)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with pytest.raises(OSError, match=r"regions-000-00000.safetensors could not be written: .* repeat the command"):
        try:
            with FeatureStoreWriter(tmp_path / "full", DESCRIPTION) as writer:
                store_regions(rows, colours, writer)
                resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, ignored)
    for store in ("full", "whole"):
        with FeatureStoreWriter(tmp_path / store, DESCRIPTION) as writer:
            assert store_regions(rows, colours, writer) == 4
    assert contents(tmp_path / "full") == contents(tmp_path / "whole")

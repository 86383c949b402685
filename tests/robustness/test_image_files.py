"""Image files that are damaged or hostile: other programs are not started, and all readers agree."""

import base64
import inspect
import io
import os
import struct
import warnings

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Image, concatenate_datasets

from hf_captioners.captioning.batches import read_images
from hf_captioners.data.image_feature import with_allowed_formats
from hf_captioners.data.images import is_image_name, why_undecodable
from hf_captioners.pipelines import image_captioning
from hf_captioners.processing import image_reading
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessorFast
from hf_captioners.processing.image_reading import read_image
from hf_captioners.training.images import CaptionedImages
from hf_captioners.training.streams import StreamedPairs

PROGRAMS = ("gs", "gswin64c", "djpeg", "cjpeg", "convert", "magick", "xv", "display", "identify")
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\nshowpage\n"
ENCODED = base64.b64encode(POSTSCRIPT).decode()


def encoded(image, form, **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Stand-in programs on PATH, which record that they were started."""
    folder, record = tmp_path / "bin", tmp_path / "started"
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {record}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # looked for again
    return record


def rows_of(path):
    return with_allowed_formats(Dataset.from_dict({"image": [str(path)]}).cast_column("image", Image()))


def captioned_rows(path):
    """A data set that somebody made with `datasets` alone."""
    return Dataset.from_dict({"image": [str(path)], "captions": [["a dog"]]}).cast_column("image", Image())


READERS = {
    "path": lambda path: read_image(path),
    "bytes": lambda path: read_image(path.read_bytes()),
    "open file": lambda path: read_image(io.BytesIO(path.read_bytes())),
    "opened image": lambda path: read_image(PIL.Image.open(path)),
    "base64": lambda path: read_image(f"data:image/png;base64,{ENCODED}"),
    "pipeline": lambda path: image_captioning.upright_rgb(path),
    "pipeline, bytes": lambda path: image_captioning.upright_rgb(path.read_bytes()),
    "pipeline, base64": lambda path: image_captioning.upright_rgb(f"data:image/png;base64,{ENCODED}"),
    "pipeline, opened image": lambda path: image_captioning.upright_rgb(PIL.Image.open(path)),
    "fast processor": lambda path: CaptioningImageProcessorFast()(str(path)),
    "row of a data set": lambda path: rows_of(path)[0]["image"],
    "training": lambda path: CaptionedImages(captioned_rows(path))[0],
    "streamed training": lambda path: next(iter(StreamedPairs(captioned_rows(path).to_iterable_dataset(), 0, 1))),
}


@pytest.mark.parametrize("reader", READERS)
def test_postscript_starts_no_program(reader, started, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(POSTSCRIPT)
    with pytest.raises((ValueError, OSError)):
        READERS[reader](path)
    assert not started.exists(), started.read_text()


def test_the_stand_in_programs_would_be_started(started, tmp_path):
    """The test above can fail."""
    (tmp_path / "photo.jpg").write_bytes(POSTSCRIPT)
    with pytest.raises(Exception), PIL.Image.open(tmp_path / "photo.jpg") as image:  # noqa: B017
        image.load()
    assert "gs" in started.read_text()


def test_a_checked_postscript_file_starts_no_program(started, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(POSTSCRIPT)
    assert "photo.jpg cannot be read" in why_undecodable(tmp_path / "photo.jpg")
    assert why_undecodable({"bytes": POSTSCRIPT, "path": "photo.jpg"})
    read, unreadable = read_images([str(tmp_path / "photo.jpg")])
    assert not read and "photo.jpg" in unreadable[0].reason and not started.exists()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF"])
def test_allowed_formats_are_read(form):
    content = encoded(PIL.Image.new("RGB", (16, 16), "white"), form)
    assert np.asarray(read_image(content)).min() > 250
    assert np.asarray(image_captioning.upright_rgb(content)).min() > 250


@pytest.mark.parametrize("form", ["ICO", "TGA", "PCX", "SGI", "PDF"])
def test_other_formats_are_refused(form, tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(PIL.Image.new("RGB", (16, 16)), form))
    with pytest.raises(ValueError, match=r"a.png cannot be read: .* formats JPEG, PNG"):
        read_image(tmp_path / "a.png")


def test_names_of_formats_that_are_not_read_are_images():
    """So that they are named, and not passed over as if they were no images."""
    for name in ("a.heic", "a.HEIF", "a.jxl", "a.psd", "a.dng", "a.jfif", "a.pnm"):
        assert is_image_name(name), name
    for name in ("a.txt", "a.json", "notes", "a.mp4", "a.pdf"):
        assert not is_image_name(name), name


def test_the_pipeline_has_the_same_code(tmp_path):
    """Also in checkpoints of other libraries, without the package."""
    for name in ("read_image", "download_image"):
        assert getattr(image_reading, name) is getattr(image_captioning, name)
    (tmp_path / "config.json").write_text("{}")
    image_captioning.bundle_pipeline(tmp_path)
    assert (tmp_path / "image_reading.py").read_text() == inspect.getsource(image_reading)
    assert "from .image_reading import" in (tmp_path / "image_captioning.py").read_text()


ORIENTATION = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
EXIF = {
    "wrong header": b"Exif\0\0\xe8M\0*\0\0\0\x08\0\0",
    "cut": ORIENTATION[:16],
    "header only": b"Exif\0\0",
    "directory far away": b"Exif\0\0II*\0\xff\xff\xff\x7f",
    "many entries": b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0",
    "orientation of 77": ORIENTATION.replace(b"\x06\0\0\0", b"\x4d\0\0\0"),
    "orientation as text": ORIENTATION.replace(b"\x12\x01\x03\0\x01", b"\x12\x01\x02\0\x04"),
    "turned": ORIENTATION,
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("fault", EXIF)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_does_not_matter(form, fault, tmp_path):
    """The pixels are whole: all readers agree, and reading the result again changes nothing."""
    path = tmp_path / "photo.img"
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    path.write_bytes(encoded(PIL.Image.fromarray(pixels), form, exif=EXIF[fault]))
    first = read_image(path)
    assert first.size == ((20, 30) if fault in ("turned", "many entries") else (30, 20))
    assert not {"exif", "xmp"} & set(first.info)
    opened = PIL.Image.open(path)
    others = [first, opened, opened, path.read_bytes(), rows_of(path)[0]["image"]]
    for other in others:
        np.testing.assert_array_equal(np.asarray(read_image(other)), np.asarray(first))
    np.testing.assert_array_equal(np.asarray(image_captioning.upright_rgb(path)), np.asarray(first))
    assert why_undecodable(path) is None


def test_mutated_images_are_read_the_same_twice_or_named(tmp_path):
    """Images that pass the check are read, and read again; all others are a ValueError with the name."""
    rng = np.random.default_rng(7)
    base = PIL.Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8))
    seeds = [encoded(base, form, exif=ORIENTATION) for form in ("JPEG", "PNG", "WEBP", "TIFF")]
    seeds += [encoded(base.convert("P"), form) for form in ("GIF", "PNG", "BMP")]
    seeds += [encoded(base.convert("LA"), "PNG"), encoded(base.convert("L").convert("I"), "TIFF")]
    fine = 0
    for number in range(240):
        content = bytearray(seeds[number % len(seeds)])
        for place in rng.integers(0, len(content), rng.integers(1, 9)):
            content[place] = rng.integers(256)
        path = tmp_path / "mutated.img"
        path.write_bytes(content[: rng.integers(1, len(content) + 1)] if number % 5 == 0 else content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if reason := why_undecodable(path):
                assert "mutated.img cannot be read" in reason
                with pytest.raises(ValueError, match="mutated.img cannot be read"):
                    read_image(path)
                continue
            fine += 1
            first = read_image(path)
            np.testing.assert_array_equal(np.asarray(read_image(first)), np.asarray(first))
    assert 20 < fine < 220


DEEP = {
    "values over 65535": np.array([[0, 70000], [1, 2]], np.int32),
    "negative values": np.array([[0, -1], [1, 2]], np.int32),
    "not a number": np.array([[0, np.nan], [1, 0.5]], np.float32),
    "infinite": np.array([[0, np.inf], [1, 0.5]], np.float32),
}


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_the_pipeline_reads_deep_values_as_processors_do(kind, tmp_path):
    """A plain conversion to RGB clips them to white, and whole division is darker by up to one level."""
    levels = np.arange(0, 65536, 16).reshape(64, 64)
    PIL.Image.fromarray(levels.astype(kind)).save(tmp_path / "deep.tif")
    read = np.asarray(image_captioning.upright_rgb(tmp_path / "deep.tif"))
    np.testing.assert_array_equal(read, np.asarray(read_image(tmp_path / "deep.tif")))
    np.testing.assert_array_equal(read[..., 0], np.rint(levels / 257))
    PIL.Image.fromarray(np.full((8, 8), np.nan, np.float32)).save(tmp_path / "bad.tif")
    with pytest.raises(ValueError, match=r"bad.tif cannot be read"):
        image_captioning.upright_rgb(tmp_path / "bad.tif")


@pytest.mark.parametrize("fault", DEEP)
def test_the_check_refuses_deep_values_that_readers_refuse(fault, tmp_path):
    PIL.Image.fromarray(DEEP[fault]).save(tmp_path / "deep.tif")
    assert "its values run from" in why_undecodable(tmp_path / "deep.tif")
    with pytest.raises(ValueError, match="deep.tif cannot be read: its values run from"):
        read_image(tmp_path / "deep.tif")


def test_too_many_pixels_are_refused_and_the_limit_can_be_raised(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    PIL.Image.new("1", (300, 300)).save(path)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 40_000)
    with pytest.raises(ValueError, match=r"bomb.png cannot be read: .*90000 pixels.*MAX_IMAGE_PIXELS"):
        read_image(path)
    assert "MAX_IMAGE_PIXELS" in why_undecodable(path)
    with pytest.raises(ValueError, match=r"bomb.png"):
        image_captioning.upright_rgb(path)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 90_000)
    assert read_image(path).size == (300, 300)


def test_a_declared_size_takes_no_memory():
    """A PNG of 60 bytes that declares 60,000 x 60,000 pixels."""
    header = struct.pack(">II", 60_000, 60_000) + b"\x08\x02\0\0\0"
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + b"\0\0\0\0"
    with pytest.raises(ValueError, match="cannot be read"):
        read_image(content)


def test_decoding_of_data_sets_joins_with_their_own(tmp_path):
    PIL.Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    plain = Dataset.from_dict({"image": [str(tmp_path / "a.png")]}).cast_column("image", Image())
    ours = with_allowed_formats(plain)
    assert plain.features == ours.features and ours.features.to_dict() == plain.features.to_dict()
    assert len(concatenate_datasets([plain, ours])) == len(concatenate_datasets([ours, plain])) == 2
    assert ours.select([0]).shard(1, 0)[0]["image"].size == (8, 8)

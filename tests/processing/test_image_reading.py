"""Every kind of image becomes upright RGB, and a bad one is named."""

import base64
import http.server
import io
import threading

import numpy as np
import PIL.Image
import pytest
import torch

from hf_captioners.processing.image_reading import grey_levels, read_image

RAMP = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3) * 2  # H 6, W 5: the two sizes differ


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1", "CMYK", "YCbCr", "RGBA", "LA", "HSV", "LAB"])
def test_modes_equal_pillows_own_conversion_where_nothing_is_transparent(mode):
    image = PIL.Image.fromarray(RAMP).convert("L").convert("LA") if mode == "LA" else None
    if mode == "LAB":
        image = PIL.Image.new("LAB", (5, 6), (120, 10, 20))
    image = image or PIL.Image.fromarray(RAMP).convert(mode)
    result = read_image(image)
    assert (result.mode, result.size) == ("RGB", (5, 6))
    np.testing.assert_array_equal(np.asarray(result), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
def test_transparency_lies_over_white(mode, tmp_path):
    colours = np.zeros((2, 3, 4), dtype=np.uint8)  # black, transparent
    colours[0] = (0, 0, 0, 255)  # the upper row is opaque
    colours[1, 2] = (0, 0, 0, 128)
    image = PIL.Image.fromarray(colours)
    if mode == "P":
        indices = PIL.Image.fromarray(np.array([[0, 0, 0], [1, 1, 1]], dtype=np.uint8))
        image = PIL.Image.new("P", (3, 2))
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.paste(indices)
        image.save(tmp_path / "p.png", transparency=1)
        image = PIL.Image.open(tmp_path / "p.png")
        assert image.mode == "P"
    elif mode != "RGBA":
        image = image.convert(mode)
    pixels = np.asarray(read_image(image))
    assert (pixels[0] == 0).all() and (pixels[1, :2] == 255).all()
    if mode in ("RGBA", "LA"):
        assert (pixels[1, 2] == 127).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("deep", [False, True], ids=["8 bits", "16 bits"])
def test_exif_orientation_is_honoured(orientation, deep, tmp_path):
    """The same scene, stored in each of the eight orientations, reads the same."""
    back = {2: [1], 3: [0, 1], 4: [0], 1: []}
    grey = RAMP[..., 0]
    stored = grey
    if orientation in back:
        stored = np.flip(grey, back[orientation])
    else:
        stored = {5: grey.T, 6: np.rot90(grey), 7: np.rot90(grey.T, 2), 8: np.rot90(grey, 3)}[orientation]
    stored = np.ascontiguousarray(stored).astype(np.uint16) * 257 if deep else np.ascontiguousarray(stored)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "turned.png"
    PIL.Image.fromarray(stored).save(file, exif=exif)
    np.testing.assert_array_equal(np.asarray(read_image(file))[..., 1], grey)


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_deep_images_are_scaled_not_clipped(mode):
    levels = np.array([[0, 1, 100], [128, 200, 255]], dtype=np.float64)
    values = {"I;16": ("<u2", 257), "I;16B": (">u2", 257), "I": ("i4", 257), "F": ("f4", 1 / 255)}[mode]
    image = PIL.Image.frombytes(mode, (3, 2), (levels * values[1]).astype(values[0]).tobytes())
    assert image.mode == mode
    np.testing.assert_array_equal(np.asarray(read_image(image))[..., 2], levels)


def test_a_dark_16_bit_file_stays_dark(tmp_path):
    PIL.Image.fromarray(np.full((2, 2), 200, dtype=np.uint16)).save(tmp_path / "dark.png")
    assert np.asarray(read_image(tmp_path / "dark.png")).max() == 1


def test_first_frame_of_animations(tmp_path):
    frames = [PIL.Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for name in ("moving.gif", "moving.png", "moving.webp"):
        options = {"lossless": True} if name.endswith("webp") else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        assert np.asarray(read_image(tmp_path / name))[0, 0].tolist() == [255, 0, 0], name


@pytest.mark.parametrize(
    "array",
    [
        RAMP,
        RAMP.transpose(2, 0, 1),
        torch.from_numpy(RAMP),
        torch.from_numpy(RAMP).permute(2, 0, 1),
        RAMP.astype(np.float32) / 255,
        RAMP.astype(np.float64),
        RAMP.astype(np.int64),
        RAMP.astype(np.uint16) * 257,
        torch.from_numpy(RAMP).to(torch.float32) / 255,
        np.dstack([RAMP, np.full((6, 5), 255, dtype=np.uint8)]),
    ],
)
def test_arrays_of_all_kinds_are_the_same_image(array):
    np.testing.assert_array_equal(np.asarray(read_image(array)), RAMP)


def test_arrays_of_one_and_two_channels():
    grey = RAMP[..., 0]
    for array in (grey, grey[..., None], grey[None], np.dstack([grey, np.full_like(grey, 255)])):
        np.testing.assert_array_equal(np.asarray(read_image(array))[..., 0], grey)
    assert np.asarray(read_image(grey > 50)).max() == 255


@pytest.mark.parametrize("values", [[-0.1, 0.5], [0.0, np.nan], [0.0, np.inf], [0, 70000]])
def test_values_without_a_scale_are_refused(values):
    with pytest.raises(ValueError, match="expected 0..1"):
        grey_levels(np.array(values))
    with pytest.raises(ValueError, match="cannot be read"):
        read_image(np.array([values, values]))


def test_sources_of_all_kinds(tmp_path):
    image = PIL.Image.fromarray(RAMP)
    content = encoded(image)
    (tmp_path / "p.png").write_bytes(content)
    text = base64.b64encode(content).decode()
    sources = [tmp_path / "p.png", str(tmp_path / "p.png"), content, bytearray(content), io.BytesIO(content), image]
    for source in [*sources, text, f"data:image/png;base64,{text}", (tmp_path / "p.png").open("rb")]:
        np.testing.assert_array_equal(np.asarray(read_image(source)), RAMP)


def test_addresses(tmp_path):
    (tmp_path / "p.png").write_bytes(encoded(PIL.Image.fromarray(RAMP)))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/p.png"
        np.testing.assert_array_equal(np.asarray(read_image(address, timeout=600)), RAMP)
        with pytest.raises(OSError, match="404"):
            read_image(address + "x", timeout=600)
        server.shutdown()


def bad_files():
    whole = encoded(
        PIL.Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)), "JPEG"
    )
    png = encoded(PIL.Image.fromarray(RAMP))
    return {
        "empty.jpg": b"",
        "cut.jpg": whole[: len(whole) // 2],
        "cut.png": png[: len(png) // 2],
        "text.png": b"this is no image at all, but a text of some length that fills a file",
        "header.gif": b"GIF89a",
    }


@pytest.mark.parametrize("name", bad_files())
def test_bad_files_are_named(name, tmp_path):
    (tmp_path / name).write_bytes(bad_files()[name])
    with pytest.raises(ValueError, match=rf"image .*{name} cannot be read"):
        read_image(tmp_path / name)
    with pytest.raises(ValueError, match="cannot be read"):
        read_image(bad_files()[name])


def test_a_bad_file_that_was_opened_before_is_named(tmp_path):
    (tmp_path / "cut.jpg").write_bytes(bad_files()["cut.jpg"])
    with pytest.raises(ValueError, match=r"image .*cut.jpg cannot be read"):
        read_image(PIL.Image.open(tmp_path / "cut.jpg"))


def test_other_errors():
    with pytest.raises(FileNotFoundError, match="no_such.jpg"):
        read_image("no_such.jpg")
    with pytest.raises(TypeError, match="given as int"):
        read_image(3)
    for shape in ((0, 4, 3), (2, 3, 4, 5), (7, 7, 7), (4,)):
        with pytest.raises(ValueError, match=r"\[H, W\]"):
            read_image(np.zeros(shape, dtype=np.uint8))


def test_a_large_jpeg_may_be_decoded_at_a_reduced_size(tmp_path):
    """At 1/2, 1/4 or 1/8, and turned; other formats are read as they are."""
    image = PIL.Image.radial_gradient("L").resize((640, 480)).convert("RGB")
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=exif)
    image.save(tmp_path / "a.png")
    sizes = [read_image(tmp_path / "a.jpg", min_side=side).size for side in (None, 300, 240, 100, 1)]
    assert sizes == [(480, 640), (480, 640), (240, 320), (120, 160), (60, 80)]
    assert read_image(tmp_path / "a.png", min_side=1).size == (640, 480)
    whole, reduced = (read_image(tmp_path / "a.jpg", min_side=side).resize((60, 80)) for side in (None, 60))
    assert np.abs(np.asarray(whole).astype(int) - np.asarray(reduced)).max() < 8

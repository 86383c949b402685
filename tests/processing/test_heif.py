"""HEIC images of mobile phones, which pillow-heif decodes."""

import io
import json
import sys

import numpy as np
import PIL.Image
import pytest

from hf_captioners.processing.image_reading import read_image

pillow_heif = pytest.importorskip("pillow_heif")


@pytest.fixture(scope="module")
def content():
    """An image that is red on top, turned by its EXIF orientation."""
    pixels = np.zeros((40, 64, 3), np.uint8)
    pixels[:, :32] = (255, 0, 0)
    image = pillow_heif.from_pillow(PIL.Image.fromarray(pixels))
    exif = PIL.Image.Exif()
    exif[274] = 6
    image.info["exif"] = exif.tobytes()
    stream = io.BytesIO()
    image.save(stream, quality=90)
    return stream.getvalue()


FRESH = """
import json
import sys
import PIL.Image
from hf_captioners.processing.image_reading import read_image
assert "pillow_heif" not in sys.modules
try:
    PIL.Image.open(sys.argv[1])
except PIL.UnidentifiedImageError:
    pass
else:
    raise AssertionError("read without the reader")
image = read_image(sys.argv[1])
print(json.dumps([image.size, image.mode, image.getpixel((20, 5)), image.getpixel((20, 60))]))
"""


def test_an_upright_image_in_a_process_that_did_not_load_the_plugin(content, fork_server, tmp_path):
    path = tmp_path / "photo.HEIC"
    path.write_bytes(content)
    done = fork_server.run(["-c", FRESH, path], libraries="torch")
    assert done.returncode == 0, done.stderr
    size, mode, top, bottom = json.loads(done.stdout)
    assert size == [40, 64] and mode == "RGB"
    assert top[0] > 230 and max(top[1:]) < 30 and max(bottom) < 30


def test_bytes_and_open_files(content):
    assert read_image(content).size == read_image(io.BytesIO(content)).size == (40, 64)


@pytest.mark.parametrize("cut", [20, 60, 300])
def test_damaged_ones_are_named(content, tmp_path, cut):
    path = tmp_path / "cut.heic"
    path.write_bytes(content[:cut])
    with pytest.raises(ValueError, match="cut.heic cannot be read"):
        read_image(path)


def test_without_the_plugin_the_extra_is_named(content, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(PIL.Image.OPEN, "HEIF", raising=False)
    with pytest.raises(ValueError, match=r"a HEIF \(HEIC\) image, which needs pillow-heif: pip install 'hf-capt"):
        read_image(content)

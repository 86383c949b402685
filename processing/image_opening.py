"""Opening of image files by an allow-list of formats, and their orientation."""

from __future__ import annotations

from typing import Any

import PIL.ExifTags
import PIL.Image

# Pillow tells a format by the content of a file, whatever its name, and starts Ghostscript for PostScript. Only these
# formats, which Pillow and its libraries decode themselves, are opened. HEIF needs a plugin that registers itself with
# Pillow, such as pillow-heif; JPEG includes MPO.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
METADATA = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
TURNS = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}


def open_image(file: Any) -> PIL.Image.Image:
    """Open an image file of one of `IMAGE_FORMATS`, without decoding it. No other program is started.

    Args:
        file: a path, or an open binary file.

    Raises:
        OSError: the file cannot be read, or has none of these formats.
        PIL.Image.DecompressionBombError: it has more than twice `PIL.Image.MAX_IMAGE_PIXELS` pixels.
    """
    PIL.Image.init()
    return PIL.Image.open(file, formats=[name for name in IMAGE_FORMATS if name in PIL.Image.OPEN])


def turn_of(image: PIL.Image.Image) -> PIL.Image.Transpose | None:
    """Return what turns an image upright by its EXIF orientation; None if it is upright or its metadata is damaged."""
    try:
        return TURNS.get(image.getexif().get(PIL.ExifTags.Base.Orientation, 1))
    except Exception:  # damaged metadata raises errors of many types, and the pixels do not depend on it
        return None


def upright(image: PIL.Image.Image) -> PIL.Image.Image:
    """Decode an image and turn it upright by its EXIF orientation; a turned one has no EXIF and XMP metadata."""
    image.load()
    turn = turn_of(image)
    if turn is not None:
        image = image.transpose(turn)
        image.info = {name: value for name, value in image.info.items() if name not in METADATA}
    return image

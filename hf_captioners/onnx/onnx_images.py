"""Reading and preprocessing of images for exported captioners, equal to the processors' results.

This file is part of every exported folder, see `onnx_captioner.py`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import PIL
import PIL.ExifTags
import PIL.Image

# Pillow would start Ghostscript for PostScript, whatever the name of the file; these formats it decodes itself.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
TURNS = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}
MAX_RESIZED = 2**26  # pixels of an image after resizing, which a thin image would exceed


def read_image(source: Any) -> PIL.Image.Image:
    """Read an image from a path, bytes or PIL as upright RGB, with transparency over white.

    Args:
        source: a path, the bytes of a file, an open binary file, a PIL image, or an array `[H, W]` or `[H, W, C]` of
            levels 0 to 255.

    Raises:
        FileNotFoundError: no file has this path.
        ValueError: it cannot be read; the message has its name.
        TypeError: it has another type.
    """
    if isinstance(source, np.ndarray):
        return over_white(PIL.Image.fromarray(np.ascontiguousarray(source.astype(np.uint8))))
    if isinstance(source, PIL.Image.Image):
        return upright_rgb(source)
    name = str(source) if isinstance(source, (str, os.PathLike)) else f"given as {type(source).__name__}"
    if isinstance(source, (bytes, bytearray)):
        source = io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        if not os.path.isfile(source):
            raise FileNotFoundError(f"No image has the path {name!r}. Give the path of a file; download URLs first.")
    elif not hasattr(source, "read"):
        raise TypeError(f"An image was {name}; expected a path, bytes, an open binary file, a PIL image or an array.")
    try:
        with open_image(source) as image:
            return upright_rgb(image)
    except Exception as error:  # decoders raise errors of many types
        reason = str(error).replace("\n", " ") or type(error).__name__
        raise ValueError(f"The image {name} cannot be read: {reason}. Repair it or leave it out.") from error


def open_image(file: Any) -> PIL.Image.Image:
    """Open an image file of one of `IMAGE_FORMATS`, without decoding it."""
    PIL.Image.preinit()  # the most usual formats; importing the plugins of all others takes 0.2 seconds
    try:
        return PIL.Image.open(file, formats=[name for name in IMAGE_FORMATS if name in PIL.Image.OPEN])
    except PIL.UnidentifiedImageError:
        if hasattr(file, "seek"):
            file.seek(0)
        PIL.Image.init()
        return PIL.Image.open(file, formats=[name for name in IMAGE_FORMATS if name in PIL.Image.OPEN])


def upright_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    """Decode an image, turn it by its EXIF orientation, and convert it to RGB."""
    image.load()
    try:
        turn = TURNS.get(image.getexif().get(PIL.ExifTags.Base.Orientation, 1))
    except Exception:  # damaged metadata raises errors of many types, and the pixels do not depend on it
        turn = None
    image = image if turn is None else image.transpose(turn)
    if image.mode in DEEP_MODES:
        values = np.asarray(image)
        wide = (values.dtype.kind, values.dtype.itemsize) == ("u", 2) or values.max() > 255
        scale = 1 / 257 if wide else 255.0 if values.dtype.kind == "f" and values.max() <= 1 else 1.0
        image = PIL.Image.fromarray(np.rint(values.astype(np.float64) * scale).astype(np.uint8))
    return over_white(image)


def over_white(image: PIL.Image.Image) -> PIL.Image.Image:
    """Convert an 8-bit image of any mode to RGB, with transparency composed over white."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
        return PIL.Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def prepare_image(image: PIL.Image.Image, numbers: Mapping[str, Any]) -> np.ndarray:
    """Return the pixel values `[3, H, W]` of an RGB image.

    Args:
        image: the image.
        numbers: `size` (after resizing: height and width, `shortest_edge`, or `max_height` and `max_width`),
            `resample` (of Pillow), `crop_size`, `rescale_factor`, `image_mean`, `image_std`; None leaves a step out.

    Raises:
        ValueError: the image is so thin that it would be resized to none or too many pixels.
    """
    if numbers["size"] is not None:
        width, height = size_after(image.size, numbers["size"])
        if not 0 < width * height <= MAX_RESIZED:
            raise ValueError(
                f"an image of {image.width:,} x {image.height:,} pixels would be resized to {width:,} x {height:,}, "
                f"expected 1 to {MAX_RESIZED:,} pixels: it is too thin"
            )
        image = image.resize((width, height), numbers["resample"])
    levels = np.asarray(image)
    if numbers["crop_size"] is not None:
        levels = center_crop(levels, numbers["crop_size"]["height"], numbers["crop_size"]["width"])
    values = values_of_levels(numbers)
    return np.stack([values[channel][levels[..., channel]] for channel in range(3)])


def values_of_levels(numbers: Mapping[str, Any]) -> np.ndarray:
    """Return the pixel values `[3, 256]` of the grey levels 0 to 255 for each channel, see `prepare_image`."""
    levels = np.arange(256, dtype=np.float64)
    scaled = levels if numbers["rescale_factor"] is None else levels * numbers["rescale_factor"]
    values = np.stack([scaled.astype(np.float32)] * 3)
    if numbers["image_mean"] is not None:
        mean, std = (np.array(numbers[name], np.float32)[:, None] for name in ("image_mean", "image_std"))
        values = (values - mean) / std
    return values


def size_after(size: tuple[int, int], rule: Mapping[str, int]) -> tuple[int, int]:
    """Return width and height of an image after resizing."""
    width, height = size
    if "shortest_edge" in rule:
        edge = rule["shortest_edge"]
        return (edge, int(edge * height / width)) if width <= height else (int(edge * width / height), edge)
    if "max_height" in rule:
        scale = min(rule["max_height"] / height, rule["max_width"] / width)
        return int(width * scale), int(height * scale)
    return rule["width"], rule["height"]


def center_crop(levels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the central crop of `[H, W, 3]`; smaller images are padded with black."""
    missing = [max(target - size, 0) for target, size in zip((height, width), levels.shape, strict=False)]
    rim = [((lines + 1) // 2, lines // 2) for lines in missing]
    levels = np.pad(levels, [*rim, (0, 0)])
    top, left = (levels.shape[0] - height) // 2, (levels.shape[1] - width) // 2
    return levels[top : top + height, left : left + width]

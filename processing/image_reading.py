"""Reading of images of any mode and source as upright RGB with 8 bits per channel."""

from __future__ import annotations

import base64
import binascii
import io
import os
import urllib.request
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch

WHITE = (255, 255, 255, 255)
# Pillow modes with more than 8 bits per pixel; `convert("RGB")` would clip them to white.
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def read_image(source: Any, timeout: float | None = None) -> PIL.Image.Image:
    """Read one image as upright RGB.

    The EXIF orientation is applied, transparency is composed over white, and greyscale, palette, CMYK, 1-bit and
    16-bit images are converted to RGB. Of an animation the first frame is read; of an opened animation, the current
    frame.

    Args:
        source: a path, an `http(s)://` address, a `data:image/...` address or base64 text, the bytes of an image
            file, an open binary file, a `PIL.Image.Image`, or an array or tensor `[H, W]`, `[H, W, C]` or `[C, H, W]`
            with 1, 2 (grey, alpha), 3 or 4 (red, green, blue, alpha) channels. See `grey_levels` for its values.
        timeout: seconds to wait for an address; None waits without limit.

    Returns:
        A `PIL.Image.Image` of mode RGB.

    Raises:
        FileNotFoundError: no file has this path.
        ValueError: the image is empty, corrupt, or no image; the message contains its name if it has one.
        TypeError: `source` has a different type.
    """
    if isinstance(source, torch.Tensor):
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray):
        return over_white(image_from_array(source))
    image, name = (source, _name_of(source)) if isinstance(source, PIL.Image.Image) else _open(source, timeout)
    try:
        image = PIL.ImageOps.exif_transpose(image)
        if image.mode in DEEP_MODES:
            return PIL.Image.fromarray(grey_levels(np.asarray(image))).convert("RGB")
        return over_white(image)
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(f"The image {name} cannot be read: {error}. Repair it or leave it out.") from error


def over_white(image: PIL.Image.Image) -> PIL.Image.Image:
    """Convert an 8-bit image of any mode to RGB, with transparency composed over white."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        return PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, WHITE), image).convert("RGB")
    return image.convert("RGB")


def grey_levels(values: np.ndarray) -> np.ndarray:
    """Scale the values of an image to 0..255.

    Booleans become 0 and 255; unsigned 16-bit values are divided by 257; other integers and floats are read, by
    their largest value, as fractions (floats up to 1), as levels up to 255, or as 16-bit levels.

    Args:
        values: array of any shape with finite values from 0 to 65535.

    Returns:
        uint8 array of the same shape.

    Raises:
        ValueError: a value is negative, not finite or above 65535.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    values = values.astype(np.float64) if values.dtype.kind == "f" else values
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 65535):  # also false for NaN
        raise ValueError(
            f"its values run from {low} to {high}; expected 0..1 (floats), 0..255 or 0..65535: scale them first"
        )
    if (values.dtype.kind, values.dtype.itemsize) == ("u", 2) or high > 255:
        scale = 1 / 257
    elif values.dtype.kind == "f" and high <= 1:
        scale = 255.0
    else:
        scale = 1.0
    return np.rint(values * scale).astype(np.uint8)


def image_from_array(array: np.ndarray) -> PIL.Image.Image:
    """Make an image from an array `[H, W]`, `[H, W, C]` or `[C, H, W]`, C from 1 to 4."""
    if array.ndim == 3 and array.shape[-1] not in (1, 2, 3, 4) and array.shape[0] in (1, 2, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.size == 0 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] > 4):
        raise ValueError(
            f"An image of shape {tuple(array.shape)} cannot be read: expected [H, W], [H, W, C] or [C, H, W] with "
            "1 to 4 channels and at least one pixel."
        )
    try:
        return PIL.Image.fromarray(np.ascontiguousarray(grey_levels(array)))
    except ValueError as error:
        raise ValueError(f"An image given as {array.dtype} array cannot be read: {error}.") from error


def _open(source: Any, timeout: float | None) -> tuple[PIL.Image.Image, str]:
    """Open a source; return the image with its name for messages."""
    if isinstance(source, (str, os.PathLike)):
        content, name = _locate(os.fspath(source), timeout)
    elif isinstance(source, (bytes, bytearray)):
        content, name = io.BytesIO(source), "given as bytes"
    elif hasattr(source, "read") and hasattr(source, "seek"):
        content, name = source, _name_of(source)
    else:
        raise TypeError(
            f"An image was given as {type(source).__name__}; expected a path, an address, bytes, an open binary "
            "file, a PIL image, a numpy array or a torch tensor."
        )
    try:
        return PIL.Image.open(content), name
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise ValueError(
            f"The image {name} cannot be read: it is empty, corrupt or no image ({error}). Repair it or leave it out."
        ) from error


def _locate(text: str, timeout: float | None) -> tuple[Any, str]:
    """Return the content of a file, an address or base64 text, with its name for messages."""
    if text.startswith(("http://", "https://")):
        request = urllib.request.Request(text, headers={"User-Agent": "hf-captioners"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return io.BytesIO(response.read()), text
    if os.path.isfile(text):
        return text, text
    is_address = text.startswith("data:image/") and "," in text
    encoded = text.split(",", 1)[1] if is_address else text
    try:
        if len(encoded) < 64 and not is_address:  # shorter than any image file: a mistyped path
            raise binascii.Error
        return io.BytesIO(base64.b64decode("".join(encoded.split()), validate=True)), "given as base64"
    except binascii.Error:
        shown = text if len(text) < 200 else f"{text[:200]}..."
        raise FileNotFoundError(
            f"No image has the path {shown!r}. Give the path of a file, an http(s) address, or base64 text."
        ) from None


def _name_of(source: Any) -> str:
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    return str(name) if name else "given as an object"

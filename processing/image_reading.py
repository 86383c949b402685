"""Image reading: files, arrays and URLs of any mode, converted to upright 8-bit RGB."""

from __future__ import annotations

import base64
import binascii
import http.client
import io
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageFile

WHITE = (255, 255, 255, 255)
# Pillow modes with more than 8 bits per pixel; `convert("RGB")` would clip them to white.
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
VALUES_AT_ONCE = 2**20
# Pillow tells a format by the content of a file, whatever its name, and starts Ghostscript for PostScript. Only these
# formats, which Pillow and its libraries decode themselves, are opened. HEIF needs pillow-heif; JPEG includes MPO.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")
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
DOWNLOAD_SECONDS = 60.0
DOWNLOAD_BYTES = 64 * 2**20
USER_AGENT = "hf-captioners"


def read_image(
    source: Any, timeout: float | None = None, max_bytes: float | None = None, min_side: int | None = None
) -> PIL.Image.Image:
    """Read one image as upright RGB.

    The EXIF orientation is applied, transparency is composed over white, and greyscale, palette, CMYK, 1-bit and
    16-bit images are converted to RGB. Of an animation the first frame is read; of an opened animation, the current
    frame. The result has no metadata, so that reading it again changes nothing; damaged metadata is ignored.

    Files are opened by their content in one of `IMAGE_FORMATS`; reading starts no other program. Images
    with more than twice `PIL.Image.MAX_IMAGE_PIXELS` pixels are refused; you can set a different number there.

    Args:
        source: a path, an `http(s)://` address, a `data:image/...` address or base64 text, the bytes of an image
            file, an open binary file, a `PIL.Image.Image`, or an array or tensor `[H, W]`, `[H, W, C]` or `[C, H, W]`
            with 1, 2 (grey, alpha), 3 or 4 (red, green, blue, alpha) channels. See `grey_levels` for its values.
        timeout: seconds for the whole download of an address; None: 60.
        max_bytes: largest download in bytes; None: 64 MiB.
        min_side: decode a JPEG file at 1/2, 1/4 or 1/8 of its size, as long as both sides keep this many pixels,
            which takes a fraction of the time. None: every pixel.

    Returns:
        A `PIL.Image.Image` of mode RGB.

    Raises:
        FileNotFoundError: no file has this path, or the server of an address answers with an error.
        TimeoutError: a download takes longer than `timeout`.
        ConnectionError: the server of an address cannot be reached, or the connection breaks.
        ValueError: the image is empty, corrupt, too large, or no image; the message contains its name if it has one.
        TypeError: `source` has a different type.
    """
    torch = sys.modules.get("torch")  # there are no tensors without it, and its import takes seconds
    if torch is not None and isinstance(source, torch.Tensor):
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray):
        return over_white(image_from_array(source))
    if isinstance(source, PIL.Image.Image):
        name = _name_of(source)
        with named_faults(name):
            _require_known_format(source)
            return _upright_rgb(source)
    content, name = _locate(source, timeout, max_bytes)
    with named_faults(name), open_image(content) as image:
        if min_side is not None:
            image.draft(None, (min_side, min_side))
        return _upright_rgb(image)


def check_image(source: Any) -> None:
    """Check cheaply that `read_image` can read a file: a JPEG is decoded at an eighth of its size.

    Args:
        source: a path, the bytes of an image file, or an open binary file.

    Raises:
        FileNotFoundError, ValueError, TypeError: as `read_image`.
    """
    content, name = _locate(source, None, None)
    with named_faults(name), open_image(content) as image:
        # Every byte is still read, so a truncated file is found.
        image.draft(image.mode, (max(1, image.width // 8), max(1, image.height // 8)))
        _upright_rgb(image)


def _upright_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    image = upright(image)
    if image.mode in DEEP_MODES:
        image = PIL.Image.fromarray(grey_levels(np.asarray(image)))
    image = over_white(image)
    image.info = {}
    return image


@contextmanager
def named_faults(name: str) -> Iterator[None]:
    """Context that turns every error of reading an image into a `ValueError` with the image's name."""
    try:
        yield
    except PIL.UnidentifiedImageError as error:
        formats = ", ".join(IMAGE_FORMATS)
        raise ValueError(
            f"The image {name} cannot be read: it is empty, corrupt or no image of the formats {formats}. Repair it, "
            "convert it to JPEG or PNG, or leave it out."
        ) from error
    except PIL.Image.DecompressionBombError as error:
        raise ValueError(
            f"The image {name} cannot be read: {error} Leave it out, or set a larger PIL.Image.MAX_IMAGE_PIXELS "
            "(--max_image_pixels) if you know it."
        ) from error
    except Exception as error:
        reason = str(error).replace("\n", " ") or type(error).__name__
        raise ValueError(f"The image {name} cannot be read: {reason}. Repair it or leave it out.") from error


def _require_known_format(image: PIL.Image.Image) -> None:
    """Check the format of an opened image before it is decoded: decoding PostScript would start Ghostscript."""
    if isinstance(image, PIL.ImageFile.ImageFile) and image.tile and image.format not in (*IMAGE_FORMATS, "MPO"):
        raise ValueError(
            f"its format is {image.format}, expected one of {', '.join(IMAGE_FORMATS)}; call its method `load` first "
            "if you trust the file"
        )


def over_white(image: PIL.Image.Image) -> PIL.Image.Image:
    """Convert an 8-bit image of any mode to RGB; transparent pixels are composed over white."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        return PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, WHITE), image).convert("RGB")
    return image.convert("RGB")


def grey_levels(values: np.ndarray) -> np.ndarray:
    """Scale the values of an image to 0..255, by their type and range.

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
    levels, flat = np.empty(values.size, np.uint8), values.reshape(-1)
    for first in range(0, len(flat), VALUES_AT_ONCE):  # doubles of a whole image need eight times its memory
        part = slice(first, first + VALUES_AT_ONCE)
        levels[part] = np.rint(flat[part].astype(np.float64) * scale)
    return levels.reshape(values.shape)


def image_from_array(array: np.ndarray) -> PIL.Image.Image:
    """Convert an array `[H, W]`, `[H, W, C]` or `[C, H, W]`, C from 1 to 4, to an image."""
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


def _locate(source: Any, timeout: float | None, max_bytes: float | None) -> tuple[Any, str]:
    """Return a path or an open file for an image source, and its name for messages."""
    if isinstance(source, (bytes, bytearray)):
        return io.BytesIO(source), "given as bytes"
    if hasattr(source, "read") and hasattr(source, "seek"):
        return source, _name_of(source)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"An image was given as {type(source).__name__}; expected a path, an address, bytes, an open binary "
            "file, a PIL image, a numpy array or a torch tensor."
        )
    text = os.fspath(source)
    if text.startswith(("http://", "https://")):
        return io.BytesIO(download_image(text, timeout, max_bytes)), text
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


def open_image(file: Any) -> PIL.Image.Image:
    """Open an image file of one of `IMAGE_FORMATS` without decoding it. No other program is started.

    Args:
        file: a path, or an open binary file.

    Raises:
        OSError: the file cannot be read, or has none of these formats.
        PIL.Image.DecompressionBombError: it has more than twice `PIL.Image.MAX_IMAGE_PIXELS` pixels.
        ValueError: it is a HEIF image, and pillow-heif is not installed.
    """
    is_path = not hasattr(file, "read")
    if is_path or getattr(file, "seekable", lambda: True)():
        PIL.Image.preinit()  # the most usual formats; importing the plugins of all others takes 0.2 seconds
        with suppress(PIL.UnidentifiedImageError):
            return PIL.Image.open(file, formats=[name for name in IMAGE_FORMATS if name in PIL.Image.OPEN])
        if not is_path:
            file.seek(0)
    PIL.Image.init()
    if "HEIF" not in PIL.Image.OPEN and _is_heif(file):
        _register_heif()
    return PIL.Image.open(file, formats=[name for name in IMAGE_FORMATS if name in PIL.Image.OPEN])


def _is_heif(file: Any) -> bool:
    """Return True if a file begins like a HEIF image (HEIC is HEIF with the codec of mobile phones)."""
    if hasattr(file, "read"):
        if not getattr(file, "seekable", lambda: True)():
            return False
        start = file.read(12)
        file.seek(0)
    else:
        with open(file, "rb") as opened:
            start = opened.read(12)
    return start[4:8] == b"ftyp" and start[8:12] in HEIF_BRANDS


def _register_heif() -> None:
    """Register pillow-heif with Pillow, when the first such image is read.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import pillow_heif
    except ImportError:
        raise ValueError(
            "it is a HEIF (HEIC) image, which needs pillow-heif: pip install 'hf-captioners[heif]'"
        ) from None
    pillow_heif.register_heif_opener()


def turn_of(image: PIL.Image.Image) -> PIL.Image.Transpose | None:
    """Return the PIL transposition that turns an image upright by its EXIF orientation; None if it needs none."""
    try:
        return TURNS.get(image.getexif().get(PIL.ExifTags.Base.Orientation, 1))
    except Exception:  # damaged metadata raises errors of many types, and the pixels do not depend on it
        return None


def upright(image: PIL.Image.Image) -> PIL.Image.Image:
    """Decode an image and turn it upright by its EXIF orientation; a turned image loses its EXIF and XMP metadata."""
    image.load()
    turn = turn_of(image)
    if turn is not None:
        image = image.transpose(turn)
        image.info = {name: value for name, value in image.info.items() if name not in METADATA}
    return image


class TooLargeError(ValueError):
    """Error of a server that sends more bytes than the limit."""


class TimedStream(io.RawIOBase):
    """Stream of a connection's bytes that ends at a deadline, however slowly they arrive.

    Args:
        connection: an open connection.
        deadline: value of `time.monotonic()` after which reading raises TimeoutError.
    """

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline
        self.stream = connection.makefile("rb", buffering=0)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the buffered stream for `http.client`."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True, as `io` requires of a stream that is read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read the bytes that have arrived; wait for some until the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.connection.settimeout(left)
        return self.stream.readinto(buffer)

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()
        super().close()


def web_opener(deadline: float) -> urllib.request.OpenerDirector:
    """Return a `urllib` opener of `http(s)` URLs that follows redirects and stops at a deadline."""

    def connect(kind: Any, host: str, **options: Any) -> http.client.HTTPConnection:
        options["timeout"] = max(deadline - time.monotonic(), 1e-3)
        connection = kind(host, **options)
        connection.response_class = lambda sock, *more, **options: http.client.HTTPResponse(
            TimedStream(sock, deadline),  # type: ignore[arg-type]
            *more,
            **options,
        )
        return connection

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(connect, http.client.HTTPConnection), req)  # type: ignore[arg-type]

    class Encrypted(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(connect, http.client.HTTPSConnection), req)  # type: ignore[arg-type]

    class Redirects(urllib.request.HTTPRedirectHandler):
        def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
            fp.close()  # the base class reads the content of a redirect, which may be endless, into memory
            return super().http_error_302(req, fp, code, msg, headers)

        http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,  # refuses file:, data: and ftp:
        urllib.request.HTTPDefaultErrorHandler,
        Redirects,
        urllib.request.HTTPErrorProcessor,
        Plain,
        Encrypted,
    ):
        opener.add_handler(handler())
    return opener


def web_content(url: str, seconds: float, max_bytes: float, user_agent: str = USER_AGENT) -> bytes:
    """Download the bytes at an `http(s)` URL.

    Args:
        url: the address.
        seconds: limit of the whole download.
        max_bytes: limit of the size.
        user_agent: the `User-Agent` header.

    Raises:
        TooLargeError: the content is larger than `max_bytes`.
        TimeoutError: the download takes longer than `seconds`; it may be the reason of an URLError.
        OSError, http.client.HTTPException, ValueError: other errors of `urllib`.
    """
    deadline = time.monotonic() + min(seconds, 1e6)  # sockets do not take infinity
    request = urllib.request.Request(url, headers={"User-Agent": user_agent})
    with web_opener(deadline).open(request, timeout=min(seconds, 1e6)) as response:
        parts, size = [], 0
        # read1 returns what has arrived, so a slow server cannot exceed the deadline.
        while (response.length or 0) <= max_bytes and (part := response.read1(2**16)):
            size += len(part)
            if size > max_bytes:
                break
            parts.append(part)
        if max(size, response.length or 0) > max_bytes:
            raise TooLargeError(f"it is larger than {max_bytes:,.0f} bytes")
        return b"".join(parts)


def download_image(url: str, timeout: float | None = None, max_bytes: float | None = None) -> bytes:
    """Download the bytes at an `http(s)` URL; errors name the URL.

    Args:
        url: the address.
        timeout: seconds for the whole download; None: 60; `float("inf")`: no limit.
        max_bytes: limit of the size; None: 64 MiB; `float("inf")`: no limit.

    Raises:
        FileNotFoundError: the server answers with an error.
        TimeoutError: the download takes longer.
        ConnectionError: the server cannot be reached, or the connection breaks.
        ValueError: the content is too large, or this is no address.
    """
    seconds = DOWNLOAD_SECONDS if timeout is None else timeout
    limit = DOWNLOAD_BYTES if max_bytes is None else max_bytes
    if not (seconds > 0 and limit > 0):
        raise ValueError(f"`timeout` is {seconds} and `max_bytes` {limit}, expected more than 0.")
    failure = f"The image {url} cannot be downloaded"
    try:
        return web_content(url, seconds, limit)
    except TooLargeError as error:
        raise ValueError(f"{failure}: {error}. Pass a larger `max_bytes`, or leave it out.") from error
    except urllib.error.HTTPError as error:
        raise FileNotFoundError(f"{failure}: the server answers {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
            reason = f"timed out after {seconds:g} seconds. Pass a larger `timeout`, or leave it out"
            raise TimeoutError(f"{failure}: {reason}.") from error
        raise ConnectionError(f"{failure}: {getattr(error, 'reason', error)}. Try again, or leave it out.") from error
    except ValueError as error:
        raise ValueError(f"{failure}: it is no address ({error}). Correct it, or leave it out.") from error

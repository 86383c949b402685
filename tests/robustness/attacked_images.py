"""Damaged and hostile images, given to every reader of images."""

import functools
import io
import random
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from datasets import Dataset, Image

from hf_captioners.data.image_feature import with_allowed_formats
from hf_captioners.data.images import why_undecodable
from hf_captioners.pipelines import image_captioning
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessorFast
from hf_captioners.processing.image_reading import open_image, read_image

from .isolated import Attempt
from .mutators import mutated

ORIENTATION = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
PNG_HEADER = b"\x89PNG\r\n\x1a\n"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\n(touch executed) system\nshowpage\n"
BANDS = {"RGBA": 4, "CMYK": 4, "I": 4, "F": 4, "RGB": 3, "LAB": 3, "YCbCr": 3, "HSV": 3}


def encoded(image: PIL.Image.Image, form: str, **options: Any) -> bytes:
    """Return an image as a file."""
    stream = io.BytesIO()
    if "append_images" in options:  # saving leaves settings of a format in the images
        options["append_images"] = [other.copy() for other in options["append_images"]]
    image.copy().save(stream, form, **options)
    return stream.getvalue()


@functools.cache
def whole_images(material: Any = None) -> dict[str, bytes]:
    """Return whole files of many formats and modes, by a description."""
    rng = np.random.default_rng(0)
    smooth = np.linspace(0, 255, 40 * 30 * 3).reshape(40, 30, 3) + rng.normal(0, 20, (40, 30, 3))
    base = PIL.Image.fromarray(smooth.clip(0, 255).astype(np.uint8))
    other, grey, palette = base.rotate(90, expand=True).resize(base.size), base.convert("L"), base.convert("P")
    transparent = base.convert("RGBA")
    transparent.putalpha(grey)
    deep = PIL.Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    real = PIL.Image.fromarray(np.asarray(grey).astype(np.float32) / 255)
    animation: dict[str, Any] = {"save_all": True, "append_images": [other, base], "duration": 20}
    return {
        "JPEG": encoded(base, "JPEG"),
        "JPEG with EXIF": encoded(base, "JPEG", exif=ORIENTATION),
        "JPEG, progressive": encoded(base, "JPEG", progressive=True, quality=40),
        "JPEG, CMYK": encoded(base.convert("CMYK"), "JPEG"),
        "JPEG, grey": encoded(grey, "JPEG", comment=b"a comment"),
        "MPO": encoded(base, "MPO", save_all=True, append_images=[other]),
        "PNG": encoded(base, "PNG", exif=ORIENTATION),
        "PNG, palette": encoded(palette, "PNG", transparency=3),
        "PNG, transparent": encoded(transparent, "PNG"),
        "PNG, 16 bits": encoded(deep, "PNG"),
        "PNG, 1 bit": encoded(base.convert("1"), "PNG"),
        "PNG, animated": encoded(base, "PNG", save_all=True, append_images=[other]),
        "WEBP": encoded(base, "WEBP", exif=ORIENTATION),
        "WEBP, lossless": encoded(transparent, "WEBP", lossless=True),
        "WEBP, animated": encoded(base, "WEBP", **animation),
        "GIF": encoded(palette, "GIF", transparency=1),
        "GIF, animated": encoded(palette, "GIF", **(animation | {"append_images": [grey, palette]})),
        "BMP": encoded(base, "BMP"),
        "BMP, palette": encoded(palette, "BMP"),
        "TIFF": encoded(base, "TIFF", exif=ORIENTATION),
        "TIFF, LZW": encoded(base, "TIFF", compression="tiff_lzw"),
        "TIFF, deflate": encoded(grey, "TIFF", compression="tiff_adobe_deflate"),
        "TIFF, JPEG": encoded(base, "TIFF", compression="jpeg"),
        "TIFF, 16 bits": encoded(deep, "TIFF"),
        "TIFF, float": encoded(real, "TIFF"),
        "TIFF, 1 bit": encoded(base.convert("1"), "TIFF", compression="group4"),
        "TIFF, pages": encoded(base, "TIFF", save_all=True, append_images=[other]),
        "PPM": encoded(base, "PPM"),
        "PGM, 16 bits": encoded(deep, "PPM"),
        "JPEG 2000": encoded(base, "JPEG2000"),
        "JPEG 2000, tiles": encoded(base, "JPEG2000", tile_size=(16, 16), irreversible=True),
        "AVIF": encoded(base, "AVIF"),
    }


def attack_image(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change an image, or make a hostile one, and read it in every way."""
    if rng.random() < 0.75:
        files = whole_images(material)
        name = rng.choice(list(files))
        content, how = mutated(files[name], rng, list(files.values()))
        if content.startswith(PNG_HEADER) and rng.random() < 0.6:  # otherwise most changes end at a checksum
            content, how = with_checksums(content), f"{how}, checksums corrected"
    else:
        name, content = rng.choice(HOSTILE)(rng)
        how = "made"
    path = folder / rng.choice(("image.png", "photo.jpg", "x.tif", "a b\u202e.webp", "a\tb.gif", "image.heic"))
    path.write_bytes(content)
    what = f"{name}: {how}"
    return Attempt(what, lambda: read_in_every_way(path), (path.name,), decoded_bytes(content))


def decoded_bytes(content: bytes) -> int:
    """Return the bytes of a decoded image, from its header; 0 if it is none or has more pixels than the limit."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_image(io.BytesIO(content)) as image:
                return image.width * image.height * BANDS.get(image.mode, 3)
    except Exception:  # Pillow raises errors of many types, and the readers see them
        return 0


def read_in_every_way(path: Path) -> None:
    """Read an image in every way, and raise the error of `read_image` after the others were compared with it."""
    warnings.simplefilter("ignore")
    reason, first, refusal = why_undecodable(path), None, None
    try:
        first = read_image(path)
    except (ValueError, OSError) as error:
        refusal = error
    assert (reason is None) == (first is not None), f"the check says {reason}, reading {refusal}"
    if first is None:
        for read in (lambda: read_image(path.read_bytes()), lambda: image_captioning.upright_rgb(path)):
            try:
                read()
            except (ValueError, OSError):
                continue
            raise AssertionError(f"a reader accepts what read_image refuses ({refusal})")
        assert refusal is not None
        raise refusal
    assert first.mode == "RGB" and min(first.size) > 0 and first.info == {}
    if first.width * first.height > 10**7:
        return  # read once is enough: each reading takes seconds
    for other in (first, path.read_bytes(), io.BytesIO(path.read_bytes())):
        np.testing.assert_array_equal(np.asarray(read_image(other)), np.asarray(first))
    np.testing.assert_array_equal(np.asarray(image_captioning.upright_rgb(path)), np.asarray(first))
    processed = CaptioningImageProcessorFast()(str(path))["pixel_values"]
    assert np.isfinite(np.asarray(processed)).all()
    rows = with_allowed_formats(Dataset.from_dict({"image": [str(path)]}).cast_column("image", Image()))
    try:
        decoded = rows[0]["image"]
    except ValueError as error:
        raise AssertionError(f"a row of a data set is refused that read_image accepts ({error})") from error
    np.testing.assert_array_equal(np.asarray(read_image(decoded)), np.asarray(first))


def chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """Return the chunks of a PNG, as far as they can be told."""
    found, place = [], len(PNG_HEADER)
    while place + 8 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        if length > len(content):
            break
        found.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    return found


def png_of(parts: list[tuple[bytes, bytes]]) -> bytes:
    """Return a PNG of chunks, with right checksums."""
    return PNG_HEADER + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def with_checksums(content: bytes) -> bytes:
    """Return a PNG with the checksums that its chunks should have."""
    return png_of(chunks(content))


def png_header(width: int, height: int, bits: int, colour: int, interlaced: int = 0) -> tuple[bytes, bytes]:
    """Return the first chunk of a PNG."""
    return b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)


def large_png(rng: random.Random) -> tuple[str, bytes]:
    """A small file of many pixels, within the limit or above it."""
    side = rng.choice((3_000, 8_000, 12_000, 13_300, 14_000, 30_000, 65_535))
    bits, colour = rng.choice(((1, 0), (8, 0), (1, 3), (8, 2)))
    row = bytes(1 + (side * bits * (3 if colour == 2 else 1) + 7) // 8)
    rows = side if side < 14_000 else 10
    packer, parts = zlib.compressobj(1), []
    for _ in range(rows):
        parts.append(packer.compress(row))
    data = b"".join(parts) + packer.flush()
    palette = [(b"PLTE", bytes(6))] if colour == 3 else []
    content = png_of([png_header(side, side, bits, colour), *palette, (b"IDAT", data), (b"IEND", b"")])
    return f"PNG of {side} x {side}", content


def other_formats(rng: random.Random) -> tuple[str, bytes]:
    """Formats that are not read, of which some start programs."""
    base = PIL.Image.new("RGB", (16, 16), "red")
    files = {
        "PostScript": POSTSCRIPT,
        "PostScript for DOS": b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, len(POSTSCRIPT)) + bytes(18) + POSTSCRIPT,
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "MVG": b"push graphic-context\nfill 'url(https://127.0.0.1:9/x|touch executed)'\npop graphic-context\n",
        "HTML": b"<html><script>alert(1)</script></html>",
        "XBM": b"#define a_width 9999999\n#define a_height 9999999\nstatic char a_bits[] = {0};",
        "HEIC": b"\0\0\0\x18ftypheic" + bytes(40),
        "shell": b"#!/bin/sh\ntouch executed\n",
        "Python": b"import os\nopen('executed', 'w')\n",
        "empty": b"",
    }
    for form in ("ICO", "TGA", "PCX", "SGI", "PDF", "ICNS", "IM", "MSP", "EPS", "DDS", "QOI"):
        files[form] = encoded(base.convert("1") if form == "MSP" else base, form)
    name = rng.choice(list(files))
    return name, files[name]


def text_chunks(rng: random.Random) -> tuple[str, bytes]:
    """A PNG with compressed text or a colour profile that is large when decompressed."""
    size = rng.choice((2**10, 2**20, 2**26))
    packed = zlib.compress(bytes(size))
    kind = rng.choice(((b"zTXt", b"Comment\0\0"), (b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0"), (b"iCCP", b"icc\0\0")))
    parts = chunks(encoded(PIL.Image.new("RGB", (9, 9)), "PNG"))
    parts[1:1] = [(kind[0], kind[1] + packed)] * rng.choice((1, 1, 40))
    return f"PNG with {kind[0].decode()} of {size:,} bytes", png_of(parts)


def random_exif(rng: random.Random) -> tuple[str, bytes]:
    """Random entries of EXIF data."""
    entries = b"".join(
        struct.pack(
            "<HHII",
            rng.choice((0x112, 0x8769, 0x8825, 0x14A, 0x111, rng.randrange(2**16))),
            rng.randrange(14),
            rng.choice((0, 1, 2, 2**31, rng.randrange(2**32))),
            rng.choice((1, 3, 6, 8, 9, 26, 2**32 - 1, rng.randrange(2**32))),
        )
        for _ in range(rng.randint(0, 6))
    )
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", rng.choice((1, 3, 6, 65535))) + entries + bytes(4)
    form = rng.choice(("JPEG", "PNG", "WEBP", "AVIF"))
    return f"{form} with random EXIF", encoded(PIL.Image.new("RGB", (20, 10), "blue"), form, exif=exif)


def odd_sides(rng: random.Random) -> tuple[str, bytes]:
    """Images of unusual shapes and values."""
    form = rng.choice(("PNG", "TIFF", "PPM", "BMP"))
    sides = rng.choice(((1, 1), (1, 20_000), (20_000, 1), (2, 3), (3, 400)))
    values = np.zeros(sides, rng.choice((np.uint8, np.bool_)))
    if form == "TIFF" and rng.random() < 0.6:
        values = np.full(sides, rng.choice((np.nan, np.inf, -1, 0.5, 70_000, 255.5)), np.float32)
    return f"{form} of {sides[1]} x {sides[0]}", encoded(PIL.Image.fromarray(values), form)


def large_headers(rng: random.Random) -> tuple[str, bytes]:
    """Small files that declare many pixels."""
    side = rng.choice((10_000, 13_000, 30_000, 65_535, 2**31 - 1))
    files = {
        "PPM": b"P6 %d %d 255\n" % (side, side),
        "PGM in text": b"P2 %d %d 255\n1 2 3" % (side, side),
        "PFM": b"Pf\n%d %d\n-1.0\n" % (side, side),
        "GIF": b"GIF89a" + struct.pack("<HH", side % 65536, side % 65536) + b"\x80\0\0" + bytes(6) + b",;",
        "BMP": b"BM" + struct.pack("<IHHIIiiHHII", 54, 0, 0, 54, 40, side, side, 1, 24, 0, 0) + bytes(16),
        "BMP, compressed": b"BM" + struct.pack("<IHHIIiiHHII", 54, 0, 0, 54, 40, side, side, 1, 8, 1, 0) + bytes(99),
    }
    jpeg = encoded(PIL.Image.new("RGB", (16, 16)), "JPEG")
    at = jpeg.index(b"\xff\xc0") + 5
    files["JPEG"] = jpeg[:at] + struct.pack(">HH", side % 65536, side % 65536) + jpeg[at + 4 :]
    tiff = encoded(PIL.Image.new("RGB", (16, 16)), "TIFF", compression=rng.choice((None, "tiff_lzw")))
    files["TIFF"] = tiff.replace(struct.pack("<HHII", 256, 4, 1, 16), struct.pack("<HHII", 256, 4, 1, side)).replace(
        struct.pack("<HHII", 257, 4, 1, 16), struct.pack("<HHII", 257, 4, 1, side)
    )
    name = rng.choice(list(files))
    return f"{name} that declares a side of {side:,}", files[name]


HOSTILE = (large_png, other_formats, text_chunks, random_exif, odd_sides, large_headers, large_headers)

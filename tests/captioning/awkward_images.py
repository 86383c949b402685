"""Thirty images that many programs decode wrongly or crash on."""

import io
import zlib
from pathlib import Path

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageSequence


def bomb() -> bytes:
    """Return a PNG of few bytes that claims to have 40,000 x 40,000 pixels."""
    file = io.BytesIO()
    PIL.Image.new("1", (16, 16)).save(file, "PNG")
    content = file.getvalue()
    header = b"IHDR" + 2 * (40_000).to_bytes(4) + content[24:29]
    return content[:12] + header + zlib.crc32(header).to_bytes(4) + content[33:]


def write_awkward_images(folder: Path) -> list[str]:
    """Write the images into a folder; return the names of the unreadable ones."""
    colours = np.random.default_rng(1).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    photo = PIL.Image.fromarray(colours).resize((90, 60), PIL.Image.Resampling.BILINEAR)
    for turn in range(1, 9):
        exif = PIL.Image.Exif()
        exif[PIL.ExifTags.Base.Orientation] = turn
        photo.save(folder / f"turned_{turn}.jpg", exif=exif)
    for mode in ("CMYK", "L"):
        photo.convert(mode).save(folder / f"mode_{mode}.jpg")
    for mode in ("1", "LA", "P", "RGBA"):
        photo.convert(mode).save(folder / f"mode_{mode}.png")
    photo.convert("P").save(folder / "transparent.png", transparency=3)
    grey = np.asarray(photo.convert("L"))
    PIL.Image.fromarray(grey.astype(np.uint16) * 257).save(folder / "deep.png")
    PIL.Image.fromarray(grey.astype(np.float32) / 255).save(folder / "float.tiff")
    frames = [photo.rotate(90 * turn) for turn in range(3)]
    for ending in ("gif", "webp"):
        photo.save(folder / f"animated.{ending}", save_all=True, append_images=frames[1:])
    photo.save(folder / "progressive.jpg", progressive=True)
    photo.save(folder / "strips.tiff", compression="tiff_lzw")
    photo.save(folder / "plain.ppm")
    photo.resize((400, 1)).save(folder / "thin.png")
    whole = (folder / "turned_1.jpg").read_bytes()
    (folder / "damaged_exif.jpg").write_bytes(whole.replace(b"Exif\0\0", b"Exif\0\0\xff\xff\xff", 1))
    (folder / "ending.jpg").write_bytes((folder / "plain.ppm").read_bytes())  # a different format than its name says
    bad = {
        "truncated.jpg": whole[: len(whole) // 2],
        "truncated.png": (folder / "mode_RGBA.png").read_bytes()[:300],
        "empty.png": b"",
        "text.jpg": b"this is no image",
        "bomb.png": bomb(),
    }
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    return sorted(bad)

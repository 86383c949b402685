"""Reader of bottom-up features in their original format: TSV with base64 (Anderson et al., CVPR 2018).

Two layouts are distinguished by the number of columns: the original (`image_id, image_w, image_h, num_boxes, boxes,
features`) and LXMERT's (`img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes,
features`, height before width). Boxes are in pixels of the original image.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import mmap
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hf_captioners.features.region_source import MAX_NUMBERS, Regions, RegionSource, normalised

ORIGINAL = {"id": 0, "width": 1, "height": 2, "count": 3, "boxes": 4, "features": 5}
LXMERT = {"id": 0, "width": 2, "height": 1, "count": 7, "boxes": 8, "features": 9}
LAYOUTS = {6: ORIGINAL, 10: LXMERT}
NUMBERS = ("width", "height", "count")
LONGEST_ID = 64  # bytes
SHORTEST_RECORD = 20  # bytes: a box alone has 24 characters
GZIP_FLOOR, GZIP_RATIO = 64 * 2**20, 32
TEXT = re.compile(rb"[^\r\n]")


class BottomUpTsv(RegionSource):
    """Reader of TSV files of bottom-up features, which looks records up by their offset.

    Merged files repeat records; `repeated` counts these.

    Args:
        paths: one file or several parts (`.tsv`, `.tsv.0`, ...; `.gz` is decompressed into a temporary file).
        max_numbers: largest number of features of one image (R x D); longer records are refused before they are
            decoded.
        gzip_limit: largest size of a decompressed file in bytes. Default: 64 MiB, or 32 times the compressed size if
            that is more.

    Raises:
        ValueError: a file is damaged, or an image occurs twice with different contents. A record with a different
            number of columns, or that cannot be decoded, is refused when it is read.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        max_numbers: int = MAX_NUMBERS,
        gzip_limit: int | None = None,
    ) -> None:
        files = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
        self.name = ", ".join(map(str, files))
        self.repeated = 0
        self._files = files
        self.max_numbers, self.gzip_limit = max_numbers, gzip_limit
        self._contents = [_content(path, gzip_limit) for path in files]
        self._places: dict[str, tuple[int, int, int]] = {}
        for number, (path, content) in enumerate(zip(files, self._contents, strict=True)):
            for line, start, stop in _lines(content):
                self._note(path, line, (number, start, stop))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the mapped contents, which the receiving process maps again."""
        return {name: value for name, value in self.__dict__.items() if name != "_contents"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _contents=[_content(path, state["gzip_limit"]) for path in state["_files"]])

    def _note(self, path: Path, line: int, place: tuple[int, int, int]) -> None:
        number, start, stop = place
        name, *fields = self._contents[number][start : min(stop, start + LONGEST_ID)].split(b"\t", 1)
        try:
            image_id = name.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{line}: the image id {name!r:.60} is not UTF-8.") from error
        if not image_id or not fields or stop - start < SHORTEST_RECORD:
            raise ValueError(
                f"{path}:{line}: the line begins with {name!r:.60}, expected an image id, a tab and the other columns "
                "of a record."
            )
        earlier = self._places.setdefault(image_id, place)
        if earlier is place:
            return
        if self._line(earlier) != self._line(place):
            raise ValueError(f"{path}:{line}: the image {image_id} occurs twice with different regions.")
        self.repeated += 1

    def _line(self, place: tuple[int, int, int]) -> bytes:
        number, start, stop = place
        return self._contents[number][start:stop].rstrip(b"\r\n")

    def ids(self) -> Mapping[str, tuple[int, int, int]]:
        """Return the image ids with the offsets of their records."""
        return self._places

    def regions(self, image_id: str) -> Regions:
        """Decode the record of an image."""
        fields = self._line(self._places[image_id]).split(b"\t")
        if len(fields) not in LAYOUTS:
            raise ValueError(
                f"The record of {image_id} in {self.name} has {len(fields)} columns; expected 6 (the original layout) "
                "or 10 (LXMERT's)."
            )
        layout = LAYOUTS[len(fields)]
        width, height, count = (self._number(fields[layout[name]], name, image_id) for name in NUMBERS)
        boxes = self._array(fields[layout["boxes"]], image_id, count)
        if boxes.shape[1:] != (4,):
            raise ValueError(f"The boxes of {image_id} in {self.name} have the shape {boxes.shape}; expected [R, 4].")
        features = self._array(fields[layout["features"]], image_id, count)
        return Regions(features, normalised(boxes, (width, height)))

    def _number(self, text: bytes, name: str, image_id: str) -> int:
        if not re.fullmatch(rb" *0*[1-9][0-9]{0,8} *", text):
            raise ValueError(
                f"The {name} of {image_id} in {self.name} is {text!r:.60}; expected a positive whole number."
            )
        return int(text)

    def _array(self, text: bytes, image_id: str, rows: int) -> np.ndarray:
        if len(text) // 16 * 3 > self.max_numbers:  # 4 characters of base64 are 3 bytes, 4 bytes are a number
            raise ValueError(
                f"The record of {image_id} in {self.name} has about {len(text) // 16 * 3:,} numbers in one column; at "
                f"most {self.max_numbers:,} are read. If the file is right, open it with a larger max_numbers=..."
            )
        try:
            flat = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")
            return flat.reshape(rows, -1).astype(np.float32)  # a copy: frombuffer returns a read-only array
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"The record of {image_id} in {self.name} cannot be decoded: {error}.") from error


def _content(path: Path, gzip_limit: int | None) -> bytes | mmap.mmap:
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not size:
            raise ValueError(f"{path} is empty, expected a record per line.")
        if path.suffix != ".gz":
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        limit = max(GZIP_FLOOR, GZIP_RATIO * size) if gzip_limit is None else gzip_limit
        return _decompressed(path, stream, limit)


def _decompressed(path: Path, stream: BinaryIO, limit: int) -> bytes | mmap.mmap:
    """Decompress a gzip file, up to a limit, into an anonymous temporary file, and map it."""
    with tempfile.TemporaryFile() as target:
        try:
            with gzip.GzipFile(fileobj=stream) as source:
                while piece := source.read(2**20):
                    if target.tell() + len(piece) > limit:
                        raise ValueError(f"it has more than {limit:,} bytes when decompressed")
                    target.write(piece)
        except (ValueError, EOFError, OSError, zlib.error) as error:
            raise ValueError(
                f"{path} cannot be decompressed: {error}. If the file is right, decompress it with `gunzip`, or open "
                "it with a larger gzip_limit=..."
            ) from error
        target.flush()
        if not target.tell():
            raise ValueError(f"{path} is empty, expected a record per line.")
        return mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_READ)


def _lines(content: bytes | mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Yield line number, start and end offset of each line that is not empty."""
    line = 1
    start = 3 if content[:3] == b"\xef\xbb\xbf" else 0  # a byte order mark is no part of the first id
    while match := TEXT.search(content, start):
        line += content[start : match.start()].count(b"\n")
        stop = content.find(b"\n", match.start())
        stop = len(content) if stop < 0 else stop
        yield line, match.start(), stop
        start = stop

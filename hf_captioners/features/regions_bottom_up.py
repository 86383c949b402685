"""Bottom-up features in their original format: TSV with base64 (Anderson et al., CVPR 2018).

Two layouts are distinguished by the number of columns: the original (`image_id, image_w, image_h, num_boxes, boxes,
features`) and LXMERT's (`img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes,
features`, height before width). Boxes are in pixels of the original image.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .region_source import Regions, RegionSource, normalised

ORIGINAL = {"id": 0, "width": 1, "height": 2, "count": 3, "boxes": 4, "features": 5}
LXMERT = {"id": 0, "width": 2, "height": 1, "count": 7, "boxes": 8, "features": 9}
LAYOUTS = {6: ORIGINAL, 10: LXMERT}


class BottomUpTsv(RegionSource):
    """Reader of TSV files, by the offset of each record.

    Merged files repeat records; `repeated` counts these.

    Args:
        paths: one file or several parts (`.tsv`, `.tsv.0`, ...; `.gz` is decompressed into memory).

    Raises:
        ValueError: a line has a different number of columns, or an image occurs twice with different contents.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]) -> None:
        files = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
        self.name = ", ".join(map(str, files))
        self.repeated = 0
        self._files = files
        self._contents = [_content(path) for path in files]
        self._places: dict[str, tuple[int, int, int]] = {}
        for number, (path, content) in enumerate(zip(files, self._contents, strict=True)):
            for line, (start, stop) in enumerate(_lines(content), 1):
                self._note(path, line, (number, start, stop))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the contents, which the receiving process maps again."""
        return {name: value for name, value in self.__dict__.items() if name != "_contents"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _contents=[_content(path) for path in state["_files"]])

    def _note(self, path: Path, line: int, place: tuple[int, int, int]) -> None:
        number, start, stop = place
        head = self._contents[number][start : min(stop, start + 64)]
        image_id = head.split(b"\t", 1)[0].decode()
        known = self._places.setdefault(image_id, place)
        if known is place:
            return
        if self._line(known) != self._line(place):
            raise ValueError(f"{path}:{line}: the image {image_id} occurs twice with different regions.")
        self.repeated += 1

    def _line(self, place: tuple[int, int, int]) -> bytes:
        number, start, stop = place
        return self._contents[number][start:stop].rstrip(b"\r\n")

    def ids(self) -> Mapping[str, tuple[int, int, int]]:
        """Return the ids with the positions of their records."""
        return self._places

    def regions(self, image_id: str) -> Regions:
        """Decode a record."""
        fields = self._line(self._places[image_id]).split(b"\t")
        if len(fields) not in LAYOUTS:
            raise ValueError(
                f"The record of {image_id} in {self.name} has {len(fields)} columns; expected 6 (the original layout) "
                "or 10 (LXMERT's)."
            )
        layout = LAYOUTS[len(fields)]
        width, height, count = (int(fields[layout[name]]) for name in ("width", "height", "count"))
        boxes = self._array(fields[layout["boxes"]], image_id, count)
        if boxes.shape[1:] != (4,):
            raise ValueError(f"The boxes of {image_id} in {self.name} have the shape {boxes.shape}; expected [R, 4].")
        features = self._array(fields[layout["features"]], image_id, count)
        return Regions(features, normalised(boxes, (width, height)))

    def _array(self, text: bytes, image_id: str, rows: int) -> np.ndarray:
        try:
            flat = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")
            return flat.reshape(rows, -1).astype(np.float32)  # a copy: frombuffer returns a read-only array
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"The record of {image_id} in {self.name} cannot be decoded: {error}.") from error


def _content(path: Path) -> bytes | mmap.mmap:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    with open(path, "rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _lines(content: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(content):
        stop = content.find(b"\n", start)
        stop = len(content) if stop < 0 else stop
        if content[start : start + 2].strip():
            yield start, stop
        start = stop + 1

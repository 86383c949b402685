"""Shard of a feature store, whose header is checked against the file before the numbers are mapped."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_captioners.output_files import UnsafeFileError, open_plain

TORCH_KINDS = {"F32": torch.float32, "F16": torch.float16, "I8": torch.int8, "I64": torch.int64}
CODES = {"float32": "F32", "float16": "F16", "int8": "I8"}
ARRAYS = ("features", "boxes", "scores", "views", "scales", "counts")
ADVICE = "Delete this file and extract its images again; the other shards are kept."


class StoredShard:
    """Shard of a feature store, mapped into memory.

    Args:
        path: the file.

    Raises:
        ValueError: the header does not fit the file, or its arrays do not fit each other.

    Attributes:
        ids: the P images.
        tensors, arrays: `features` [N, D], `counts` [P], and `boxes` [N, 4], `scores` [N], `views` [N], `scales` [N]
            if stored.
        counts: regions per image [P].
        starts: first row of each image [P].
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        header, start = self._header()
        self.ids = self._read_ids(header.pop("__metadata__", None))
        self._check_entries(header, path.stat().st_size - start, start)
        # A private mapping: writing to it changes a copy, never the file.
        mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)[start:]
        self.tensors: dict[str, Tensor] = {
            name: mapped[slice(*entry["data_offsets"])].view(TORCH_KINDS[entry["dtype"]]).view(entry["shape"])
            for name, entry in header.items()
        }
        self.arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        for array in self.arrays.values():
            array.flags.writeable = False
        self._check_counts()
        self.counts = self.arrays["counts"]
        self.starts = np.cumsum(self.counts) - self.counts

    def require(self, feature_size: int, kind: str, boxes: bool, scores: bool) -> None:
        """Check the shard's data type, feature size and arrays against the store's description.

        Raises:
            ValueError: the data type or size of the features differs, or an array is missing or left over.
        """
        features = self.tensors["features"]
        if features.dtype is not TORCH_KINDS[CODES[kind]]:
            raise self._damaged(f"`features` are {features.dtype}, store.json says {kind}")
        if features.shape[1] != feature_size:
            raise self._damaged(f"`features` have {features.shape[1]} columns, store.json says {feature_size}")
        wanted = {"boxes": boxes, "scores": scores, "scales": kind == "int8"}
        for name, expected in wanted.items():
            if (name in self.tensors) != expected:
                raise self._damaged(f"`{name}` are {'missing' if expected else 'stored'}, which store.json rules out")

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"{self.path} is damaged: {what}. {ADVICE}")

    def _header(self) -> tuple[dict[str, Any], int]:
        """Return the header and the offset of the first number."""
        try:
            stream = open_plain(self.path)
        except UnsafeFileError:
            raise
        except OSError as error:
            raise self._damaged(f"it cannot be opened ({error.strerror})") from error
        with stream:
            length, size = stream.read(8), os.fstat(stream.fileno()).st_size
            stated = int.from_bytes(length, "little")
            if len(length) < 8 or stated > size - 8:
                raise self._damaged(f"the file has {size:,} bytes, its header alone is stated as {stated:,}")
            text = stream.read(stated)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"its header cannot be read ({error})") from error
        if not isinstance(header, dict):
            raise self._damaged(f"its header is a {type(header).__name__}, expected an object")
        return header, 8 + stated

    def _read_ids(self, metadata: Any) -> list[str]:
        try:
            ids = json.loads(metadata["ids"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged(f"the image ids in its header cannot be read ({error!r:.200})") from error
        if not isinstance(ids, list) or not all(isinstance(image_id, str) for image_id in ids):
            raise self._damaged("the image ids in its header are no list of texts")
        return ids

    def _check_entries(self, header: dict[str, Any], size: int, start: int) -> None:
        """Check that the arrays have valid names and types, follow each other and fill the file."""
        for name, entry in header.items():
            if name not in ARRAYS:
                raise self._damaged(f"it has the array {name!r:.60}, expected {', '.join(ARRAYS)}")
            self._check_entry(name, entry, start)
        for name in ("features", "counts"):
            if name not in header:
                raise self._damaged(f"it has no array `{name}`")
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            if first != end:
                raise self._damaged(
                    f"`{name}` begins at byte {first:,}, expected {end:,}: arrays overlap or have gaps"
                )
            end = last
        if end != size:
            raise self._damaged(f"its arrays need {end:,} bytes, the file has {size:,}")
        self._check_shapes({name: tuple(entry["shape"]) for name, entry in header.items()})

    def _check_entry(self, name: str, entry: Any, start: int) -> None:
        try:
            kind, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
            item = TORCH_KINDS[kind].itemsize
            whole = all(type(number) is int and number >= 0 for number in (*shape, first, last))
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"the description of `{name}` cannot be read ({error!r:.200})") from error
        if not whole or last - first != math.prod(shape) * item:
            raise self._damaged(f"`{name}` of the shape {shape} and type {kind} is stated at bytes {first} to {last}")
        if (start + first) % item:
            raise self._damaged(f"`{name}` begins at byte {start + first}, which is no multiple of {item}")
        expected = {"features": tuple(CODES.values()), "counts": ("I64",), "views": ("I64",)}.get(name, ("F32",))
        if kind not in expected:
            raise self._damaged(f"`{name}` has the type {kind}, expected {' or '.join(expected)}")

    def _check_shapes(self, shapes: dict[str, tuple[int, ...]]) -> None:
        rows = shapes["features"][0] if len(shapes["features"]) == 2 else -1
        expected = {
            "features": (rows, *shapes["features"][1:]),
            "boxes": (rows, 4),
            "scores": (rows,),
            "views": (rows,),
            "scales": (rows,),
            "counts": (len(self.ids),),
        }
        for name, shape in shapes.items():
            if shape != expected[name]:
                raise self._damaged(
                    f"`{name}` has the shape {list(shape)} with {len(self.ids)} images and `features` of "
                    f"{list(shapes['features'])}"
                )

    def _check_counts(self) -> None:
        """Check that every image has regions, and that the counts add up to all rows."""
        counts, rows = self.arrays["counts"], len(self.arrays["features"])
        for position in np.flatnonzero((counts < 1) | (counts > rows))[:1]:
            raise self._damaged(f"the image {self.ids[position]!r:.80} has {counts[position]} regions of {rows} rows")
        if counts.sum() != rows:  # no overflow: no count is above the rows, and both are bounded by the file
            raise self._damaged(f"`counts` add up to {counts.sum()}, `features` have {rows} rows")

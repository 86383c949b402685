"""Digests of a captioner's weights and tokenizer, independent of file names."""

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

EXPORT_FACTS = "captioner.json"  # of a folder that `hf-captioners export` wrote
TOKENIZER = "tokenizer.json"
OTHER_TOKENIZERS = (
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
SETTINGS_OF_A_CALL = ("truncation", "padding")  # of tokenizer.json, which calls change
MAX_HEADER_BYTES = 2**27
CHUNK = 2**22


def captioner_digest(folder: Path) -> str:
    """Return a digest of a captioner's weights and tokenizer.

    Tensors count by name, type, shape and bytes, so that a checkpoint in one file and in several has the same digest.
    An exported captioner without `model.safetensors` has the digest of its graphs and tokenizer.

    Args:
        folder: directory of the captioner.

    Raises:
        FileNotFoundError: it has neither weights in safetensors nor graphs.
        ValueError: a file is damaged.
    """
    weights = sorted(folder.glob("*.safetensors"))
    total = hashlib.sha256()
    if weights:
        for name, description, digest in sorted(entry for path in weights for entry in _tensors(path)):
            total.update(f"{name} {description} {digest}\n".encode())
    elif (folder / EXPORT_FACTS).is_file():
        files = _json(folder / EXPORT_FACTS).get("files")
        if not isinstance(files, dict):
            raise ValueError(f"{folder / EXPORT_FACTS} does not list its files. Export the captioner again.")
        for name in sorted(set(files) - {TOKENIZER}):
            total.update(f"{name} {_file_digest(folder / name)}\n".encode())
    else:
        raise FileNotFoundError(
            f"{folder} has no weights (*.safetensors) and no graphs ({EXPORT_FACTS}), of which a calibration could be."
        )
    for line in _tokenizer_lines(folder):
        total.update(line.encode())
    return total.hexdigest()


def _tensors(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, type with shape, and digest of the bytes of each tensor in a file.

    Raises:
        ValueError: it is no such file, or it is cut off.
    """
    with open(path, "rb") as file:
        try:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size:,} bytes")
            header = json.loads(file.read(size))
            places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
            for name, (first, last) in places.items():
                digest = _digest_of(file, 8 + size + int(first), int(last) - int(first))
                yield name, json.dumps([header[name]["dtype"], header[name]["shape"]]), digest
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error}). Download or copy it again.") from error


def _digest_of(file: BinaryIO, place: int, size: int) -> str:
    """Return the digest of a byte range of a file."""
    file.seek(place)
    digest = hashlib.sha256()
    while size > 0:
        piece = file.read(min(CHUNK, size))
        if not piece:
            raise ValueError("it ends before its last tensor")
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tokenizer_lines(folder: Path) -> Iterator[str]:
    """Yield text lines that differ between different tokenizers."""
    path = folder / TOKENIZER
    if path.is_file():
        values = _json(path)
        kept = {name: value for name, value in values.items() if name not in SETTINGS_OF_A_CALL}
        yield f"{TOKENIZER} {json.dumps(kept, sort_keys=True)}\n"
        return
    for name in OTHER_TOKENIZERS:
        if (folder / name).is_file():
            yield f"{name} {_file_digest(folder / name)}\n"


def _json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ValueError: it is none.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}). Download or copy it again.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is a {type(values).__name__}, expected an object. Download or copy it again.")
    return values

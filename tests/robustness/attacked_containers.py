"""Parquet and Arrow files that are damaged, or small and expand to gigabytes."""

import io
import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet

from hf_captioners.data.containers import located, names_in
from hf_captioners.metrics.caption_files import read_captions
from hf_captioners.processing.image_reading import read_image

from .isolated import Attempt
from .mutators import mutated

LARGE = 2**28  # bytes of a value that compresses to some kilobytes
READ = 12  # images of a file
REPEATS = {"repeated": 20, "repeated captions": 100}  # row groups of files that expand


def write_containers(material: Any) -> dict[str, bytes]:
    """Write Parquet files of images and of captions, once: whole ones, and ones that expand to gigabytes."""
    if "containers" in material.kept:
        return material.kept["containers"]
    image = (material.images / "scene_000.png").read_bytes()
    zeros = bytes(LARGE)
    tables = {
        "whole": {"image": [image] * 6},
        "structs": {"image": [{"bytes": image, "path": "x.png"}] * 6},
        "one large": {"image": [image, zeros, image]},
        "many large": {"image": [image] + [zeros] * 5},
        "repeated": {"image": [image + bytes(2**22)] * 50},
        "million rows": {"image": [image] * 10**6},
        "without values": {"image": pyarrow.array([None] * 10**6, pyarrow.binary())},
        "captions": {"file_name": ["a.png", "b.png"], "caption": ["a dog", "a cat"]},
        "large captions": {"file_name": ["a.png", "b.png"], "caption": ["a dog", "x " * 2**26]},
        "repeated captions": {"file_name": ["a.png"] * 50, "caption": ["x " * 2**20] * 50},
    }
    files = {}
    for name, columns in tables.items():
        stream = io.BytesIO()
        table = pyarrow.table(columns)
        options: dict[str, Any] = {"compression": "zstd", "dictionary_pagesize_limit": 2**30}
        with pyarrow.parquet.ParquetWriter(stream, table.schema, **options) as writer:
            for _ in range(REPEATS.get(name, 1)):  # a part at a time: whole tables would take 10 GB here
                writer.write_table(table)
        files[name] = stream.getvalue()
    material.kept["compressed streams"] = compressed_streams(image)
    return material.kept.setdefault("containers", files)


def compressed_streams(image: bytes) -> list[bytes]:
    """Return streams of Arrow whose record batches are compressed, some of which expand to a large value."""
    streams = []
    for size in (2**20, LARGE):
        table = pyarrow.table({"image": [image, bytes(size)]})
        for codec in ("zstd", "lz4"):
            stream = io.BytesIO()
            with pyarrow.ipc.new_stream(
                stream, table.schema, options=pyarrow.ipc.IpcWriteOptions(compression=codec)
            ) as writer:
                writer.write_table(table)
            streams.append(stream.getvalue())
    return streams


def saved_data_set(image: bytes, compressed: list[bytes], folder: Path, rng: random.Random) -> str:
    """Save a data set as `datasets` does, and damage its files or compress one."""
    datasets.Dataset.from_dict({"image": [image] * 4}).save_to_disk(str(folder))
    kind = rng.choice(("compressed", "compressed", "bytes", "JSON", "sizes"))
    (arrow,) = folder.glob("*.arrow")
    if kind == "compressed":
        arrow.write_bytes(rng.choice(compressed))
    elif kind == "sizes":
        content = np.frombuffer(arrow.read_bytes(), np.uint8).copy()
        place = rng.randrange(0, min(1200, len(content) - 8), 8)
        content[place : place + 8] = np.frombuffer(rng.choice((2**31, 2**40, 2**62)).to_bytes(8, "little"), np.uint8)
        arrow.write_bytes(content.tobytes())
    else:
        path = arrow if kind == "bytes" else folder / rng.choice(("state.json", "dataset_info.json"))
        content, how = mutated(path.read_bytes(), rng)
        path.write_bytes(content)
        return f"{path.name}: {how}"
    return kind


def attack_container(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Read the images or captions of a container that is damaged or expands."""
    image = (material.images / "scene_000.png").read_bytes()
    if rng.random() < 0.3:
        path = folder / "saved"
        how = saved_data_set(image, material.kept["compressed streams"], path, rng)
        return Attempt(f"saved data set: {how}", lambda: read_images(path), (str(path),))
    name, content = rng.choice(list(write_containers(material).items()))
    how = "as it is"
    if rng.random() < 0.6:
        content, how = mutated(content, rng)
    path = folder / "x.parquet"
    path.write_bytes(content)
    if "captions" in name:
        return Attempt(f"{name}: {how}", lambda: read_captions(path), (str(path),))
    return Attempt(f"{name}: {how}", lambda: read_images(path), (str(path),))


def read_images(path: Path) -> None:
    """Read the first images of a container; an image that cannot be read is named."""
    faults = []
    for name in names_in(path)[:READ]:
        try:
            assert read_image(located(name)).size[0] > 0
        except (ValueError, OSError) as error:
            if str(path) not in str(error):
                raise
            faults.append(str(error))
    if faults:
        raise ValueError(faults[0])

"""Damaged and hostile feature files of every format, read image by image."""

import base64
import gzip
import json
import random
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hf_captioners.features.feature_store import FeatureStore, StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.formats import open_regions
from hf_captioners.features.region_source import Regions

from .isolated import Attempt
from .mutators import NUMBERS, mutated, mutated_json
from .outcomes import REFUSED, judge

SIZE = 8
NPY = b"\x93NUMPY"


def regions_of(count: int, seed: int = 0) -> Regions:
    """Return random regions."""
    rng = np.random.default_rng(seed)
    return Regions(rng.random((count, SIZE), np.float32), rng.random((count, 4), np.float32))


def coded(values: np.ndarray) -> str:
    """Return an array as base64."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def record(image_id: str, count: int) -> str:
    """Return a line of a TSV file."""
    found = regions_of(count)
    boxes = np.ones((count, 4)) if found.boxes is None else found.boxes * 10
    return "\t".join([image_id, "10", "10", str(count), coded(boxes), coded(found.features)])


def lxmert_record(image_id: str, count: int) -> str:
    """Return a line of LXMERT's layout."""
    ids = coded(np.zeros(count))
    return "\t".join([image_id, "10", "10", ids, ids, ids, ids, str(count), *record(image_id, count).split("\t")[4:]])


def write_features(material: Any) -> Path:
    """Write whole features of every format into folders, once."""
    whole, root = material.root / "features", material.root / "features.partial"
    if whole.exists():
        return whole
    shutil.rmtree(root, ignore_errors=True)
    for kind in ("float32", "float16", "int8"):
        with FeatureStoreWriter(root / f"store_{kind}", StoreDescription("x", "1", SIZE, kind)) as writer:
            for count in (3, 5, 7):
                writer.add(f"image{count}", regions_of(count))
    for name in ("npy", "npz", "packed"):
        (root / name).mkdir()
        for count in (3, 5):
            values, path = regions_of(count).features, root / name / f"{count}.{'npy' if name == 'npy' else 'npz'}"
            if name == "npy":
                np.save(path, values)
            elif name == "npz":
                np.savez(path, feat=values, other=np.zeros(3))
            else:
                np.savez_compressed(path, feat=values.reshape(1, *values.shape))
    for name, filters in (("hdf5", {}), ("hdf5_packed", {"compression": "gzip", "shuffle": True, "fletcher32": True})):
        (root / name).mkdir()
        with h5py.File(root / name / "x.hdf5", "w") as file:
            for count in (3, 5):
                found = regions_of(count)
                file.create_dataset(f"{count}_features", data=found.features, **filters)
                file.create_dataset(f"{count}_boxes", data=found.boxes, **filters)
                file[f"{count}_size"] = [10, 10]
    lines = "\n".join(record(str(count), count) for count in (3, 5, 7)) + "\n"
    for name, text in (("tsv", lines), ("lxmert", "\n".join(lxmert_record(str(count), count) for count in (3, 5)))):
        (root / name).mkdir()
        (root / name / "x.tsv").write_text(text)
    (root / "gz").mkdir()
    (root / "gz" / "x.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    return root.rename(whole)


def attack_features(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a feature file, or make a hostile one, and read the regions of every image."""
    root = write_features(material)
    name = rng.choice(sorted(path.name for path in root.iterdir()))
    shutil.copytree(root / name, folder, dirs_exist_ok=True)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    path = rng.choice(files)
    if name.startswith("hdf5") and rng.random() < 0.25:
        how = hostile_hdf5(path, rng)
    elif name.startswith("np") and rng.random() < 0.1:
        how = npz_bomb(folder / "bomb.npz", rng)
    else:
        others = [file.read_bytes() for file in root.rglob("*") if file.is_file()]
        content, how = changed_features(path, rng, others)
        path.write_bytes(content)
    if name in ("tsv", "lxmert", "gz") or name.startswith("hdf5"):
        source = path
    else:
        source = folder
    return Attempt(f"{name}/{path.name}: {how}", lambda: read_regions(source), (str(source),))


def changed_features(path: Path, rng: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    """Change bytes, or declared sizes and types."""
    content = path.read_bytes()
    if rng.random() < 0.45:
        return mutated(content, rng, others)
    if path.suffix == ".safetensors":
        length = int.from_bytes(content[:8], "little")
        text, how = mutated_json(json.loads(content[8 : 8 + length]), rng)
        header = text.encode("utf-8", "surrogatepass")
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + content[8 + length :], f"header: {how}"
    if path.suffix == ".json":
        text, how = mutated_json(json.loads(content), rng)
        return text.encode("utf-8", "surrogatepass"), how
    if path.suffix == ".npy":
        return odd_npy(content, rng)
    if path.suffix == ".npz":
        values = odd_array(rng)
        with zipfile.ZipFile(
            path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
        ) as z:
            z.writestr(rng.choice(("feat.npy", "z.npy", "feat", "../feat.npy", "x.npy")), values[0])
        return path.read_bytes(), values[1]
    if path.suffix == ".tsv":
        lines = content.split(b"\n")
        place = rng.randrange(len(lines))
        cells = lines[place].split(b"\t")
        values = np.float32(rng.choice((np.nan, np.inf, 1e38, -1, 0))) * np.ones(
            rng.choice((0, 1, 12, 24)), np.float32
        )
        value = rng.choice((b"", b"0", b"-1", b"1e9", b"9" * 5000, b"\xff", coded(values).encode()))
        cells[rng.randrange(len(cells))] = value
        lines[place] = b"\t".join(cells)
        return b"\n".join(lines), f"line {place + 1}: {value[:20]!r}"
    return mutated(content, rng, others)


def odd_array(rng: random.Random) -> tuple[bytes, str]:
    """Return a `.npy` file with an odd type, shape or values."""
    shape = [rng.choice((0, 1, 2, 3, 8, *NUMBERS)) for _ in range(rng.randint(0, 4))]
    descr: Any = rng.choice(
        ("<f4", ">f8", "<f2", "|O", "<c8", "<M8[s]", "<U9", "|V8", "<i8", "<f16", [("a", "<f4")], "x", 7)
    )
    fields = {"descr": descr, "fortran_order": rng.choice((True, False, 1, None)), "shape": tuple(shape)}
    if rng.random() < 0.2:
        fields[rng.choice(("shape", "descr", "more"))] = rng.choice((None, (), (1e9,), ("3",), "__import__('os')"))
    text = repr(fields) if rng.random() < 0.9 else "__import__('os').system('touch executed')"
    head = text.encode().ljust(117) + b"\n"
    values = np.full(rng.choice((0, 8, 24, 200)), rng.choice((np.nan, np.inf, 1.0, 1e38)), np.float32)
    return NPY + b"\1\0" + struct.pack("<H", len(head)) + head + values.tobytes(), f"npy of {text[:80]}"


def odd_npy(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Return an odd array, or one that is pickled."""
    if rng.random() < 0.9:
        return odd_array(rng)
    return NPY + b"\1\0" + struct.pack("<H", 4) + b"{}\n\n" + content, "empty header"


def npz_bomb(path: Path, rng: random.Random) -> str:
    """Write an archive that decompresses to much more."""
    rows = rng.choice((2**15, 2**19, 2**22))
    head = repr({"descr": "<f4", "fortran_order": False, "shape": (rows, 8)}).encode().ljust(117) + b"\n"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("feat.npy", "w") as file,
    ):
        file.write(NPY + b"\1\0" + struct.pack("<H", len(head)) + head)
        for _ in range(rows // 2**15):
            file.write(bytes(2**20))
    return f"{rows * 32:,} bytes in an archive"


def hostile_hdf5(path: Path, rng: random.Random) -> str:
    """Replace the features of an image by something else."""
    shape = tuple(rng.choice((0, 1, 3, 8, 2**20, 2**31, 2**40)) for _ in range(rng.choice((0, 1, 2, 2, 2, 3))))
    kind = rng.choice(
        (
            "large",
            "large, packed",
            "external",
            "link",
            "soft link",
            "loop",
            "group",
            "texts",
            "NaN",
            "bomb",
            "inflating",
        )
    )
    with h5py.File(path, "a") as file:
        del file["3_features"]
        if kind == "large" or (kind == "large, packed" and not shape):
            file.create_dataset("3_features", shape, "f4", **({"chunks": True} if shape and all(shape) else {}))
        elif kind == "large, packed":
            sides = tuple(max(1, side) for side in shape)
            file.create_dataset(
                "3_features", sides, "f4", chunks=tuple(min(side, 2**10) for side in sides), compression=9
            )
        elif kind == "bomb":
            values = file.create_dataset("3_features", (2**21, 8), "f4", chunks=(2**14, 8), compression=1)
            for start in range(0, 2**21, 2**17):
                values[start : start + 2**17] = np.ones((2**17, 8), np.float32)
        elif kind == "inflating":  # a chunk that becomes more than its shape states
            values = file.create_dataset("3_features", (3, SIZE), "f4", chunks=(3, SIZE), compression=1)
            packed = zlib.compress(bytes(rng.choice((97, 2**20, 2**28))), 1)
            values.id.write_direct_chunk((0, 0), packed)
        elif kind == "external":
            file.create_dataset("3_features", (3, SIZE), "f4", external=[("/etc/passwd", 0, 3 * SIZE * 4)])
        elif kind == "link":
            file["3_features"] = h5py.ExternalLink("/etc/passwd", "x")
        elif kind in ("soft link", "loop"):
            file["3_features"] = h5py.SoftLink("/5_features" if kind == "soft link" else "/3_features")
        elif kind == "group":
            file.create_group("3_features")
        else:
            file["3_features"] = [[b"a"]] if kind == "texts" else np.full((3, SIZE), np.nan)
    return f"{kind} {shape}"


def read_regions(path: Path) -> None:
    """Read and check the regions of all images; raise the first error, or one that is not permitted."""
    refused: BaseException | None = None
    source = open_regions(path)
    if source is None:
        raise ValueError(f"{path} has none of the formats of features.")
    for image_id in source:
        try:
            found = source[image_id]
        except Exception as error:
            kind, _ = judge(error, (str(path),))
            if kind != REFUSED:
                raise
            refused = refused or error
            continue
        assert found.features.ndim == 2 and len(found.features) and np.isfinite(found.features).all()
        assert found.features.shape[1] == source.feature_size if refused is None else True
        assert found.boxes is None or np.isfinite(found.boxes).all()
        assert found.features.size <= 2**24, "more than the limit"
    if isinstance(source, FeatureStore) and refused is None and len(source):
        source.read_batch(list(source), 4)
    if refused is not None:
        raise refused

"""Hostile pickles inside whole checkpoints of the authors' programs, for every converter.

A file that has nothing but a hostile pickle is refused at its first bytes. Here the rest of the file is right, so that
the converter reads as far as the hostile instructions.
"""

import io
import os
import pickletools
import random
import shutil
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hf_captioners.cli import main
from hf_captioners.hub.convert.converting import list_converters
from tests.hub.released_folders import FOLDERS, family_of
from tests.parity.figures import Figures

from .attacked_pickles import bomb, harmful_pickle, text_argument
from .isolated import Attempt

HEADER = b"\x80"  # the first byte of a pickle of protocol 2 and above
FORMATS = {"zip": True, "sequence": False}


def write_released(material: Any) -> dict[str, tuple[Path, list[str]]]:
    """Write a checkpoint for every architecture and format; return its folder and the arguments of its conversion."""
    if "released" in material.kept:
        return material.kept["released"]
    released = {}
    for name in [*{family_of(name)[0]: name for name in FOLDERS}.values(), "show_attend_tell_arctic/soft_main"]:
        for form, is_new in FORMATS.items():
            folder = material.root / "released" / f"{name.replace('/', '-')}-{form}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            released[f"{name}, {form}"] = folder, family_of(name)[1](Figures.load(name), folder, is_new)
            (folder / "inputs.pt").unlink()
    assert {arguments[0] for _, arguments in released.values()} == set(list_converters())
    return material.kept.setdefault("released", released)


def with_instructions(program: bytes, hostile: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Put the instructions of a hostile pickle into a whole one, whose value stays what it is where they only run."""
    inner = hostile[2:-1] if hostile.startswith(HEADER) else hostile[:-1]
    start = 2 if program.startswith(HEADER) else 0
    ways = {
        "at the start": program[:start] + inner + b"0" + program[start:],
        "at the end": program[:-1] + inner + b"0.",
        "as a value": program[:-1] + text_argument(rng.choice(("state_dict", "opt", "x"))) + inner + b"s.",
        "as a state": program[:-1] + inner + b"b.",
        "instead of the value": program[:-1] + b"0" + inner + b".",
    }
    way = rng.choice(list(ways))
    return ways[way], way


def object_in_sequence(content: bytes) -> tuple[int, int]:
    """Return the start and end of the pickle of the object in a file of torch before 1.6, which is the fourth."""
    stream, ends = io.BytesIO(content), [0]
    for _ in range(4):
        for _ in pickletools.genops(stream):
            pass
        ends.append(stream.tell())
    return ends[3], ends[4]


def changed_checkpoint(content: bytes, hostile: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Put hostile instructions into a file that has pickles, whatever its format."""
    if not content.startswith(b"PK"):
        start, end = object_in_sequence(content) if b"\x8a\nl\xfc\x9cF\xf9" in content[:20] else (0, len(content))
        program, way = with_instructions(content[start:end], hostile, rng)
        return content[:start] + program + content[end:], way
    stream, way = io.BytesIO(), ""
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            if name.endswith("data.pkl"):
                part, way = with_instructions(part, hostile, rng)
            elif name.endswith("zipped_params.npy"):  # an array of objects
                part, way = part[:128] + hostile, "as the objects of an array"
            new.writestr(name, part)
    return stream.getvalue(), way


def attack_converter(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Put hostile instructions into a file of a checkpoint, and convert it as a person does."""
    name, (source, arguments) = rng.choice(list(write_released(material).items()))
    copy = Path(shutil.copytree(source, folder / "released"))
    path = rng.choice([one for one in sorted(copy.iterdir()) if one.suffix in (".pth", ".tar", ".pkl", ".npz")])
    hostile, what = (bomb if rng.random() < 0.2 else harmful_pickle)(rng)
    content, way = changed_checkpoint(path.read_bytes(), hostile, rng)
    path.write_bytes(content)
    typed = [argument.replace(str(source), str(copy)) for argument in arguments]

    def convert() -> None:
        printed = io.StringIO()
        with redirect_stderr(printed), redirect_stdout(printed):
            status = main(["convert", *typed, "--output", str(folder / "converted")])
        if status:
            raise ValueError(f"exit status {status}: {printed.getvalue()}")
        assert os.path.isfile(folder / "converted" / "model.safetensors")

    return Attempt(f"{name}, {path.name}: {what} {way}", convert, (str(copy),))

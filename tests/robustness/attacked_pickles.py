"""Damaged and hostile pickles, torch files, and checkpoints and vocabularies of other programs."""

import collections
import io
import json
import pickle
import pickletools
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_captioners.hub.convert.converting import read_released
from hf_captioners.hub.convert.vocabulary import read_words
from hf_captioners.hub.safe_unpickling import read_pickle
from hf_captioners.hub.torch_files import TensorDescription, TorchFile, read_torch_file
from tests.hub.released_files import write_model_and_infos, write_modules, write_program, write_visualgpt
from tests.parity.figures import Figures, variants

from .isolated import Attempt
from .mutators import NUMBERS, mutated

# Functions that hostile pickles call; each would make a file, start a program or change something.
HARMFUL = (
    *(("os", "system", ("touch executed",)), ("posix", "system", ("touch executed",)), ("nt", "system", ("touch x",))),
    *(("builtins", "exec", ("open('executed', 'w')",)), ("__builtin__", "eval", ("open('executed', 'w')",))),
    *(
        ("builtins", "open", ("executed", "w")),
        ("io", "open", ("executed", "w")),
        ("codecs", "open", ("executed", "w")),
    ),
    *(("subprocess", "Popen", (["touch", "executed"],)), ("subprocess", "check_output", (["touch", "executed"],))),
    *(
        ("builtins", "__import__", ("antigravity",)),
        ("importlib", "import_module", ("this",)),
        ("runpy", "run_path", ("x",)),
    ),
    *(
        ("torch", "load", ("x",)),
        ("numpy", "load", ("x",)),
        ("marshal", "loads", (b"x",)),
        ("pickle", "loads", (b".",)),
    ),
    *(("collections", "OrderedDict.__init__.__globals__", ()), ("collections", "namedtuple", ("x", "exec"))),
    *(("_codecs", "encode", ("x", "zlib")), ("_codecs", "decode", (b"x", "zlib")), ("functools", "partial", (1,))),
    *(
        ("numpy.core.multiarray", "_reconstruct", (1, 2, 3)),
        ("numpy", "dtype", ("O",)),
        ("builtins", "getattr", (1, "x")),
    ),
    *(
        ("torch._utils", "_rebuild_tensor_v2", (1, 2, 3, 4)),
        ("torch.hub", "load", ("x", "y")),
        ("webbrowser", "open", ("x",)),
    ),
    *(("shutil", "rmtree", (".",)), ("pathlib", "Path.touch", ("executed",)), ("ctypes", "CDLL", ("libc.so.6",))),
    *(
        ("torch.serialization", "_get_restore_location", (1,)),
        ("site", "main", ()),
        ("sys", "exit", ()),
        ("os", "_exit", (0,)),
    ),
)
# Files that are read together: weights, and options in a pickle.
PAIRS = (("program.npz", "program.npz.pkl"), ("model.pth", "infos_test.pkl"))
# What a pickle of the allow-list names; random programs combine them.
ALLOWED = (
    *(("collections", "OrderedDict"), ("collections", "defaultdict"), ("builtins", "set"), ("argparse", "Namespace")),
    *(("copyreg", "_reconstructor"), ("_codecs", "encode"), ("numpy", "dtype"), ("numpy.core.multiarray", "scalar")),
    *(("torch.nn.modules.linear", "Linear"), ("builtins", "object"), ("torch", "FloatStorage")),
    *(("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter")),
)


def whole_pickles(material: Any) -> dict[str, bytes]:
    """Return whole files by their names: pickles, torch files, checkpoints of programs, vocabularies."""
    if "pickles" in material.kept:
        return material.kept["pickles"]
    rng = np.random.default_rng(0)
    value = {
        "words": {f"word{number}": number for number in range(40)},
        "ids": [(number, [0.5, None, True, b"bytes", "text" * number]) for number in range(12)],
        "array": rng.random((3, 4)),
        "scalar": np.float64(0.5),
        "set": {1, 2},
        "ordered": collections.OrderedDict(a=1),
        "large": 10**40,
    }
    plain = {name: part for name, part in value.items() if name != "array"}
    files = {f"plain{protocol}.pkl": pickle.dumps(plain, protocol) for protocol in range(6)}
    files |= {f"array{protocol}.pkl": pickle.dumps(value, protocol) for protocol in (0, 2, 4)}
    files["words.pkl"] = pickle.dumps(value["words"], 2)
    files["words.json"] = json.dumps(value["words"]).encode()
    files["words.txt"] = "\n".join(value["words"]).encode()
    folder = material.root / "pickles"
    if not folder.exists():
        partial = material.root / "pickles.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write_checkpoints(partial)
        partial.rename(folder)
    files |= {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    material.kept["pickles"] = files
    return files


def write_checkpoints(folder: Path) -> None:
    """Write torch files, and checkpoints of programs."""
    tensors = {"w": torch.arange(60.0), "v": torch.ones(3, 4).T, "b": torch.ones(2).bool()}
    state = {"state_dict": collections.OrderedDict(tensors)}
    for new in (True, False):
        torch.save(state, folder / f"state{new:d}.pth", _use_new_zipfile_serialization=new)
        figures = Figures.load(variants("visualgpt")[0])
        write_visualgpt(folder / f"visualgpt{new:d}.pth", figures.weights, figures.config, new)
        figures = Figures.load("show_attend_tell/main")
        write_modules(folder / f"modules{new:d}.pth.tar", figures.weights, figures.config["options"], new)
    figures = Figures.load("show_attend_tell_arctic/soft_main")
    write_program(folder / "program.npz", figures.weights, figures.config["options"])
    figures = Figures.load("zodiac_transformer/baseline_transformer")
    options = {name: figures.config[name] for name in ("num_att_heads", "max_length", "use_bn")}
    write_model_and_infos(folder, figures.weights, options, figures.config["ix_to_word"])


def attack_pickle(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a file that has pickles in it, or make a hostile one, and read it by its reader."""
    files = whole_pickles(material)
    kind = rng.random()
    if kind < 0.5:
        name = rng.choice(list(files))
        content, how = changed_file(files[name], rng, files)
    else:
        maker = harmful_pickle if kind < 0.7 else random_program if kind < 0.85 else bomb
        content, how = maker(rng)
        name = rng.choice(
            ("x.pkl", "x.pkl", "infos_test.pkl", "program.npz.pkl", "words.pkl", "visualgpt1.pth", "modules0.pth.tar")
        )
        if name.endswith((".pth", ".tar")):
            content = in_torch_file(content, rng)
    for pair in PAIRS:
        for other in pair if name in pair else ():
            (folder / other).write_bytes(files[other])
    path = folder / name
    path.write_bytes(content)
    return Attempt(f"{name}: {how}", lambda: read_file(path), (str(path), *other_names(path)))


def other_names(path: Path) -> tuple[str, ...]:
    """Return the paths of a pair of files that are read together; an error may be found when the other one is read."""
    return tuple(str(path.with_name(other)) for pair in PAIRS if path.name in pair for other in pair)


def changed_file(content: bytes, rng: random.Random, files: dict[str, bytes]) -> tuple[bytes, str]:
    """Change the bytes of a file, or of the entries of an archive, which then has right checksums."""
    if not content.startswith(b"PK") or rng.random() < 0.5:
        return mutated(content, rng, list(files.values()))
    stream, how = io.BytesIO(), ""
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w") as new:
        chosen = rng.choice(old.namelist())
        for name in old.namelist():
            part = old.read(name)
            if name == chosen:
                part, how = mutated(part, rng, list(files.values()))
                how = f"{name}: {how}"
            new.writestr(name, part, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return stream.getvalue(), how


def text_argument(text: str) -> bytes:
    """Return the instruction that pushes a text."""
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + len(data).to_bytes(4, "little") + data


def harmful_pickle(rng: random.Random) -> tuple[bytes, str]:
    """A pickle that calls a harmful function, in one of the ways in which pickles call."""
    module, name, arguments = rng.choice(HARMFUL)
    called = b"(" + b"".join(pickle.dumps(part, 2)[2:-1] for part in arguments) + b"t"
    by_line = f"c{module}\n{name}\n".encode()
    by_stack = text_argument(module) + text_argument(name) + b"\x93"
    programs = {
        "REDUCE": by_line + called + b"R.",
        "STACK_GLOBAL": b"\x80\x04" + by_stack + called + b"R.",
        "INST": b"(" + called[1:-1] + f"i{module}\n{name}\n.".encode(),
        "OBJ": b"(" + by_line + called[1:-1] + b"o.",
        "NEWOBJ": b"\x80\x02" + by_line + called + b"\x81.",
        "NEWOBJ_EX": b"\x80\x04" + by_stack + called + b"}\x92.",
        "BUILD": b"\x80\x02ccollections\nOrderedDict\n)R}"
        + text_argument("__setstate__")
        + by_line
        + b"sb"
        + called
        + b"b.",
        "through encode": b"c_codecs\nencode\n" + by_line + b"\x85R.",
        "through reconstructor": b"ccopyreg\n_reconstructor\n(" + by_line + b"c__builtin__\nobject\nNtR.",
        "persistent": b"\x80\x02("
        + text_argument("storage")
        + by_line
        + text_argument("0")
        + text_argument("cpu")
        + b"K\1tQ.",
        "extension": b"\x80\x02\x82\x01.",
        "after a value": pickle.dumps([1, 2], 2)[:-1] + b"0" + by_line + called + b"R.",
    }
    kind = rng.choice(list(programs))
    return programs[kind], f"{module}.{name} by {kind}"


def random_program(rng: random.Random) -> tuple[bytes, str]:
    """Random instructions, most of which find enough on the stack."""
    parts = [b"\x80" + bytes([rng.randrange(6)])]
    for _ in range(rng.choice((3, 10, 40, 200))):
        operation = rng.choice(pickletools.opcodes)
        code = operation.code.encode("latin1")
        module, name = rng.choice(ALLOWED)
        argument = operation.arg.name if operation.arg else None
        if argument is None:
            parts.append(code if code != b"." else b"N")
        elif operation.name in ("GLOBAL", "INST"):
            parts.append(code + f"{module}\n{name}\n".encode())
        elif "nl" in argument:
            parts.append(code + rng.choice((b"1", b"'x'", b"0", b"1e5", b"99999999999")) + b"\n")
        else:
            widths = {"uint1": 1, "uint2": 2, "int4": 4, "uint4": 4, "uint8": 8, "float8": 8}
            width = widths.get(argument, 0)
            if width:
                parts.append(code + (rng.choice((0, 1, 2, 5, *NUMBERS)) % 2 ** (8 * width)).to_bytes(width, "little"))
            else:
                size = 1 if argument.endswith("1") else 8 if argument.endswith("8") else 4
                length = rng.choice((0, 1, 3, 3, 3, 2**31 - 1)) % 2 ** (8 * size)
                parts.append(code + length.to_bytes(size, "little") + b"abc"[: min(length, 3)])
        if rng.random() < 0.5:
            parts.append(
                rng.choice((b"N", b"]", b"}", b"(", b")", b"K\1", f"c{module}\n{name}\n".encode(), b"q\0", b"h\0"))
            )
    return b"".join(parts) + b".", "random instructions"


def bomb(rng: random.Random) -> tuple[bytes, str]:
    """A small pickle that takes much memory or time."""
    count = rng.choice((30, 60, 1000, 100_000))
    nested = {
        "lists": (b"]", b"a"),
        "tuples": (b"", b"\x85"),
        "dictionaries": (b"}N", b"s"),
        "keys": (b"}", b"Ns"),
        "sets": (b"\x8f(", b"\x90"),
    }
    kind = rng.choice((*nested, "pairs", "memo", "number", "text", "many lists", "array", "repeated text"))
    if kind in nested:
        start, end = nested[kind]
        return b"\x80\x04" + start * count + b"N" + end * count + b".", f"{count:,} nested {kind}"
    if kind == "pairs":
        make = rng.choice((b"2\x86", b"q\0(h\0h\0t", b"q\0(h\0h\0l", b"q\0(h\0h\0d"))
        return b"\x80\x02N" + make * 60 + b".", f"pairs by {make!r}"
    size = rng.choice((2**16, 2**27, 2**31 - 1))
    made = {
        "memo": b"\x80\x02Nr" + size.to_bytes(4, "little") + b".",
        "number": b"\x80\x02\x8b" + size.to_bytes(4, "little") + b"\xff" * 100 + b".",
        "text": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"abc.",
        "many lists": b"\x80\x02" + b"]0" * 400_000 + b"N.",
        "array": b"\x80\x02cnumpy\nndarray\n(J" + (2**31 - 1).to_bytes(4, "little") + b"tR.",
        "repeated text": b"\x80\x02X"
        + (10**5).to_bytes(4, "little")
        + b"x" * 10**5
        + b"q\0("
        + b"h\0" * 10**5
        + b"l.",
    }
    return made[kind], kind


def in_torch_file(program: bytes, rng: random.Random) -> bytes:
    """Return a torch file of either format with a pickle in it."""
    if rng.random() < 0.5:
        head = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
        return head + program + pickle.dumps([], 2)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/data/0", bytes(rng.choice((0, 240, 2**20, 2**26))))
    return stream.getvalue()


def read_file(path: Path) -> None:
    """Read a file by the reader of its name."""
    name = path.name
    if name.startswith("words"):
        words = read_words(path, 1)
        assert all(isinstance(word, str) for word in words.values())
    elif name.startswith("visualgpt"):
        check_released(
            read_released("visualgpt", path, {"n_head": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})
        )
    elif name.startswith(("modules", "program")):
        check_released(read_released("show_attend_tell", path.with_name(name.removesuffix(".pkl")), {}))
    elif name in ("model.pth", "infos_test.pkl"):
        check_released(read_released("transformer", path.with_name("model.pth"), {}))
    elif name.endswith(".pth"):
        read_tensors(read_torch_file(path))
    else:
        require_plain(read_pickle(path))


def check_released(released: Any) -> None:
    """Check the weights of a converted checkpoint."""
    assert all(isinstance(tensor, torch.Tensor) for tensor in released.weights.values())


def read_tensors(file: TorchFile) -> None:
    """Read the `state_dict` of a file."""
    content = file.content
    state = content.get("state_dict", content) if isinstance(content, dict) else content
    for tensor in file.tensors(state).values():
        assert isinstance(tensor, torch.Tensor)


def require_plain(value: Any) -> None:
    """Check that a value consists of plain values and inert records."""
    waiting, seen = [value], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        module = type(part).__module__
        inert = isinstance(part, (TensorDescription, type)) or module.startswith("hf_captioners.")
        assert inert or module in ("builtins", "numpy"), type(part)
        if isinstance(part, dict):
            waiting += [*part.keys(), *part.values()]
        elif isinstance(part, (list, tuple, set)):
            waiting += list(part)

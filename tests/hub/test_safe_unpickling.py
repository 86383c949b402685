"""Untrusted pickles: checkpoint contents are read, everything else is refused, and no code is run."""

import argparse
import collections
import io
import os
import pickle
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import numpy.testing._private.utils as numpy_gadgets
import pytest
import torch

from hf_captioners.hub import safe_unpickling
from hf_captioners.hub.safe_unpickling import PlainDict, Record, UnsafePickleError, read_pickle
from hf_captioners.hub.torch_files import read_torch_file


class Evil:
    """Object that calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def stack_global(module, name, *arguments):
    """Return a pickle of protocol 4 that builds the name on the stack."""
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    called = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in arguments)
    return b"\x80\x04" + texts + b"\x93" + b"(" + called + b"tR."


def hostile(marker):
    """Return pickles that create the file `marker`, or prepare to, by the name of the attack."""
    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w')"
    return {
        "os": pickle.dumps(Evil(os.system, touch)),
        "subprocess": pickle.dumps(Evil(subprocess.Popen, ["touch", str(marker)])),
        "eval": pickle.dumps(Evil(eval, code)),
        "exec": pickle.dumps(Evil(exec, code)),
        "getattr": pickle.dumps(Evil(getattr, "text", "upper")),
        "import": pickle.dumps(Evil(__import__, "os")),
        "torch.hub": pickle.dumps(Evil(torch.hub.load, str(marker.parent), "entry", "local")),
        "torch.load": pickle.dumps(Evil(torch.load, str(marker))),
        "numpy": pickle.dumps(Evil(numpy_gadgets.runstring, code, {})),
        "numpy.load": stack_global("numpy", "load", str(marker)),
        "stack_global": stack_global("posix", "system", touch),
        "dotted": stack_global("builtins", "object.__subclasses__"),
        "dotted_allowed": stack_global("collections", "OrderedDict.__init__.__globals__"),
        "inst": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + touch.encode() + b"'\no.",
        "global": b"cos\nsystem\n(S'" + touch.encode() + b"'\ntR.",
        "bare": b"\x80\x02cos\nsystem\n.",
        "reconstructor": b"ccopy_reg\n_reconstructor\n(cos\nsystem\nc__builtin__\nobject\nNtR.",
        "encode": stack_global("_codecs", "encode", "text", "rot13"),
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
    }


TRICKS = sorted(hostile(Path("anywhere")))


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("form", ["pickle", "zip", "legacy"])
def test_hostile_pickles_run_nothing(trick, form, tmp_path, monkeypatch):
    marker = tmp_path / "run"
    content = hostile(marker)[trick]
    path = tmp_path / "checkpoint.pth"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", content)
    elif form == "legacy":
        with open(path, "wb") as file:
            torch.save({}, file, _use_new_zipfile_serialization=False)
        start = path.read_bytes()
        head = start[: start.index(b"type_sizes")]
        end = start.index(b".", start.index(b"type_sizes")) + 1
        assert head and end
        path.write_bytes(start[:end] + content)
    else:
        path.write_bytes(content)
    read = read_pickle if form == "pickle" else read_torch_file
    with pytest.raises(ValueError, match="No code was run|cannot be read|refers to|it (creates|encodes)") as refusal:
        read(path)
    assert str(path) in str(refusal.value)
    assert not marker.exists()


def test_the_tricks_work_without_protection(tmp_path):
    """The attacks work with the unpickler of Python, so the test above is meaningful."""
    for trick in ("os", "eval", "stack_global", "global", "inst", "obj", "numpy"):
        marker = tmp_path / trick
        pickle.loads(hostile(marker)[trick])
        assert marker.exists(), trick


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02ccollections\nOrderedDict\nN}X\x05\x00\x00\x00clearNs\x86b.",  # sets an attribute of the class
        b"\x80\x02ctorch.nn.modules.linear\nLinear\nN}X\x0c\x00\x00\x00__setstate__Ns\x86b.",
        b"\x80\x02ccopyreg\n_reconstructor\nN}X\x04\x00\x00\x00_runNs\x86b.",
    ],
)
def test_what_is_allowed_cannot_be_changed(content, tmp_path):
    path = tmp_path / "file.pkl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as a pickle"):
        read_pickle(path)
    assert PlainDict.clear is dict.clear and Record.__setstate__ is not None
    assert safe_unpickling.FUNCTIONS[("copyreg", "_reconstructor")] is safe_unpickling._reconstruct


@pytest.mark.parametrize("protocol", range(5))
def test_plain_things_come_back(protocol, tmp_path):
    value = {
        "numbers": [1, 2.5, True, None, 10**30],
        "texts": ("a", b"bytes", "ü"),
        "counts": collections.OrderedDict(b=1, a=2),
        "defaults": collections.defaultdict(list, x=[1]),
        "numpy": [np.float32(1.5), np.int64(-7), np.bool_(True)],
    }
    path = tmp_path / "options.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    found = read_pickle(path)
    assert found == {**value, "numpy": [1.5, -7, True]}
    assert list(found["counts"]) == ["b", "a"] and type(found["numpy"][1]) is int


def test_objects_become_records(tmp_path):
    path = tmp_path / "infos.pkl"
    path.write_bytes(pickle.dumps({"opt": argparse.Namespace(rnn_size=1024), "set": {1}}, 2))
    found = read_pickle(path)
    assert repr(found["opt"]) == "<argparse.Namespace>" and found["opt"].state == {"rnn_size": 1024}


def test_texts_of_python_2(tmp_path):
    path = tmp_path / "options.npz.pkl"
    path.write_bytes(b"(dp0\nS'dim'\np1\nI1800\nsS'attn_type'\np2\nS'determinis\\xe4'\np3\nsI00\nI01\ns.")
    assert read_pickle(path) == {"dim": 1800, "attn_type": "determinisä", False: True}


FORMATS = pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])


@FORMATS
def test_tensors_of_both_formats(new, tmp_path):
    """All dtypes, views of shared storages, strides and empty tensors are read."""
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "base": base,
        "view": base[1:3, ::2],
        "turned": base.T,
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "flags": torch.tensor([True, False]),
        **{
            str(dtype): torch.arange(5).to(dtype)
            for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.uint8)
        },
    }
    path = tmp_path / "best.pth"
    random = np.random.default_rng(0).bytes(3)
    torch.save(
        {"state_dict": collections.OrderedDict(tensors), "numpy_rng_state": np.random.get_state(), "raw": random},
        path,
        _use_new_zipfile_serialization=new,
    )
    file = read_torch_file(path)
    found = file.tensors(file.content["state_dict"])
    assert file.content["raw"] == random
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor.detach()), name


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Dropout(0.3))
        self.step = torch.nn.LSTMCell(4, 5)
        self.norm = torch.nn.BatchNorm2d(2)
        self.width = 5


@FORMATS
def test_pickled_modules_are_attribute_records(new, tmp_path):
    module = Decoder()
    path = tmp_path / "checkpoint.pth.tar"
    optimizer = torch.optim.Adam(module.parameters())
    torch.save({"decoder": module, "optimizer": optimizer}, path, _use_new_zipfile_serialization=new)
    with pytest.raises(UnsafePickleError, match=f"names `{Decoder.__module__}.Decoder`"):
        read_torch_file(path)
    file = read_torch_file(path, frozenset({(Decoder.__module__, "Decoder")}))
    found = file.tensors(file.content["decoder"])
    expected = module.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert file.content["decoder"].state["width"] == 5


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (11,), (1,)),
        (8, (3,), (1,)),
        (0, (3, 4), (4, 1)),
        (0, (1000, 10), (0, 1)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
    ],
)
def test_tensors_look_only_at_their_storage(offset, size, stride, tmp_path):
    """A forged size, which would read foreign memory or exhaust it, is refused."""
    path = tmp_path / "best.pth"
    torch.save({"w": torch.arange(10.0)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    forged = io.BytesIO()

    class Forged:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, size, stride, False, collections.OrderedDict())

    class Storage:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", torch.FloatStorage, "0", "cpu", 10) if isinstance(value, Storage) else None

    Pickler(forged, 2).dump({"w": Forged()})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, forged.getvalue() if name.endswith("data.pkl") else content)
    with pytest.raises(ValueError, match="a tensor (of|has)"):
        read_torch_file(path)


@FORMATS
def test_cut_files(new, tmp_path):
    path = tmp_path / "best.pth"
    torch.save({"w": torch.arange(1000.0)}, path, _use_new_zipfile_serialization=new)
    whole = path.read_bytes()
    for share in (0.1, 0.5, 0.95):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ValueError):
            file = read_torch_file(path)
            file.tensors(file.content)

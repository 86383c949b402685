"""Pickles and torch files that are small and take gigabytes or hours to read: refused with the file, soon."""

import collections
import pickle
import resource
import time
import zipfile

import numpy as np
import pytest
import torch

from hf_captioners.hub.safe_unpickling import read_pickle
from hf_captioners.hub.torch_files import Record, TensorDescription, TorchFile, read_torch_file


def pairs(levels, kind):
    value = kind([1])
    for _ in range(levels):
        value = kind([value, value])
    return value


def late_pairs(levels):
    """A pickle of lists that are put into each other from the outside in, when each is still empty."""
    program = b"".join(b"]q" + bytes([place]) + b"0" for place in range(levels + 1))
    for place in range(levels):
        program += b"h" + bytes([place]) + (b"h" + bytes([place + 1]) + b"a") * 2 + b"0"
    return b"\x80\x02" + program + b"h\x00."


def nested(count, start, end):
    return b"\x80\x02" + start * count + b"N" + end * count + b"."


SELF_LIST = [1]
SELF_LIST.append(SELF_LIST)
SELF_DICT = {}
SELF_DICT["self"] = SELF_DICT

BOMBS = {
    "pairs of tuples": pickle.dumps(pairs(60, tuple), 2),
    "key of pairs of tuples": pickle.dumps(pairs(60, tuple), 2)[:-1] + b"}" + b"\x85" + b"0" + b"}h\x02Ns.",
    "list in itself": pickle.dumps(SELF_LIST),
    "dictionary in itself": pickle.dumps(SELF_DICT),
    "deep lists": nested(100_000, b"]", b"a"),
    "deep tuples": nested(100_000, b"", b"\x85"),
    "deep dictionaries": nested(100_000, b"}N", b"s"),
    "large memo": b"\x80\x02Nr" + (2**27).to_bytes(4, "little") + b".",
    "large memo in text": b"Np134217728\n.",
    "unknown instruction": b"\x80\x02\xff.",
    "long text": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"abc.",
    "long frame": b"\x80\x04\x95" + (2**40).to_bytes(8, "little") + b"N.",
    "no end": b"\x80\x02]",
}


@pytest.fixture
def limits():
    """The test may take 5 CPU seconds and 200 MB."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize("form", ["pickle", "zip"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_pickles(bomb, form, tmp_path, limits):
    path = tmp_path / "file"
    if form == "pickle":
        path.write_bytes(BOMBS[bomb])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", BOMBS[bomb])
    if form == "zip" and "itself" in bomb:
        assert read_torch_file(path).content is not None  # nothing looks into it
        return
    with pytest.raises(ValueError, match=str(path)):
        read_pickle(path) if form == "pickle" else read_torch_file(path)


def test_shared_lists_are_converted_once(tmp_path, limits):
    path = tmp_path / "file.pkl"
    for content in (late_pairs(60), pickle.dumps(pairs(60, list), 2)):
        path.write_bytes(content)
        found = read_pickle(path)
        depth = 0
        while len(found) == 2:
            assert found[0] is found[1]
            found, depth = found[0], depth + 1
        assert depth == 60


def test_what_a_message_quotes_is_short(tmp_path, limits):
    """A reference to a storage that is a tower of shared lists would have a text of 2^60 characters."""
    path = tmp_path / "file.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", late_pairs(60)[:-1] + b"Q.")
    with pytest.raises(ValueError, match="which is not a storage") as refusal:
        read_torch_file(path)
    assert len(str(refusal.value)) < 500


def test_large_pickles_that_are_whole_are_read(tmp_path):
    value = {
        "words": {f"word{number}": number for number in range(6_000)},
        "ids": [(n, [n] * 3) for n in range(900)],
    }
    value["again"] = [value["words"]] * 3
    path = tmp_path / "file.pkl"
    for protocol in range(5):
        path.write_bytes(pickle.dumps(value, protocol))
        assert read_pickle(path) == value
    with pytest.raises(ValueError, match="more than 1,000 instructions"):
        read_pickle(path, max_steps=1000)


def module_of(children):
    module = Record()
    module.state = {"_parameters": {}, "_buffers": {}, "_modules": children}
    return module


def test_modules_that_share_or_contain_modules(limits):
    module = module_of({})
    for _ in range(40):
        module = module_of({"a": module, "b": module})
    itself = module_of({})
    itself.state["_modules"]["self"] = itself
    for part in (module, itself):
        with pytest.raises(ValueError, match="x.pth: its modules are nested"):
            TorchFile(None, lambda key: b"", "x.pth").tensors(part)


def test_compressed_storages_are_limited(tmp_path, limits):
    path = tmp_path / "best.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        with archive.open("archive/data/0", "w") as file:
            for _ in range(100):
                file.write(bytes(2**20))
    with pytest.raises(ValueError, match=r"best.pth has .* bytes and decompresses to 104,857,6.*zip -0"):
        read_torch_file(path)


def test_storages_that_state_more_than_the_file_has(tmp_path, limits):
    path = tmp_path / "best.pth"
    torch.save({"w": torch.arange(10.0)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    length = (10).to_bytes(8, "little")
    assert content.count(length) == 1
    for wrong in (2**40, 2**62, -(2**63), 11):
        path.write_bytes(content.replace(length, wrong.to_bytes(8, "little", signed=True)))
        with pytest.raises(ValueError, match="best.pth is truncated: storage .* is stated as"):
            read_torch_file(path)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_changed_torch_files(new, tmp_path):
    path = tmp_path / "best.pth"
    torch.save(
        {"state": collections.OrderedDict(w=torch.arange(60.0), v=torch.ones(3, 4).T)},
        path,
        _use_new_zipfile_serialization=new,
    )
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for trial in range(200):
        changed = bytearray(content[: int(rng.integers(1, len(content)))] if trial % 4 == 0 else content)
        for place in rng.integers(0, len(changed), 3):
            changed[place] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            file = read_torch_file(path)
            file.tensors(file.content["state"] if isinstance(file.content, dict) and "state" in file.content else {})
        except ValueError as error:
            assert "best.pth" in str(error), error
            refused += 1
    assert refused > 50


def test_strides_beyond_64_bits(tmp_path):
    with pytest.raises(ValueError, match="a tensor has the size, strides and offset"):
        TensorDescription(None, 0, (1,), (2**70,))

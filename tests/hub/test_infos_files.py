"""Infos files of the ImageCaptioning.pytorch family, and the vocabularies that checkpoints are converted with."""

import argparse
import pickle
import sys
import types
from collections import Counter, OrderedDict

import pytest

from hf_captioners.hub.convert.infos_files import find_infos, read_infos
from hf_captioners.hub.convert.vocabulary import read_words


def write(path, **content):
    path.write_bytes(pickle.dumps(content, 2))
    return path


def test_options_and_vocabulary(tmp_path):
    options = argparse.Namespace(num_layers=6, learning_rate=5e-4)
    path = write(tmp_path / "infos_a.pkl", opt=options, vocab=OrderedDict({"1": "a", "2": "dog"}), iter=3)
    infos = read_infos(path)
    assert infos.option("N_enc", "num_layers") == 6 and infos.words == {1: "a", 2: "dog"}
    with pytest.raises(ValueError, match="has no option `num_layer`; the nearest one is `num_layers`"):
        infos.option("num_layer")
    assert read_words(path, 1) == infos.words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"opt": {}}, "has the entries opt, expected the keys opt .* and vocab"),
        ({"opt": argparse.Namespace(), "vocab": {"a": 1}}, r"the vocabulary has the entry 'a': 1, expected"),
        ({"opt": argparse.Namespace(), "vocab": ["a"]}, "expected the keys opt"),
    ],
)
def test_other_files(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_infos(write(tmp_path / "infos.pkl", **content))


def test_the_file_beside_the_checkpoint(tmp_path):
    model, best = tmp_path / "model.pth", tmp_path / "model-best.pth"
    with pytest.raises(FileNotFoundError, match="There is no infos.*`settings`: infos=FILE"):
        find_infos(model)
    first = write(tmp_path / "infos_a.pkl")
    assert find_infos(model) == find_infos(best) == first
    of_best = write(tmp_path / "infos_a-best.pkl")
    assert find_infos(model) == first and find_infos(best) == of_best
    second = write(tmp_path / "infos_b.pkl")
    with pytest.raises(ValueError, match="several infos files .*: infos_a.pkl, infos_b.pkl. Choose one"):
        find_infos(model)
    assert find_infos(model, str(second)) == second
    with pytest.raises(FileNotFoundError, match="There is no file none.pkl"):
        find_infos(model, "none.pkl")


class Vocab:
    """As in the M2 code: words by id, and a dictionary with a default."""

    __module__ = "data.vocab"

    def __init__(self, words):
        self.itos, self.freqs = words, Counter(words)


def test_a_pickled_vocabulary_of_the_m2_code(tmp_path, monkeypatch):
    module = types.ModuleType("data.vocab")
    module.Vocab = Vocab
    monkeypatch.setitem(sys.modules, "data", types.ModuleType("data"))
    monkeypatch.setitem(sys.modules, "data.vocab", module)
    words = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "dog"]
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(Vocab(words), 4))
    assert read_words(tmp_path / "vocab.pkl", 4) == dict(enumerate(words))

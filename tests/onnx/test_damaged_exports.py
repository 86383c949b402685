"""Damage of the parts that only an exported folder has, and of calls: a `ValueError` names folder and file.

`tests/robustness/test_damaged_captioners.py` has the damage that both back-ends meet.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hf_captioners.onnx import OnnxCaptioner
from hf_captioners.onnx.onnx_captioner import TRAVELLING, naming
from hf_captioners.onnx.onnx_search import DecoderStates, TooLongError
from tests.robustness.damaged_captioners import GRAPHS, change_json, growing, seal

IMAGE = np.zeros((20, 30, 3), np.uint8)


@pytest.fixture
def folder(exported, tmp_path):
    """A copy of the exported captioner that may be damaged."""
    return shutil.copytree(exported, tmp_path / "copy")


def facts(**values):
    return lambda folder: change_json(folder / "captioner.json", lambda content: content | values)


def facts_without(name):
    def damage(folder):
        change_json(folder / "captioner.json", lambda content: {k: v for k, v in content.items() if k != name})

    return damage


def merged(name, **values):
    def damage(folder):
        change_json(folder / "captioner.json", lambda content: content | {name: content[name] | values})

    return damage


def graph(part, change):
    def damage(folder):
        path = folder / GRAPHS[part]
        model = onnx.load(path)
        change(model.graph)
        onnx.save(model, path)
        seal(folder)

    return damage


def renamed(kind, old, new):
    """Rename an input or output of a graph wherever it occurs."""

    def change(found):
        for value in getattr(found, kind):
            value.name = new if value.name == old else value.name
        for node in found.node:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    names[place] = new if name == old else name

    return change


def state(*shape):
    """Add a state that the encoder does not return."""

    def change(found):
        found.input.append(helper.make_tensor_value_info("past_key_values.9.decoder.key", TensorProto.FLOAT, shape))

    return change


def swap_graphs(folder):
    merged("graphs", encoder_model=GRAPHS["decoder"], decoder_model_merged=GRAPHS["encoder"])(folder)


def own_external_data(folder):
    """Let the weights of the encoder be the bytes of the graph itself."""
    path = folder / GRAPHS["encoder"]
    model = onnx.load(path)
    tensor = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", path.name), ("offset", "0"), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
    onnx.save(model, path)
    seal(folder)


DAMAGES = {
    "no image": (facts_without("image"), "captioner.json is damaged .*it lacks `image`"),
    "image null": (facts(image=None), r"encoder_model.onnx does not fit .*captioner.json does not say"),
    "image list": (facts(image=[1]), "captioner.json .*`image` is "),
    "no tokens": (facts_without("tokens"), "captioner.json .*lacks `tokens`"),
    "no end": (merged("tokens", end=[]), "captioner.json .*`tokens.end` is "),
    "end not in the vocabulary": (merged("tokens", end=[10**6]), "captioner.json does not fit .*`tokens.end`"),
    "pad null": (merged("tokens", pad=None), "captioner.json .*`tokens.pad` is None"),
    "suppressed": (merged("generation", suppress_tokens=[10**6]), "captioner.json .*`suppress_tokens` has the token"),
    "unknown option": (merged("generation", num_beam=2), "captioner.json .*'num_beam'"),
    "generation list": (facts(generation=[]), "captioner.json .*`generation` is "),
    "graphs of text": (facts(graphs="x"), "captioner.json .*`graphs` is 'x'"),
    "graph outside": (merged("graphs", encoder_model="../../x.onnx"), "captioner.json .*`graphs.encoder_model`"),
    "graph absolute": (merged("graphs", encoder_model="/dev/zero"), "captioner.json .*`graphs.encoder_model`"),
    "file outside": (merged("files", **{"../x": "0" * 64}), r"captioner.json .*`files` is '\.\./x'"),
    "graph without digest": (merged("graphs", encoder_model="README.md"), "captioner.json .*`files` lacks README.md"),
    "digest of text": (merged("files", **{"tokenizer.json": "x"}), "captioner.json .*`files.tokenizer.json` is 'x'"),
    "positions below": (facts(positions=3), "captioner.json .*max_new_tokens` is 6, and .* 3 positions"),
    "positions of text": (facts(positions="x"), "captioner.json .*`positions` is 'x'"),
    "reads_all_tokens": (facts(reads_all_tokens="no"), "captioner.json .*`reads_all_tokens` is 'no'"),
    "format": (facts(format=2), "captioner.json .*format 2, expected 1; update"),
    "large": (facts(paper="x" * 2**21), "captioner.json .*more than 1,048,576 bytes"),
    "swapped graphs": (swap_graphs, r"decoder_model_merged.onnx does not fit .*it reads input_ids"),
    "other image size": (merged("image", size={"height": 64, "width": 32}), "encoder_model.onnx does not fit"),
    "no logits": (graph("decoder", renamed("output", "logits", "x")), "decoder_model_merged.onnx .*`logits`"),
    "no tokens read": (graph("decoder", renamed("input", "input_ids", "x")), "decoder_model_merged.onnx .*input_ids"),
    "huge state": (graph("decoder", state("rows", 2**14, 2**14)), "decoder_model_merged.onnx .*16,777,216 numbers"),
    "state of unknown size": (graph("decoder", state("rows", "x")), "decoder_model_merged.onnx .*no state"),
    "state without use": (graph("decoder", state("rows", "past", 3)), None),
    "own external data": (own_external_data, "encoder_model.onnx"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name, folder):
    damage, expected = DAMAGES[name]
    damage(folder)
    if expected is None:
        assert OnnxCaptioner(folder)(IMAGE)
        return
    with pytest.raises(ValueError, match=f"^{re.escape(str(folder))}.*{expected}") as caught:
        OnnxCaptioner(folder)(IMAGE)
    assert type(caught.value) is ValueError and "\n" not in str(caught.value) and len(str(caught.value)) < 1500


def scaled(part, factor):
    def change(found):
        for tensor in found.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype == np.float32 and array.size > 1:
                tensor.CopyFrom(numpy_helper.from_array(array * np.float32(factor), tensor.name))

    return graph(part, change)


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True, "seed": 0}])
@pytest.mark.parametrize(
    ("part", "factor", "expected"),
    [
        ("encoder", np.nan, "encoder_model.onnx cannot encode the images: .* is not finite"),
        ("decoder", np.nan, "decoder_model_merged.onnx cannot write captions: its logits are not finite"),
    ],
)
def test_numbers_that_are_not_finite_end_the_job(part, factor, expected, options, folder):
    scaled(part, factor)(folder)
    with pytest.raises(ValueError, match=f"^{re.escape(str(folder))}.*{expected}"):
        OnnxCaptioner(folder)(IMAGE, **options)


def test_more_tokens_than_positions(exported):
    captioner = OnnxCaptioner(exported)
    captioner.end_ids, captioner.positions = [], 7
    assert len(captioner(IMAGE, num_beams=1, max_new_tokens=7, return_token_scores=True)[0]["tokens"]) == 7
    message = f"^{re.escape(str(exported))}: The caption has 8 tokens, the decoder has 7 positions. .*`max_new_tokens`"
    for beams in (1, 3):
        with pytest.raises(ValueError, match=message):
            captioner(IMAGE, num_beams=beams, max_new_tokens=8)


class Decoder:
    """A session whose arrays have other shapes than its graph declares."""

    def __init__(self, logits, present):
        self.found = {"logits": logits, "present.0.state.x": present}

    def get_inputs(self):
        return [onnx_node("input_ids", ["rows", 1]), onnx_node("past_key_values.0.state.x", ["rows", 2])]

    def get_outputs(self):
        return [onnx_node(name, ["rows"]) for name in self.found]

    def run(self, names, inputs):
        return [self.found[name] for name in names]


def onnx_node(name, shape):
    return type("Node", (), {"name": name, "shape": shape})()


@pytest.mark.parametrize(
    ("logits", "present", "said"),
    [
        (np.zeros((2, 1, 5)), np.zeros((2, 2)), None),
        (np.zeros((2, 5)), np.zeros((2, 2)), r"logits have the shape \[2, 5\]"),
        (np.zeros((1, 1, 5)), np.zeros((2, 2)), r"logits have the shape \[1, 1, 5\]"),
        (np.zeros((2, 0, 5)), np.zeros((2, 2)), r"logits have the shape \[2, 0, 5\]"),
        (np.zeros((2, 1, 5)), np.zeros((3, 2)), "state present.0.state.x has 3 rows, expected 2"),
        (np.full((2, 1, 5), -np.inf), np.zeros((2, 2)), "not finite"),
        (np.array([[[np.inf, -np.inf]]] * 2), np.zeros((2, 2)), "not finite"),
        (np.full((2, 1, 5), 3e38, np.float32), np.zeros((2, 2)), None),
    ],
)
def test_arrays_of_a_step(logits, present, said):
    states = DecoderStates(Decoder(logits, present), {"encoder.x": np.zeros((2, 1))}, False, positions=4)
    if said is None:
        assert states.step(np.zeros((2, 3), np.int64)).shape == (2, logits.shape[-1])
    else:
        with pytest.raises(ValueError, match=said):
            states.step(np.zeros((2, 3), np.int64))
    with pytest.raises(TooLongError):
        states.step(np.zeros((2, 5), np.int64))


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 10**6},
        {"num_beams": 2.5},
        {"num_beams": True},
        {"max_new_tokens": 10**9},
        {"min_length": -1},
        {"length_penalty": float("nan")},
        {"length_penalty": 1e308},
        {"early_stopping": "always"},
        {"do_sample": 1},
        {"num_beams": 1, "do_sample": True, "temperature": 1e-300},
        {"num_beams": 1, "do_sample": True, "seed": -1},
        {"repetition_penalty": 0.0},
        {"no_repeat_ngram_size": "x"},
        {"bad_words_ids": [[]]},
        {"bad_words_ids": [[10**6]]},
        {"suppress_tokens": [-1]},
        {"bad_ending_ids": [10**6]},
        {"trigram_penalty": float("inf")},
    ],
    ids=str,
)
def test_options_are_checked(exported, options):
    with pytest.raises(ValueError, match=f"^`{next(reversed(options))}` "):
        OnnxCaptioner(exported)(IMAGE, **options)


def test_tokens_that_the_tokenizer_does_not_know(exported, monkeypatch):
    """And panics of its program, which are no `Exception`."""

    class PanicException(BaseException):
        pass

    class Panics:
        def encode(self, *arguments, **options):
            raise PanicException("index out of range")

        decode = encode

    captioner = OnnxCaptioner(exported)
    monkeypatch.setattr(captioner, "tokenizer", Panics())
    for call in (lambda: captioner(IMAGE), lambda: captioner(IMAGE, prompt="a dog")):
        with pytest.raises(
            ValueError, match=f"^{re.escape(str(exported))}/tokenizer.json cannot .*index out of range"
        ):
            call()
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error), naming(exported, "is damaged"):
            raise error


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_tokenizer_that_makes_a_text_very_long(folder, part):
    path = folder / "tokenizer.json"
    path.write_bytes(growing(part)(path.read_bytes()))
    seal(folder)
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))} is hostile or damaged: .*`{part}` make a text more"
    ):
        OnnxCaptioner(folder)


def test_a_thin_image_is_not_made_huge(exported, monkeypatch):
    captioner = OnnxCaptioner(exported)
    monkeypatch.setitem(captioner.facts, "image", captioner.facts["image"] | {"size": {"shortest_edge": 3000}})
    with pytest.raises(ValueError, match="would be resized to 30,000,000 x 3,000.*too thin"):
        captioner(np.zeros((1, 10_000, 3), np.uint8))


def test_what_travels_imports_only_what_an_exported_folder_needs(exported):
    """The standard library, four packages, and the files beside it; they are copied as they are.

    Of the library, what finds the installed captioner and checks tokenizers is imported, where the file is a part of
    the library.
    """
    from hf_captioners.onnx import onnx_captioner
    from tests.layout import imported_modules

    here = {name.removesuffix(".py") for name in TRAVELLING}
    in_library = [(0, "hf_captioners.default_model"), (0, "hf_captioners.tokenizer_file")]
    allowed = {"numpy", "PIL", "tokenizers", "onnxruntime", *here, *sys.stdlib_module_names}
    package = Path(onnx_captioner.__file__).parent
    for name in TRAVELLING:
        content = (exported / name).read_text()
        assert content == (package / name).read_text()
        imported = [one for one in imported_modules(exported / name) if name != TRAVELLING[0] or one not in in_library]
        for level, module in imported:
            assert module in here if level else module.split(".")[0] in allowed, (name, module)
    assert json.loads((exported / "captioner.json").read_text())["positions"] == 40

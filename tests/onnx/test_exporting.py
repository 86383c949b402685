"""The exported folder, and what is refused."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime
import PIL.Image
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import BlipConfig, BlipForConditionalGeneration

from hf_captioners.cli import main
from hf_captioners.onnx.cache_tensors import cache_of_tensors, cache_tensors
from hf_captioners.onnx.checking import require_small
from hf_captioners.onnx.exporting import card, export_captioner, generation_defaults, require_exportable, require_opset
from hf_captioners.onnx.graphs import export_graph
from hf_captioners.onnx.onnx_captioner import TRAVELLING, OnnxCaptioner
from hf_captioners.onnx.onnx_search import DecoderStates
from hf_captioners.onnx.quantizing import quantize_graph
from tests.hub.captioner_cases import case_of
from tests.hub.card_rules import card_errors


def test_the_folder(exported):
    found = sorted(str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file())
    graphs = ["onnx/decoder_model_merged.onnx", "onnx/encoder_model.onnx"]
    assert found == ["NOTICE", "README.md", "captioner.json", *graphs, *TRAVELLING, "tokenizer.json"]
    facts = json.loads((exported / "captioner.json").read_text())
    assert facts["generation"] == {"max_new_tokens": 6, "num_beams": 3, "suppress_tokens": [3]}
    assert facts["tokens"] == {"start": 28, "end": [27], "pad": 29}
    assert facts["image"]["size"] == {"height": 32, "width": 32} and facts["opset"] == 18
    text = (exported / "README.md").read_text()
    assert 'license: "cc-by-4.0"\n' in text and "Weights of somebody." in text and "See NOTICE." in text
    assert not list(exported.parent.glob(".*")), "temporary folders"
    data = ModelCard(text).data
    assert card_errors(data.to_dict()) == [] and data.library_name == "onnxruntime" and "onnx" in data.tags


def test_the_card_names_what_was_exported(exported, tmp_path):
    """A captioner of the Hub; of one in a folder, what its card states."""
    facts = json.loads((exported / "captioner.json").read_text())
    assert ModelCard(card(facts, {}, "somebody/captioner", tmp_path)).data.base_model == "somebody/captioner"
    stated = {"license": "mit", "language": "en", "datasets": ["flickr8k"], "base_model": ["gpt2", "a/b"]}
    (tmp_path / "README.md").write_text(f"---\n{json.dumps(stated | {'metrics': ['bleu']})}\n---\n# Mine\n")
    data = ModelCard(card(facts, {}, tmp_path, tmp_path)).data.to_dict()
    assert stated.items() <= data.items() and "metrics" not in data and card_errors(data) == []


def test_graphs_have_no_paths_of_this_machine(exported):
    """The exporter notes the stack trace of every node."""
    for path in sorted((exported / "onnx").glob("*.onnx")):
        content = path.read_bytes()
        assert b".py" not in content and b"stack_trace" not in content, path


def test_int8_weights(exported, tmp_path):
    """Graphs with 8-bit weights are smaller, and their logits are near those in float32."""
    sessions, sizes = {}, {}
    for kind in ("float32", "int8"):
        for name in ("encoder_model", "decoder_model_merged"):
            path = tmp_path / f"{name}_{kind}.onnx"
            shutil.copy(exported / "onnx" / f"{name}.onnx", path)
            if kind == "int8":
                quantize_graph(path)
            sessions[kind, name] = onnxruntime.InferenceSession(path)
            sizes[kind, name] = path.stat().st_size
    pixels = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    logits = {}
    for kind in ("float32", "int8"):
        encoder = sessions[kind, "encoder_model"]
        names = [node.name for node in encoder.get_outputs()]
        encoded = dict(zip(names, encoder.run(names, {"pixel_values": pixels}), strict=True))
        states = DecoderStates(sessions[kind, "decoder_model_merged"], encoded, False)
        logits[kind] = states.step(np.array([[1], [1]]))
    difference = np.abs(logits["int8"] - logits["float32"]).max()
    assert 0 < difference < 0.1 * np.abs(logits["float32"]).max()
    operations = {node.op_type for node in onnx.load(tmp_path / "decoder_model_merged_int8.onnx").graph.node}
    assert "MatMulInteger" in operations
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match="broken.onnx cannot be quantised"):
        quantize_graph(tmp_path / "broken.onnx")


def test_differences_that_are_refused():
    require_small(9e-5, "float32")
    require_small(0.09, "int8")
    for difference, weights, advice in ((2e-4, "float32", "report"), (0.2, "int8", "weights=float32")):
        for value in (difference, float("nan")):
            with pytest.raises(ValueError, match=f"differ by {value:.2g} .*{advice}"):
                require_small(value, weights)


@pytest.mark.slow
def test_export_with_int8_weights(tmp_path):
    """A captioner whose head and embedding share a matrix."""
    case = case_of("visualgpt")
    model = case.make_model()
    assert model.lm_head.weight is model.get_input_embeddings().weight
    found = export_captioner(model, tmp_path / "exported", case.make_processor(), weights="int8")
    assert 1e-4 < found.largest_difference < 0.1
    assert (tmp_path / "exported" / "onnx" / "decoder_model_merged_int8.onnx").is_file()
    generator = np.random.default_rng(0)
    image = PIL.Image.fromarray(generator.integers(0, 256, (40, 40, 3), np.uint8))
    (record,) = OnnxCaptioner(tmp_path / "exported")(image, num_beams=2, return_scores=True)
    assert np.isfinite(record["score"])


@pytest.mark.parametrize("name", ["transformer", "zodiac", "aoanet"])
def test_caches_are_tensors(name):
    """A cache made of its own tensors continues as the cache itself."""
    case = case_of(name)
    model = case.make_model()
    inputs, tokens = case.inputs("regions"), case.captions(model)
    outputs = model(**inputs, decoder_input_ids=tokens, use_cache=True)
    tensors = cache_tensors(outputs.cache)
    assert len(tensors) == {"transformer": 8, "zodiac": 12, "aoanet": 3}[name]
    again = cache_of_tensors(tensors, type(outputs.cache))
    assert cache_tensors(again).keys() == tensors.keys()
    following = [
        model(**inputs, decoder_input_ids=tokens[:, -1:], cache=cache).logits for cache in (again, outputs.cache)
    ]
    assert torch.equal(*following)


def test_refused_captioners(source):
    case = case_of("show_attend_tell")
    processor = case.make_processor()
    blip = BlipForConditionalGeneration(
        BlipConfig(
            text_config={"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9},
            vision_config={"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "image_size": 32},
        )
    )
    with pytest.raises(ValueError, match="BlipForConditionalGeneration .* is no class of this library"):
        require_exportable(blip, processor)
    model = case.make_model()
    with pytest.raises(ValueError, match="`processor` is missing"):
        require_exportable(model, None)
    model.peft_config = {"default": None}
    with pytest.raises(ValueError, match="merge_adapter"):
        require_exportable(model, processor)
    released = case_of("zodiac").make_model(intensity_pool="released")
    with pytest.raises(ValueError, match="depends on the other images of its batch"):
        require_exportable(released, processor)
    generation = case.make_model().generation_config
    generation.bookkeeping = "live"
    with pytest.raises(ValueError, match="`bookkeeping='live'`"):
        generation_defaults(generation)


class Eigenvalues(torch.nn.Module):
    """An operation that has no counterpart in ONNX."""

    def forward(self, states):
        return torch.linalg.eigvals(states @ states.mT).real


@pytest.mark.slow
def test_refused_operation():
    with pytest.raises(ValueError, match="has an operation that cannot be exported to ONNX: .*linalg_eig"):
        export_graph(Eigenvalues(), (torch.ones(2, 3),), ({},), ["states"], ["values"], 18)


def test_refused_arguments(source, tmp_path, capsys):
    for opset in (9, 99):
        with pytest.raises(ValueError, match=f"`opset` is {opset}, expected 18 to"):
            require_opset(opset)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    assert main(["export", str(source), "--output_dir", str(tmp_path / "old")]) == 2
    assert "has files already" in capsys.readouterr().err
    assert main(["export", str(source), "--output_dir", str(tmp_path / "new"), "--weights", "int9"]) == 2
    assert "`--weights` is 'int9', expected one of float32, int8. Did you mean `int8`?" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "missing"), "--output_dir", str(tmp_path / "new")]) == 2
    assert "is no checkpoint" in capsys.readouterr().err

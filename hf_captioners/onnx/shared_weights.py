"""ONNX graphs added to a captioner's folder that share the weights in `model.safetensors`.

The tensors of such a graph are external data of ONNX: the places of the bytes in `model.safetensors`. So the folder
has one copy of the weights, for torch and for onnxruntime, in the number format in which it is stored; onnxruntime
converts half precision to float32 when it loads a graph, and folds normalisations into convolutions.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from hf_captioners.architectures import Purpose
from hf_captioners.loading import load_captioner
from hf_captioners.output_files import as_json, atomic_file

from .exporting import captioner_facts, image_size_of, require_exportable, require_packages
from .graphs import OPSET, make_graphs
from .onnx_facts import DECODER, ENCODER, FACTS_FILE, TOKENIZER_FILE, file_digest

WEIGHTS_FILE = "model.safetensors"
ELEMENT_TYPES = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16"}  # name in safetensors -> in ONNX
MAX_HEADER_BYTES = 100_000_000  # of a file of safetensors
MAX_OWN_BYTES = 2**16  # of a constant that is part of a graph


def add_graphs(folder: str | os.PathLike[str]) -> float:
    """Add ONNX graphs to a saved captioner's folder; onnxruntime reads the weights that are already there.

    The folder gets `encoder_model.onnx`, `decoder_model_merged.onnx` and `captioner.json`, see `export_captioner`.
    Add them again after the weights or the configuration have changed.

    Args:
        folder: a saved captioner with `model.safetensors` and `tokenizer.json`.

    Returns:
        The largest difference of logits from those of the captioner.

    Raises:
        ImportError: packages of the extra `export` are missing.
        ValueError: the captioner cannot be exported, its weights are in several files or packed, or the graphs compute
            something else.
        FileNotFoundError: the folder has no such files.
    """
    require_packages()
    target = Path(folder)
    for name in (WEIGHTS_FILE, TOKENIZER_FILE):
        if not (target / name).is_file():
            raise FileNotFoundError(
                f"{target} has no {name}, expected a saved captioner with its weights in one file."
            )
    model, processor = load_captioner(str(target), Purpose.EXPORT)
    architecture = require_exportable(model, processor)
    model = model.to(device="cpu", dtype=torch.float32).eval()
    facts = captioner_facts(model, processor, architecture, "float32")
    graphs = make_graphs(model, image_size_of(facts["image"]), OPSET, optimized=False)
    facts |= {"opset": OPSET, "reads_all_tokens": graphs.reads_all_tokens}
    facts["graphs"] = {name: f"{name}.onnx" for name in (ENCODER, DECODER)}
    places = StoredTensors(target / WEIGHTS_FILE, model)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        trial = Path(place)
        for name in (WEIGHTS_FILE, TOKENIZER_FILE):
            shutil.copyfile(target / name, trial / name)
        for graph, name in ((graphs.encoder, ENCODER), (graphs.decoder, DECODER)):
            (trial / f"{name}.onnx").write_bytes(with_stored_weights(graph, places).SerializeToString())
        names = [*facts["graphs"].values(), TOKENIZER_FILE, WEIGHTS_FILE]
        facts["files"] = {name: file_digest(trial / name) for name in names}
        (trial / FACTS_FILE).write_text(as_json(facts) + "\n", encoding="utf-8")
        from .checking import compare_with_captioner

        difference = compare_with_captioner(trial, model, processor)
        for name in (*facts["graphs"].values(), FACTS_FILE):
            with atomic_file(target / name, "wb") as file:
                file.write((trial / name).read_bytes())
    return difference


class StoredTensors:
    """Byte offsets, types and names of the tensors in a safetensors file.

    Args:
        path: the file.
        model: the captioner that was loaded from it; of tensors that it shares, the file has one.
    """

    def __init__(self, path: Path, model: torch.nn.Module) -> None:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"{path} is damaged: its header would have {size:,} bytes.")
            self.tensors: dict[str, Any] = json.loads(file.read(size))
        self.name, self.begin = path.name, 8 + size
        addresses = {values.data_ptr(): name for name, values in model.state_dict().items() if name in self.tensors}
        self.names = {name: addresses.get(values.data_ptr()) for name, values in model.state_dict().items()}

    def find(self, name: str) -> str | None:
        """Return a graph tensor's name in the safetensors file; None if it is not stored there."""
        return self.names.get(name) or self.names.get(name.removeprefix("model."))

    def external(self, name: str, stored: str) -> Any:
        """Return an ONNX tensor `name` with values from a tensor stored in the safetensors file."""
        from onnx import TensorProto

        facts = self.tensors[stored]
        first, end = facts["data_offsets"]
        tensor = TensorProto(
            name=name,
            data_type=TensorProto.DataType.Value(ELEMENT_TYPES[facts["dtype"]]),
            dims=facts["shape"],
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", self.name), ("offset", self.begin + first), ("length", end - first)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def with_stored_weights(graph_model: Any, places: StoredTensors) -> Any:
    """Return an ONNX graph that reads its weights from a safetensors file, without source code in metadata.

    Args:
        graph_model: a model of ONNX that is not optimized: its tensors have the names of the captioner's.
        places: of the tensors in the file.

    Raises:
        ValueError: a large tensor is not stored.
    """
    import onnxscript.optimizer
    from onnx import TensorProto, helper

    stored: dict[str, str] = {}
    graph = graph_model.graph
    for tensor in list(graph.initializer):
        if (name := places.find(tensor.name)) is not None:
            # As inputs of the graph, weights are no constants, which the optimizer would change and store again.
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            graph.initializer.remove(tensor)
            stored[tensor.name] = name
    smaller = onnxscript.optimizer.optimize(graph_model)
    graph = smaller.graph
    for tensor in graph.initializer:
        if len(tensor.raw_data) > MAX_OWN_BYTES:
            raise ValueError(f"The weights have no tensor {tensor.name} {list(tensor.dims)}: it is computed.")
    inputs = [node for node in graph.input if node.name not in stored]
    read = {name for node in graph.node for name in node.input}
    conversions = []
    for name in sorted(stored.keys() & read):
        is_plain = places.tensors[stored[name]]["dtype"] == "F32"
        tensor = places.external(name if is_plain else f"{name}.stored", stored[name])
        graph.initializer.append(tensor)
        if not is_plain:
            conversions.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*conversions, *graph.node]
    for part, kept in ((graph.input, inputs), (graph.node, nodes)):
        del part[:]
        part.extend(kept)
    del graph.value_info[:]
    _drop_notes(smaller)
    return smaller


def _drop_notes(graph_model: Any) -> None:
    """Remove the exporter's metadata, which is source code with local paths, from an ONNX model."""
    graph = graph_model.graph
    for part in (graph_model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("doc_string")
        del part.metadata_props[:]

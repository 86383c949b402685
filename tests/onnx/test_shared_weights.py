"""Graphs that read the weights of a file of safetensors."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file

from hf_captioners.onnx.shared_weights import MAX_OWN_BYTES, StoredTensors, add_graphs, with_stored_weights


class Products(torch.nn.Module):
    """Two products with one matrix, which the module has under two names."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.coarse = torch.nn.Linear(4, 3, bias=False)


def graph_of(module):
    """y = x W' + b + x H', as the exporter names the weights of a captioner."""
    tensors = {f"model.{name}": values.detach().numpy() for name, values in module.state_dict().items()}
    nodes = [
        helper.make_node("Gemm", ["x", "model.head.weight", "model.embedding.bias"], ["a"], transB=1),
        helper.make_node("Gemm", ["x", "model.coarse.weight"], ["b"], transB=1),
        helper.make_node("Add", ["a", "b"], ["y"], doc_string="line of source code"),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 4), ("y", 3))
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "products", values[:1], values[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_weights_are_those_of_the_file(tmp_path):
    """Half precision is computed in float32; a tensor that is stored once is read under both names."""
    torch.manual_seed(0)
    module = Products()
    module.coarse.weight.data = module.coarse.weight.half().float()
    stored = dict(module.state_dict())
    del stored["head.weight"]
    save_file(stored | {"coarse.weight": stored["coarse.weight"].half()}, tmp_path / "model.safetensors")
    places = StoredTensors(tmp_path / "model.safetensors", module)
    shared = with_stored_weights(graph_of(module), places)
    assert {one.data_location for one in shared.graph.initializer} == {TensorProto.EXTERNAL}
    assert not any(node.doc_string for node in shared.graph.node)
    (tmp_path / "graph.onnx").write_bytes(shared.SerializeToString())
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(tmp_path / "graph.onnx").run(None, {"x": x})
    expected = module.embedding(torch.from_numpy(x)) + module.coarse(torch.from_numpy(x))
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-6)


def test_a_large_tensor_that_is_not_stored_is_refused(tmp_path):
    module = Products()
    save_file({"coarse.weight": module.coarse.weight}, tmp_path / "model.safetensors")
    model = graph_of(module)
    large = numpy_helper.from_array(np.ones(MAX_OWN_BYTES, np.float32), "folded")
    model.graph.initializer.append(large)
    model.graph.node.append(helper.make_node("ReduceSum", ["folded"], ["z"]))
    model.graph.output.append(onnx.ValueInfoProto(name="z"))
    with pytest.raises(ValueError, match="no tensor folded .*it is computed"):
        with_stored_weights(model, StoredTensors(tmp_path / "model.safetensors", module))
    with pytest.raises(FileNotFoundError, match="has no tokenizer.json"):
        add_graphs(tmp_path)


@pytest.mark.slow
def test_graphs_of_a_saved_captioner(source, tmp_path):
    """They caption as the captioner does, on the command line without naming a library."""
    import shutil

    from hf_captioners.captioning import CaptionBatches
    from hf_captioners.captioning.backends import choose_backend

    folder = shutil.copytree(source, tmp_path / "captioner")
    assert add_graphs(folder) < 1e-4
    images = {"image": [np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)]}
    found = [CaptionBatches(str(folder), device="cpu", backend=backend)(dict(images)) for backend in ("torch", "onnx")]
    assert found[0]["caption"] == found[1]["caption"] and choose_backend(str(folder), {}, "cpu") == "onnx"

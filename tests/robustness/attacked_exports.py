"""Damaged exported captioners: facts, graphs and tokenizers, with digests that are right."""

import io
import json
import math
import random
import shutil
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import onnx

from hf_captioners.onnx import OnnxCaptioner, export_captioner
from hf_captioners.onnx.onnx_facts import FACTS_FILE, TOKENIZER_FILE

from .damaged_captioners import GRAPHS, seal
from .isolated import Attempt
from .mutators import mutated, mutated_json
from .watched_files import CANARIES

ODD_SHAPES = (0, 1, -1, 2**31, 2**40)


def write_export(material: Any) -> None:
    """Export the captioner, once in a run, unless an exported one is there."""
    folder = material.kept.setdefault("exported", material.root / "exported")
    if not folder.exists():
        export_captioner(material.captioner, folder)
    OnnxCaptioner(folder)(str(material.images / "scene_000.png"))  # imports what captioning imports


def changed_graph(content: bytes, rng: random.Random, canaries: Path) -> tuple[bytes, str]:
    """Change a node, an input or a weight of a graph, so that it is still one; weights may be in a canary file."""
    model = onnx.load_from_string(content)
    graph = model.graph
    kind = rng.choice(("node removed", "operator", "shape", "output removed", "weight", "renamed", "external data"))
    if kind == "node removed":
        graph.node.pop(rng.randrange(len(graph.node)))
    elif kind == "operator":
        rng.choice(graph.node).op_type = rng.choice(("Identity", "Loop", "Exp", "Nothing", "Transpose"))
    elif kind == "shape":
        value = rng.choice([*graph.input, *graph.output])
        rng.choice(value.type.tensor_type.shape.dim).dim_value = rng.choice(ODD_SHAPES)
    elif kind == "output removed":
        graph.output.pop(rng.randrange(len(graph.output)))
    elif kind == "renamed":
        rng.choice([*graph.input, *graph.output]).name = rng.choice(("", "x", "logits", "input_ids", "present."))
    else:
        tensor = rng.choice(graph.initializer)
        if kind == "weight":
            tensor.raw_data = rng.choice((b"\xff", b"\0", rng.randbytes(1))) * len(tensor.raw_data)
        else:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            canary = canaries / "secret.bin"
            places = ("/etc/passwd", "../x", FACTS_FILE, "", str(canary), "../../canaries/secret.bin")
            tensor.external_data.add(key="location", value=rng.choice(places))
    return model.SerializeToString(), kind


def attack_export(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a file of an exported captioner, and caption an image."""
    copy = Path(shutil.copytree(material.kept["exported"], folder / "exported"))
    name = rng.choice((FACTS_FILE, FACTS_FILE, TOKENIZER_FILE, *GRAPHS.values()))
    path, whole = copy / name, (copy / name).read_bytes()
    if path.suffix == ".json" and rng.random() < 0.8:
        text, how = mutated_json(json.loads(whole), rng)
        path.write_text(text, encoding="utf-8")
    elif path.suffix == ".onnx" and rng.random() < 0.6:
        content, how = changed_graph(whole, rng, folder.parent / CANARIES)
        path.write_bytes(content)
    else:
        content, how = mutated(whole, rng)
        path.write_bytes(content)
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):  # of damaged facts
        seal(copy)

    def caption() -> None:
        with redirect_stderr(io.StringIO()):
            (record,) = OnnxCaptioner(copy, threads=1)(str(material.images / "scene_000.png"), return_scores=True)[:1]
        assert math.isfinite(record["score"]), record
        assert isinstance(record["generated_text"], str)

    return Attempt(f"{name}: {how}", caption, (str(copy),))

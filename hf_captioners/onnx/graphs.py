"""Export of a captioner's ONNX graphs, the encoder and one decoder step, for all architectures.

What a graph reads and returns follows from what the architecture declares: the fields of its encoder output, its cache
and the inputs of its configuration. Axes are free if their sizes differ between two examples.
"""

import contextlib
import copy
import io
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from hf_captioners.modeling.inputs_captioning import input_names

from .cache_tensors import IMAGE, STATE, cache_of_tensors, cache_tensors
from .onnx_search import IMAGES, LENGTH, PAST, PRESENT, ROWS

OLDEST_OPSET, NEWEST_OPSET, OPSET = 18, 23, 18
ENCODED = "encoder."  # begins the names of the encoder's outputs, some of which are inputs too
REGIONS = "regions"  # name of further axes whose size is free
# Sizes of the two examples: images, rows of text per image, cached tokens, regions, ids of a declared input.
SIZES = (
    {"images": 2, "copies": 3, "past": 4, "regions": 6, "ids": 3},
    {"images": 3, "copies": 4, "past": 5, "regions": 8, "ids": 5},
)
IMAGE_SIZE = 224  # of example images, where the processor leaves the size open


class EncoderGraph(nn.Module):
    """Module for export: encoder, with the keys, values and first states that the decoder derives from images.

    Args:
        model: a captioner.
        names: of the outputs.
    """

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the tensors named in `names` for the inputs of the encoder."""
        tensors = encoded_images(self.model, inputs)
        return tuple(tensors[name].clone() for name in self.names)  # an output may not be an input itself


class StepGraph(nn.Module):
    """Module for export: one decoder step and the LM head, with the cache as tensors.

    Args:
        model: a captioner.
        output_class: class of the encoder's output.
        cache_class: class of the decoder's cache.
    """

    def __init__(self, model: Any, output_class: type, cache_class: type) -> None:
        super().__init__()
        self.model, self.output_class, self.cache_class = model, output_class, cache_class
        self.lm_head = model.lm_head

    def forward(self, input_ids: Tensor, encoded: dict[str, Tensor], past: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the logits `[rows, 1, V]` of the next token, and the tensors of the cache that belong to text rows.

        Args:
            input_ids: `[rows, 1]`, or all tokens so far, where the captioner's rule of masks reads them.
            encoded: tensors of the encoder's output, see `encoded_images`.
            past: see `cache_tensors`.
        """
        outputs = self.model.model.decoder(
            input_ids[:, -1:],
            self.output_class(**{name.removeprefix(ENCODED): values for name, values in encoded.items()}),
            attention_mask=self.model.decoding_mask(input_ids),
            cache=cache_of_tensors(past, self.cache_class),
            use_cache=True,
            return_dict=True,
        )
        present = cache_tensors(outputs.cache)
        return self.lm_head(outputs.last_hidden_state), *(present[name] for name in past if is_of_rows(name))


def is_of_rows(name: str) -> bool:
    """Return whether a cache tensor has one row per text sequence, not per image."""
    return name.split(".")[1] != IMAGE


def encoded_images(model: Any, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the encoder's output for `inputs`, and the decoder's cache of the images, as named tensors."""
    outputs = model.get_encoder()(**inputs, return_dict=True)
    tensors = {ENCODED + name: values for name, values in outputs.items() if isinstance(values, Tensor)}
    images = outputs.last_hidden_state.shape[0]
    if model._is_stateful:
        states = model.model.decoder.initial_states(outputs, images)
        first = {f"{index}.{STATE}.{name}": value for index, each in enumerate(states) for name, value in each.items()}
    else:
        # Keys and values of the images do not depend on the token, so the graph has nothing else of this step.
        begin = torch.full((images, 1), model.config.decoder_start_token_id, device=outputs.last_hidden_state.device)
        step = model.model.decoder(begin, outputs, use_cache=True, return_dict=True)
        first = {name: value for name, value in cache_tensors(step.cache).items() if not is_of_rows(name)}
    return tensors | {PAST + name: value for name, value in first.items()}


@dataclass
class Example:
    """Example inputs of the encoder and decoder graphs, for one number of images, regions and tokens.

    Args:
        inputs: of the encoder.
        encoded: see `encoded_images`.
        output: the encoder's output.
        tokens: `[rows, T]`, or `[rows, 1]`, see `StepGraph`.
        cache: of the tokens before.
    """

    inputs: dict[str, Tensor]
    encoded: dict[str, Tensor]
    output: Any
    tokens: Tensor
    cache: Any


def example_inputs(model: Any, sizes: Mapping[str, int], image_size: tuple[int, int], seed: int) -> dict[str, Tensor]:
    """Return random values for every input that the captioner's encoder requires.

    Args:
        model: a captioner.
        sizes: see `SIZES`.
        image_size: height and width of images.
        seed: of the random numbers.
    """
    config, generator = model.config, torch.Generator().manual_seed(seed)
    images, regions = sizes["images"], sizes["regions"]
    if config.vision_config is not None:
        channels = getattr(config.vision_config, "num_channels", 3)
        given = {"pixel_values": torch.randn(images, channels, *image_size, generator=generator)}
    else:
        counts = regions - torch.arange(images) % 2
        given = {
            "region_features": torch.randn(images, regions, config.region_feature_size, generator=generator),
            "region_mask": torch.arange(regions) < counts[:, None],
        }
        if config.needs_region_boxes:
            corners = torch.rand(images, regions, 2, 2, generator=generator).sort(dim=2).values
            given["region_boxes"] = corners.flatten(2)  # [B, R, 4]
    for name, width in config.required_vectors.items():
        given[name] = torch.randn(images, width, generator=generator)
    return given | _refused_without(model, given, sizes["ids"])


def _refused_without(model: Any, given: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the optional id inputs without which the captioner's encoder fails."""
    images = len(next(iter(given.values())))
    lists = [name for name, layout in model.config.encoder_inputs.items() if layout == "ids"]
    needed: dict[str, Tensor] = {}
    for name in lists:
        try:
            model.get_encoder()(**given, **needed)
        except ValueError as error:
            if name not in str(error):
                raise
            mask = torch.arange(count) < count - torch.arange(images)[:, None] % 2
            ids = torch.full((images, count), model.config.vocab_size - 1) * mask
            names = input_names({name: "ids"})
            needed |= dict(zip(names, (ids, mask), strict=True))
    return needed


def make_example(model: Any, sizes: Mapping[str, int], image_size: tuple[int, int], seed: int) -> Example:
    """Return random inputs of the encoder graph and of the decoder graph."""
    inputs = example_inputs(model, sizes, image_size, seed)
    output = model.get_encoder()(**inputs, return_dict=True)
    generator = torch.Generator().manual_seed(seed)
    rows = sizes["images"] * sizes["copies"]
    tokens = torch.randint(model.config.vocab_size, (rows, sizes["past"] + 1), generator=generator)
    tokens[:, 0] = model.config.decoder_start_token_id
    mask = model.decoding_mask(tokens[:, :-1])
    decoded = model.model.decoder(tokens[:, :-1], output, attention_mask=mask, use_cache=True, return_dict=True)
    read = tokens if mask is not None else tokens[:, -1:]
    return Example(inputs, encoded_images(model, inputs), output, read, decoded.cache)


def free_axes(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, dict[int, Any]]:
    """Return the axes whose sizes differ between two examples, as dynamic dimensions of `torch.export`."""
    return {
        name: {
            axis: torch.export.Dim.AUTO for axis, size in enumerate(values.shape) if size != second[name].shape[axis]
        }
        for name, values in first.items()
    }


@dataclass
class Graphs:
    """The encoder graph and the decoder graph of a captioner in ONNX.

    Args:
        encoder, decoder: models of ONNX.
        reads_all_tokens: whether the decoder reads all tokens so far.
    """

    encoder: Any
    decoder: Any
    reads_all_tokens: bool


@torch.no_grad()
def make_graphs(
    model: Any, image_size: tuple[int, int], opset: int = OPSET, untied: bool = False, optimized: bool = True
) -> Graphs:
    """Export the encoder and one decoder step of a captioner to ONNX.

    Args:
        model: a captioner in evaluation mode, in float32 on the CPU.
        image_size: height and width of the images that it reads.
        opset: version of the operators of ONNX.
        untied: whether head and embedding have a matrix each, which the quantiser needs.
        optimized: whether constants are folded; otherwise the weights are those of the captioner, with their names.

    Raises:
        ValueError: an operation cannot be exported.
    """
    first, second = (make_example(model, sizes, image_size, seed) for seed, sizes in enumerate(SIZES))
    reads_all_tokens = first.tokens.shape[1] > 1
    past, other_past = cache_tensors(first.cache), cache_tensors(second.cache)
    of_output = {name: values for name, values in first.encoded.items() if name.startswith(ENCODED)}
    step = StepGraph(model, type(first.output), type(first.cache))
    step.lm_head = copy.deepcopy(model.lm_head) if untied else model.lm_head
    row_axes = {0: torch.export.Dim.AUTO} | ({1: torch.export.Dim.AUTO} if reads_all_tokens else {})
    decoder = export_graph(
        step,
        (first.tokens, of_output, past),
        (row_axes, free_axes(of_output, second.encoded), free_axes(past, other_past)),
        ["input_ids", *of_output, *(PAST + name for name in past)],
        ["logits", *(PRESENT + name for name in past if is_of_rows(name))],
        opset,
        optimized,
    )
    drop_unused_inputs(decoder)
    read = [node.name for node in decoder.graph.input]
    names = [name for name in first.encoded if name in read]
    encoder = export_graph(
        EncoderGraph(model, names),
        (first.inputs,),
        (free_axes(first.inputs, second.inputs),),
        list(first.inputs),
        names,
        opset,
        optimized,
    )
    drop_unused_inputs(encoder)
    of_rows = [part + name for part in (PAST, PRESENT) for name in past if is_of_rows(name)]
    name_axes(encoder)
    name_axes(decoder, ["input_ids", "logits", *of_rows])
    return Graphs(encoder, decoder, reads_all_tokens)


def export_graph(
    module: nn.Module,
    arguments: tuple,
    dynamic_shapes: tuple,
    inputs: list[str],
    outputs: list[str],
    opset: int,
    optimized: bool = True,
) -> Any:
    """Export a module to ONNX through `torch.export` and return the ONNX model.

    Raises:
        ValueError: an operation cannot be exported; the message names it.
    """
    with quiet_exporters():
        try:
            program = torch.export.export(module.eval(), arguments, dynamic_shapes=dynamic_shapes, strict=False)
            exported = torch.onnx.export(
                program,
                input_names=inputs,
                output_names=outputs,
                opset_version=opset,
                dynamo=True,
                optimize=optimized,
                verbose=False,
            )
        except Exception as error:  # exporters raise errors of many types
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = next(
                (line for line in lines if "aten" in line or "torch.ops" in line), (lines or [repr(error)])[0]
            )
            raise ValueError(
                f"The {type(module).__name__.removesuffix('Graph').lower()} of this captioner has an operation that "
                f"cannot be exported to ONNX: {type(error).__name__}: {reason[:400]}. Export a captioner with another "
                "vision model, or update torch and onnxscript."
            ) from error
    assert exported is not None
    return without_traces(exported.model_proto)


def without_traces(model: Any) -> Any:
    """Remove the exporter's notes from a graph: stack traces with local paths, and their size.

    Args:
        model: an `onnx.ModelProto`, which is changed.
    """
    pending = [model.graph, *model.functions]
    while pending:
        part = pending.pop()
        for item in (part, *part.node, *part.value_info, *getattr(part, "input", ()), *getattr(part, "output", ())):
            if hasattr(item, "metadata_props"):  # names of inputs of functions are strings
                del item.metadata_props[:]
                item.doc_string = ""
        pending += [attribute.g for node in part.node for attribute in node.attribute if attribute.HasField("g")]
        pending += [graph for node in part.node for attribute in node.attribute for graph in attribute.graphs]
    return model


@contextlib.contextmanager
def quiet_exporters() -> Iterator[None]:
    """Silence printed lines, warnings and log messages below errors while a graph is exported."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)


def drop_unused_inputs(graph_model: Any) -> None:
    """Remove the inputs of an ONNX model that no node reads."""
    graph = graph_model.graph
    read = {name for node in graph.node for name in node.input} | {node.name for node in graph.output}
    kept = [node for node in graph.input if node.name in read]
    del graph.input[:]
    graph.input.extend(kept)


def name_axes(graph_model: Any, of_rows: Collection[str] = ()) -> None:
    """Name the dynamic axes of an ONNX model: `images` or `rows`, then `regions` or `past`.

    Args:
        graph_model: a model of ONNX.
        of_rows: names of the inputs and outputs of text rows.
    """
    graph = graph_model.graph
    for node in [*graph.input, *graph.output]:
        names = (ROWS, LENGTH) if node.name in of_rows else (IMAGES, REGIONS)
        for axis, dimension in enumerate(node.type.tensor_type.shape.dim):
            if dimension.dim_param:
                dimension.dim_param = names[min(axis, 1)]
    del graph.value_info[:]  # it has the old names, and onnxruntime infers it


def save_graph(graph_model: Any, path: Path) -> None:
    """Write an ONNX model with its weights to a file.

    Raises:
        ValueError: it is larger than a file of ONNX may be.
    """
    if graph_model.ByteSize() >= 2**31:
        raise ValueError(f"{path.name} would have {graph_model.ByteSize():,} bytes, and files of ONNX end at 2 GiB.")
    path.write_bytes(graph_model.SerializeToString())

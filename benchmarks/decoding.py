"""Compare the decoding speed of `generate()` with other decoders of the same weights.

    python benchmarks/decoding.py [--quick] [--cases visualgpt "show_attend_tell"] [--output FILE]

Weights are random, features are given, all captions have the same length. In every round each decoder runs once;
figures are medians of the rounds, in CPU seconds of one thread. The floor is the time that the machine needs for the
products of a plain run at the speed of its packed products, or for reading the weights once a step, whichever is
longer. `--quick` has smaller captioners and three rounds (under five minutes).
"""

import argparse
import copy
import ctypes
import json
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from decoding_rivals import captions_one_by_one, keys_of_every_step, project_always, with_stock_search
from provenance import processor_name, write_results
from timing import cpu_seconds
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.pytorch_utils import Conv1D

import hf_captioners.modeling  # noqa: F401 (registers the architectures)
from hf_captioners.modeling.layers_attention import BeamFoldingCrossAttention
from hf_captioners.modeling.layers_packed import PACKING, can_pack
from hf_captioners.modeling.layers_region_attention import DotRegionAttention

FEATURE_SIZE = 2048
# What operators are for, by parts of their names; those that read the vocabulary otherwise choose tokens.
OPERATORS = {
    "products": ("linear", "addmm", "aten::mm"),
    "attention": ("scaled_dot_product", "aten::bmm"),
    "caches and other copies": ("aten::cat", "aten::index", "aten::copy_", "aten::clone", "aten::repeat"),
    "norms and activations": ("layer_norm", "aten::gelu", "aten::sigmoid"),
}
PROFILED = ("VisualGPT", 8, "this library, float32 packed")  # case, images, decoder
STOCK = "stock generate"


@dataclass(frozen=True)
class Case:
    """Captioner to measure: architecture, size and search.

    Args:
        name: in the table.
        architecture: its model type.
        fields: fields of its configuration.
        quick: the same for `--quick`; empty: the case is left out. None: they are `fields`.
        images: numbers of images.
        regions: of each image.
        packed: whether packed weights are measured, too.
        rival: a further decoder, of `RIVALS`.
    """

    name: str
    architecture: str
    fields: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] | None = None
    images: tuple[int, ...] = (1, 8)
    regions: int = 50
    packed: bool = True
    rival: str | None = None


def gpt2(width: int, layers: int) -> dict[str, Any]:
    """Return configuration fields of a VisualGPT of this size."""
    return {"text_config": {"n_embd": width, "n_layer": layers, "n_head": width // 64}}


WIDE, NARROW = {"hidden_size": 1024, "embedding_size": 1024}, {"hidden_size": 256, "embedding_size": 256}
CASES = [
    Case("VisualGPT", "visualgpt", gpt2(768, 12), gpt2(256, 6), rival="as released"),
    Case("VisualGPT, search alone", "visualgpt", gpt2(768, 12), {}, (1, 8, 64), packed=False),
    Case("VisualGPT, search alone", "visualgpt", gpt2(256, 6), gpt2(256, 6), (1, 8, 64), packed=False),
    Case("M2", "m2_transformer", rival="as released"),
    Case("Show, Attend and Tell", "show_attend_tell", regions=14 * 14, rival="images one by one"),
    Case("AoANet", "aoanet", WIDE, NARROW, rival="keys of every step"),
    Case("Image Transformer", "image_transformer", WIDE, NARROW, rival="keys of every step"),
]


@dataclass
class Decoder:
    """Named function that captions the images of a case.

    Args:
        name: in the table.
        run: returns the captions `[B, L]` of encoded images.
        inside: what is changed while it runs.
        exact: whether its captions must be those of the stock search.
    """

    name: str
    run: Callable[[], Tensor]
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext
    exact: bool = True


def captioner(case: Case, quick: bool) -> Any:
    """Build a captioner of a case with random weights."""
    config = AutoConfig.for_model(
        f"captioning_{case.architecture}", **(case.fields if not quick or case.quick is None else case.quick)
    )
    return AutoModelForImageTextToText.from_config(config).eval()


def decoders(case: Case, ours: Any, regions: dict[str, Tensor], tokens: int, beams: int) -> Iterator[Decoder]:
    """Return the decoders to compare on a case, stock `generate()` first."""
    options = {"num_beams": beams, "max_new_tokens": tokens, "min_new_tokens": tokens}
    encoded = ours.model.encoder(**regions)
    stock = with_stock_search(ours)

    def generate(model: Any) -> Callable[[], Tensor]:
        return lambda: model.generate(encoder_outputs=encoded.copy(), **options)

    yield Decoder(STOCK, generate(stock))
    yield Decoder("this library", generate(ours))
    for weights in PACKING if case.packed else ():
        if can_pack(weights):
            packed = copy.deepcopy(ours, {id(parameter): parameter for parameter in ours.parameters()})
            packed.optimize_for_generation(weights, drop_plain=True)  # as `hf-captioners caption`
            yield Decoder(f"this library, {weights} packed", generate(packed), exact=weights == "float32")
    if case.rival == "as released":
        change = lambda: patch.object(BeamFoldingCrossAttention, "keys_and_values", project_always)  # noqa: E731
        yield Decoder(case.rival, generate(stock), change)
    elif case.rival == "keys of every step":
        change = lambda: patch.object(DotRegionAttention, "prepare", keys_of_every_step(stock))  # noqa: E731
        yield Decoder(case.rival, generate(stock), change)
    elif case.rival == "images one by one":
        yield Decoder(case.rival, lambda: captions_one_by_one(ours, regions["region_features"], beams, tokens))


def measure(case: Case, images: int, args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float] | None]:
    """Measure a case on this number of images; return table rows, and CPU shares of the operators of `PROFILED`."""
    torch.manual_seed(0)
    ours = captioner(case, args.quick)
    corners = torch.rand(images, case.regions, 2, 2).sort(dim=2).values.flatten(2)
    regions = {"region_features": torch.rand(images, case.regions, FEATURE_SIZE), "region_boxes": corners}
    compared = list(decoders(case, ours, regions, args.tokens, args.beams))
    captions, memory = {}, {}
    for decoder in compared:  # also warms up
        with decoder.inside():
            captions[decoder.name], memory[decoder.name] = with_peak_memory(decoder.run)
    times: dict[str, list[float]] = {decoder.name: [] for decoder in compared}
    for _ in range(3 if args.quick else args.rounds):
        for decoder in compared:
            with decoder.inside():
                times[decoder.name].append(cpu_seconds(decoder.run))
    seconds = {name: statistics.median(values) for name, values in times.items()}
    least = floor(ours, compared[1].run, images * args.beams, args.tokens)
    rows = []
    for decoder in compared:
        equal = int((captions[decoder.name] == captions[STOCK]).all(1).sum()) if decoder.exact else None
        rows.append(
            {
                "case": case.name,
                "width": ours.config.hidden_size,
                "images": images,
                "decoder": decoder.name,
                "seconds": round(seconds[decoder.name], 3),
                "speed": round(seconds[STOCK] / seconds[decoder.name], 2),
                "over_floor": round(seconds[decoder.name] / least, 2) if decoder.exact else None,
                "equal": equal,
                "memory": None if memory[decoder.name] is None else round(memory[decoder.name] / 2**20),
            }
        )
    profiled = next((decoder for decoder in compared if (case.name, images, decoder.name) == PROFILED), None)
    return rows, None if profiled is None else operator_shares(profiled.run, ours.config.vocab_size)


def operator_shares(run: Callable[[], Tensor], vocabulary: int) -> dict[str, float]:
    """Return the share of a run's CPU time by purpose of the operators, largest first."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    times: Counter[str] = Counter()
    for event in profiler.key_averages(group_by_input_shape=True):
        of_vocabulary = any(vocabulary in shape for shape in event.input_shapes if shape)
        kinds = (kind for kind, names in OPERATORS.items() if any(name in event.key for name in names))
        kind = next(kinds, "choice of tokens" if of_vocabulary else "other operators")
        times[kind] += event.self_cpu_time_total
    return {kind: round(time / times.total(), 3) for kind, time in times.most_common()}


def with_peak_memory(run: Callable[[], Tensor]) -> tuple[Tensor, int | None]:
    """Call a function; return its result and its peak memory in bytes (None where Linux does not tell)."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)  # what earlier calls have freed would hide what this one takes
    try:
        reset.write_text("5")
        before = kilobytes(status, "VmRSS")
    except OSError:
        return run(), None
    result = run()
    return result, (kilobytes(status, "VmHWM") - before) * 1024


def kilobytes(status: Path, name: str) -> int:
    """Read a value in kB from `/proc/PID/status`."""
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(f"{name}:"))


def floor(model: Any, run: Callable[[], Tensor], rows: int, tokens: int) -> float:
    """Return a lower bound of a run's CPU seconds: its products, or reading the weights once per step."""
    with FlopCounterMode(display=False) as counter:
        run()
    parts = [*model.model.decoder.modules(), model.lm_head]
    weights = {id(part.weight): part.weight for part in parts if isinstance(part, (nn.Linear, Conv1D))}
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    return max(counter.get_total_flops() / product_rate(rows), tokens * size / read_rate())


def product_rate(rows: int) -> float:
    """Measure the floating-point operations per CPU second of packed products with this number of rows."""
    weight, states = torch.rand(3072, 768), torch.rand(rows, 768)
    product = PACKING["float32"](weight) if can_pack("float32") else lambda states, bias: states @ weight.T
    repeats = max(10, 2000 // rows)
    best = min(cpu_seconds(lambda: [product(states, None) for _ in range(repeats)]) for _ in range(5))
    return 2 * states.shape[0] * weight.numel() * repeats / best


def read_rate() -> float:
    """Measure the bytes per CPU second that are read from memory."""
    values = torch.ones(2**26)  # 256 MB
    return values.numel() * 4 / min(cpu_seconds(values.sum) for _ in range(5))


def line(row: dict[str, Any]) -> str:
    """Format a row of the printed table."""
    equal = "" if row["equal"] is None else f"{row['equal']}/{row['images']}"
    memory = "" if row["memory"] is None else f"{row['memory']} MB"
    decoder = f"{row['case']:<24} {row['width']:>5} {row['images']:>6}  {row['decoder']:<32}"
    over_floor = "" if row["over_floor"] is None else f"{row['over_floor']:.2f} x"
    figures = f"{row['seconds']:7.2f}  {row['speed']:5.2f} x  {over_floor:>10}"
    return f"{decoder} {figures}  {equal:>5}  {memory:>7}"


def main() -> None:
    """Measure all cases, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller captioners, three rounds")
    parser.add_argument("--cases", nargs="+", metavar="ARCHITECTURE", help="default: all")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a JSON file; default: none is written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'captioner':<24} width images  {'decoder':<32} seconds   speed  over floor  equal  memory")
    rows: list[dict[str, Any]] = []
    profiled: dict[str, Any] = {}
    with torch.no_grad():
        for case in CASES:
            wanted = (not args.cases or case.architecture in args.cases) and not (args.quick and case.quick == {})
            for images in case.images if wanted else ():
                measured, shares = measure(case, images, args)
                for row in measured:
                    print(line(row), flush=True)
                rows += measured
                if shares is not None:
                    profiled = dict(zip(("case", "images", "decoder"), PROFILED, strict=True)) | {"shares": shares}
                    print(json.dumps(profiled), flush=True)
    setting = {"quick": args.quick, "beams": args.beams, "tokens": args.tokens}
    machine = f"{processor_name()}, 1 thread, torch {torch.__version__.split('+')[0]}"
    if args.output is not None:
        result = {"setting": setting, "machine": machine, "rows": rows, "profile": profiled}
        write_results(args.output, result)


if __name__ == "__main__":
    main()

"""Compare the decoding speed of captioners with an attention LSTM with two alternatives on the same weights.

    python benchmarks/recurrent_decoding.py [--width 1024]
    python benchmarks/recurrent_decoding.py --architecture image_transformer [--width 1024]

The alternatives are `generate()` of transformers, which repeats encoder results for each beam, and decoding that also
projects the keys and values of the attention again for each beam and step. All captions have the same length. Times
are medians of process CPU time.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import GenerationMixin

from hf_captioners.modeling.layers_recurrent import DotRegionAttention
from hf_captioners.modeling.modeling_aoanet import AoANetForConditionalGeneration
from hf_captioners.modeling.modeling_image_transformer import ImageTransformerForConditionalGeneration

ARCHITECTURES = {
    "aoanet": AoANetForConditionalGeneration,
    "image_transformer": ImageTransformerForConditionalGeneration,
}
REGIONS, FEATURE_SIZE = 50, 2048


def with_stock_search(model_class: Any) -> Any:
    """Return the same class with the `generate()` of transformers."""
    names = ("_expand_inputs_for_generation", "_beam_search")
    return type(
        f"Stock{model_class.__name__}", (model_class,), {name: getattr(GenerationMixin, name) for name in names}
    )


def projecting_again(model: Any) -> Any:
    """Return a `prepare` of the decoder's attention that projects keys and values whenever it is called."""
    prepare, encoder = DotRegionAttention.prepare, model.model.encoder

    def again(self: Any, encoder_outputs: Any, rows: int) -> tuple[Any, ...]:
        regions = encoder_outputs.last_hidden_state
        encoder_outputs = encoder_outputs.copy()
        keys_and_values = (encoder.key_projection(regions), encoder.value_projection(regions))
        encoder_outputs.level_states = torch.stack(keys_and_values, dim=1)
        return prepare(self, encoder_outputs, rows)

    return again


def seconds(model: Any, regions: dict[str, torch.Tensor], args: argparse.Namespace) -> float:
    """Return the median CPU seconds of a call of `generate()`."""
    times = []
    encoded = model.model.encoder(**regions)
    for _ in range(args.repeats + 1):
        start = time.process_time()
        model.generate(
            encoder_outputs=encoded.copy(),
            num_beams=args.beams,
            max_new_tokens=args.tokens,
            min_new_tokens=args.tokens,
        )
        times.append(time.process_time() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="aoanet")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--output", help="default: a file of benchmarks/results")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model_class = ARCHITECTURES[args.architecture]
    ours = model_class(model_class.config_class(hidden_size=args.width, embedding_size=args.width)).eval()
    stock = with_stock_search(model_class)(ours.config).eval()
    stock.load_state_dict(ours.state_dict())
    rows = []
    with torch.no_grad():
        for batch in args.batch_sizes:
            corners = torch.rand(batch, REGIONS, 2, 2).sort(dim=2).values.flatten(2)
            regions = {"region_features": torch.rand(batch, REGIONS, FEATURE_SIZE), "region_boxes": corners}
            measured = [("this library", seconds(ours, regions, args))]
            measured.append(("stock generate", seconds(stock, regions, args)))
            with patch.object(DotRegionAttention, "prepare", projecting_again(stock)):
                measured.append(("keys of every step", seconds(stock, regions, args)))
            for name, value in measured:
                ratio = value / measured[0][1]
                rows.append({"batch": batch, "decoder": name, "seconds": round(value, 3), "ratio": round(ratio, 2)})
                print(f"batch {batch:>2}  {name:<18} {value:8.3f} s   {ratio:5.2f} x", flush=True)
    setting = {"width": args.width, "beams": args.beams, "tokens": args.tokens, "regions": REGIONS}
    machine = f"{platform.machine()}, 1 thread, torch {torch.__version__.split('+')[0]}"
    default = "recurrent_decoding" + ("" if args.architecture == "aoanet" else f"_{args.architecture}")
    output = Path(args.output or f"benchmarks/results/{default}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"setting": setting, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

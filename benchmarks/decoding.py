"""Compare the decoding speed of this library's `generate()` with two alternatives on the same weights.

    python benchmarks/decoding.py [--width 768 --layers 12] [--output benchmarks/results/decoding.json]
    python benchmarks/decoding.py --architecture m2_transformer --output FILE

The alternatives are `generate()` of transformers, which repeats encoder results for each beam, and decoding as in the
released code, which projects cross-attention keys and values again for each beam and step. (M2's code also projects
the keys and values of self-attention again; here they are cached.) M2 has the sizes of its paper and 10,000 words. All
captions have the same length. Times are medians of process CPU time.
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
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin

from hf_captioners.modeling.configuration_m2_transformer import M2TransformerConfig
from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.layers_attention import BeamFoldingCrossAttention
from hf_captioners.modeling.modeling_m2_transformer import M2TransformerForConditionalGeneration
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration


class Stock:
    """Placed before a captioner, the `generate()` of transformers."""

    _expand_inputs_for_generation = GenerationMixin._expand_inputs_for_generation
    _beam_search = GenerationMixin._beam_search

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        config = self.model.decoder.mask_config  # type: ignore[attr-defined]
        model_kwargs["past_key_values"] = EncoderDecoderCache(DynamicCache(config=config), DynamicCache())


class StockVisualGPT(Stock, VisualGPTForConditionalGeneration):
    """VisualGPT with the `generate()` of transformers."""


class StockM2Transformer(Stock, M2TransformerForConditionalGeneration):
    """M2 with the `generate()` of transformers."""


def captioners(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return a captioner with random weights, and the same with the `generate()` of transformers."""
    if args.architecture == "m2_transformer":
        ours: Any = M2TransformerForConditionalGeneration(M2TransformerConfig())
        stock: Any = StockM2Transformer(ours.config)
    else:
        text = {"n_embd": args.width, "n_layer": args.layers, "n_head": args.width // 64}
        ours = VisualGPTForConditionalGeneration(VisualGPTConfig(text_config=text))
        stock = StockVisualGPT(ours.config)
    stock.load_state_dict(ours.state_dict())
    return ours.eval(), stock.eval()


def project_always(self: Any, levels: Any, cache: Any) -> Any:
    """Project keys and values of cross-attention without a cache."""
    return self.project_levels(levels())


def seconds(model: Any, features: torch.Tensor, beams: int, tokens: int, repeats: int) -> float:
    """Return the median CPU seconds of a call of `generate()`."""
    times = []
    encoded = model.model.encoder(region_features=features)
    for _ in range(repeats + 1):
        start = time.process_time()
        model.generate(encoder_outputs=encoded.copy(), num_beams=beams, max_new_tokens=tokens, min_new_tokens=tokens)
        times.append(time.process_time() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=["visualgpt", "m2_transformer"], default="visualgpt")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--output", default="benchmarks/results/decoding.json")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ours, stock = captioners(args)
    rows = []
    with torch.no_grad():
        for batch in args.batch_sizes:
            features = torch.rand(batch, 50, 2048)
            measured = [("this library", seconds(ours, features, args.beams, args.tokens, args.repeats))]
            measured.append(("stock generate", seconds(stock, features, args.beams, args.tokens, args.repeats)))
            with patch.object(BeamFoldingCrossAttention, "keys_and_values", project_always):
                released = seconds(stock, features, args.beams, args.tokens, args.repeats)
            measured.append(("as released", released))
            for name, value in measured:
                ratio = value / measured[0][1]
                rows.append({"batch": batch, "decoder": name, "seconds": round(value, 3), "ratio": round(ratio, 2)})
                print(f"batch {batch:>2}  {name:<15} {value:8.3f} s   {ratio:5.2f} x", flush=True)
    setting = {"architecture": args.architecture, "width": args.width, "layers": args.layers}
    if args.architecture == "m2_transformer":
        setting |= {"width": ours.config.hidden_size, "layers": ours.config.decoder_layers}
    setting |= {"beams": args.beams, "tokens": args.tokens, "regions": 50}
    machine = f"{platform.machine()}, 1 thread, torch {torch.__version__.split('+')[0]}"
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    Path(args.output).write_text(json.dumps({"setting": setting, "machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Shared parts of the conversions from AoANet's code and code built on it (Image Transformer, ZoDIAC in AoANet)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .key_maps import norm_names, projection_names, sub_layer_names

# Options of the program that no weight tells, with its defaults; the number of heads must be known.
DEFAULTS: dict[str, Any] = {
    "drop_prob_lm": 0.5,
    "dropout_aoa": 0.3,
    "ctx_drop": 0,
    "label_smoothing": 0.0,
    "max_length": 20,
}
LAYER = "model.encoder.layers"
_REFINER = r"refiner\.layers\.(\d+)"
# (pattern, replacement) pairs of keys that are only renamed; the first pattern that matches the whole key applies.
RENAMES = (
    (r"embed\.0\.weight", r"model.decoder.embedding.weight"),
    (r"logit\.(\w+)", r"lm_head.\1"),
    (r"fc_embed\.0\.(\w+)", r"model.encoder.global_projection.\1"),
    *projection_names(rf"{_REFINER}\.self_attn", rf"{LAYER}.\1.self_attn", "qkv"),
    (rf"{_REFINER}\.self_attn\.aoa_layer\.0\.(\w+)", rf"{LAYER}.\1.output.projection.\2"),
    (rf"{_REFINER}\.self_attn\.output_layer\.(\w+)", rf"{LAYER}.\1.output.\2"),
    *sub_layer_names(_REFINER, rf"{LAYER}.\1", ("self_attn", "feed_forward")),
    *norm_names(r"refiner\.norm", "model.encoder.norm"),
    *norm_names(r"core\.attention\.norm", "model.decoder.layer.attention.norm"),
)


def generation_settings(options: Mapping[str, Any], released: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the `generate()` settings of AoANet's code, which never generates its last word, `UNK`."""
    return {
        "num_beams": 2,
        "max_new_tokens": int(options["max_length"]),
        "bookkeeping": "pool",
        "length_penalty": 0.0,
        "suppress_tokens": [len(released["embed.0.weight"]) - 1],
    }

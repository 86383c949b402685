"""Conversion of checkpoints of the AoA Transformer in VisualGPT's code base: `saved_models/NAME_best.pth`.

Source: github.com/Vision-CAIR/VisualGPT at d4419be, whose decoder reads encoder level 2 at every encoder depth. For
what weights do not contain see `gpt2_code`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_aoa_transformer import AoATransformerConfig

from .gpt2_code import (
    GPT2_DECODER,
    GPT2_SETTINGS,
    GPT2_UNUSED,
    gpt2_fields,
    read_gpt2_sizes,
    transpose_cross_attention,
)
from .key_maps import M2_REGION_ENCODER, KeyMap
from .released import Released, require_known_settings

RELEASED_LEVEL = 2
AOA = (
    (r"encoder\.layers\.(\d+)\.aoa_layer\.0\.(\w+)", r"model.encoder.layers.\1.aoa.projection.\2"),
    (r"decoder\.transformer\.h\.(\d+)\.aoa_layer\.0\.(\w+)", r"model.decoder.h.\1.aoa.projection.\2"),
)
# The blocks create feed-forward layers that they do not run.
FEED_FORWARD = r"decoder\.transformer\.h\.\d+\.(ln_2|mlp)\..*"
KEY_MAP = KeyMap("the AoA Transformer", (*M2_REGION_ENCODER, *GPT2_DECODER, *AOA), unused=(*GPT2_UNUSED, FEED_FORWARD))


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert a checkpoint to a configuration and weights of this library.

    Args:
        checkpoint: the file, or a file with the `state_dict` alone.
        settings: values that the file does not contain: any of `GPT2_SETTINGS`.

    Raises:
        ValueError: it is not a checkpoint of the AoA Transformer, or a setting is unknown or missing.
    """
    require_known_settings("aoa_transformer", settings, GPT2_SETTINGS)
    file = read_torch_file(checkpoint)
    content = file.content
    state = content["state_dict"] if isinstance(content, dict) and "state_dict" in content else content
    released = file.tensors(state)
    needed = ("decoder.transformer.wte.weight", "encoder.layers.0.aoa_layer.0.weight")
    if any(name not in released for name in needed):
        raise ValueError(
            f"{checkpoint} has no `{'` and `'.join(needed)}`, so it is not a checkpoint of the AoA Transformer."
        )
    levels = settings.get("cross_levels", [RELEASED_LEVEL])
    used, unused, unknown_keys = KEY_MAP.reading(levels).sort(released)
    return Released(
        config=convert_config(read_gpt2_sizes(released, settings) | {"cross_levels": levels}),
        weights=convert_state_dict({key: released[key] for key in used}),
        vocabulary="gpt2",
        unused=unused,
        unknown=unknown_keys,
        processor={"merge_repeated_words": True},
        generation={"num_beams": 5, "max_new_tokens": 20, "bookkeeping": "live"},
    )


def convert_config(sizes: Mapping[str, Any]) -> AoATransformerConfig:
    """Build the configuration of a released AoA Transformer from its sizes, see `gpt2_fields`."""
    return AoATransformerConfig(**gpt2_fields(sizes))


def convert_state_dict(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a released `state_dict`; output projections of cross-attention are transposed.

    Raises:
        KeyError: the code base has no such weight.
    """
    return transpose_cross_attention(KEY_MAP.rename(released))

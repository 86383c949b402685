"""Conversion of checkpoints of the VisualGPT code base: `saved_models/NAME_best.pth`, of which `state_dict` is read.

Sizes are read from the weights. Weights do not contain the number of heads, the threshold of the gates and the ids of
the begin, end and padding tokens. Their defaults are GPT-2's 64 features per head, the default threshold of the
released script and, for GPT-2's vocabulary, the released ids.

Source: github.com/Vision-CAIR/VisualGPT. The released decoder reads encoder levels 0, 1, 2 at every encoder depth, and
masks tokens by their id and regions by the sum of their projected features.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig

from .gpt2_code import (
    GPT2_DECODER,
    GPT2_FEED_FORWARD,
    GPT2_SETTINGS,
    GPT2_UNUSED,
    gpt2_fields,
    read_gpt2_sizes,
    transpose_cross_attention,
)
from .key_maps import M2_REGION_ENCODER, KeyMap
from .released import Released, require_known_settings

VARIANT = ("fusion", "srau_threshold", "normalize_srau")
SETTINGS = (*GPT2_SETTINGS, *VARIANT, "identity_map_reordering")

# Gates of the self-resurrecting activation units, one per encoder level; released levels count from 1.
GATES = tuple(
    (
        rf"decoder\.transformer\.h\.(\d+)\.fc_alpha{level + 1}\.(\w+)",
        rf"model.decoder.h.\1.fusion.gates.levels.{level}.\2",
    )
    for level in range(9)
)
AOA = (
    (r"decoder\.transformer\.h\.(\d+)\.enc_dec_attn\.aoa_layer\.0\.(\w+)", r"model.decoder.h.\1.aoa.projection.\2"),
)
KEY_MAP = KeyMap("VisualGPT", (*M2_REGION_ENCODER, *GPT2_DECODER, *GPT2_FEED_FORWARD, *GATES, *AOA), GPT2_UNUSED)


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert a checkpoint to a configuration and weights of this library.

    Args:
        checkpoint: the file, or a file with the `state_dict` alone.
        settings: values that the file does not contain: any of `SETTINGS`.

    Raises:
        ValueError: it is not a checkpoint of the code base, or a setting is unknown or missing.
    """
    require_known_settings("VisualGPT", settings, SETTINGS)
    file = read_torch_file(checkpoint)
    content = file.content
    state = content["state_dict"] if isinstance(content, dict) and "state_dict" in content else content
    released = file.tensors(state)
    if "decoder.transformer.wte.weight" not in released or "encoder.fc.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `decoder.transformer.wte.weight` and `encoder.fc.weight`, so it is not a checkpoint "
            "of VisualGPT."
        )
    config = convert_config(
        read_sizes(released, settings),
        attention_on_attention=any(".aoa_layer." in key for key in released),
        **{name: settings[name] for name in VARIANT if name in settings},
    )
    used, unused, unknown = KEY_MAP.reading(config.cross_levels or ()).sort(released)
    return Released(
        config=config,
        weights=convert_state_dict({key: released[key] for key in used}),
        vocabulary="gpt2",
        unused=unused,
        unknown=unknown,
        processor={"merge_repeated_words": True},
        generation={"num_beams": 5, "max_new_tokens": 20, "bookkeeping": "live"},
    )


def read_sizes(released: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Infer layer sizes, as `convert_config` needs them, from the weights and the settings.

    Args:
        released: weights under the released names.
        settings: any of `SETTINGS`.

    Raises:
        ValueError: the number of heads does not fit, or token ids are missing.
    """
    levels = {int(match[1]) for key in released if (match := re.search(r"\.fc_alpha(\d)\.", key))}
    return read_gpt2_sizes(released, settings) | {
        "d_ff": released["encoder.layers.0.pwff.fc1.weight"].shape[0],
        "cross_levels": settings.get("cross_levels", sorted(level - 1 for level in levels)),
        "identity_map_reordering": settings.get("identity_map_reordering", False),
    }


def convert_config(
    sizes: Mapping[str, Any],
    *,
    fusion: str = "srau",
    srau_threshold: float = 0.0,
    normalize_srau: bool = False,
    attention_on_attention: bool = False,
) -> VisualGPTConfig:
    """Build the configuration of a released VisualGPT from its sizes.

    Args:
        sizes: `d_model`, `n_head`, `d_k`, `d_v`, `d_ff`, `d_in`, `encoder_layers`, `decoder_layers`, `vocab_size`,
            `n_positions`, `bos_token_id`, `eos_token_id`, `pad_token_id`, `cross_levels`; optionally
            `layer_norm_epsilon`, `identity_map_reordering`.
        fusion, srau_threshold, normalize_srau, attention_on_attention: variant of the decoder, see
            `VisualGPTConfig`. The default threshold of the released script is 0.
    """
    return VisualGPTConfig(
        encoder_ffn_dim=sizes["d_ff"],
        identity_map_reordering=sizes.get("identity_map_reordering", False),
        fusion=fusion,
        srau_threshold=srau_threshold,
        normalize_srau=normalize_srau,
        attention_on_attention=attention_on_attention,
        **gpt2_fields(sizes),
    )


def convert_state_dict(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a released `state_dict`; output projections of cross-attention are transposed.

    Raises:
        KeyError: the code base has no such key.
    """
    return transpose_cross_attention(KEY_MAP.rename(released))

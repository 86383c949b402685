"""Conversion of checkpoints of the M2 code: `saved_models/NAME_best.pth`, of which `state_dict` is read.

Sizes are read from the weights, which do not contain the number of heads. The vocabulary is a pickle of its own
(`vocab_NAME.pkl`), whose words are read without running code in it.

Source: github.com/aimagelab/meshed-memory-transformer. The released decoder reads encoder levels 0, 1, 2 at every
encoder depth, and masks tokens by their id and regions by the sum of their projected features.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_m2_transformer import M2TransformerConfig

from .key_maps import M2_DECODER, M2_REGION_ENCODER, M2_STATE, KeyMap, count_layers
from .released import Released, require_known_settings

HEADS = 8  # of the released script
RELEASED_IDS = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
SETTINGS = (*RELEASED_IDS, "n_head", "cross_levels", "identity_map_reordering")
# Gates, one per encoder level; released levels count from 1.
GATES = tuple(
    (
        rf"decoder\.layers\.(\d+)\.fc_alpha{level + 1}\.(\w+)",
        rf"model.decoder.decoder_layers.\1.gates.levels.{level}.\2",
    )
    for level in range(9)
)
KEY_MAP = KeyMap("the M2 code", (*M2_REGION_ENCODER, *M2_DECODER, *GATES), unused=M2_STATE)


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert a checkpoint to a configuration and weights of this library.

    Args:
        checkpoint: the file, or a file with the `state_dict` alone.
        settings: values that the file does not contain: any of `SETTINGS`.

    Raises:
        ValueError: it is not a checkpoint of the code base, or a setting is unknown.
    """
    require_known_settings("m2_transformer", settings, SETTINGS)
    file = read_torch_file(checkpoint)
    content = file.content
    state = content["state_dict"] if isinstance(content, dict) and "state_dict" in content else content
    released = file.tensors(state)
    if "decoder.word_emb.weight" not in released or "decoder.layers.0.fc_alpha1.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `decoder.word_emb.weight` and `decoder.layers.0.fc_alpha1.weight`, so it is not a "
            "checkpoint of the M2 Transformer."
        )
    config = convert_config(read_sizes(released, settings))
    used, unused, unknown_keys = KEY_MAP.reading(config.cross_levels or ()).sort(released)
    return Released(
        config=config,
        weights=convert_state_dict({key: released[key] for key in used}),
        vocabulary="m2",
        unused=unused,
        unknown=unknown_keys,
        processor={"merge_repeated_words": True},
        generation={"num_beams": 5, "max_new_tokens": 20, "bookkeeping": "live"},
    )


def read_sizes(released: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Infer layer sizes, as `convert_config` needs them, from the weights and the settings.

    Raises:
        ValueError: the number of heads does not fit.
    """
    heads = settings.get("n_head", HEADS)
    attention = "encoder.layers.0.mhatt.attention.{}"
    widths = {part: released[attention.format(f"fc_{part}.weight")].shape[0] for part in "qv"}
    if any(width % heads for width in widths.values()):
        raise ValueError(
            f"{widths['q']} features of keys and {widths['v']} of values cannot be divided among {heads} heads. Set "
            "the number of heads: `settings`: n_head=..."
        )
    slots = released.get(attention.format("m_k"))
    vocabulary, width = released["decoder.word_emb.weight"].shape
    levels = {int(match[1]) - 1 for key in released if (match := re.search(r"\.fc_alpha(\d)\.", key))}
    return {name: settings.get(name, default) for name, default in RELEASED_IDS.items()} | {
        "d_model": width,
        "n_head": heads,
        "d_k": widths["q"] // heads,
        "d_v": widths["v"] // heads,
        "d_ff": released["encoder.layers.0.pwff.fc1.weight"].shape[0],
        "d_in": released["encoder.fc.weight"].shape[1],
        "encoder_layers": count_layers(released, r"encoder\.layers\.(\d+)\."),
        "decoder_layers": count_layers(released, r"decoder\.layers\.(\d+)\."),
        "memory_slots": 0 if slots is None else slots.shape[1],
        "vocab_size": vocabulary,
        "decoder_max_len": released["decoder.pos_emb.weight"].shape[0] - 1,
        "cross_levels": settings.get("cross_levels", sorted(levels)),
        "identity_map_reordering": settings.get("identity_map_reordering", False),
    }


def convert_config(sizes: Mapping[str, Any]) -> M2TransformerConfig:
    """Build the configuration of a released M2 Transformer from its sizes.

    Args:
        sizes: `d_model`, `n_head`, `d_k`, `d_v`, `d_ff`, `d_in`, `encoder_layers`, `decoder_layers`, `memory_slots`,
            `vocab_size`, `decoder_max_len`, `cross_levels`, `bos_token_id`, `eos_token_id`, `pad_token_id`; optionally
            `identity_map_reordering`.
    """
    ids = {key: sizes[key] for key in RELEASED_IDS}
    return M2TransformerConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["n_head"],
        key_dim=sizes["d_k"],
        value_dim=sizes["d_v"],
        ffn_dim=sizes["d_ff"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        memory_slots=sizes["memory_slots"],
        cross_levels=list(sizes["cross_levels"]),
        region_feature_size=sizes["d_in"],
        max_position_embeddings=sizes["decoder_max_len"] + 1,
        identity_map_reordering=sizes.get("identity_map_reordering", False),
        position_embedding="noise",
        region_mask_rule="zero_projected_sum",
        token_mask_rule="pad_id",
        **ids,
    )


def convert_state_dict(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a released `state_dict` to the names of this library.

    Raises:
        KeyError: the code base has no such weight.
    """
    return KEY_MAP.rename(released)

"""Conversion of ZoDIAC's Transformers: `model.pth` with `infos*.pkl`, in the layout of ImageCaptioning.pytorch.

Source: github.com/zanyarz/zodiac. Its checkpoints do not store the sizes of the dropouts and of the intensity that are
constants of the code; `settings` give those of another state of the code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_zodiac import ZodiacConfig

from . import transformer
from .infos_files import find_infos, read_infos
from .key_maps import KeyMap
from .released import Released, require_known_settings

# Constants of the released code, which its options do not hold.
CONSTANTS = ("zoneout_factor", "zodiac_dropout", "pre_gelu", "gelu", "ffn_activation", "intensity_pool")
SETTINGS = ("infos", "intensity_gate", *CONSTANTS)
GATES = {"zodiac-sigmoid": "sigmoid", "zodiac-tanh": "tanh"}


def key_map(use_bn: int = 0) -> KeyMap:
    """Return the map from ZoDIAC's weight names to those of this library; its attentions also have past queries."""
    return transformer.key_map(use_bn, projections="qpkvo", program="ZoDIAC")


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert `model.pth` and its infos file to a configuration, weights and words.

    Args:
        checkpoint: the file with the weights.
        settings: any of `SETTINGS`.

    Raises:
        ValueError: it is not a Transformer of ZoDIAC, or a setting is unknown.
        OSError: a file cannot be read.
    """
    require_known_settings("zodiac", settings, SETTINGS)
    file = read_torch_file(checkpoint)
    released = file.tensors(file.content)
    if "model.encoder.layers.0.self_attn.linears.4.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `model.encoder.layers.0.self_attn.linears.4.weight` (the fifth projection), so it "
            "is not a Transformer of ZoDIAC; a plain one is converted with `transformer`."
        )
    infos = read_infos(find_infos(checkpoint, settings.get("infos")))
    attention = {name: settings[name] for name in CONSTANTS if name in settings}
    attention["gate"] = settings.get("intensity_gate", GATES.get(infos.options.get("caption_model", ""), "sigmoid"))
    sizes = transformer.read_sizes(released, infos.options) | {"attention": attention}
    sizes |= {name: settings[name] for name in ("ffn_activation",) if name in settings}
    config, names = convert_config(sizes), key_map(sizes["use_bn"])
    return transformer.read_weights(released, infos, config, names, {"num_beams": 3})


def convert_config(sizes: Mapping[str, Any]) -> ZodiacConfig:
    """Build the configuration of a Transformer of ZoDIAC from its sizes.

    Args:
        sizes: `d_model`, `num_att_heads`, `d_ff`, `N_enc`, `N_dec`, `vocab_rows`, `att_feat_size`, `use_bn`,
            `dropout`, `drop_prob_lm`, `max_length`; `attention` with `gate` and optionally `zoneout_factor`, `gelu`,
            `pre_gelu`, `zodiac_dropout`, `intensity_pool`; `ffn_activation`.
    """
    attention = dict(sizes["attention"])
    gelu = attention.get("gelu", True)
    return ZodiacConfig(
        **transformer.shared_fields(sizes),
        region_batch_norm=sizes["use_bn"],
        ffn_activation=sizes.get("ffn_activation", "none"),
        intensity_gate=attention["gate"],
        zoneout_factor=attention.get("zoneout_factor", 1.0),
        zodiac_dropout=attention.get("zodiac_dropout", 0.2),
        gelu=gelu,
        pre_gelu=attention.get("pre_gelu", gelu),
        intensity_pool=attention.get("intensity_pool", "released"),
    )


def convert_state_dict(released: Mapping[str, Tensor], use_bn: int = 0) -> dict[str, Tensor]:
    """Rename the `state_dict` of a Transformer of ZoDIAC to the names of this library.

    Raises:
        KeyError: the code base has no such weight.
    """
    return key_map(use_bn).rename(released)

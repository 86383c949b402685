"""Conversion of ZoDIAC in AoANet: `model.pth` with `infos*.pkl`, in the layout of ImageCaptioning.pytorch.

The layout is that of AoANet with one more projection, the past query. Source: github.com/zanyarz/zodiac.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_zodiac_aoanet import ZodiacAoANetConfig

from . import aoanet
from .aoanet_code import generation_settings
from .infos_files import find_infos, read_infos
from .released import Released, require_known_settings, require_weights

# Constants of the released code, which its options do not hold.
CONSTANTS = ("intensity_gate", "zoneout_factor", "zodiac_dropout", "pre_gelu", "gelu", "intensity_pool")
SETTINGS = ("infos", *CONSTANTS)

REFINER = re.compile(r"(refiner\.layers\.\d+\.self_attn\.linears)\.(\d)\.(\w+)")
DECODER = re.compile(r"core\.attention\.linears\.(\d)\.(\w+)")
DECODER_ATTENTION = "model.decoder.layer.attention"


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Return the configuration, weights and vocabulary of the released `model.pth` and its infos file.

    Args:
        checkpoint: the file with the weights.
        settings: any of `SETTINGS`.

    Raises:
        ValueError: it is not a checkpoint of ZoDIAC in AoANet, or a setting is unknown.
        OSError: a file cannot be read.
    """
    require_known_settings("zodiac_aoanet", settings, SETTINGS)
    file = read_torch_file(checkpoint)
    released = file.tensors(file.content)
    needed = ("embed.0.weight", "core.att_lstm.weight_ih", "core.attention.linears.1.weight", "ctx2att.weight")
    require_weights("ZoDIAC in AoANet", checkpoint, released, needed)
    infos = read_infos(find_infos(checkpoint, settings.get("infos")))
    options = {**aoanet.DEFAULTS, **infos.options, "num_heads": infos.option("num_heads")}
    plain, _ = split_past_queries(released)
    rearranged = aoanet.rearranged_keys(plain)
    _, _, unknown = aoanet.key_map(plain).sort(key for key in plain if key not in rearranged)
    attention = {name: settings[name] for name in CONSTANTS if name in settings}
    return Released(
        config=convert_config(options, released, attention),
        weights=convert_state_dict({key: tensor for key, tensor in released.items() if key not in unknown}),
        vocabulary="zero",
        words=infos.words,
        unknown=unknown,
        generation=generation_settings(options, released),
    )


def convert_config(
    options: Mapping[str, Any], weights: Mapping[str, Tensor], attention: Mapping[str, Any]
) -> ZodiacAoANetConfig:
    """Build the configuration of a released ZoDIAC in AoANet from its options and weights.

    Args:
        options: options of the program, see `hf_captioners.hub.convert.aoanet.convert_config`.
        weights: released weights, from which the sizes are read.
        attention: any of `CONSTANTS`.
    """
    plain = aoanet.convert_config(options, split_past_queries(weights)[0])
    ours, of_all = ({field.name for field in fields(each)} for each in (ZodiacAoANetConfig, PreTrainedConfig))
    shared = {name: getattr(plain, name) for name in ours - of_all if hasattr(plain, name)}
    return ZodiacAoANetConfig(**shared | {"intensity_pool": "released"} | dict(attention))


def split_past_queries(released: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Rename past queries to names of this library, and all other weights to those of AoANet's program."""
    plain, past = {}, {}
    for key, tensor in released.items():
        refiner, decoder = REFINER.fullmatch(key), DECODER.fullmatch(key)
        if refiner and refiner[2] == "1":
            layer = key.split(".")[2]
            past[f"model.encoder.layers.{layer}.self_attn.p_proj.{refiner[3]}"] = tensor
        elif refiner and refiner[2] in "23":
            plain[f"{refiner[1]}.{int(refiner[2]) - 1}.{refiner[3]}"] = tensor
        elif decoder and decoder[1] == "1":
            past[f"{DECODER_ATTENTION}.p_proj.{decoder[2]}"] = tensor
        else:
            plain[key] = tensor
    return plain, past


def convert_state_dict(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a released `state_dict`, see `hf_captioners.hub.convert.aoanet`.

    Raises:
        KeyError: the program has no such weight.
    """
    plain, past = split_past_queries(weights)
    converted = aoanet.convert_state_dict(plain)
    return {
        name.replace(f"{DECODER_ATTENTION}.attention.", f"{DECODER_ATTENTION}."): tensor
        for name, tensor in converted.items()
    } | past

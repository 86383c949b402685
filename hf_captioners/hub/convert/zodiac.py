"""Conversion of ZoDIAC's Transformers: `model.pth` with `infos*.pkl`, in the layout of ImageCaptioning.pytorch.

Source: github.com/zanyarz/zodiac. Its checkpoints do not store the sizes of the dropouts and of the intensity that are
constants of the code; `--set` gives those of another state of the code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_zodiac import ZodiacConfig

from .infos_files import find_infos, read_infos
from .key_maps import KeyMap
from .released import Released
from .transformer import KEY_MAP as TRANSFORMER_KEY_MAP
from .transformer import REGION_PROJECTION, read_sizes

# Constants of the released code, which its options do not hold.
CONSTANTS = ("zoneout_factor", "zodiac_dropout", "pre_gelu", "gelu", "ffn_activation", "intensity_pool")
SETTINGS = ("infos", "intensity_gate", *CONSTANTS)
GATES = {"zodiac-sigmoid": "sigmoid", "zodiac-tanh": "tanh"}

# The projections of an attention by their numbers: current query, past query, key, value, output.
PROJECTIONS = ("q", "p", "k", "v", "o")


def _attentions(released: str, ours: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (rf"{released}\.linears\.{index}\.(\w+)", rf"{ours}.{name}_proj.\2") for index, name in enumerate(PROJECTIONS)
    )


KEY_MAP = KeyMap(
    "ZoDIAC",
    (
        *_attentions(r"model\.encoder\.layers\.(\d+)\.self_attn", r"model.encoder.layers.\1.self_attn"),
        *_attentions(r"model\.decoder\.layers\.(\d+)\.self_attn", r"model.decoder.decoder_layers.\1.self_attn"),
        *_attentions(r"model\.decoder\.layers\.(\d+)\.src_attn", r"model.decoder.decoder_layers.\1.cross_attn"),
        *(pair for pair in TRANSFORMER_KEY_MAP.renames if ".linears" not in pair[0].replace("\\", "")),
    ),
    unused=TRANSFORMER_KEY_MAP.unused,
)


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Read `model.pth` and the infos file beside it.

    Args:
        checkpoint: the file with the weights.
        settings: any of `SETTINGS`.

    Raises:
        ValueError: it is not a Transformer of ZoDIAC, or a setting is unknown.
        OSError: a file cannot be read.
    """
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise ValueError(f"zodiac has no setting {', '.join(unknown)}; expected any of {', '.join(SETTINGS)}.")
    file = read_torch_file(checkpoint)
    released = file.tensors(file.content)
    if "model.encoder.layers.0.self_attn.linears.4.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `model.encoder.layers.0.self_attn.linears.4.weight` (the fifth projection), so it "
            "is not a Transformer of ZoDIAC; a plain one is converted with `transformer`."
        )
    infos = read_infos(find_infos(checkpoint, settings.get("infos")))
    use_bn = infos.options.get("use_bn", 0)
    names = (key for key in released if not key.startswith("att_embed."))
    used, unused, unknown_keys = KEY_MAP.sort(names)
    projection = [key for key in released if key.startswith("att_embed.")]
    length = int(infos.options.get("max_length", 20))
    attention = {name: settings[name] for name in CONSTANTS if name in settings}
    attention["gate"] = settings.get("intensity_gate", GATES.get(infos.options.get("caption_model", ""), "sigmoid"))
    sizes = read_sizes(released, infos.options) | {"max_length": length, "attention": attention}
    return Released(
        config=convert_config(sizes | {name: settings[name] for name in ("ffn_activation",) if name in settings}),
        weights=convert_state_dict({key: released[key] for key in (*used, *projection)}, use_bn),
        vocabulary="zero",
        words=infos.words,
        unused=unused,
        unknown=unknown_keys,
        may_lack=frozenset({"model.decoder.position_embedding.weight"}),
        generation={"num_beams": 3, "max_new_tokens": length, "bookkeeping": "pool"},
    )


def convert_config(sizes: Mapping[str, Any]) -> ZodiacConfig:
    """Build the configuration of a Transformer of ZoDIAC.

    Args:
        sizes: `d_model`, `num_att_heads`, `d_ff`, `N_enc`, `N_dec`, `vocab_rows`, `att_feat_size`, `use_bn`,
            `dropout`, `drop_prob_lm`, `max_length`; `attention` with `gate` and optionally `zoneout_factor`, `gelu`,
            `pre_gelu`, `zodiac_dropout`, `intensity_pool`; `ffn_activation`.
    """
    attention = dict(sizes["attention"])
    gelu = attention.get("gelu", True)
    return ZodiacConfig(
        vocab_size=sizes["vocab_rows"],
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["num_att_heads"],
        ffn_dim=sizes["d_ff"],
        encoder_layers=sizes["N_enc"],
        decoder_layers=sizes["N_dec"],
        region_feature_size=sizes["att_feat_size"],
        region_batch_norm=sizes["use_bn"],
        region_dropout=sizes["drop_prob_lm"],
        dropout=sizes["dropout"],
        ffn_activation=sizes.get("ffn_activation", "none"),
        intensity_gate=attention["gate"],
        zoneout_factor=attention.get("zoneout_factor", 1.0),
        zodiac_dropout=attention.get("zodiac_dropout", 0.2),
        gelu=gelu,
        pre_gelu=attention.get("pre_gelu", gelu),
        intensity_pool=attention.get("intensity_pool", "released"),
        max_position_embeddings=max(64, sizes["max_length"] + 1),
        token_mask_rule="after_end",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def convert_state_dict(released: Mapping[str, Tensor], use_bn: int = 0) -> dict[str, Tensor]:
    """Rename the weights of a Transformer of ZoDIAC.

    Raises:
        KeyError: the code base has no such weight.
    """
    return {name: tensor for key, tensor in released.items() if (name := map_key(key, use_bn)) is not None}


def map_key(key: str, use_bn: int = 0) -> str | None:
    """Return the name in this library of a released weight; None if no forward pass reads it.

    Raises:
        KeyError: the code base has no such weight.
    """
    first, _, rest = key.partition(".")
    if first == "att_embed":
        index, _, kind = rest.partition(".")
        if index in REGION_PROJECTION[use_bn]:
            return f"model.encoder.projection.{REGION_PROJECTION[use_bn][index]}.{kind}"
    return KEY_MAP(key)

"""Conversion of checkpoints of the VisualGPT code base: `saved_models/NAME_best.pth`, of which `state_dict` is read.

Sizes are read from the weights. Weights do not contain the number of heads, the threshold of the gates and the ids of
the begin, end and padding tokens. Their defaults are GPT-2's 64 features per head, the default threshold of the
released script and, for GPT-2's vocabulary, the released ids.

Source: github.com/Vision-CAIR/VisualGPT. The released decoder reads encoder levels 0, 1, 2 at every encoder depth, and
masks tokens by their id and regions by the sum of their projected features.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig

from .released import Released

HEAD_SIZE = 64  # features per attention head of GPT-2
GPT2_TOKENS = 50257
RELEASED_IDS = {"bos_token_id": 47934, "eos_token_id": 50256, "pad_token_id": 47932}
VARIANT = ("fusion", "srau_threshold", "normalize_srau")
SETTINGS = (*RELEASED_IDS, *VARIANT, "n_head", "cross_levels", "layer_norm_epsilon", "identity_map_reordering")

# (pattern, replacement) pairs; the first pattern that matches the whole key applies.
KEY_MAP = (
    (r"encoder\.fc\.(\w+)", r"model.encoder.input_projection.\1"),
    (r"encoder\.layer_norm\.(\w+)", r"model.encoder.input_norm.\1"),
    (r"encoder\.layers\.(\d+)\.mhatt\.attention\.fc_([qkvo])\.(\w+)", r"model.encoder.layers.\1.self_attn.\2_proj.\3"),
    (r"encoder\.layers\.(\d+)\.mhatt\.layer_norm\.(\w+)", r"model.encoder.layers.\1.self_attn_norm.\2"),
    (r"encoder\.layers\.(\d+)\.pwff\.(fc[12])\.(\w+)", r"model.encoder.layers.\1.\2.\3"),
    (r"encoder\.layers\.(\d+)\.pwff\.layer_norm\.(\w+)", r"model.encoder.layers.\1.ffn_norm.\2"),
    (r"decoder\.transformer\.(wte|wpe|ln_f)\.(\w+)", r"model.decoder.\1.\2"),
    (r"decoder\.transformer\.h\.(\d+)\.(ln_[12])\.(\w+)", r"model.decoder.h.\1.\2.\3"),
    (r"decoder\.transformer\.h\.(\d+)\.attn\.(c_attn|c_proj)\.(\w+)", r"model.decoder.h.\1.attn.\2.\3"),
    (r"decoder\.transformer\.h\.(\d+)\.mlp\.(c_fc|c_proj)\.(\w+)", r"model.decoder.h.\1.mlp.\2.\3"),
    (
        r"decoder\.transformer\.h\.(\d+)\.enc_dec_attn\.fc_([qkv])\.(\w+)",
        r"model.decoder.h.\1.crossattention.\2_proj.\3",
    ),
    (r"decoder\.transformer\.h\.(\d+)\.enc_dec_attn\.c_proj\.(\w+)", r"model.decoder.h.\1.crossattention.o_proj.\2"),
    (r"decoder\.transformer\.h\.(\d+)\.enc_dec_attn\.aoa_layer\.0\.(\w+)", r"model.decoder.h.\1.aoa.projection.\2"),
    (r"decoder\.lm_head\.decoder\.weight", r"lm_head.weight"),
)
# Gates of the self-resurrecting activation units, one per encoder level.
GATE = re.compile(r"decoder\.transformer\.h\.(\d+)\.fc_alpha(\d)\.(\w+)")
# Entries of the released `state_dict` that no forward pass reads: unused projections, masks and decoding state.
UNUSED_KEYS = re.compile(
    r"encoder\.layers\.\d+\.mhatt\.attention\.c_attn_(query|key|value)\.\w+"
    r"|decoder\.transformer\.h\.\d+\.enc_dec_attn\.(c_attn\.\w+|bias)"
    r"|decoder\.transformer\.h\.\d+\.attn\.(bias|running_keys|running_values)"
    r"|decoder\.(running_mask_self_attention|transformer\.running_seq)"
)


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Read a checkpoint.

    Args:
        checkpoint: the file, or a file with the `state_dict` alone.
        settings: values that the file does not contain: any of `SETTINGS`.

    Raises:
        ValueError: it is not a checkpoint of the code base, or a setting is unknown or missing.
    """
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise ValueError(f"VisualGPT has no setting {', '.join(unknown)}; expected any of {', '.join(SETTINGS)}.")
    file = read_torch_file(checkpoint)
    content = file.content
    state = content["state_dict"] if isinstance(content, dict) and "state_dict" in content else content
    released = file.tensors(state)
    if "decoder.transformer.wte.weight" not in released or "encoder.fc.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `decoder.transformer.wte.weight` and `encoder.fc.weight`, so it is not a checkpoint "
            "of VisualGPT."
        )
    used, unused, unknown = sort_keys(released)
    config = convert_config(
        read_sizes(released, settings),
        attention_on_attention=any(".aoa_layer." in key for key in released),
        **{name: settings[name] for name in VARIANT if name in settings},
    )
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
    """Read the sizes for `convert_config` from the weights and the settings.

    Args:
        released: weights under the released names.
        settings: any of `SETTINGS`.

    Raises:
        ValueError: the number of heads does not fit, or token ids are missing.
    """
    tokens, width = released["decoder.transformer.wte.weight"].shape
    heads = settings.get("n_head", width // HEAD_SIZE)
    attention = "encoder.layers.0.mhatt.attention.fc_{}.weight"
    if not heads or any(released[attention.format(part)].shape[0] % heads for part in "qv"):
        raise ValueError(
            f"{width} features cannot be divided among {heads} heads. Set the number of heads: --set n_head=..."
        )
    ids = RELEASED_IDS if tokens == GPT2_TOKENS else {}
    ids = {name: settings.get(name, ids.get(name)) for name in RELEASED_IDS}
    if missing := [name for name, token in ids.items() if token is None]:
        raise ValueError(
            f"The vocabulary has {tokens} tokens, not GPT-2's {GPT2_TOKENS}. Set the ids of begin, end and padding: "
            + " ".join(f"--set {name}=..." for name in missing)
        )
    levels = {int(found[1]) for key in released if (found := re.search(r"\.fc_alpha(\d)\.", key))}
    return ids | {
        "d_model": width,
        "n_head": heads,
        "d_k": released[attention.format("q")].shape[0] // heads,
        "d_v": released[attention.format("v")].shape[0] // heads,
        "d_ff": released["encoder.layers.0.pwff.fc1.weight"].shape[0],
        "d_in": released["encoder.fc.weight"].shape[1],
        "encoder_layers": _count(released, r"encoder\.layers\.(\d+)\."),
        "decoder_layers": _count(released, r"decoder\.transformer\.h\.(\d+)\."),
        "vocab_size": tokens,
        "n_positions": released["decoder.transformer.wpe.weight"].shape[0],
        "cross_levels": settings.get("cross_levels", sorted(level - 1 for level in levels)),
        "layer_norm_epsilon": settings.get("layer_norm_epsilon", 1e-5),
        "identity_map_reordering": settings.get("identity_map_reordering", False),
    }


def _count(keys: Iterable[str], pattern: str) -> int:
    return 1 + max(int(found[1]) for key in keys if (found := re.match(pattern, key)))


def convert_config(
    sizes: Mapping[str, Any],
    *,
    fusion: str = "srau",
    srau_threshold: float = 0.0,
    normalize_srau: bool = False,
    attention_on_attention: bool = False,
) -> VisualGPTConfig:
    """Build the configuration of a released model.

    Args:
        sizes: `d_model`, `n_head`, `d_k`, `d_v`, `d_ff`, `d_in`, `encoder_layers`, `decoder_layers`, `vocab_size`,
            `n_positions`, `bos_token_id`, `eos_token_id`, `pad_token_id`, `cross_levels`; optionally
            `layer_norm_epsilon`, `identity_map_reordering`.
        fusion, srau_threshold, normalize_srau, attention_on_attention: variant of the decoder, see
            `VisualGPTConfig`. The default threshold of the released script is 0.
    """
    text = {
        "n_embd": sizes["d_model"],
        "n_head": sizes["n_head"],
        "n_layer": sizes["decoder_layers"],
        "n_positions": sizes["n_positions"],
        "vocab_size": sizes["vocab_size"],
        "layer_norm_epsilon": sizes.get("layer_norm_epsilon", 1e-5),
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    ids = {key: sizes[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return VisualGPTConfig(
        text_config=text,
        region_feature_size=sizes["d_in"],
        encoder_layers=sizes["encoder_layers"],
        encoder_attention_heads=sizes["n_head"],
        encoder_ffn_dim=sizes["d_ff"],
        encoder_key_dim=sizes["d_k"],
        encoder_value_dim=sizes["d_v"],
        identity_map_reordering=sizes.get("identity_map_reordering", False),
        cross_levels=list(sizes["cross_levels"]),
        fusion=fusion,
        srau_threshold=srau_threshold,
        normalize_srau=normalize_srau,
        attention_on_attention=attention_on_attention,
        region_mask_rule="zero_projected_sum",
        token_mask_rule="pad_id",
        **ids,
    )


def sort_keys(keys: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Sort keys into converted keys, keys that no forward pass reads, and keys that the code base does not have."""
    used: list[str] = []
    unused: list[str] = []
    unknown: list[str] = []
    for key in keys:
        try:
            (unused if map_key(key) is None else used).append(key)
        except KeyError:
            unknown.append(key)
    return used, unused, unknown


def map_key(key: str) -> str | None:
    """Return the name in this library of a released key; None if no forward pass reads it.

    Raises:
        KeyError: the code base has no such key.
    """
    if UNUSED_KEYS.fullmatch(key):
        return None
    gate = GATE.fullmatch(key)
    if gate is not None:  # released levels count from 1
        layer, level, kind = gate.groups()
        return f"model.decoder.h.{layer}.fusion.gates.levels.{int(level) - 1}.{kind}"
    for pattern, replacement in KEY_MAP:
        if re.fullmatch(pattern, key):
            return re.sub(pattern, replacement, key)
    raise KeyError(f"`{key}` is not a key of a VisualGPT checkpoint.")


def convert_state_dict(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a released `state_dict`. The output projection of cross-attention is transposed.

    Raises:
        KeyError: the code base has no such key.
    """
    converted = {}
    for key, tensor in released.items():
        name = map_key(key)
        if name is not None:
            converted[name] = tensor.T.contiguous() if name.endswith("crossattention.o_proj.weight") else tensor
    return converted

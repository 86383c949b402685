"""Key map of the VisualGPT code base: its `state_dict` and sizes in terms of `VisualGPTForConditionalGeneration`.

Source: github.com/Vision-CAIR/VisualGPT. The released decoder reads encoder levels 0, 1, 2 whatever the depth of the
encoder, hides tokens by their id and regions by the sum of their projected features.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig

# (pattern, replacement) pairs; the first that matches the whole key wins.
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
GATE = re.compile(r"decoder\.transformer\.h\.(\d+)\.fc_alpha(\d)\.(\w+)")

# What the released classes own and no forward pass reads: unused projections, masks and decoding state.
UNUSED_KEYS = re.compile(
    r"encoder\.layers\.\d+\.mhatt\.attention\.c_attn_(query|key|value)\.\w+"
    r"|decoder\.transformer\.h\.\d+\.enc_dec_attn\.(c_attn\.\w+|bias)"
    r"|decoder\.transformer\.h\.\d+\.attn\.(bias|running_keys|running_values)"
    r"|decoder\.(running_mask_self_attention|transformer\.running_seq)"
)


def map_key(key: str) -> str | None:
    """Our name of a released key; None for what no forward pass reads.

    Raises:
        KeyError: the key is not one of the code base's.
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
    raise KeyError(f"`{key}` is no key of a VisualGPT checkpoint.")


def convert_state_dict(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A released `state_dict` under our names; the cross-attention's output projection is stored transposed there.

    Raises:
        KeyError: a key is not one of the code base's.
    """
    converted = {}
    for key, tensor in released.items():
        name = map_key(key)
        if name is not None:
            converted[name] = tensor.T.contiguous() if name.endswith("crossattention.o_proj.weight") else tensor
    return converted


def convert_config(
    sizes: Mapping[str, Any],
    *,
    fusion: str = "srau",
    srau_threshold: float = 0.0,
    normalize_srau: bool = False,
    attention_on_attention: bool = False,
) -> VisualGPTConfig:
    """Configuration of a released model.

    Args:
        sizes: `d_model`, `n_head`, `d_k`, `d_v`, `d_ff`, `d_in`, `encoder_layers`, `decoder_layers`, `vocab_size`,
            `n_positions`, `bos_token_id`, `eos_token_id`, `pad_token_id`, `cross_levels`; optional
            `layer_norm_epsilon`, `identity_map_reordering`.
        fusion, srau_threshold, normalize_srau, attention_on_attention: the variant of the decoder, see
            `VisualGPTConfig`; the released script's default threshold is 0.
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

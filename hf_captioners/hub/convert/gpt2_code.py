"""Conversion of VisualGPT's code base: parts that VisualGPT and its baselines with a GPT-2 block share.

Weights do not contain the number of heads and the ids of the begin, end and padding tokens. Their defaults are GPT-2's
64 features per head and, for GPT-2's vocabulary, the released ids.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .key_maps import count_layers

HEAD_SIZE = 64  # features per attention head of GPT-2
GPT2_TOKENS = 50257
RELEASED_IDS = {"bos_token_id": 47934, "eos_token_id": 50256, "pad_token_id": 47932}
GPT2_SETTINGS = (*RELEASED_IDS, "n_head", "cross_levels", "layer_norm_epsilon")

_BLOCK, _OURS = r"decoder\.transformer\.h\.(\d+)", r"model.decoder.h.\1"
GPT2_DECODER = (
    (r"decoder\.transformer\.(wte|wpe|ln_f)\.(\w+)", r"model.decoder.\1.\2"),
    (rf"{_BLOCK}\.ln_1\.(\w+)", rf"{_OURS}.ln_1.\2"),
    (rf"{_BLOCK}\.attn\.(c_attn|c_proj)\.(\w+)", rf"{_OURS}.attn.\2.\3"),
    (rf"{_BLOCK}\.enc_dec_attn\.fc_([qkv])\.(\w+)", rf"{_OURS}.crossattention.\2_proj.\3"),
    (rf"{_BLOCK}\.enc_dec_attn\.c_proj\.(\w+)", rf"{_OURS}.crossattention.o_proj.\2"),
    (r"decoder\.lm_head\.decoder\.weight", "lm_head.weight"),
)
GPT2_FEED_FORWARD = (
    (rf"{_BLOCK}\.ln_2\.(\w+)", rf"{_OURS}.ln_2.\2"),
    (rf"{_BLOCK}\.mlp\.(c_fc|c_proj)\.(\w+)", rf"{_OURS}.mlp.\2.\3"),
)
# What no forward pass reads: unused projections, masks and decoding state.
GPT2_UNUSED = (
    r"encoder\.layers\.\d+\.mhatt\.attention\.c_attn_(query|key|value)\.\w+",
    r"decoder\.transformer\.h\.\d+\.enc_dec_attn\.(c_attn\.\w+|bias)",
    r"decoder\.transformer\.h\.\d+\.attn\.(bias|running_keys|running_values)",
    r"decoder\.(running_mask_self_attention|transformer\.running_seq)",
)


def read_gpt2_sizes(released: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Infer layer sizes of a released model, as `gpt2_fields` needs them, from its weights and the settings.

    Args:
        released: weights under the released names.
        settings: any of `GPT2_SETTINGS`; the levels that the decoder reads are left to the caller.

    Raises:
        ValueError: the number of heads does not fit, or token ids are missing.
    """
    tokens, width = released["decoder.transformer.wte.weight"].shape
    heads = settings.get("n_head", width // HEAD_SIZE)
    attention = "encoder.layers.0.mhatt.attention.fc_{}.weight"
    if not heads or any(released[attention.format(part)].shape[0] % heads for part in "qv"):
        raise ValueError(
            f"{width} features cannot be divided among {heads} heads. Give the number of heads with `settings`: "
            "n_head=..."
        )
    ids = RELEASED_IDS if tokens == GPT2_TOKENS else {}
    ids = {name: settings.get(name, ids.get(name)) for name in RELEASED_IDS}
    if missing := [name for name, token in ids.items() if token is None]:
        raise ValueError(
            f"The vocabulary has {tokens} tokens, not GPT-2's {GPT2_TOKENS}. Give the ids of begin, end and padding "
            f"with `settings`: {' '.join(f'{name}=...' for name in missing)}"
        )
    return ids | {
        "d_model": width,
        "n_head": heads,
        "d_k": released[attention.format("q")].shape[0] // heads,
        "d_v": released[attention.format("v")].shape[0] // heads,
        "d_in": released["encoder.fc.weight"].shape[1],
        "encoder_layers": count_layers(released, r"encoder\.layers\.(\d+)\."),
        "decoder_layers": count_layers(released, r"decoder\.transformer\.h\.(\d+)\."),
        "vocab_size": tokens,
        "n_positions": released["decoder.transformer.wpe.weight"].shape[0],
        "layer_norm_epsilon": settings.get("layer_norm_epsilon", 1e-5),
    }


def gpt2_fields(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Build the fields of a `GPT2CaptioningConfig` from the sizes of a released model.

    Args:
        sizes: `d_model`, `n_head`, `d_k`, `d_v`, `d_in`, `encoder_layers`, `decoder_layers`, `vocab_size`,
            `n_positions`, `bos_token_id`, `eos_token_id`, `pad_token_id`, `cross_levels`; optionally
            `layer_norm_epsilon`.
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
    return {key: sizes[key] for key in RELEASED_IDS} | {
        "text_config": text,
        "region_feature_size": sizes["d_in"],
        "encoder_layers": sizes["encoder_layers"],
        "encoder_attention_heads": sizes["n_head"],
        "encoder_key_dim": sizes["d_k"],
        "encoder_value_dim": sizes["d_v"],
        "cross_levels": list(sizes["cross_levels"]),
        "region_mask_rule": "zero_projected_sum",
        "token_mask_rule": "pad_id",
    }


def transpose_cross_attention(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Transpose the output projections of cross-attention, which are stored as GPT-2 stores weights."""
    return {
        name: tensor.T.contiguous() if name.endswith("crossattention.o_proj.weight") else tensor
        for name, tensor in weights.items()
    }

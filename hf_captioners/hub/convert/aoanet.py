"""Conversion of checkpoints of the authors' AoANet: `model.pth` and the `infos_ID.pkl` beside it.

Sizes are read from the weights; the number of heads, rates and the vocabulary from the file of options. The conversion
of weights is differentiable, so gradients can be compared under the released names.

Source: github.com/husthuaan/AoANet.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_aoanet import AoANetConfig

from . import aoanet_code
from .aoanet_code import generation_settings
from .infos_files import find_infos, read_infos
from .key_maps import LSTM_KEYS, KeyMap, count_layers, region_projection_names, split_lstm
from .released import Released, require_known_settings, require_weights

SETTINGS = ("infos",)
# Options of the program that no weight tells, with its defaults.
DEFAULTS: dict[str, Any] = aoanet_code.DEFAULTS | {"caption_model": "aoa", "out_res": 0}
ATTENTION = "model.decoder.layer.attention.attention"
RENAMES = (
    *aoanet_code.RENAMES,
    (r"core\.attention\.linears\.0\.(\w+)", rf"{ATTENTION}.q_proj.\1"),
    (r"core\.attention\.h2att\.weight", rf"{ATTENTION}.query_projection.weight"),
    (r"core\.attention\.alpha_net\.(\w+)", rf"{ATTENTION}.score.\1"),
)
QUERY_BIAS = "core.attention.h2att.bias"


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert an AoANet checkpoint (`model.pth`, infos file) to a configuration, weights and words.

    Args:
        checkpoint: the file with the weights.
        settings: `infos`, the infos file, where it is not the only one beside the checkpoint.

    Raises:
        ValueError: it is not a checkpoint of AoANet, or a setting is unknown.
        OSError: a file cannot be read.
    """
    require_known_settings("aoanet", settings, SETTINGS)
    file = read_torch_file(checkpoint)
    released = file.tensors(file.content)
    needed = ("embed.0.weight", "core.att_lstm.weight_ih", "core.att_lstm.weight_hh", "ctx2att.weight")
    require_weights("AoANet", checkpoint, released, needed)
    infos = read_infos(find_infos(checkpoint, settings.get("infos")))
    options = {**DEFAULTS, **infos.options, "num_heads": infos.option("num_heads")}
    if options["caption_model"] != "aoa":
        raise ValueError(
            f"{checkpoint} is of a captioner {options['caption_model']!r} of this code base, expected 'aoa'. "
            "Convert those of Image Transformer with `hf-captioners convert image_transformer`."
        )
    _, _, unknown = key_map(released).sort(key for key in released if key not in rearranged_keys(released))
    return Released(
        config=convert_config(options, released),
        weights=convert_state_dict({key: tensor for key, tensor in released.items() if key not in unknown}),
        vocabulary="zero",
        words=infos.words,
        unknown=unknown,
        generation=generation_settings(options, released),
    )


def convert_config(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> AoANetConfig:
    """Build the configuration of a released AoANet from its options and weights.

    Args:
        options: options of the program, `num_heads` and any of `DEFAULTS`.
        weights: released weights, from which the sizes are read.
    """
    options = {**DEFAULTS, **options}
    tokens, words = weights["embed.0.weight"].shape
    width = weights["core.att_lstm.weight_hh"].shape[1]
    regions = weights["att_embed.1.weight" if "att_embed.1.weight" in weights else "att_embed.0.weight"]
    layers = count_layers(weights, r"refiner\.layers\.(\d+)\.")
    rate = options["drop_prob_lm"]
    sizes: dict[str, Any] = {}
    if "core.attention.linears.0.weight" in weights:
        sizes["head_scale"] = weights["core.attention.linears.0.weight"].shape[0] // width
    else:
        sizes |= {"attention_type": "additive", "attention_size": weights["ctx2att.weight"].shape[0]}
    if "refiner.layers.0.self_attn.linears.0.weight" in weights:
        sizes["head_scale"] = weights["refiner.layers.0.self_attn.linears.0.weight"].shape[0] // width
    if "refiner.layers.0.feed_forward.w_1.weight" in weights:
        sizes["refiner_ffn_dim"] = weights["refiner.layers.0.feed_forward.w_1.weight"].shape[0]
    if "fc_embed.0.weight" in weights:
        sizes |= {"global_vector": "given", "global_feature_size": weights["fc_embed.0.weight"].shape[1]}
    if layers:
        sizes["refiner_layers"] = layers
    return AoANetConfig(
        vocab_size=tokens,
        embedding_size=words,
        hidden_size=width,
        num_heads=options["num_heads"],
        region_feature_size=regions.shape[1],
        region_norm=_region_norm(weights),
        refiner=_refiner(weights),
        decoder_type=_decoder_type(weights),
        output_residual=bool(options["out_res"]),
        dropout=rate,
        context_dropout=rate if options["ctx_drop"] else 0.0,
        aoa_dropout=options["dropout_aoa"],
        label_smoothing=options["label_smoothing"],
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **sizes,
    )


def _region_norm(weights: Mapping[str, Tensor]) -> str:
    if "att_embed.4.weight" in weights:
        return "batch"
    return "batch_input" if "att_embed.1.weight" in weights else "none"


def _refiner(weights: Mapping[str, Tensor]) -> str:
    if "refiner.layers.0.self_attn.aoa_layer.0.weight" in weights:
        return "aoa"
    return "attention" if "refiner.layers.0.self_attn.output_layer.weight" in weights else "none"


def _decoder_type(weights: Mapping[str, Tensor]) -> str:
    if "core.att2ctx.0.weight" not in weights:
        return "lstm"
    rows, width = weights["core.att2ctx.0.weight"].shape[0], weights["core.att_lstm.weight_hh"].shape[1]
    return "aoa" if rows == 2 * width else "base"


def key_map(weights: Mapping[str, Tensor]) -> KeyMap:
    """Return the renaming of weights that keep their values, for the model variant with these weights."""
    regions = region_projection_names({"none": 0, "batch_input": 1, "batch": 2}[_region_norm(weights)])
    context = {"aoa": "context.aoa.projection", "base": "context.projection"}.get(_decoder_type(weights))
    context_names = () if context is None else ((r"core\.att2ctx\.0\.(\w+)", rf"model.decoder.layer.{context}.\1"),)
    return KeyMap("AoANet", (*RENAMES, *regions, *context_names))


def rearranged_keys(weights: Mapping[str, Tensor]) -> set[str]:
    """Return the released names of weights that the conversion splits or joins."""
    cells = ["core.att_lstm", *(["core.att2ctx"] if _decoder_type(weights) == "lstm" else [])]
    return {f"{cell}.{key}" for cell in cells for key in LSTM_KEYS} | {"ctx2att.weight", "ctx2att.bias", QUERY_BIAS}


def convert_state_dict(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a released `state_dict` to weights of this library.

    The matrix `ctx2att` is split into values and keys, in this order, and those of LSTM cells by what they read. Pairs
    of biases that are always added become one.

    Raises:
        KeyError: the program has no such weight.
    """
    rearranged = rearranged_keys(weights)
    converted = key_map(weights).rename({key: value for key, value in weights.items() if key not in rearranged})
    for kind in ("weight", "bias"):
        projection, name = weights.get(f"ctx2att.{kind}"), "model.encoder.{}_projection." + kind
        if projection is not None and "core.attention.h2att.weight" not in weights:
            values, keys = projection.chunk(2)
            converted |= {name.format("value"): values, name.format("key"): keys}
        elif projection is not None and kind == "weight":
            converted[name.format("key")] = projection
        elif projection is not None and QUERY_BIAS in weights:
            converted[name.format("key")] = projection + weights[QUERY_BIAS]
    word_size, width = weights["embed.0.weight"].shape[1], weights["core.att_lstm.weight_ih"].shape[0] // 4
    converted |= split_lstm(weights, "core.att_lstm", "model.decoder.layer.lstm", word_size)
    if "core.att2ctx.weight_ih" in weights:
        attended = weights["core.att2ctx.weight_ih"].shape[1] - width
        converted |= split_lstm(weights, "core.att2ctx", "model.decoder.layer.context.lstm", attended)
    return converted

"""Conversion of checkpoints of the authors' Image Transformer: `model.pth` with `infos.pkl`.

The option `caption_model` names the variant. Sizes are read from the weights; the number of heads, rates and the
vocabulary from the file of options. The captioner reads region features with the relations of the program
(`cocobu_flag_h_v1`), or with boxes, of which it makes them by the released rule. The conversion of weights is
differentiable, so gradients can be compared under the released names.

Source: github.com/wtliao/ImageTransformer.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_image_transformer import RELATION_NUMBERS, ImageTransformerConfig

from .aoanet_code import DEFAULTS, LAYER, generation_settings
from .aoanet_code import RENAMES as AOANET_RENAMES
from .infos_files import find_infos, read_infos
from .key_maps import LSTM_KEYS, KeyMap, count_layers, split_lstm
from .released import Released, require_known_settings, require_weights

SETTINGS = ("infos",)
ONE_ATTENTION = {"num_sub_transformers": 1}
ONE_SPATIAL_LAYER = ONE_ATTENTION | {"share_plain_attention": True}
# What a value of `caption_model` stands for; `aoa3d1` is the published model.
VARIANTS: dict[str, dict[str, Any]] = {
    "aoa3d1": {},
    "aoa3": ONE_ATTENTION,
    "aoa3d1w2": {"num_sub_transformers": 2},
    "aoa3d1w4": {"num_sub_transformers": 4},
    "aoa3l1": ONE_SPATIAL_LAYER | {"spatial_layers": [0]},
    "aoa3l2": ONE_SPATIAL_LAYER | {"spatial_layers": [1]},
    "aoa3l3": ONE_SPATIAL_LAYER | {"spatial_layers": [2]},
    "aoa4": ONE_ATTENTION | {"relation_weights": "mean", "mask_decoder_attention": False},
    "aoab": ONE_ATTENTION | {"spatial_layers": []},
    "aoa3d2": {"sub_transformer_mixture": "gates"},
    "aoa3d3": {"sub_transformer_mixture": "gates", "decoder_attention_on_attention": False},
    "aoa3d1_24h": {"share_queries": False},
    "aoa1": ONE_ATTENTION | {"relation_weights": "related_regions"},
    # The released names of parent and child are turned round.
    "aoa3_no_c": ONE_ATTENTION | {"spatial_relations": ["child", "neighbour"]},
    "aoa3_no_p": ONE_ATTENTION | {"spatial_relations": ["neighbour", "parent"]},
}
# Keys that are only renamed; the first pattern that matches the whole key applies.
RENAMES = (
    (r"att_embed\.0\.(\w+)", r"model.encoder.projection.linear.\1"),
    *(
        (
            rf"refiner\.layers\.(\d+)\.self_attn\.([kv])_linears\.{index}\.(\w+)",
            rf"{LAYER}.\1.self_attn.\2_proj.{name}.\3",
        )
        for index, name in enumerate(RELATION_NUMBERS)
    ),
    (r"refiner\.layers\.(\d+)\.self_attn\.([qkv])_linears\.(\w+)", rf"{LAYER}.\1.self_attn.\2_proj.\3"),
    (r"core\.att2ctx\.0\.(\w+)", r"model.decoder.layer.context.aoa.projection.\1"),
    (r"core\.attention\.gate\.(\w+)", r"model.decoder.layer.attention.gate.\1"),
)
KEY_MAP = KeyMap("Image Transformer", (*AOANET_RENAMES, *RENAMES))
# Keys that `convert_state_dict` joins or divides.
QUERIES, KEYS_AND_VALUES = r"core\.attention\.linears\.[012]", r"core\.implicit[1-9]|ctx2att"
REARRANGED = re.compile(rf"({QUERIES}|{KEYS_AND_VALUES})\.(weight|bias)|core\.att_lstm\.({'|'.join(LSTM_KEYS)})")


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert `model.pth` and its infos file to a configuration, weights and words.

    Args:
        checkpoint: the file with the weights.
        settings: `infos`, the infos file, where it is not the only one beside the checkpoint.

    Raises:
        ValueError: it is not a checkpoint of Image Transformer, or a setting is unknown.
        OSError: a file cannot be read.
    """
    require_known_settings("image_transformer", settings, SETTINGS)
    file = read_torch_file(checkpoint)
    released = file.tensors(file.content)
    needed = ("embed.0.weight", "att_embed.0.weight", "core.att_lstm.weight_hh", "refiner.norm.a_2")
    require_weights("Image Transformer", checkpoint, released, needed)
    infos = read_infos(find_infos(checkpoint, settings.get("infos")))
    options = {**DEFAULTS, **infos.options}
    options |= {name: infos.option(name) for name in ("caption_model", "num_heads")}
    if options["caption_model"] == "aoa":
        raise ValueError(
            f"{checkpoint} is of an AoANet (`caption_model` is 'aoa'). Convert it with `hf-captioners convert aoanet`."
        )
    unknown = unknown_keys(released)
    return Released(
        config=convert_config(options, released),
        weights=convert_state_dict({key: tensor for key, tensor in released.items() if key not in unknown}),
        vocabulary="zero",
        words=infos.words,
        unknown=unknown,
        generation=generation_settings(options, released),
    )


def convert_config(options: Mapping[str, Any], weights: Mapping[str, Tensor]) -> ImageTransformerConfig:
    """Build the configuration of a released Image Transformer from its options and weights.

    Args:
        options: options of the program, `caption_model`, `num_heads` and any of `DEFAULTS`.
        weights: released weights, from which the sizes are read.

    Raises:
        ValueError: the variant is unknown.
    """
    options = {**DEFAULTS, **options}
    weights = {plain_name(key): tensor for key, tensor in weights.items()}
    variant, rate = options["caption_model"], options["drop_prob_lm"]
    if variant not in VARIANTS:
        raise ValueError(f"`caption_model` is {variant!r}, expected one of {', '.join(VARIANTS)}.")
    tokens, words = weights["embed.0.weight"].shape
    projection = weights.get("fc_embed.0.weight")
    vector = {} if projection is None else {"global_vector": "given", "global_feature_size": projection.shape[1]}
    inner = weights.get("refiner.layers.0.feed_forward.w_1.bias")
    return ImageTransformerConfig(
        vocab_size=tokens,
        embedding_size=words,
        hidden_size=weights["core.att_lstm.weight_hh"].shape[1],
        num_heads=options["num_heads"],
        encoder_layers=count_layers(weights, r"refiner\.layers\.(\d+)\."),
        encoder_attention_on_attention=not any(".output_layer." in key for key in weights),
        encoder_ffn_dim=None if inner is None else len(inner),
        region_feature_size=weights["att_embed.0.weight"].shape[1],
        dropout=rate,
        context_dropout=rate if options["ctx_drop"] else 0.0,
        aoa_dropout=options["dropout_aoa"],
        label_smoothing=options["label_smoothing"],
        overlap_rule="released",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **VARIANTS[variant],
        **vector,
    )


def plain_name(key: str) -> str:
    """Rename layers of the reduced encoder as those of the full one: `refiner.layer1` to `refiner.layers.0`."""
    return re.sub(r"^refiner\.layer(\d+)\.", lambda match: f"refiner.layers.{int(match[1]) - 1}.", key)


def unknown_keys(keys: Iterable[str]) -> list[str]:
    """Return the weight names that the program does not have."""
    return sorted(key for key in keys if not REARRANGED.fullmatch(key) and KEY_MAP.sort([plain_name(key)])[2])


def convert_state_dict(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a released `state_dict` to weights of this library.

    Plain layers of a class with one spatial layer share their attention, whose copies are left out. The projections
    for the decoder are divided into keys and values, and joined over the sub-transformers.
    """
    weights = {plain_name(key): tensor for key, tensor in released.items()}
    converted = KEY_MAP.rename({key: tensor for key, tensor in weights.items() if not REARRANGED.fullmatch(key)})
    if any(key.startswith("refiner.layer1.") for key in released):
        converted = with_shared_attention(converted)
    for part in ("weight", "bias"):
        queries = matching(weights, QUERIES, part)
        if queries:
            converted[f"model.decoder.layer.attention.attention.q_proj.{part}"] = torch.cat(queries)
        converted |= keys_and_values(weights, part)
    return converted | split_lstm(
        weights, "core.att_lstm", "model.decoder.layer.lstm", weights["embed.0.weight"].shape[1]
    )


def with_shared_attention(converted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace the attentions of layers without graph, which are equal, by the single shared one."""
    spatial = {name.split(".")[3] for name in converted if ".self_attn.k_proj.neighbour." in name}
    weights: dict[str, Tensor] = {}
    for name, tensor in converted.items():
        layer_match = re.fullmatch(rf"{re.escape(LAYER)}\.(\d+)\.(self_attn|output)\.(.+)", name)
        if layer_match is not None and layer_match[1] not in spatial:
            name = (
                f"model.encoder.shared_{'attention' if layer_match[2] == 'self_attn' else 'output'}.{layer_match[3]}"
            )
        weights.setdefault(name, tensor)
    return weights


def matching(weights: Mapping[str, Tensor], pattern: str, part: str) -> list[Tensor]:
    """Return the weights whose name matches `pattern` and ends with `part`, in the order of the names."""
    return [weights[key] for key in sorted(weights) if re.fullmatch(rf"({pattern})\.{part}", key)]


def keys_and_values(weights: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Split the joint projections of the decoder into keys and values."""
    parallel, single = matching(weights, r"core\.implicit\d", part), matching(weights, "ctx2att", part)
    if not parallel and not single:
        return {}
    first, second = zip(*(tensor.chunk(2) for tensor in parallel or single), strict=True)
    keys, values = (first, second) if parallel else (second, first)
    return {
        f"model.encoder.key_projection.{part}": torch.cat(keys),
        f"model.encoder.value_projection.{part}": torch.cat(values),
    }

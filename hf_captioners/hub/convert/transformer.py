"""Conversion of Transformers: `model.pth` with `infos*.pkl` of ImageCaptioning.pytorch (and of ZoDIAC, whose baseline
it is).

Sources: github.com/ruotianluo/ImageCaptioning.pytorch, github.com/zanyarz/zodiac.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_transformer import CaptioningTransformerConfig

from .infos_files import Infos, find_infos, read_infos
from .key_maps import (
    KeyMap,
    count_layers,
    norm_names,
    projection_names,
    region_projection_names,
    sub_layer_names,
)
from .released import Released, require_known_settings

SETTINGS = ("infos",)

ENCODER, DECODER = r"model\.encoder\.layers\.(\d+)", r"model\.decoder\.layers\.(\d+)"
OUR_ENCODER, OUR_DECODER = r"model.encoder.layers.\1", r"model.decoder.decoder_layers.\1"
# Names that ZoDIAC has as well; those of attentions and of the projection of regions are not among them.
RENAMES = (
    *sub_layer_names(ENCODER, OUR_ENCODER, ("self_attn", "feed_forward")),
    *sub_layer_names(DECODER, OUR_DECODER, ("self_attn", "cross_attn", "feed_forward")),
    *norm_names(r"model\.encoder\.norm", "model.encoder.final_norm"),
    *norm_names(r"model\.decoder\.norm", "model.decoder.final_norm"),
    (r"model\.tgt_embed\.0\.lut\.weight", "model.decoder.token_embedding.weight"),
    (r"model\.generator\.proj\.(\w+)", r"lm_head.\1"),
)
# `pe`: 5,000 sinusoids; the others are created by a base class.
UNUSED = (r"model\.tgt_embed\.1\.pe", r"(embed|fc_embed|core|logit|ctx2att)\..*")
REGION_NORM = {0: "none", 1: "batch_input", 2: "batch"}


def key_map(
    use_bn: int = 0, projections: str = "qkvo", program: str = "the Transformer of ImageCaptioning.pytorch"
) -> KeyMap:
    """Return the map from released weight names to those of this library; unused weights are dropped.

    Args:
        use_bn: batch norms of the projected regions.
        projections: those of an attention in the released order.
        program: name of the code base.
    """
    attentions = (
        *projection_names(rf"{ENCODER}\.self_attn", f"{OUR_ENCODER}.self_attn", projections),
        *projection_names(rf"{DECODER}\.self_attn", f"{OUR_DECODER}.self_attn", projections),
        *projection_names(rf"{DECODER}\.src_attn", f"{OUR_DECODER}.cross_attn", projections),
    )
    return KeyMap(program, (*attentions, *RENAMES, *region_projection_names(use_bn)), UNUSED)


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert `model.pth` and its infos file to a configuration, weights and words.

    Args:
        checkpoint: the file with the weights.
        settings: `infos`, the infos file, where it is not the only one beside the checkpoint.

    Raises:
        ValueError: it is not a Transformer of ImageCaptioning.pytorch, or a setting is unknown.
        OSError: a file cannot be read.
    """
    require_known_settings("transformer", settings, SETTINGS)
    file = read_torch_file(checkpoint)
    released = file.tensors(file.content)
    if "model.tgt_embed.0.lut.weight" not in released or "model.generator.proj.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `model.tgt_embed.0.lut.weight` and `model.generator.proj.weight`, so it is not a "
            "Transformer of ImageCaptioning.pytorch."
        )
    infos = read_infos(find_infos(checkpoint, settings.get("infos")))
    sizes = read_sizes(released, infos.options)
    generation = {"num_beams": 5, "length_penalty": 0.0}
    return read_weights(released, infos, convert_config(sizes), key_map(sizes["use_bn"]), generation)


def read_weights(
    released: Mapping[str, Tensor], infos: Infos, config: Any, names: KeyMap, generation: Mapping[str, Any]
) -> Released:
    """Rename the weights of a checkpoint; return them with configuration, words and settings.

    Args:
        released: the weights.
        infos: options and words.
        config: configuration of the captioner.
        names: see `key_map`.
        generation: settings of `generate()`, beside length and bookkeeping.
    """
    used, unused, unknown = names.sort(released)
    length = int(infos.options.get("max_length", 20))
    return Released(
        config=config,
        weights=names.rename({key: released[key] for key in used}),
        vocabulary="zero",
        words=infos.words,
        unused=unused,
        unknown=unknown,
        may_lack=frozenset({"model.decoder.position_embedding.weight"}),
        generation=dict(generation) | {"max_new_tokens": length, "bookkeeping": "pool"},
    )


def read_sizes(released: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
    """Infer layer sizes, as `convert_config` needs them, from the weights; the options give the number of heads."""
    vocabulary, width = released["model.tgt_embed.0.lut.weight"].shape
    linear = next(tensor for key, tensor in released.items() if key.startswith("att_embed.") and tensor.ndim == 2)
    return {
        "d_model": width,
        "num_att_heads": int(options.get("num_att_heads", 8)),
        "d_ff": released["model.encoder.layers.0.feed_forward.w_1.weight"].shape[0],
        "N_enc": count_layers(released, r"model\.encoder\.layers\.(\d+)\."),
        "N_dec": count_layers(released, r"model\.decoder\.layers\.(\d+)\."),
        "vocab_rows": vocabulary,
        "att_feat_size": linear.shape[1],
        "use_bn": options.get("use_bn", 0),
        "dropout": options.get("dropout", 0.1),
        "drop_prob_lm": options.get("drop_prob_lm", 0.5),
        "max_length": int(options.get("max_length", 20)),
    }


def shared_fields(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration fields that the Transformer and ZoDIAC share, from the sizes of `read_sizes`."""
    return {
        "vocab_size": sizes["vocab_rows"],
        "hidden_size": sizes["d_model"],
        "num_attention_heads": sizes["num_att_heads"],
        "ffn_dim": sizes["d_ff"],
        "encoder_layers": sizes["N_enc"],
        "decoder_layers": sizes["N_dec"],
        "region_feature_size": sizes["att_feat_size"],
        "region_dropout": sizes["drop_prob_lm"],
        "dropout": sizes["dropout"],
        "max_position_embeddings": max(64, sizes["max_length"] + 1),
        "token_mask_rule": "after_end",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }


def convert_config(sizes: Mapping[str, Any]) -> CaptioningTransformerConfig:
    """Build the configuration of a Transformer of ImageCaptioning.pytorch from its sizes.

    Args:
        sizes: `d_model`, `num_att_heads`, `d_ff`, `N_enc`, `N_dec`, `vocab_rows`, `att_feat_size`, `use_bn`,
            `dropout`, `drop_prob_lm`, `max_length`.
    """
    return CaptioningTransformerConfig(
        **shared_fields(sizes),
        region_norm=REGION_NORM[sizes["use_bn"]],
        attention_dropout=sizes["dropout"],
        embedding_dropout=sizes["dropout"],
    )


def convert_state_dict(released: Mapping[str, Tensor], use_bn: int = 0) -> dict[str, Tensor]:
    """Rename the `state_dict` of a Transformer of ImageCaptioning.pytorch to the names of this library.

    The stored sinusoids are left out: the captioner computes those of the positions that it has.

    Raises:
        KeyError: the code base has no such weight.
    """
    return key_map(use_bn).rename(released)

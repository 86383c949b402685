"""Conversion of Transformers: `model.pth` with `infos*.pkl` of ImageCaptioning.pytorch (and of ZoDIAC, whose baseline
it is), and the weights of M2's code without memory and mesh.

Sources: github.com/ruotianluo/ImageCaptioning.pytorch, github.com/zanyarz/zodiac; the decoder without a mesh in the
M2 code: github.com/Vision-CAIR/VisualGPT at d4419be, of which no checkpoint was released.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_transformer import CaptioningTransformerConfig

from .infos_files import find_infos, read_infos
from .key_maps import M2_DECODER, M2_STATE, KeyMap, count_layers
from .released import Released

SETTINGS = ("infos",)

# The projections of an attention by their numbers; ZoDIAC's baseline has the same.
PROJECTIONS = ("q", "k", "v", "o")


def _attentions(released: str, ours: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (rf"{released}\.linears\.{index}\.(\w+)", rf"{ours}.{name}_proj.\2") for index, name in enumerate(PROJECTIONS)
    )


def _sub_layers(released: str, ours: str, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Names of the residuals of a layer and of its feed-forward layer."""
    layer = rf"{released}\.layers\.(\d+)"
    norms = tuple(
        (rf"{layer}\.sublayer\.{index}\.norm\.{theirs}_2", rf"{ours}.\1.{name}_residual.norm.{kind}")
        for index, name in enumerate(names)
        for theirs, kind in (("a", "weight"), ("b", "bias"))
    )
    return (*norms, (rf"{layer}\.feed_forward\.w_([12])\.(\w+)", rf"{ours}.\1.feed_forward.fc\2.\3"))


ENCODER, DECODER = r"model\.encoder", r"model\.decoder"
KEY_MAP = KeyMap(
    "the Transformer of ImageCaptioning.pytorch",
    (
        *_attentions(rf"{ENCODER}\.layers\.(\d+)\.self_attn", r"model.encoder.layers.\1.self_attn"),
        *_attentions(rf"{DECODER}\.layers\.(\d+)\.self_attn", r"model.decoder.decoder_layers.\1.self_attn"),
        *_attentions(rf"{DECODER}\.layers\.(\d+)\.src_attn", r"model.decoder.decoder_layers.\1.cross_attn"),
        *_sub_layers(ENCODER, "model.encoder.layers", ("self_attn", "feed_forward")),
        *_sub_layers(DECODER, "model.decoder.decoder_layers", ("self_attn", "cross_attn", "feed_forward")),
        *(
            (rf"model\.{part}\.norm\.{theirs}_2", rf"model.{part}.final_norm.{kind}")
            for part in ("encoder", "decoder")
            for theirs, kind in (("a", "weight"), ("b", "bias"))
        ),
        (r"model\.tgt_embed\.0\.lut\.weight", "model.decoder.token_embedding.weight"),
        (r"model\.generator\.proj\.(\w+)", r"lm_head.\1"),
    ),
    # `pe`: 5,000 sinusoids; the others are created by a base class.
    unused=(r"model\.tgt_embed\.1\.pe", r"(embed|fc_embed|core|logit|ctx2att)\..*"),
)
# The region projection is a list of modules, whose numbers depend on the batch norms; by `use_bn`.
REGION_PROJECTION = {
    0: {"0": "linear"},
    1: {"0": "input_norm", "1": "linear"},
    2: {"0": "input_norm", "1": "linear", "4": "norm"},
}
REGION_NORM = {0: "none", 1: "batch_input", 2: "batch"}

M2_KEY_MAP = KeyMap(
    "the M2 code",
    (
        (r"encoder\.fc\.(\w+)", r"model.encoder.projection.linear.\1"),
        (r"encoder\.layer_norm\.(\w+)", r"model.encoder.projection.norm.\1"),
        (
            r"encoder\.layers\.(\d+)\.mhatt\.attention\.fc_([qkvo])\.(\w+)",
            r"model.encoder.layers.\1.self_attn.\2_proj.\3",
        ),
        (r"encoder\.layers\.(\d+)\.mhatt\.layer_norm\.(\w+)", r"model.encoder.layers.\1.self_attn_residual.norm.\2"),
        (r"encoder\.layers\.(\d+)\.pwff\.(fc[12])\.(\w+)", r"model.encoder.layers.\1.feed_forward.\2.\3"),
        (r"encoder\.layers\.(\d+)\.pwff\.layer_norm\.(\w+)", r"model.encoder.layers.\1.feed_forward_residual.norm.\2"),
        *M2_DECODER,
    ),
    unused=(*M2_STATE, r"decoder\.layers\.\d+\.(fc_alpha\d|Layer_norm)\.\w+"),
)


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Read `model.pth` and the infos file beside it.

    Args:
        checkpoint: the file with the weights.
        settings: `infos`, the infos file, where it is not the only one beside the checkpoint.

    Raises:
        ValueError: it is not a Transformer of ImageCaptioning.pytorch, or a setting is unknown.
        OSError: a file cannot be read.
    """
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise ValueError(f"transformer has no setting {', '.join(unknown)}; expected any of {', '.join(SETTINGS)}.")
    file = read_torch_file(checkpoint)
    released = file.tensors(file.content)
    if "model.tgt_embed.0.lut.weight" not in released or "model.generator.proj.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `model.tgt_embed.0.lut.weight` and `model.generator.proj.weight`, so it is not a "
            "Transformer of ImageCaptioning.pytorch."
        )
    infos = read_infos(find_infos(checkpoint, settings.get("infos")))
    use_bn = infos.options.get("use_bn", 0)
    used, unused, unknown_keys = KEY_MAP.sort(key for key in released if not key.startswith("att_embed."))
    projection = [key for key in released if key.startswith("att_embed.")]
    weights = convert_state_dict({key: released[key] for key in (*used, *projection)}, use_bn)
    length = int(infos.options.get("max_length", 20))
    return Released(
        config=convert_config(read_sizes(released, infos.options) | {"max_length": length}),
        weights=weights,
        vocabulary="zero",
        words=infos.words,
        unused=unused,
        unknown=unknown_keys,
        may_lack=frozenset({"model.decoder.position_embedding.weight"}),
        generation={"num_beams": 5, "max_new_tokens": length, "bookkeeping": "pool", "length_penalty": 0.0},
    )


def read_sizes(released: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes for `convert_config` from the weights; the number of heads comes from the options."""
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
    }


def convert_config(sizes: Mapping[str, Any]) -> CaptioningTransformerConfig:
    """Build the configuration of a Transformer of ImageCaptioning.pytorch.

    Args:
        sizes: `d_model`, `num_att_heads`, `d_ff`, `N_enc`, `N_dec`, `vocab_rows`, `att_feat_size`, `use_bn`,
            `dropout`, `drop_prob_lm`, `max_length`.
    """
    return CaptioningTransformerConfig(
        vocab_size=sizes["vocab_rows"],
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["num_att_heads"],
        ffn_dim=sizes["d_ff"],
        encoder_layers=sizes["N_enc"],
        decoder_layers=sizes["N_dec"],
        region_feature_size=sizes["att_feat_size"],
        region_norm=REGION_NORM[sizes["use_bn"]],
        region_dropout=sizes["drop_prob_lm"],
        dropout=sizes["dropout"],
        attention_dropout=sizes["dropout"],
        embedding_dropout=sizes["dropout"],
        max_position_embeddings=max(64, sizes["max_length"] + 1),
        token_mask_rule="after_end",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def convert_state_dict(released: Mapping[str, Tensor], use_bn: int = 0) -> dict[str, Tensor]:
    """Rename the weights of a Transformer of ImageCaptioning.pytorch.

    The stored sinusoids are left out: the captioner computes those of the positions that it has.

    Raises:
        KeyError: the code base has no such weight.
    """
    return {name: tensor for key, tensor in released.items() if (name := map_key(key, use_bn)) is not None}


def map_key(key: str, use_bn: int = 0) -> str | None:
    """Return the name in this library of a weight of ImageCaptioning.pytorch; None if no forward pass reads it.

    Raises:
        KeyError: the code base has no such weight.
    """
    first, _, rest = key.partition(".")
    if first == "att_embed":
        index, _, kind = rest.partition(".")
        if index in REGION_PROJECTION[use_bn]:
            return f"model.encoder.projection.{REGION_PROJECTION[use_bn][index]}.{kind}"
    return KEY_MAP(key)


def convert_m2_style_config(sizes: Mapping[str, Any]) -> CaptioningTransformerConfig:
    """Build the configuration of a Transformer in the M2 code: no memory, and a decoder that reads the last level.

    Args:
        sizes: `d_model`, `n_head`, `d_k`, `d_v`, `d_ff`, `d_in`, `encoder_layers`, `decoder_layers`, `vocab_size`,
            `decoder_max_len`, `bos_token_id`, `eos_token_id`, `pad_token_id`; optionally `layer_norm_epsilon`.
    """
    ids = {key: sizes[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return CaptioningTransformerConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["n_head"],
        key_dim=sizes["d_k"],
        value_dim=sizes["d_v"],
        ffn_dim=sizes["d_ff"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        region_feature_size=sizes["d_in"],
        max_position_embeddings=sizes["decoder_max_len"] + 1,
        norm_first=False,
        norm_type="layer",
        norm_eps=sizes.get("layer_norm_epsilon", 1e-5),
        region_norm="layer",
        region_dropout=0.1,
        attention_dropout=0.0,
        embedding_dropout=0.0,
        scale_embedding=False,
        position_embedding="noise",
        first_position=1,
        output_bias=False,
        region_mask_rule="zero_projected_sum",
        token_mask_rule="pad_id",
        **ids,
    )

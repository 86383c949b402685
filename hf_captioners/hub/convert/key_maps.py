"""Renaming of released weights by patterns, and name patterns that several code bases share."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class KeyMap:
    """Map from released weight names to those of this library, by regular expressions.

    Args:
        program: name of the code base, for messages.
        renames: (pattern, replacement) pairs; the first pattern that matches the whole name applies.
        unused: patterns of names that no forward pass reads.
    """

    program: str
    renames: tuple[tuple[str, str], ...]
    unused: tuple[str, ...] = ()

    def __call__(self, key: str) -> str | None:
        """Return this library's name for a released weight name; None if no forward pass reads the weight.

        Raises:
            KeyError: the code base has no such name.
        """
        if any(re.fullmatch(pattern, key) for pattern in self.unused):
            return None
        for pattern, replacement in self.renames:
            if re.fullmatch(pattern, key):
                return re.sub(pattern, replacement, key)
        raise KeyError(f"`{key}` is not a weight of {self.program}.")

    def rename(self, released: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the weights of a `state_dict`; weights that no forward pass reads are dropped.

        Raises:
            KeyError: the code base has no such name.
        """
        return {name: tensor for key, tensor in released.items() if (name := self(key)) is not None}

    def reading(self, levels: Iterable[int]) -> "KeyMap":
        """Return the map for a decoder that reads these levels of an M2 encoder: layers above them are unused."""
        read = "|".join(map(str, range(max(levels) + 1)))
        return replace(self, unused=(*self.unused, rf"encoder\.layers\.(?!(?:{read})\.).*"))

    def sort(self, keys: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
        """Sort weight names into used, unused and unknown ones."""
        used: list[str] = []
        unused: list[str] = []
        unknown: list[str] = []
        for key in keys:
            try:
                (unused if self(key) is None else used).append(key)
            except KeyError:
                unknown.append(key)
        return used, unused, unknown


def count_layers(keys: Iterable[str], pattern: str) -> int:
    """Return 1 + the largest layer number in weight names, read by the group of `pattern`; 0 without any."""
    return max((1 + int(match[1]) for key in keys if (match := re.match(pattern, key))), default=0)


# Decoding state in checkpoints of the M2 code.
M2_STATE = (
    r"decoder\.(running_mask_self_attention|running_seq)",
    r"decoder\.layers\.\d+\.self_att\.running_(keys|values)",
)
# Names of the region encoder in the M2 code and in those built on it.
M2_REGION_ENCODER = (
    (r"encoder\.fc\.(\w+)", r"model.encoder.input_projection.\1"),
    (r"encoder\.layer_norm\.(\w+)", r"model.encoder.input_norm.\1"),
    (r"encoder\.layers\.(\d+)\.mhatt\.attention\.fc_([qkvo])\.(\w+)", r"model.encoder.layers.\1.self_attn.\2_proj.\3"),
    (r"encoder\.layers\.(\d+)\.mhatt\.attention\.m_k", r"model.encoder.layers.\1.self_attn.memory_keys"),
    (r"encoder\.layers\.(\d+)\.mhatt\.attention\.m_v", r"model.encoder.layers.\1.self_attn.memory_values"),
    (r"encoder\.layers\.(\d+)\.mhatt\.layer_norm\.(\w+)", r"model.encoder.layers.\1.self_attn_norm.\2"),
    (r"encoder\.layers\.(\d+)\.pwff\.(fc[12])\.(\w+)", r"model.encoder.layers.\1.\2.\3"),
    (r"encoder\.layers\.(\d+)\.pwff\.layer_norm\.(\w+)", r"model.encoder.layers.\1.ffn_norm.\2"),
)
_M2_LAYER, _OUR_LAYER = r"decoder\.layers\.(\d+)", r"model.decoder.decoder_layers.\1"
# Names of its decoder, as `TransformerDecoderLayer` has them.
M2_DECODER = (
    *(
        name
        for theirs, ours in (("self_att", "self_attn"), ("enc_att", "cross_attn"))
        for name in (
            (rf"{_M2_LAYER}\.{theirs}\.attention\.fc_([qkvo])\.(\w+)", rf"{_OUR_LAYER}.{ours}.\2_proj.\3"),
            (rf"{_M2_LAYER}\.{theirs}\.layer_norm\.(\w+)", rf"{_OUR_LAYER}.{ours}_residual.norm.\2"),
        )
    ),
    (rf"{_M2_LAYER}\.pwff\.(fc[12])\.(\w+)", rf"{_OUR_LAYER}.feed_forward.\2.\3"),
    (rf"{_M2_LAYER}\.pwff\.layer_norm\.(\w+)", rf"{_OUR_LAYER}.feed_forward_residual.norm.\2"),
    (r"decoder\.word_emb\.weight", "model.decoder.token_embedding.weight"),
    (r"decoder\.pos_emb\.weight", "model.decoder.position_embedding.weight"),
    (r"decoder\.fc\.weight", "lm_head.weight"),
)

# Where the projection of regions stands in ImageCaptioning.pytorch depends on the batch norms around it (`use_bn`).
REGION_PROJECTION = {
    0: {"0": "linear"},
    1: {"0": "input_norm", "1": "linear"},
    2: {"0": "input_norm", "1": "linear", "4": "norm"},
}


def region_projection_names(use_bn: int) -> tuple[tuple[str, str], ...]:
    """Return renamings (pattern, replacement) of the region projection in the ImageCaptioning.pytorch family."""
    return tuple(
        (rf"att_embed\.{index}\.(\w+)", rf"model.encoder.projection.{part}.\1")
        for index, part in REGION_PROJECTION[use_bn].items()
    )


def projection_names(released: str, ours: str, letters: str) -> tuple[tuple[str, str], ...]:
    """Return renamings of an attention's numbered linear layers to `q_proj`, `k_proj`, ...

    Args:
        released: pattern of the attention's name, with one group.
        ours: the replacement.
        letters: the projections in the released order: q, k, v, o, or p for the past query.
    """
    return tuple(
        (rf"{released}\.linears\.{index}\.(\w+)", rf"{ours}.{letter}_proj.\2") for index, letter in enumerate(letters)
    )


def norm_names(released: str, ours: str) -> tuple[tuple[str, str], ...]:
    """Return renamings of an `UnbiasedLayerNorm` in the ImageCaptioning.pytorch family."""
    return ((rf"{released}\.a_2", f"{ours}.weight"), (rf"{released}\.b_2", f"{ours}.bias"))


def sub_layer_names(released: str, ours: str, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return renamings of residual connections and feed-forward layers in the ImageCaptioning.pytorch family.

    Args:
        released: pattern of the layer's name, with one group.
        ours: the replacement.
        names: the sub-layers in the released order.
    """
    norms = (
        norm_names(rf"{released}\.sublayer\.{index}\.norm", f"{ours}.{name}_residual.norm")
        for index, name in enumerate(names)
    )
    return (
        *(pair for pairs in norms for pair in pairs),
        (rf"{released}\.feed_forward\.w_([12])\.(\w+)", rf"{ours}.feed_forward.fc\2.\3"),
    )


# The weights of an `nn.LSTMCell`.
LSTM_KEYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def split_lstm(released: Mapping[str, Tensor], prefix: str, name: str, word_size: int) -> dict[str, Tensor]:
    """Convert an `nn.LSTMCell` to an `LSTMCell` of this library; return {} if one of its four weights is missing.

    The input matrix is split into the part that reads the word and the part that reads the context. The two biases,
    which are always added, become one.

    Args:
        released: released weights.
        prefix: released name of the cell.
        name: its name in this library.
        word_size: width of the first part of the input.
    """
    if any(f"{prefix}.{key}" not in released for key in LSTM_KEYS):
        return {}
    inputs, hidden, input_bias, hidden_bias = (released[f"{prefix}.{key}"] for key in LSTM_KEYS)
    return {
        f"{name}.word_projection.weight": inputs[:, :word_size],
        f"{name}.context_projection.weight": inputs[:, word_size:],
        f"{name}.hidden_projection.weight": hidden,
        f"{name}.word_projection.bias": input_bias + hidden_bias,
    }

"""Configuration of the Meshed-Memory Transformer (Cornia et al., CVPR 2020, "Meshed-Memory Transformer for Image
Captioning")."""

from typing import Any, Literal

from transformers import AutoConfig

from .configuration_captioning import (
    CaptioningConfig,
    Integers,
    positive,
    rate,
    require_equal_heads,
    require_levels,
    within,
)


class M2TransformerConfig(CaptioningConfig):
    """Configuration of the Meshed-Memory (M2) Transformer.

    | row of the paper's ablations | fields |
    |---|---|
    | M2 Transformer | the defaults |
    | without memory | `memory_slots=0` |
    | 20, 60 or 80 memory vectors | `memory_slots` |
    | 1-to-1 connections, without memory | `fusion="one_to_one"`, and `memory_slots=0` |
    | softmax in place of the sigmoid | `level_gate="softmax"` |
    | Transformer | `fusion="last", memory_slots=0` |

    Args:
        vocab_size (`int`, defaults to 10000): V.
        hidden_size (`int`, defaults to 512): D.
        encoder_layers, decoder_layers (`int`, default to 3): number of layers.
        num_attention_heads (`int`, defaults to 8): H of every attention.
        ffn_dim (`int`, defaults to 2048): inner width of the feed-forward layers.
        key_dim, value_dim (`int`, *optional*): width of keys and values per head, in encoder and decoder; default:
            D / H.
        memory_slots (`int`, defaults to 40): learned keys and values of each encoder layer (Eq. 2); 0: none.
        fusion (`str`, defaults to `"meshed"`): what a decoder layer reads. `"meshed"`: a gated sum of the levels
            (Eq. 7-9). `"one_to_one"`: layer i reads level i. `"last"`: the last level, as a plain Transformer.
        level_gate (`str`, defaults to `"sigmoid"`): gates of the levels. `"sigmoid"` (Eq. 9), whose sum is divided by
            the square root of their number; `"softmax"`: weights over the levels that sum to 1 (the paper's ablation,
            of which neither paper nor code give details).
        cross_levels (`list[int]`, *optional*): levels (0-based) of a meshed decoder; default: all. Released code: the
            first three at any depth. Encoder layers above them are not built.
        identity_map_reordering (`bool`, defaults to False): pre-norm encoder layers with a rectified branch, an option
            of the released encoder class that its script never sets.
        position_embedding (`str`, defaults to `"sinusoidal"`): table of positions, see `PositionTable`; saved with the
            model. The paper has sinusoids; the initialisation of the released code overwrites them with noise, which
            stays untrained: `"noise"`.
        max_position_embeddings (`int`, defaults to 55): size of that table, whose first row belongs to padding.
        dropout (`float`, defaults to 0.1): rate on the projected regions, on the output of every sub-layer, and inside
            of feed-forward layers.

    Raises:
        ValueError: if a value is outside of its range or choices.
    """

    model_type = "captioning_m2_transformer"
    sub_configs = {"vision_config": AutoConfig}
    attribute_map = {"num_hidden_layers": "decoder_layers"}  # read by caches

    vocab_size: int = 10000
    hidden_size: int = 512
    encoder_layers: int = positive(default=3)
    decoder_layers: int = positive(default=3)
    num_attention_heads: int = 8
    ffn_dim: int = 2048
    key_dim: int | None = None
    value_dim: int | None = None
    memory_slots: int = within(0)(default=40)
    fusion: Literal["meshed", "one_to_one", "last"] = "meshed"
    level_gate: Literal["sigmoid", "softmax"] = "sigmoid"
    cross_levels: Integers | None = None
    identity_map_reordering: bool = False
    position_embedding: Literal["sinusoidal", "noise", "learned"] = "sinusoidal"
    max_position_embeddings: int = 55
    dropout: float | int = rate(default=0.1)
    bos_token_id: int | None = 1
    eos_token_id: int | Integers | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Resolve the default of `cross_levels` by `fusion`."""
        super().__post_init__(**kwargs)
        if self.cross_levels is None:
            self.cross_levels = {
                "meshed": list(range(self.encoder_layers)),
                "one_to_one": list(range(self.decoder_layers)),
                "last": [self.encoder_layers - 1],
            }[self.fusion]

    def validate_levels_and_heads(self) -> None:
        """Check `cross_levels`, and that the number of heads divides the width."""
        require_equal_heads(self.hidden_size, self.num_attention_heads, (self.key_dim, self.value_dim))
        assert self.cross_levels is not None
        require_levels(self.cross_levels, self.encoder_layers)
        needed = {"one_to_one": self.decoder_layers, "last": 1}.get(self.fusion, len(self.cross_levels))
        if len(self.cross_levels) != needed:
            raise ValueError(
                f"`fusion={self.fusion!r}` reads {needed} level(s), got `cross_levels={self.cross_levels}`."
            )

    @property
    def encoder_dropout(self) -> float:
        """Dropout rate of the region encoder."""
        return self.dropout

    def levels_of_layer(self, index: int) -> Integers:
        """Return the numbers of the encoder levels that decoder layer `index` attends to."""
        assert self.cross_levels is not None
        return [self.cross_levels[index]] if self.fusion == "one_to_one" else self.cross_levels

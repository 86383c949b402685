"""Configuration of ZoDIAC ("ZoDIAC: Zoneout Dropout Injection Attention Calculation"), a Transformer whose attentions
are scaled by a pooled second attention map."""

from typing import Literal

from transformers import AutoConfig

from .configuration_captioning import CaptioningConfig, Integers, positive, rate, require_equal_heads


class ZodiacConfig(CaptioningConfig):
    """Configuration of ZoDIAC.

    | row of Table 4, and of Tables 1 to 3 | fields |
    |---|---|
    | sigmoid, zoneout factor 1 | the defaults |
    | tanh | `intensity_gate="tanh"` |
    | no gate, zoneout factor 0 or 1 | `intensity_gate="none", zoneout_factor=0.0` or `1.0` |
    | without GELU | `gelu=False, pre_gelu=False` |
    | dropout pairs | `dropout`, `zodiac_dropout` |

    Args:
        vocab_size (`int`, defaults to 10000): V.
        hidden_size (`int`, defaults to 512): D.
        encoder_layers, decoder_layers (`int`, default to 6): number of layers (ablations of the paper: 5).
        num_attention_heads (`int`, defaults to 8): H of every attention.
        ffn_dim (`int`, defaults to 2048): inner width of the feed-forward layers.
        ffn_activation (`str`, defaults to `"none"`): between the two maps of the feed-forward layers: `"none"`
            (released), `"relu"` (the paper calls them identical to those of the Transformer).
        intensity_gate (`str`, defaults to `"sigmoid"`): phi of Eq. 8: `"sigmoid"`, `"tanh"` or `"none"` (identity).
        zoneout_factor (`float`, defaults to 1.0): zeta of Eq. 8; a constant in the released code.
        zodiac_dropout (`float`, defaults to 0.2): rate on the attended values (Eq. 3).
        pre_gelu (`bool`, defaults to True): apply GELU before the projections (Eq. 10).
        gelu (`bool`, defaults to True): apply GELU after the projections and to both maps (Eq. 2, 4).
        intensity_pool (`str`, defaults to `"mean"`): what the intensities are pooled over (Eq. 5-7). `"mean"`: the
            mean of each head over the visible map of one image or caption, up to the current token; captions do not
            depend on the batch, and decoding can be cached. `"sum"`: the same, summed over heads, and over regions or
            tokens as often as the released code divides too little. `"released"`: one number for the whole batch, as
            in the released code: captions depend on what else is in the batch, and later words change earlier ones,
            so nothing can be cached.
        region_batch_norm (`int`, defaults to 0): batch norms of the projected regions: 1 before, 2 before and after
            the projection (`use_bn` of the released code).
        max_position_embeddings (`int`, defaults to 64): size of the table of sinusoidal positions (released: 5,000).
        dropout (`float`, defaults to 0.1): rate on the output of every sub-layer, inside of feed-forward layers and on
            the embedded words.
        region_dropout (`float`, defaults to 0.5): rate on the projected regions.

    Raises:
        ValueError: if a value is outside of its range or choices.
    """

    model_type = "captioning_zodiac"
    sub_configs = {"vision_config": AutoConfig}
    attribute_map = {"num_hidden_layers": "decoder_layers"}  # read by caches

    vocab_size: int = 10000
    hidden_size: int = 512
    encoder_layers: int = positive(default=6)
    decoder_layers: int = positive(default=6)
    num_attention_heads: int = 8
    ffn_dim: int = 2048
    ffn_activation: Literal["none", "relu"] = "none"
    intensity_gate: Literal["sigmoid", "tanh", "none"] = "sigmoid"
    zoneout_factor: float | int = 1.0
    zodiac_dropout: float | int = rate(default=0.2)
    pre_gelu: bool = True
    gelu: bool = True
    intensity_pool: Literal["mean", "sum", "released"] = "mean"
    region_batch_norm: Literal[0, 1, 2] = 0
    max_position_embeddings: int = 64
    dropout: float | int = rate(default=0.1)
    region_dropout: float | int = rate(default=0.5)
    bos_token_id: int | None = 1
    eos_token_id: int | Integers | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def validate_heads(self) -> None:
        """Check that the number of attention heads divides the width."""
        require_equal_heads(self.hidden_size, self.num_attention_heads)

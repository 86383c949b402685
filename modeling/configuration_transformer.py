"""Configuration of the captioning Transformer: the encoder-decoder of Vaswani et al. (2017), "Attention Is All You
Need", over image regions, which captioning papers compare with."""

from typing import Literal

from transformers import AutoConfig

from .configuration_captioning import CaptioningConfig, Integers, positive, rate, require_equal_heads


class CaptioningTransformerConfig(CaptioningConfig):
    """Configuration of the captioning Transformer.

    Two code bases have this model, and every point where they differ is a field. The defaults are those of
    ImageCaptioning.pytorch, from which ZoDIAC's "Transformer (ours)" comes.

    | field | ImageCaptioning.pytorch | M2 code, without memory and mesh |
    |---|---|---|
    | `norm_first` | True | False |
    | `norm_type` | `"unbiased"` | `"layer"` |
    | `region_norm` | `"none"`, others by `use_bn` | `"layer"` |
    | `region_dropout` | 0.5 | 0.1 |
    | `scale_embedding` | True | False |
    | `position_embedding`, `first_position` | `"sinusoidal"`, 0 | `"noise"`, 1 |
    | `attention_dropout`, `embedding_dropout` | 0.1, 0.1 | 0, 0 |
    | `output_bias` | True | False |
    | `encoder_layers`, `decoder_layers` | 6, 6 | 3, 3 |

    Args:
        vocab_size (`int`, defaults to 10000): V.
        hidden_size (`int`, defaults to 512): D.
        encoder_layers, decoder_layers (`int`, default to 6): number of layers.
        num_attention_heads (`int`, defaults to 8): H of every attention.
        ffn_dim (`int`, defaults to 2048): inner width of the feed-forward layers.
        key_dim, value_dim (`int`, *optional*): width of keys and values per head; default: D / H.
        use_encoder (`bool`, defaults to True): False leaves the encoder out: the decoder reads the projected regions.
        norm_first (`bool`, defaults to True): the norm comes before each sub-layer, and after the last layer of
            encoder and decoder. False: after the sum of each sub-layer and its residual, as in Vaswani et al.
        norm_type (`str`, defaults to `"unbiased"`): `"layer"`: layer norm; `"unbiased"`: a variant whose deviation
            divides by D - 1, see `UnbiasedLayerNorm`.
        norm_eps (`float`, *optional*): epsilon of the norms; default: 1e-6 for `"unbiased"`, 1e-5 for `"layer"`.
        region_norm (`str`, defaults to `"none"`): norms of the projected regions, see `RegionProjection`.
        scale_embedding (`bool`, defaults to True): multiply word embeddings by sqrt(D), as Vaswani et al. do.
        position_embedding (`str`, defaults to `"sinusoidal"`): table of positions, see `PositionTable`; saved with the
            model.
        max_position_embeddings (`int`, defaults to 64): size of that table (released: 5,000 and 55).
        first_position (`int`, defaults to 0): position of the begin token in the table.
        dropout (`float`, defaults to 0.1): rate on the output of every sub-layer and inside of feed-forward layers.
        attention_dropout (`float`, defaults to 0.1): rate on attention weights.
        embedding_dropout (`float`, defaults to 0.1): rate on the embedded words.
        region_dropout (`float`, defaults to 0.5): rate on the projected regions.
        output_bias (`bool`, defaults to True): the projection to the vocabulary has a bias.

    Raises:
        ValueError: if a value is outside of its range or choices.
    """

    model_type = "captioning_transformer"
    sub_configs = {"vision_config": AutoConfig}
    attribute_map = {"num_hidden_layers": "decoder_layers"}  # read by caches
    # Equal to `REGION_NORMS` and `PositionTable.KINDS`, which a configuration does not import.

    vocab_size: int = 10000
    hidden_size: int = 512
    encoder_layers: int = positive(default=6)
    decoder_layers: int = positive(default=6)
    num_attention_heads: int = 8
    ffn_dim: int = 2048
    key_dim: int | None = None
    value_dim: int | None = None
    use_encoder: bool = True
    norm_first: bool = True
    norm_type: Literal["layer", "unbiased"] = "unbiased"
    norm_eps: float | int | None = None
    region_norm: Literal["none", "layer", "batch_input", "batch"] = "none"
    scale_embedding: bool = True
    position_embedding: Literal["sinusoidal", "noise", "learned"] = "sinusoidal"
    max_position_embeddings: int = 64
    first_position: Literal[0, 1] = 0
    dropout: float | int = rate(default=0.1)
    attention_dropout: float | int = rate(default=0.1)
    embedding_dropout: float | int = rate(default=0.1)
    region_dropout: float | int = rate(default=0.5)
    output_bias: bool = True
    bos_token_id: int | None = 1
    eos_token_id: int | Integers | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def validate_heads(self) -> None:
        """Check that the number of attention heads divides the width."""
        require_equal_heads(self.hidden_size, self.num_attention_heads, (self.key_dim, self.value_dim))

"""Configuration of the AoA Transformer, a baseline of VisualGPT (Chen et al., CVPR 2022, Tables 1 and 2)."""

from .configuration_gpt2 import GPT2CaptioningConfig


class AoATransformerConfig(GPT2CaptioningConfig):
    """Configuration of the AoA Transformer: attention on attention takes the place of the feed-forward layers.

    Region encoder and GPT-2 decoder are those of VisualGPT. The blocks after attention follow Huang et al. (2019,
    "Attention on Attention for Image Captioning", Eq. 3-5); the model is not AoANet, whose decoder is an LSTM. In the
    paper it starts from random weights: `--random_language_model`.

    Args:
        text_config, encoder_layers, encoder_attention_heads, encoder_key_dim, encoder_value_dim, encoder_dropout,
            cross_attention_dropout, residual_dropout_on: see `GPT2CaptioningConfig`. The feed-forward layers of the
            language model are not used.
        cross_levels (`list[int]`, *optional*): the encoder level (0-based) that the decoder reads; default: the last.
            Released code: [2] at any depth. Encoder layers above it are not built.
        aoa_dropout (`float`, defaults to 0.2): rate on the input and on the output of attention on attention.

    Raises:
        ValueError: if a value is out of range.
    """

    model_type = "captioning_aoa_transformer"

"""Base configuration of captioners whose decoder is a GPT-2."""

from typing import Any, Literal

from transformers import AutoConfig, PreTrainedConfig

from .configuration_captioning import CaptioningConfig, Integers, build_sub_config, positive, rate, require_levels


class GPT2CaptioningConfig(CaptioningConfig):
    """Base configuration of captioners with a GPT-2 decoder: language model, region encoder and dropout rates.

    Args:
        text_config (`GPT2Config` or `dict`, *optional*): the language model; the decoder takes its widths, depth,
            vocabulary, context length and dropouts. The default is GPT-2 small with embedding and attention dropout 0,
            which have no effect in the released code of VisualGPT.
        encoder_layers (`int`, defaults to 3): layers of the region encoder (released and paper: 3).
        encoder_attention_heads (`int`, *optional*): heads of the region encoder; default: as many as the
            language model has.
        encoder_key_dim, encoder_value_dim (`int`, *optional*): width of the keys and values per head;
            default: hidden size / heads.
        encoder_dropout (`float`, defaults to 0.1): rate on the projection and in the layers of the region encoder.
        cross_levels (`list[int]`, *optional*): encoder levels (0-based) that the decoder reads; default: the last.
            Encoder layers above them are not built.
        cross_attention_dropout (`float`, defaults to 0.2): rate on cross-attention weights (released; not in the
            paper).
        aoa_dropout (`float`, defaults to 0.2): rate inside attention-on-attention blocks.
        residual_dropout_on (`str`, defaults to `"stream"`): `"stream"` (released) applies dropout to the sum of stream
            and branch; `"branch"` is transformers' GPT-2. The rate is `text_config.resid_pdrop`.

    Raises:
        ValueError: if a value is out of range.
    """

    sub_configs = {"text_config": AutoConfig, "vision_config": AutoConfig}

    text_config: PreTrainedConfig | dict | None = None
    encoder_layers: int = positive(default=3)
    encoder_attention_heads: int | None = None
    encoder_key_dim: int | None = None
    encoder_value_dim: int | None = None
    encoder_dropout: float | int = rate(default=0.1)
    cross_levels: Integers | None = None
    cross_attention_dropout: float | int = rate(default=0.2)
    aoa_dropout: float | int = rate(default=0.2)
    residual_dropout_on: Literal["stream", "branch"] = "stream"
    bos_token_id: int | None = 50256
    eos_token_id: int | Integers | None = 50256
    pad_token_id: int | None = 50256

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the language model's configuration; resolve the encoder's heads and `cross_levels`."""
        # GPT2Config has ids of its own; those of the captioner hold for both, unless `text_config` gives others.
        special = {key: getattr(self, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        if self.text_config is None:
            self.text_config = {"embd_pdrop": 0.0, "attn_pdrop": 0.0}
        if isinstance(self.text_config, dict):
            self.text_config = special | self.text_config
        self.text_config = build_sub_config(self.text_config, "gpt2")
        if self.text_config.model_type != "gpt2":
            raise ValueError(f"`text_config` is a {self.text_config.model_type!r} configuration, expected 'gpt2'.")
        super().__post_init__(**kwargs)
        if self.encoder_attention_heads is None:
            self.encoder_attention_heads = self.text_config.num_attention_heads
        if self.cross_levels is None:
            self.cross_levels = (
                list(range(self.encoder_layers)) if self.reads_all_levels else [self.encoder_layers - 1]
            )

    def validate_levels_and_heads(self) -> None:
        """Check `cross_levels`, and that the number of heads divides the width."""
        require_levels(self.cross_levels, self.encoder_layers)
        if len(self.cross_levels) > 1 and not self.reads_all_levels:
            raise ValueError(f"The decoder reads one level, got `cross_levels={self.cross_levels}`.")
        if self.encoder_key_dim is None and self.hidden_size % self.encoder_attention_heads:
            raise ValueError(
                f"hidden size {self.hidden_size} is not a multiple of `encoder_attention_heads="
                f"{self.encoder_attention_heads}`; choose a different number of heads or set `encoder_key_dim`."
            )

    @property
    def reads_all_levels(self) -> bool:
        """True if the decoder can read several encoder levels; it then reads all by default."""
        return False

    @property
    def hidden_size(self) -> int:
        """D, width of the decoder's hidden states and of the region encoder."""
        return self.text_config.hidden_size

    @property
    def vocab_size(self) -> int:
        """V, size of the vocabulary."""
        return self.text_config.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.text_config.vocab_size = value

    @property
    def num_attention_heads(self) -> int:
        """H, number of attention heads of the decoder."""
        return self.text_config.num_attention_heads

    @property
    def num_hidden_layers(self) -> int:
        """Number of decoder layers."""
        return self.text_config.num_hidden_layers

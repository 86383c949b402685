"""Configuration of VisualGPT (Chen et al., CVPR 2022, "VisualGPT: Data-efficient Adaptation of Pretrained Language
Models for Image Captioning")."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from .configuration_captioning import CaptioningConfig, build_sub_config, require_choice, require_range

FUSIONS = ("srau", "residual", "add_norm", "meshed")


class VisualGPTConfig(CaptioningConfig):
    """Configuration of VisualGPT.

    Every row of Tables 1, 5 and 8 of the paper, and every point where paper and released code differ, is a field.

    | row of the paper | fields |
    |---|---|
    | VisualGPT, "GPT2 init. + SRAU" | the defaults; threshold in `srau_threshold` |
    | complementary gates (tau = 0) | `srau_threshold=0.0` |
    | "Normalized SRAU" (Eq. 6) | `normalize_srau=True` |
    | "GPT2 init.", "Random init.", Transformer | `fusion="residual"` |
    | "GPT2 init. + Meshed" | `fusion="meshed"` |
    | "GPT2 init. + AoA" | `fusion="residual", attention_on_attention=True` |

    For random initialisation, build the model from its configuration.

    Args:
        text_config (`GPT2Config` or `dict`, *optional*): the language model; the decoder takes its widths, depth,
            vocabulary, context length and dropouts. The default is GPT-2 small with embedding and attention dropout 0,
            which have no effect in the released code.
        encoder_layers (`int`, defaults to 3): layers of the visual encoder (released and paper: 3).
        encoder_attention_heads (`int`, *optional*): heads of the visual encoder; default: as many as the
            language model has.
        encoder_ffn_dim (`int`, defaults to 2048): inner width of the encoder's feed-forward layers.
        encoder_key_dim, encoder_value_dim (`int`, *optional*): width of the keys and values per head;
            default: hidden size / heads.
        encoder_dropout (`float`, defaults to 0.1): rate on the projection, after attention and in the feed-forward.
        identity_map_reordering (`bool`, defaults to False): use pre-norm sub-layers with a rectified branch, an option
            of the released encoder class that its script never sets.
        use_region_boxes (`bool`, defaults to False): add a linear map of the boxes (x1, y1, x2, y2, area) to the
            projected features. The paper feeds "the spatial location into the image encoder"; the released code
            does not, so the default is False. Neither specifies this map.
        fusion (`str`, defaults to `"srau"`): how the language stream H and the cross-attention C are combined.
            `"srau"`: gated by the self-resurrecting activation unit (Eq. 4-5). `"residual"`: H + C (released
            baseline). `"add_norm"`: LayerNorm(H + C) (Eq. 3, in no released decoder). `"meshed"`: H + C of every
            level weighted by a sigmoid gate (M2).
        cross_levels (`list[int]`, *optional*): encoder levels (0-based) that the decoder reads. Default: all of them
            for `"srau"` and `"meshed"`, the last one otherwise. Released code: always [0, 1, 2], and [2] for the
            single-level baselines, for any number of encoder layers.
        srau_threshold (`float`, defaults to 0.2): tau of Eq. 5, in [0, 0.5). The paper tunes it on validation data:
            0.2, 0.2 and 0.3 for 0.1, 0.5 and 1 % of COCO; the released script's default is 0.0, its README passes 0.2.
        normalize_srau (`bool`, defaults to False): divide both gates by their sum (Eq. 6).
        gate_input (`str`, defaults to `"learned"`): argument of the sigmoid. `"learned"` (released): a linear map of
            [H; C] per level. `"hidden"` (Eq. 5): H itself, no parameters.
        gate_on (`str`, defaults to `"language"`): the stream that the sigmoid multiplies; the other one is
            multiplied by its complement. `"language"` (released), `"visual"` (Eq. 4-5).
        attention_on_attention (`bool`, defaults to False): pass the cross-attention through an
            attention-on-attention block with its query ("+ AoA" of Table 5).
        cross_attention_dropout (`float`, defaults to 0.2): rate on cross-attention weights (released; not in the
            paper).
        aoa_dropout (`float`, defaults to 0.2): rate inside the attention-on-attention block.
        residual_dropout_on (`str`, defaults to `"stream"`): `"stream"` (released) applies dropout to the sum of stream
            and branch, twice per block; `"branch"` is transformers' GPT-2. The rate is `text_config.resid_pdrop`.

    Raises:
        ValueError: if a value is out of range, for example `srau_threshold` outside [0, 0.5).
    """

    model_type = "captioning_visualgpt"
    sub_configs = {"text_config": AutoConfig, "vision_config": AutoConfig}

    text_config: PreTrainedConfig | dict | None = None
    encoder_layers: int = 3
    encoder_attention_heads: int | None = None
    encoder_ffn_dim: int = 2048
    encoder_key_dim: int | None = None
    encoder_value_dim: int | None = None
    encoder_dropout: float | int = 0.1
    identity_map_reordering: bool = False
    use_region_boxes: bool = False
    fusion: str = "srau"
    cross_levels: list[int] | None = None
    srau_threshold: float | int = 0.2
    normalize_srau: bool = False
    gate_input: str = "learned"
    gate_on: str = "language"
    attention_on_attention: bool = False
    cross_attention_dropout: float | int = 0.2
    aoa_dropout: float | int = 0.2
    residual_dropout_on: str = "stream"
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = 50256

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the language model's configuration, resolve the levels and check ranges."""
        # GPT2Config has ids of its own; those of the captioner hold for both, unless `text_config` gives others.
        special = {key: getattr(self, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        if self.text_config is None:
            self.text_config = {"embd_pdrop": 0.0, "attn_pdrop": 0.0}
        if isinstance(self.text_config, dict):
            self.text_config = special | self.text_config
        self.text_config = build_sub_config(self.text_config, "gpt2")
        if self.text_config.model_type != "gpt2":
            raise ValueError(f"`text_config` is a {self.text_config.model_type!r} configuration, expected 'gpt2'.")
        if self.encoder_attention_heads is None:
            self.encoder_attention_heads = self.text_config.num_attention_heads
        if self.cross_levels is None:  # plain cross-attention reads one level, the last
            multi_level = self.fusion in ("srau", "meshed")
            self.cross_levels = list(range(self.encoder_layers)) if multi_level else [self.encoder_layers - 1]
        self._check_choices()
        self._check_sizes()
        super().__post_init__(**kwargs)

    def _check_choices(self) -> None:
        require_choice("fusion", self.fusion, FUSIONS)
        require_choice("gate_input", self.gate_input, ("learned", "hidden"))
        require_choice("gate_on", self.gate_on, ("language", "visual"))
        require_choice("residual_dropout_on", self.residual_dropout_on, ("stream", "branch"))
        require_range("srau_threshold", self.srau_threshold, 0.0, 0.5, high_open=True)
        for field in ("encoder_dropout", "cross_attention_dropout", "aoa_dropout"):
            require_range(field, getattr(self, field), 0.0, 1.0, high_open=True)

    def _check_sizes(self) -> None:
        if self.encoder_layers < 1:
            raise ValueError(f"`encoder_layers` is {self.encoder_layers}, expected at least 1.")
        outside = [level for level in self.cross_levels if not 0 <= level < self.encoder_layers]
        if outside or not self.cross_levels:
            raise ValueError(
                f"`cross_levels` is {self.cross_levels}, expected levels between 0 and {self.encoder_layers - 1}: "
                f"the encoder has `encoder_layers={self.encoder_layers}`."
            )
        if self.fusion in ("residual", "add_norm") and len(self.cross_levels) > 1:
            raise ValueError(f"`fusion={self.fusion!r}` reads one level, got `cross_levels={self.cross_levels}`.")
        if self.encoder_key_dim is None and self.hidden_size % self.encoder_attention_heads:
            raise ValueError(
                f"hidden size {self.hidden_size} is not a multiple of `encoder_attention_heads="
                f"{self.encoder_attention_heads}`; choose a different number of heads or set `encoder_key_dim`."
            )

    @property
    def needs_region_boxes(self) -> str | None:
        """The projection of boxes needs them."""
        return "`config.use_region_boxes` is set" if self.use_region_boxes else None

    @property
    def hidden_size(self) -> int:
        """D, width of the decoder's stream and of the visual encoder."""
        return self.text_config.hidden_size

    @property
    def vocab_size(self) -> int:
        """V, size of the vocabulary."""
        return self.text_config.vocab_size

"""Configuration of VisualGPT (Chen et al., CVPR 2022, "VisualGPT: Data-efficient Adaptation of Pretrained Language
Models for Image Captioning")."""

from typing import Literal

from .configuration_captioning import within
from .configuration_gpt2 import GPT2CaptioningConfig


class VisualGPTConfig(GPT2CaptioningConfig):
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
            single-level baselines, for any number of encoder layers. Layers above these levels are not built.
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

    encoder_ffn_dim: int = 2048
    identity_map_reordering: bool = False
    use_region_boxes: bool = False
    fusion: Literal["srau", "residual", "add_norm", "meshed"] = "srau"
    srau_threshold: float | int = within(0.0, 0.5, high_open=True)(default=0.2)
    normalize_srau: bool = False
    gate_input: Literal["learned", "hidden"] = "learned"
    gate_on: Literal["language", "visual"] = "language"
    attention_on_attention: bool = False

    @property
    def reads_all_levels(self) -> bool:
        """True if the fusion mixes several encoder levels."""
        return self.fusion in ("srau", "meshed")

    @property
    def needs_region_boxes(self) -> str | None:
        """Reason why the encoder needs region boxes: `use_region_boxes`; None if it is False."""
        return "`config.use_region_boxes` is set" if self.use_region_boxes else None

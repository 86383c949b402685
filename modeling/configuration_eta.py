"""Configuration of the Entangled Transformer (Li et al., ICCV 2019, "Entangled Transformer for Image Captioning")."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from transformers import AutoConfig

from .configuration_attribute_detector import AttributeDetectorConfig
from .configuration_captioning import (
    CaptioningConfig,
    Integers,
    LabelSmoothingOver,
    positive,
    rate,
    require_equal_heads,
    within,
)


class ETAConfig(CaptioningConfig):
    """Configuration of the Entangled Transformer, which attends to regions and to attributes (words).

    The paper has no public code. Where it is silent, the default is the reading that its own results support, and the
    other reading is a value of the same field.

    | row | fields |
    |---|---|
    | ETA of Tables 1, 2, 4, 5 | the defaults |
    | Transformer_v, Transformer_s of Tables 2, 4, 5 | `fusion="visual_only"`, `fusion="semantic_only"` |
    | "- Encoder" of Table 4 | `use_encoder=False` |
    | Parallel, Stacked_v, Stacked_s of Table 5 | `fusion="parallel"`, `"stacked_v"`, `"stacked_s"` |
    | Sigmoid, Tanh, ReLU of Table 6 | `gbc_activation="sigmoid"`, `"tanh"`, `"relu"` |

    Args:
        vocab_size (`int`, defaults to 9491): V (paper: 9,487 words; here with four special tokens).
        hidden_size (`int`, defaults to 512): d, width of the model (paper: that of the Transformer).
        ffn_dim (`int`, defaults to 2048): d_m, inner width of the feed-forward layers.
        encoder_layers, decoder_layers (`int`, default 6): N, of each encoder and of the decoder.
        num_attention_heads (`int`, defaults to 8): h.
        dropout (`float`, defaults to 0.1): rate on embeddings, attention weights and the output of every sub-layer
            (paper: "the same hyper-parameter settings" as the Transformer).
        fusion (`str`, defaults to `"entangled"`): how the two memories meet. `"entangled"`: two attentions in each
            order, mixed by the gate (Eq. 9-12). `"parallel"`: one attention each, mixed by the gate, which reads
            their outputs (the paper does not say what it reads there). `"stacked_v"`: attributes, then regions.
            `"stacked_s"`: regions, then attributes; the name is read as that of the last one. `"visual_only"`,
            `"semantic_only"`: one attention to regions or attributes; the other encoder is absent.
        gbc_activation (`str`, defaults to `"identity"`): f of Eq. 12 (Table 6).
        gbc_residual (`bool`, defaults to False): add `LayerNorm(a + e)` after the gate. Off, since every attention
            inside has its own residual connection, and Table 6 argues with gradients that pass through f: with this
            connection, f has no such effect.
        use_encoder (`bool`, defaults to True): encode both memories by self-attention (Eq. 4, 5).
        scale_embedding (`bool`, defaults to True): multiply embeddings of words and attributes by sqrt(d), as the
            Transformer does (not stated).
        encoder_positions (`bool`, defaults to False): add sinusoids to regions and attributes. Off: both are sets, and
            section 4.1 describes a linear map and an embedding only.
        max_position_embeddings (`int`, defaults to 256): longest caption in tokens.
        num_attributes (`int`, defaults to 10): at most this many detected attributes per image (not stated).
        attribute_threshold (`float`, defaults to 0.0): least probability of a detected attribute (not stated).
        detector_config (`AttributeDetectorConfig` or `dict`, *optional*): the attribute detector, whose frozen weights
            are part of the captioner. It reads the captioner's own regions. None: attributes have to be given.
        attribute_token_ids (`list[int]`, *optional*): the word of the vocabulary that each word of the detector is;
            -1: none, the detector's word is never an attribute. `from_pretrained_parts` finds them.
        label_smoothing (`float`, defaults to 0.1): as the Transformer (not stated).
        label_smoothing_over (`str`, defaults to `"all_words"`): as the Transformer.
        tie_word_embeddings (`bool`, defaults to False): not stated. Words and attributes always share one table
            (section 4.1).

    Raises:
        ValueError: if a value is out of range, or `attribute_token_ids` do not fit the detector or the vocabulary.
    """

    model_type = "captioning_eta"
    attribute_map = {"num_hidden_layers": "decoder_layers"}
    sub_configs: ClassVar = {"vision_config": AutoConfig, "detector_config": AttributeDetectorConfig}
    encoder_inputs: ClassVar[Mapping[str, str]] = {"attribute_ids": "ids"}

    region_mask_rule: Literal["explicit"] = "explicit"
    token_mask_rule: Literal["explicit"] = "explicit"
    vocab_size: int = positive(default=9491)
    hidden_size: int = positive(default=512)
    ffn_dim: int = positive(default=2048)
    encoder_layers: int = positive(default=6)
    decoder_layers: int = positive(default=6)
    num_attention_heads: int = positive(default=8)
    dropout: float | int = rate(default=0.1)
    fusion: Literal["entangled", "parallel", "stacked_v", "stacked_s", "visual_only", "semantic_only"] = "entangled"
    gbc_activation: Literal["identity", "relu", "tanh", "sigmoid"] = "identity"
    gbc_residual: bool = False
    use_encoder: bool = True
    scale_embedding: bool = True
    encoder_positions: bool = False
    max_position_embeddings: int = positive(default=256)
    num_attributes: int = positive(default=10)
    attribute_threshold: float | int = within(0.0, 1.0)(default=0.0)
    detector_config: AttributeDetectorConfig | dict | None = None
    attribute_token_ids: Integers | None = None
    label_smoothing: float | int = rate(default=0.1)
    label_smoothing_over: LabelSmoothingOver = "all_words"
    bos_token_id: int | None = 1
    eos_token_id: int | Integers | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the configurations of the vision model and the attribute detector."""
        if isinstance(self.detector_config, dict):
            fields = {name: value for name, value in self.detector_config.items() if name != "model_type"}
            self.detector_config = AttributeDetectorConfig(**fields)
        super().__post_init__(**kwargs)

    def validate_heads(self) -> None:
        """Check that the number of attention heads divides the width."""
        require_equal_heads(self.hidden_size, self.num_attention_heads)

    def validate_attribute_tokens(self) -> None:
        """Raise a `ValueError` unless each word of the attribute detector has a token id, or -1 if unknown."""
        if self.detector_config is None:
            return
        words, tokens = self.detector_config.words, self.attribute_token_ids
        if tokens is None or len(tokens) != len(words):
            value = "None" if tokens is None else f"{len(tokens)} entries"
            raise ValueError(
                f"`attribute_token_ids` is {value}, expected one token for each of the detector's {len(words)} words. "
                "Build the captioner with `from_pretrained_parts(attribute_detector=..., tokenizer=...)`."
            )
        wrong = [token for token in tokens if not -1 <= token < self.vocab_size]
        if wrong:
            raise ValueError(
                f"`attribute_token_ids` has {wrong[0]}, expected -1 or an id below `vocab_size` {self.vocab_size}: "
                "the detector was added with another vocabulary."
            )

    @property
    def reads_regions(self) -> bool:
        """True if the decoder attends to regions."""
        return self.fusion != "semantic_only"

    @property
    def reads_attributes(self) -> bool:
        """True if the decoder attends to attributes."""
        return self.fusion != "visual_only"

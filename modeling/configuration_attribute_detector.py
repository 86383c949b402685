"""Configuration of the attribute detector (Fang et al., CVPR 2015, "From Captions to Visual Concepts and Back")."""

from typing import Any, ClassVar, Literal

from transformers import AutoConfig

from .configuration_captioning import CaptioningConfig, Integers, rate


class AttributeDetectorConfig(CaptioningConfig):
    """Configuration of a detector of the words that captions of an image are likely to have.

    The fields of images and regions (`vision_config`, `region_feature_size` and others) are those of
    `CaptioningConfig`; the fields of captions have no effect.

    Args:
        words (`list[str]`): W, the attributes, one for each output (Entangled Transformer: the 1,000 most frequent
            words of the training captions).
        hidden_sizes (`list[int]`, defaults to `[]`): widths of rectified layers between the regions and the scores
            (Fang et al.: `[4096, 4096]`, the fully connected layers of VGG-16, on its last map).
        dropout (`float`, defaults to 0.5): rate after each of them.
        initial_bias (`float`, defaults to -6.58): first bias of the scores: with many regions, noisy-OR has to start
            from improbable words. `hf-captioners attributes train` replaces it by the frequency of each word.

    Raises:
        ValueError: if a value is out of range, or a word is given twice.
    """

    model_type = "captioning_attribute_detector"
    sub_configs: ClassVar = {"vision_config": AutoConfig}

    region_mask_rule: Literal["explicit"] = "explicit"
    words: list[str] | tuple[str, ...] = ()
    hidden_sizes: Integers = ()
    dropout: float | int = rate(default=0.5)
    initial_bias: float | int = -6.58
    is_encoder_decoder: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Convert `words` and `hidden_sizes` to lists, which JSON can store."""
        self.words, self.hidden_sizes = list(self.words), list(self.hidden_sizes)
        super().__post_init__(**kwargs)

    def validate_words_and_sizes(self) -> None:
        """Check that layer widths are positive, and that no word occurs twice."""
        if any(size < 1 for size in self.hidden_sizes):
            raise ValueError(f"`hidden_sizes` is {self.hidden_sizes}, expected positive integers.")
        wrong = [word for word in self.words if not word.strip()]
        if wrong:
            raise ValueError(f"`words` has the entry {wrong[0]!r}, expected words.")
        if len(set(self.words)) != len(self.words):
            twice = next(word for word in self.words if self.words.count(word) > 1)
            raise ValueError(f"`words` has {twice!r} twice, expected different words.")

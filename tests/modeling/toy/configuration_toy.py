"""Configuration of a toy captioner that uses every part of the contract."""

from collections.abc import Mapping
from typing import ClassVar

from transformers import AutoConfig

from hf_captioners.modeling.configuration_captioning import CaptioningConfig, positive


class ToyConfig(CaptioningConfig):
    """Configuration of a toy captioner: a graph of boxes, attributes beside regions, a running mean of the text.

    Args:
        vocab_size, hidden_size, num_layers, num_heads, max_positions (`int`): sizes.
        num_attributes (`int`): attributes that the captioner knows.
    """

    model_type = "captioning_toy"
    sub_configs: ClassVar = {"vision_config": AutoConfig}
    encoder_inputs: ClassVar[Mapping[str, str]] = {"attribute_ids": "ids", "region_relations": "relation"}

    vocab_size: int = 30
    hidden_size: int = 16
    num_layers: int = positive(default=2)
    num_heads: int = positive(default=2)
    max_positions: int = 40
    num_attributes: int = 7
    tie_word_embeddings: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def validate_heads(self) -> None:
        """Check the sizes against each other."""
        if self.hidden_size % self.num_heads:
            raise ValueError(f"`hidden_size` is {self.hidden_size}, expected a multiple of {self.num_heads} heads.")

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the decoder, for caches."""
        return self.num_layers

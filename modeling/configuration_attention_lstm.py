"""Base configuration of captioners with the attention LSTM of AoANet."""

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import AutoConfig

from .configuration_captioning import CaptioningConfig


class AttentionLSTMConfig(CaptioningConfig):
    """Fields that captioners with the attention LSTM of AoANet share: its widths, its inputs and dropouts.

    Args:
        embedding_size (`int`, defaults to 1024): E, width of the word embeddings.
        hidden_size (`int`, defaults to 1024): D, width of regions, states and contexts.
        num_heads (`int`, defaults to 8): H, of all attentions with several heads.
        global_vector (`str`, defaults to `"mean"`): the vector of the image that the LSTM reads: `"mean"` of the
            encoded regions; `"projected"`, a rectified projection of the mean of the regions as they come in;
            `"given"`, a rectified projection of `global_features` `[B, global_feature_size]`.
        global_feature_size (`int`, defaults to 2048): width of `global_features`.
        dropout (`float`, defaults to 0.5): rate on words, regions, projected global vectors and the output.
        context_dropout (`float`, defaults to 0.5): rate on the previous context.
        aoa_dropout (`float`, defaults to 0.3): rate on the input of attention on attention in the encoder.

    Raises:
        ValueError: if a value is out of range, or tied matrices have different widths.
    """

    sub_configs = {"vision_config": AutoConfig}
    encoder_inputs: ClassVar[Mapping[str, str]] = {"global_features": "vector"}
    field_choices = {
        "region_mask_rule": ("explicit",),
        "token_mask_rule": ("explicit",),
        "global_vector": ("mean", "projected", "given"),
    }
    field_rates = ("dropout", "context_dropout", "aoa_dropout")
    field_minimums = {"embedding_size": 1, "hidden_size": 1, "num_heads": 1, "global_feature_size": 1}

    embedding_size: int = 1024
    hidden_size: int = 1024
    num_heads: int = 8
    global_vector: str = "mean"
    global_feature_size: int = 2048
    dropout: float | int = 0.5
    context_dropout: float | int = 0.5
    aoa_dropout: float | int = 0.3
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Check that tied matrices have one width."""
        super().__post_init__(**kwargs)
        if self.tie_word_embeddings and self.hidden_size != self.embedding_size:
            raise ValueError(
                "`tie_word_embeddings=True` needs states as wide as the word embeddings, got "
                f"{self.hidden_size} and {self.embedding_size}: use `hidden_size={self.embedding_size}`."
            )

    @property
    def required_vectors(self) -> dict[str, int]:
        """`global_features`, if the vector of the image is given."""
        return {"global_features": self.global_feature_size} if self.global_vector == "given" else {}

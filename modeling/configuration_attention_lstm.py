"""Base configurations of captioners whose decoder is the attention LSTM of AoANet."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from transformers import AutoConfig

from .configuration_captioning import CaptioningConfig, Integers, positive, rate


class AttentionLSTMConfig(CaptioningConfig):
    """Base configuration of captioners with the attention LSTM of AoANet: widths, inputs and dropout rates.

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

    attribute_map = {"num_attention_heads": "num_heads"}
    sub_configs = {"vision_config": AutoConfig}
    encoder_inputs: ClassVar[Mapping[str, str]] = {"global_features": "vector"}

    region_mask_rule: Literal["explicit"] = "explicit"
    token_mask_rule: Literal["explicit"] = "explicit"
    embedding_size: int = positive(default=1024)
    hidden_size: int = positive(default=1024)
    num_heads: int = positive(default=8)
    global_vector: Literal["mean", "projected", "given"] = "mean"
    global_feature_size: int = positive(default=2048)
    dropout: float | int = rate(default=0.5)
    context_dropout: float | int = rate(default=0.5)
    aoa_dropout: float | int = rate(default=0.3)
    bos_token_id: int | None = 1
    eos_token_id: int | Integers | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def validate_tied_widths(self) -> None:
        """Check that states are as wide as word embeddings if the output layer is tied to these."""
        if self.tie_word_embeddings and self.hidden_size != self.embedding_size:
            raise ValueError(
                "`tie_word_embeddings=True` needs states as wide as the word embeddings, got "
                f"{self.hidden_size} and {self.embedding_size}: use `hidden_size={self.embedding_size}`."
            )

    @property
    def required_vectors(self) -> dict[str, int]:
        """Width of `global_features`, which callers must pass if `global_vector` is "given"."""
        return {"global_features": self.global_feature_size} if self.global_vector == "given" else {}


class RefiningLSTMConfig(AttentionLSTMConfig):
    """Base configuration of AoANet and ZoDIAC in AoANet: the refining encoder, and the decoder's context.

    Args:
        head_scale (`int`, defaults to 1): factor of the width of queries, keys and values.
        region_norm (`str`, defaults to `"none"`): batch normalisation of the regions before their projection
            (`"batch_input"`), or before and after it (`"batch"`).
        refiner (`str`, defaults to `"aoa"`): layers that refine the regions: `"aoa"`, with attention on attention;
            `"attention"`, with an output projection; `"none"`.
        refiner_layers (`int`, defaults to 6): number of refining layers.
        refiner_ffn_dim (`int`, *optional*): width inside of a feed-forward layer in every refining layer; None: there
            is none.
        decoder_type (`str`, defaults to `"aoa"`): the context of a step from attended vector and state:
            `"aoa"`, a second `"lstm"`, or `"base"`, a rectified linear map.
        output_residual (`bool`, defaults to False): add the state of the LSTM to the context before the words are
            predicted.
        residual_dropout (`float`, defaults to 0.1): rate on the outputs of the refiner's sub-layers.

    Raises:
        ValueError: if a value is out of range, or the heads do not divide the width.
    """

    head_scale: int = positive(default=1)
    region_norm: Literal["none", "batch_input", "batch"] = "none"
    refiner: Literal["aoa", "attention", "none"] = "aoa"
    refiner_layers: int = 6
    refiner_ffn_dim: int | None = positive(default=None)
    decoder_type: Literal["aoa", "lstm", "base"] = "aoa"
    output_residual: bool = False
    residual_dropout: float | int = rate(default=0.1)

    def validate_refiner_and_heads(self) -> None:
        """Check that the encoder has refining layers, and that the number of heads divides the width."""
        if self.refiner != "none" and self.refiner_layers < 1:
            raise ValueError(f"`refiner_layers` is {self.refiner_layers}, expected at least 1.")
        width = self.hidden_size * self.head_scale
        if width % self.num_heads:
            raise ValueError(
                f"`num_heads` is {self.num_heads}, expected a divisor of `hidden_size * head_scale` = {width}."
            )

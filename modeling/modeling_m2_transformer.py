"""The Meshed-Memory Transformer, M2 (Cornia et al., CVPR 2020).

Symbols of the paper: the memory slots are M_k and M_v (Eq. 2), the encoder levels X^1 to X^N, C the cross-attention
(`attended`), alpha_i the gate of level i (Eq. 9).
"""

from functools import partial

from torch import Tensor, nn

from .configuration_m2_transformer import M2TransformerConfig
from .layers_attention import BeamFoldingCrossAttention, FeedForward, Residual
from .layers_transformer import (
    CachedSelfAttention,
    DecoderStep,
    LevelGates,
    MultiLevelEncoder,
    PositionTable,
    RegionEncoderLayer,
    TransformerDecoderLayer,
    TransformerPreTrainedModel,
    TransformerTextDecoder,
    gates_by_level,
    meshed_sum,
)
from .modeling_captioning import (
    CaptioningForConditionalGeneration,
    CaptioningLMOutput,
    CaptioningModel,
)


class M2TransformerPreTrainedModel(TransformerPreTrainedModel):
    """Base class of the M2 Transformer: layers that `device_map` keeps on one device."""

    config: M2TransformerConfig
    _no_split_modules = ["RegionEncoderLayer", "MeshedDecoderLayer", "VisionBackbone"]
    _supports_flex_attn = False  # its masks have no form for memory slots, see `visible_slots`


class M2TransformerEncoder(M2TransformerPreTrainedModel, MultiLevelEncoder):
    """Memory-augmented encoder (section 3.1): self-attention also reads learned memory slots; all levels are returned.

    Attention weights of its output are `[B, H, R, R + memory slots]`.
    """

    @staticmethod
    def make_layer(config: M2TransformerConfig) -> RegionEncoderLayer:
        """Build an encoder layer with memory slots (Eq. 3-5)."""
        return RegionEncoderLayer(
            config,
            config.hidden_size,
            config.num_attention_heads,
            config.ffn_dim,
            config.key_dim,
            config.value_dim,
            dropout=config.dropout,
            memory_slots=config.memory_slots,
            reordered=config.identity_map_reordering,
        )


class MeshedDecoderLayer(TransformerDecoderLayer):
    """Decoder layer with cross-attention to several encoder levels, mixed by gates (section 3.2)."""

    def __init__(self, config: M2TransformerConfig, index: int) -> None:
        sizes = (config, config.hidden_size, config.num_attention_heads, config.key_dim, config.value_dim)
        super().__init__(
            CachedSelfAttention(*sizes, layer_idx=index),
            BeamFoldingCrossAttention(*sizes, layer_idx=index),
            FeedForward(config.hidden_size, config.ffn_dim, dropout=config.dropout),
            partial(Residual, config.hidden_size, dropout=config.dropout),
        )
        self.levels = config.levels_of_layer(index)
        meshed = config.fusion == "meshed"
        self.gates = LevelGates(config.hidden_size, len(self.levels), config.level_gate) if meshed else None
        self.sums_to_one = config.level_gate == "softmax"

    def attend_regions(
        self, stream: Tensor, levels: Tensor, step: DecoderStep
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Attend to this layer's encoder levels; mix several of them by their gates (Eq. 7-9).

        Returns:
            The stream `[B * K, T, D]`, the weights `[B * K, N, H, T, R]` and the gates `[B * K, T, N, D]` (or None).
        """
        attended, weights = self.cross_attn(
            stream, lambda: levels[:, self.levels], len(self.levels), step.memory_masks["region"], step.cache
        )
        added = self.cross_attn_residual.after(stream[:, :, None], attended)  # [B * K, T, N, D]
        if self.gates is None:
            return added[:, :, 0], weights, None
        gates = self.gates(stream, added)
        mixed = (gates * added).sum(2) if self.sums_to_one else meshed_sum(gates, added)
        return mixed, weights, gates


class M2TransformerDecoder(M2TransformerPreTrainedModel, TransformerTextDecoder):
    """Meshed decoder (section 3.2). `gates` of its output are alpha (Eq. 9), `[B * K, T, N, D]` per layer."""

    first_position = 1  # row 0 of the table belongs to padding

    def __init__(self, config: M2TransformerConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = PositionTable(
            config.max_position_embeddings, config.hidden_size, config.position_embedding
        )
        self.dropout = nn.Identity()
        self.decoder_layers = nn.ModuleList([MeshedDecoderLayer(config, i) for i in range(config.decoder_layers)])
        self.final_norm = nn.Identity()
        self.post_init()


class M2TransformerModel(M2TransformerPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = M2TransformerEncoder
    decoder_class = M2TransformerDecoder


class M2TransformerForConditionalGeneration(M2TransformerPreTrainedModel, CaptioningForConditionalGeneration):
    """M2 Transformer with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.token_embedding.weight"}
    model_class = M2TransformerModel

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the gate alpha (Eq. 9) of each encoder level for each token `[B * K, T]`."""
        return gates_by_level((outputs.gates or (None,))[-1])

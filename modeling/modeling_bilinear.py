"""A captioner with one GRU whose attention over regions has the scores `h^T W r`."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import can_return_tuple

from .configuration_bilinear import BilinearConfig
from .inputs_captioning import RegionFeatures
from .layers_recurrent import RecurrentCache
from .modeling_captioning import (
    CaptioningDecoderOutput,
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningLMOutput,
    CaptioningModel,
    CaptioningPreTrainedModel,
)


class GRU(nn.Module):
    """GRU cell whose words are projected together; the blocks of a projection are r, z, n, as in PyTorch.

    Args:
        hidden_size: D of words and state.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.word_projection = nn.Linear(hidden_size, 3 * hidden_size)
        self.hidden_projection = nn.Linear(hidden_size, 3 * hidden_size)

    def forward(self, projected_word: Tensor, hidden: Tensor) -> Tensor:
        """Return the state `[B * K, D]` after a word with the projection `[B * K, 3 D]`."""
        word_r, word_z, word_n = projected_word.chunk(3, dim=-1)
        r, z, n = self.hidden_projection(hidden).chunk(3, dim=-1)
        z = (word_z + z).sigmoid()
        return (1 - z) * (word_n + (word_r + r).sigmoid() * n).tanh() + z * hidden


class BilinearPreTrainedModel(CaptioningPreTrainedModel):
    """Base class of the bilinear models."""

    config: BilinearConfig
    _no_split_modules = ["BilinearLayer", "VisionBackbone"]
    _is_stateful = True
    cache_class = RecurrentCache

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the GRU as PyTorch does, uniform in +-1 / sqrt(D), and the rest as transformers."""
        super()._init_weights(module)
        if isinstance(module, GRU):
            bound = module.hidden_projection.in_features**-0.5
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)


class BilinearEncoder(BilinearPreTrainedModel, CaptioningEncoder):
    """Projected regions r, and their keys W r in `level_states` `[B, 1, R, D]`."""

    def __init__(self, config: BilinearConfig) -> None:
        super().__init__(config)
        self.projection = nn.Linear(config.region_feature_size, config.hidden_size)
        self.keys = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.post_init()

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Encode regions `[B, R, D_in]`."""
        projected = self.projection(regions.region_features).tanh()
        return CaptioningEncoderOutput(
            last_hidden_state=projected,
            level_states=self.keys(projected)[:, None],
            region_mask=regions.region_mask,
            hidden_states=(projected,) if output_hidden_states else None,
        )


class BilinearLayer(GradientCheckpointingLayer):
    """GRU, bilinear attention and gate over all tokens of a batch of captions.

    Args:
        hidden_size: D.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gru = GRU(hidden_size)
        self.gate = nn.Linear(hidden_size, 1, bias=False)
        self.output = nn.Linear(2 * hidden_size, hidden_size)

    def forward(
        self,
        words: Tensor,
        token_mask: Tensor | None,
        hidden: Tensor,
        regions: Tensor,
        keys: Tensor,
        region_mask: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Run all steps.

        Args:
            words: `[B * K, T, D]`.
            token_mask: `[B * K, T]`, True = a real token; other tokens do not change the state.
            hidden: the state before the first step, `[B * K, D]`.
            regions, keys: r and W r, `[B, R, D]`.
            region_mask: `[B, R]`, True = visible.

        Returns:
            Outputs `[B * K, T, D]`, weights `[B * K, T, R]`, gates `[B * K, T, 1]`, and the state `[B * K, D]` after
            the last step.
        """
        states, projected = [], self.gru.word_projection(words)
        for step in range(words.shape[1]):
            new = self.gru(projected[:, step], hidden)
            hidden = new if token_mask is None else torch.where(token_mask[:, step, None], new, hidden)
            states.append(hidden)
        stacked = torch.stack(states, dim=1)  # [B * K, T, D]
        images, rows, length = keys.shape[0], *words.shape[:2]
        scores = stacked.reshape(images, -1, stacked.shape[-1]) @ keys.transpose(1, 2)  # [B, K * T, R]
        if region_mask is not None:
            scores = scores.masked_fill(~region_mask[:, None], -torch.inf)
        weights = scores.softmax(-1).reshape(rows, length, -1)  # [B * K, T, R]
        attended = (weights.reshape(images, rows // images * length, -1) @ regions).reshape(stacked.shape)
        gates = self.gate(stacked).sigmoid()
        outputs = self.output(torch.cat((stacked, gates * attended), dim=-1)).tanh()
        return outputs, weights, gates, hidden


class BilinearDecoder(BilinearPreTrainedModel):
    """Embedded words, and the layer over them."""

    main_input_name = "input_ids"
    gradient_checkpointing = False
    _input_embed_layer = "token_embedding"

    def __init__(self, config: BilinearConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layer = BilinearLayer(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def initial_states(self, encoder_outputs: CaptioningEncoderOutput, rows: int) -> list[dict[str, Tensor]]:
        """Return the state `[B * K, D]` before the first token: zeros."""
        regions = encoder_outputs.last_hidden_state
        return [{"hidden": regions.new_zeros(rows, regions.shape[-1])}]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        encoder_outputs: CaptioningEncoderOutput,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        output_gates: bool = False,
    ) -> CaptioningDecoderOutput:
        """Decode text rows `[B * K, T]` with the encoder outputs of B images.

        Returns:
            `CaptioningDecoderOutput`; `hidden_states` are the words and the outputs; `cross_attentions` are
            `([B * K, T, R],)`, `gates` are `([B * K, T, 1],)`.
        """
        if cache is None and use_cache:
            cache = RecurrentCache()
        cache = None if cache is None else RecurrentCache.require(cache)
        rows, length = input_ids.shape
        token_mask = None if attention_mask is None else attention_mask[:, -length:].bool()
        state = None if cache is None else cache.state(0)
        state = self.initial_states(encoder_outputs, rows)[0] if state is None else state
        words = self.token_embedding(input_ids)
        outputs, weights, gates, hidden = self.layer(
            self.dropout(words),
            token_mask,
            state["hidden"],
            encoder_outputs.last_hidden_state,
            encoder_outputs.level_states[:, 0],
            encoder_outputs.region_mask,
        )
        if cache is not None:
            cache.update(0, length, hidden=hidden)
        outputs = self.dropout(outputs)
        return CaptioningDecoderOutput(
            last_hidden_state=outputs,
            cache=cache if use_cache else None,
            hidden_states=(words, outputs) if output_hidden_states else None,
            cross_attentions=(weights,) if output_attentions else None,
            gates=(gates,) if output_gates else None,
        )


class BilinearModel(BilinearPreTrainedModel, CaptioningModel):
    """Encoder and decoder without the projection to the vocabulary."""

    encoder_class = BilinearEncoder
    decoder_class = BilinearDecoder


class BilinearForConditionalGeneration(BilinearPreTrainedModel, CaptioningForConditionalGeneration):
    """The bilinear captioner with the projection to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.token_embedding.weight"}
    model_class = BilinearModel

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the gate on the attended region vector for each token `[B * K, T]`."""
        return {"region gate": outputs.gates[-1][..., 0]} if outputs.gates else {}

"""Show, Attend and Tell (Xu et al., ICML 2015): an LSTM decoder with soft or hard attention over image regions.

Symbols of the paper: a_i are the regions ("annotations", L of them, here R), h_t the LSTM's state, z_t the context,
alpha_ti the attention weights, s_t the sampled location, beta_t the visual gate, E y the embedded word.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import can_return_tuple

from .configuration_show_attend_tell import ShowAttendTellConfig
from .inputs_captioning import RegionFeatures
from .layers_recurrent import (
    LSTMCell,
    LSTMState,
    RecurrentCache,
    RunningRows,
    join_step_weights,
    keep_state,
    read_lengths,
    stack_steps,
)
from .layers_region_attention import AdditiveAttention
from .layers_regions import mean_of_visible, rows_of_images
from .modeling_captioning import (
    IGNORED_LABEL,
    CaptioningDecoderOutput,
    CaptioningEncoder,
    CaptioningEncoderOutput,
    CaptioningForConditionalGeneration,
    CaptioningLMOutput,
    CaptioningModel,
    CaptioningModelOutput,
    CaptioningPreTrainedModel,
)

EXPECTED = -1  # location of a step that uses the weighted mean of the regions


class ShowAttendTellGates(NamedTuple):
    """Gates of one LSTM layer.

    Args:
        visual: beta, `[B * K, T, 1]`, or `[B * K, T, D]` for the vector gate; None without a gate.
        input, forget, output: of the LSTM, `[B * K, T, n]`.
    """

    visual: Tensor | None
    input: Tensor
    forget: Tensor
    output: Tensor


@dataclass
class ShowAttendTellDecoderOutput(CaptioningDecoderOutput):
    """Decoder output with the attended locations of hard attention.

    Args:
        locations: tuple over layers of `[B * K, T]`: the region that hard attention drew, -1 where it took the mean.
    """

    locations: tuple[Tensor, ...] | None = None


@dataclass
class ShowAttendTellModelOutput(CaptioningModelOutput):
    """Outputs of encoder and decoder, with the attended `locations` of hard attention."""

    locations: tuple[Tensor, ...] | None = None


@dataclass
class ShowAttendTellLMOutput(CaptioningLMOutput):
    """Outputs with logits and loss, with `locations` as in `ShowAttendTellDecoderOutput`."""

    locations: tuple[Tensor, ...] | None = None


class ShowAttendTellPreTrainedModel(CaptioningPreTrainedModel):
    """Base class of Show, Attend and Tell: initialisation, and layers that `device_map` keeps on one device."""

    config: ShowAttendTellConfig
    _no_split_modules = ["AnnotationKeys", "ShowAttendTellLayer", "VisionBackbone"]
    _is_stateful = True
    model_output_class = ShowAttendTellModelOutput
    lm_output_class = ShowAttendTellLMOutput
    cache_class = RecurrentCache

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the re-implementation: embeddings and output uniform in +-0.1, the rest as PyTorch does."""
        super()._init_weights(module)
        if isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -0.1, 0.1)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, LSTMCell):
            bound = 1 / math.sqrt(module.hidden_projection.in_features)  # as nn.LSTMCell: by the hidden size, for all
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)
        elif isinstance(module, ShowAttendTellForConditionalGeneration):
            init.uniform_(module.lm_head.weight, -0.1, 0.1)
            init.zeros_(module.lm_head.bias)
            if module.config.attention_type == "hard":
                init.zeros_(module.location_baseline)
        elif isinstance(module, (AdditiveAttention, AnnotationKeys, InitialState, DeepOutput, ShowAttendTellLayer)):
            for child in module.modules():
                if isinstance(child, nn.Linear):
                    bound = 1 / math.sqrt(child.in_features)  # as nn.Linear
                    init.uniform_(child.weight, -bound, bound)
                    if child.bias is not None:
                        init.uniform_(child.bias, -bound, bound)


class AnnotationKeys(nn.Module):
    """Projection of regions to attention keys: the part of f_att (Eq. 15) that does not depend on the LSTM state."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        width = config.attention_size
        self.projection = nn.Linear(config.region_feature_size, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(config.attention_layers - 1)])

    def forward(self, annotations: Tensor) -> Tensor:
        """Project regions `[B, R, D]` to keys `[B, R, A]`."""
        keys = self.projection(annotations)
        for layer in self.layers:
            keys = layer(keys).tanh()
        return keys


class ShowAttendTellEncoder(ShowAttendTellPreTrainedModel, CaptioningEncoder):
    """Encoder that passes regions on (section 3.1.1) and projects their attention keys, one set per decoder layer."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__(config)
        self.keys = nn.ModuleList([AnnotationKeys(config) for _ in range(config.num_layers)])
        # Without a vision part, there is nothing to checkpoint.
        self.supports_gradient_checkpointing = any(hasattr(part, "gradient_checkpointing") for part in self.modules())
        self.post_init()

    def encode_regions(
        self, regions: RegionFeatures, output_attentions: bool, output_hidden_states: bool, output_gates: bool
    ) -> CaptioningEncoderOutput:
        """Return regions `[B, R, D]` unchanged and keys `[B, N, R, A]`; there is no attention among regions."""
        annotations = regions.region_features
        return CaptioningEncoderOutput(
            last_hidden_state=annotations,
            level_states=torch.stack([keys(annotations) for keys in self.keys], dim=1),  # [B, N, R, A]
            region_mask=regions.region_mask,
            hidden_states=(annotations,) if output_hidden_states else None,
        )


class InitialState(nn.Module):
    """Initial state of every LSTM layer from the mean region: f_init,h and f_init,c of section 3.1.2."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        width = config.region_feature_size
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(config.initial_state_layers)])
        self.dropout = nn.Dropout(config.dropout)
        self.hidden = nn.ModuleList([nn.Linear(width, config.hidden_size) for _ in range(config.num_layers)])
        self.memory = nn.ModuleList([nn.Linear(width, config.hidden_size) for _ in range(config.num_layers)])
        self.rectified = config.initial_state_activation == "tanh"

    def forward(self, annotations: Tensor, region_mask: Tensor | None) -> list[LSTMState]:
        """Return the initial LSTM state `[B, n]` of each layer from regions `[B, R, D]`."""
        mean = mean_of_visible(annotations, region_mask)
        for layer in self.layers:
            mean = self.dropout(layer(mean).relu())
        states = [LSTMState(h(mean), c(mean)) for h, c in zip(self.hidden, self.memory, strict=True)]
        return [LSTMState(s.hidden.tanh(), s.memory.tanh()) for s in states] if self.rectified else states


class LocationRule(nn.Module):
    """Choice of the attended location: the weighted mean (soft), a sampled or the most probable region (hard)."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def is_hard(self) -> bool:
        """True if attention may select a single region."""
        return self.config.attention_type == "hard"

    def sample_hard_rows(self, rows: int, device: Any) -> Tensor | None:
        """Sample which rows `[B * K]` use hard attention in all steps (section 4.1); None: no row does."""
        if not self.is_hard or not (self.training or self.config.location_decoding == "sampling"):
            return None
        probability = self.config.location_sampling_probability if self.training else 1.0
        draws = 1 if self.config.location_sampling_unit == "batch" else rows
        return torch.rand(draws, device=device).expand(rows) < probability  # [B * K]

    def locate(self, weights: Tensor, drawing: Tensor | None) -> Tensor | None:
        """Return the selected region of each row `[B * K]` by weights `[B * K, R]`; None if all rows use the mean."""
        if drawing is not None:
            # Sampling has no gradient; `location_loss` supplies it (Eq. 25).
            drawn = torch.multinomial(weights.detach().float(), 1)[:, 0]  # [B * K]
            return torch.where(drawing, drawn, EXPECTED)
        if self.is_hard and not self.training and self.config.location_decoding == "argmax":
            return weights.argmax(-1)
        return None


def weights_used(weights: Tensor, locations: Tensor | None) -> Tensor:
    """Return one-hot weights `[B * K, R]` at the selected regions; rows of soft attention keep their weights."""
    if locations is None:
        return weights
    one_hot = nn.functional.one_hot(locations.clamp(min=0), weights.shape[-1]).to(weights.dtype)  # [B * K, R]
    return torch.where((locations == EXPECTED)[:, None], weights, one_hot)


class LayerRecord(NamedTuple):
    """Outputs of an LSTM layer over T steps, batch first; None for entries that do not apply."""

    weights: Tensor  # [B * K, T, R]
    hidden: Tensor  # [B * K, T, n]
    context: Tensor  # [B * K, T, D], after the visual gate
    visual: Tensor | None  # [B * K, T, 1] or [B * K, T, D]
    input: Tensor  # [B * K, T, n], as the next two
    forget: Tensor
    output: Tensor
    locations: Tensor | None  # [B * K, T]


class ShowAttendTellLayer(GradientCheckpointingLayer):
    """LSTM layer with its attention and visual gate, over all tokens of a batch of captions."""

    def __init__(self, config: ShowAttendTellConfig, word_size: int) -> None:
        super().__init__()
        width, hidden = config.region_feature_size, config.hidden_size
        self.attention = AdditiveAttention(
            hidden, config.attention_size, config.attention_activation, config.attention_score_scale
        )
        sizes = {"scalar": 1, "vector": width}
        self.gate = nn.Linear(hidden, sizes[config.visual_gate]) if config.visual_gate in sizes else None
        self.lstm = LSTMCell(word_size, width, hidden)
        self.rule = LocationRule(config)

    def attend(
        self, state: LSTMState, annotations: Tensor, weights: Tensor, location: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the context z of Eq. 17 `[B * K, D]`, gated (section 4.2.1), and the gate beta."""
        # The K captions of an image share its regions, so the regions are not repeated.
        used = weights_used(weights, location).unflatten(0, (annotations.shape[0], -1))  # [B, K, R]
        context = (used @ annotations).flatten(0, 1)  # [B * K, D]
        if self.gate is None:
            return context, None
        visual = self.gate(state.hidden).sigmoid()  # [B * K, 1] or [B * K, D]
        return visual * context, visual

    def forward(
        self,
        words: Tensor,
        annotations: Tensor,
        keys: Tensor,
        region_mask: Tensor | None,
        token_mask: Tensor | None,
        lengths: Tensor | None,
        locations: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Compute all time steps of a batch of captions.

        Args:
            words: `[B * K, T, m]`, inputs of the layer.
            annotations: `[B, R, D]`, regions.
            keys: `[B, R, A]`, attention keys of the regions.
            region_mask: `[B, R]`, True = a real region.
            token_mask: `[B * K, T]`, True = a real token; other tokens do not change the state.
            lengths: `[B * K]`, tokens of each row that are run (see `RunningRows`) instead of all; the state after the
                last step is then that of the longest captions.
            locations: `[B * K, T]`, locations to use instead of sampling.
            hidden, cell: hidden and cell state before the first step, `[B * K, n]`.

        Returns:
            The entries of `LayerRecord`, then hidden and cell state after the last step, in one flat tuple,
            which gradient checkpointing requires.
        """
        # One draw per row and not per step, so that a caption is hard or soft as a whole.
        drawing = self.rule.sample_hard_rows(words.shape[0], words.device) if locations is None else None
        running = None if lengths is None else RunningRows(lengths, len(annotations), words.shape[1])
        if running is not None:
            words, annotations, keys, region_mask, locations, hidden, cell, drawing = running.sort(
                words, annotations, keys, region_mask, locations, hidden, cell, drawing
            )
            token_mask = None  # padding follows the tokens, and is not run
        state, steps, step_weights = LSTMState(hidden, cell), [], []
        projected = self.lstm.word_projection(words)  # [B * K, T, 4 n]
        for step in range(words.shape[1] if running is None else len(running.counts)):
            if running is not None:
                annotations, keys, region_mask, locations, drawing, *both = running.cut(
                    step, annotations, keys, region_mask, locations, drawing, *state
                )
                state = LSTMState(*both)
            weights = self.attention(state.hidden, keys, region_mask).flatten(0, 1)  # [B * K, R]
            location = self.rule.locate(weights, drawing) if locations is None else locations[:, step]
            context, visual = self.attend(state, annotations, weights, location)  # from h_{t-1}, before the LSTM step
            new, gates = self.lstm(projected[: context.shape[0], step], context, state)
            state = keep_state(None if token_mask is None else token_mask[:, step], new, state)
            steps.append((state.hidden, context, visual, *gates, location))
            step_weights.append(weights)
        return join_step_weights(step_weights, running), *stack_steps(steps, running), *state


class DeepOutput(nn.Module):
    """Deep output layer without its last projection L_o (Eq. 18): E y + L_h h + L_z z, optional tanh and layers."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.hidden_projection = nn.Linear(config.hidden_size, width)
        self.context_projection = nn.Linear(config.region_feature_size, width) if config.output_context else None
        self.adds_word = config.output_previous_word
        self.is_bounded = config.output_activation == "tanh"
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(config.output_hidden_layers)])
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, context: Tensor, words: Tensor) -> Tensor:
        """Combine states `[B * K, T, n]`, contexts `[B * K, T, D]` and words `[B * K, T, m]` to `[B * K, T, m]`."""
        output = self.hidden_projection(self.dropout(hidden))
        if self.adds_word:
            output = output + words
        if self.context_projection is not None:
            output = output + self.context_projection(context)
        output = self.dropout(output.tanh() if self.is_bounded else output)
        for layer in self.layers:
            output = self.dropout(layer(output).relu())
        return output


class LinearOutput(nn.Module):
    """Output layer that is the LSTM state after dropout (re-implementation)."""

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, context: Tensor, words: Tensor) -> Tensor:
        """Apply dropout to the states `[B * K, T, n]`."""
        return self.dropout(hidden)


class ShowAttendTellDecoder(ShowAttendTellPreTrainedModel):
    """Decoder of Show, Attend and Tell: LSTM layers, soft or hard attention, and an output layer; no LM head."""

    main_input_name = "input_ids"
    _input_embed_layer = "embedding"

    def __init__(self, config: ShowAttendTellConfig) -> None:
        super().__init__(config)
        # The row of `padding_idx` gets no gradient and is initialised to zero: the program's fixed first input.
        begin = config.decoder_start_token_id if config.zero_begin_embedding else None
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=begin)
        self.initial_state = InitialState(config)
        # Every layer above the first reads the hidden states of the layer below.
        widths = [config.embedding_size] + [config.hidden_size] * (config.num_layers - 1)
        self.layers = nn.ModuleList([ShowAttendTellLayer(config, width) for width in widths])
        self.output = (DeepOutput if config.output_layer == "deep" else LinearOutput)(config)
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def skips_padding(self) -> bool:
        """True if training can skip padding; the released program sums Eq. 25 and 26 over padding, too."""
        rules = (self.config.doubly_stochastic_reduction, self.config.location_loss_reduction)
        return "batch_sum" not in rules

    def initial_states(self, encoder_outputs: CaptioningEncoderOutput, rows: int) -> list[dict[str, Tensor]]:
        """Return the initial states `[B * K, n]` of every layer, computed from the mean region."""
        states = self.initial_state(encoder_outputs.last_hidden_state, encoder_outputs.region_mask)
        return [{name: rows_of_images(values, rows) for name, values in state._asdict().items()} for state in states]

    def first_states(self, encoder_outputs: CaptioningEncoderOutput, rows: int, cache: Any) -> list[LSTMState]:
        """Return the cached states `[B * K, n]` of every layer, or the initial ones before the first token."""
        cached = [] if cache is None else [cache.state(index) for index in range(len(self.layers))]
        has_states = cached and cached[0] is not None
        return [LSTMState(**state) for state in (cached if has_states else self.initial_states(encoder_outputs, rows))]

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
        locations: tuple[Tensor, ...] | None = None,
    ) -> ShowAttendTellDecoderOutput:
        """Decode text rows `[B * K, T]` over the regions of B images.

        Args:
            locations: the regions that hard attention takes instead of drawing them, per layer `[B * K, T]`.

        Returns:
            `ShowAttendTellDecoderOutput`; `hidden_states` are the words, the states of every layer and the last hidden
            state, `cross_attentions` are `[B * K, T, R]` a layer, `gates` are `ShowAttendTellGates`.
        """
        if self.gradient_checkpointing and self.training:
            use_cache, cache = False, None  # the backward pass runs layers again, and would update it twice
        if cache is None and use_cache:
            cache = RecurrentCache()
        cache = None if cache is None else RecurrentCache.require(cache)
        length = input_ids.shape[1]
        token_mask = None if attention_mask is None else attention_mask[:, -length:].bool()  # [B * K, T]
        can_skip = self.training and cache is None and self.skips_padding
        lengths = read_lengths(token_mask) if can_skip else None
        words = inputs = self.embedding(input_ids)  # [B * K, T, m]
        states, records = [words], []
        for index, (layer, first) in enumerate(
            zip(self.layers, self.first_states(encoder_outputs, words.shape[0], cache), strict=True)
        ):
            *computed, hidden, cell = layer(
                inputs,
                encoder_outputs.last_hidden_state,
                encoder_outputs.level_states[:, index],
                encoder_outputs.region_mask,
                token_mask,
                lengths,
                None if locations is None else locations[index],
                *first,
            )
            if cache is not None:
                cache.update(index, length, hidden=hidden, memory=cell)
            records.append(LayerRecord(*computed))
            inputs = records[-1].hidden
            states.append(inputs)
        hidden = self.output(inputs, records[-1].context, words)
        return ShowAttendTellDecoderOutput(
            last_hidden_state=hidden,
            cache=cache if use_cache else None,
            hidden_states=(*states, hidden) if output_hidden_states else None,
            cross_attentions=tuple(record.weights for record in records) if output_attentions else None,
            gates=tuple(ShowAttendTellGates(*record[3:7]) for record in records) if output_gates else None,
            locations=None if records[0].locations is None else tuple(record.locations for record in records),
        )


class ShowAttendTellModel(ShowAttendTellPreTrainedModel, CaptioningModel):
    """Encoder and LSTM decoder without the projection to the vocabulary."""

    encoder_class = ShowAttendTellEncoder
    decoder_class = ShowAttendTellDecoder


class ShowAttendTellForConditionalGeneration(ShowAttendTellPreTrainedModel, CaptioningForConditionalGeneration):
    """Show, Attend and Tell with the projection to the vocabulary and the losses of soft and hard attention.

    With hard attention, `location_baseline` is the moving average of the negative log-likelihood that is subtracted
    from the rewards. It is updated in every training step and saved with the weights.
    """

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embedding.weight"}
    model_class = ShowAttendTellModel

    def make_head(self, config: ShowAttendTellConfig) -> nn.Linear:
        """Build the projection to the vocabulary, of the deep output layer or of the LSTM state."""
        return nn.Linear(config.output_size, config.vocab_size)

    def post_init(self) -> None:
        """Add the reward baseline of hard attention, then initialise as transformers does."""
        if self.config.attention_type == "hard":
            self.register_buffer("location_baseline", torch.zeros(()))
        super().post_init()

    def token_gates(self, outputs: CaptioningLMOutput) -> dict[str, Tensor]:
        """Return the visual gate beta (section 4.2.1) for each token `[B * K, T]`."""
        visual = outputs.gates[-1].visual if outputs.gates else None
        return {} if visual is None else {"visual gate": visual.mean(-1)}

    def last_attention(self, outputs: CaptioningLMOutput) -> Tensor:
        """Return the last layer's attention weights `[B * K, T, R]`, one-hot for hard attention."""
        weights = outputs.cross_attentions[-1]
        if outputs.locations is None:
            return weights
        # One row per token, [B * K * T, R], and back
        return weights_used(weights.flatten(0, 1), outputs.locations[-1].flatten()).view_as(weights)

    def relevance_maps(self, sequences: Tensor, **images: Any) -> Tensor:
        """Return the relevance of the regions, see `ExplanationMixin.relevance_maps`.

        Raises:
            ValueError: hard attention uses single regions, or see there.
        """
        rule = self.config.location_decoding
        if self.config.attention_type == "hard" and rule != "expectation":
            raise ValueError(
                f"`location_decoding={rule!r}` uses single regions: no gradient reaches the attention weights; "
                'set `model.config.location_decoding = "expectation"` for relevance.'
            )
        return super().relevance_maps(sequences, **images)

    @property
    def loss_reads_attentions(self) -> bool:
        """True if the loss has a term of attention weights: Eq. 25 (hard) or Eq. 26 (soft)."""
        return self.config.attention_type == "hard" or self.config.doubly_stochastic_weight > 0

    @property
    def loss_reads_tokens(self) -> bool:
        """True if the loss needs the likelihood of each token: for Eq. 25 (hard), or for `probability_floor`."""
        of_tokens = self.config.attention_type == "hard" or self.config.probability_floor > 0
        return of_tokens or super().loss_reads_tokens

    def nll_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood of targets `[tokens]`, after adding `probability_floor`."""
        if not self.config.probability_floor:
            return super().nll_of(logits, targets)
        chosen = logits.softmax(-1).gather(-1, targets.clamp(min=0)[:, None])[:, 0]  # [tokens]
        return -(chosen + self.config.probability_floor).log()

    def auxiliary_loss(
        self,
        outputs: CaptioningModelOutput,
        nll: Tensor,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None,
    ) -> Tensor | float:
        """Return the penalty of Eq. 26 (soft attention), or 0 with the policy gradient of Eq. 25 (hard attention)."""
        if self.config.attention_type == "hard":
            surrogate = self.location_loss(outputs, nll, labels, num_items_in_batch)
            return surrogate - surrogate.detach()  # keeps the reported loss a likelihood
        if not self.config.doubly_stochastic_weight:
            return 0.0
        penalty = self.doubly_stochastic_penalty(outputs.cross_attentions[-1], labels)
        return penalty * self.share_of_step(labels, num_items_in_batch)

    def doubly_stochastic_penalty(self, weights: Tensor, labels: Tensor) -> Tensor:
        """Compute lambda sum_i (1 - sum_t alpha_ti)^2 (Eq. 26), reduced by `doubly_stochastic_reduction`.

        Args:
            weights: `[B * K, T, R]`.
            labels: `[B * K, T]`.
        """
        rule = self.config.doubly_stochastic_reduction
        if rule != "batch_sum":
            weights = weights * (labels != IGNORED_LABEL)[..., None]  # the program also sums over padding steps
        squares = (1 - weights.sum(1)).square()  # [B * K, R]
        reduced = {
            "mean": lambda: squares.mean(),
            "caption_sum": lambda: squares.sum(-1).mean(),
            "batch_sum": lambda: squares.mean(-1).sum(),
        }[rule]()
        return self.config.doubly_stochastic_weight * reduced

    def location_loss(
        self, outputs: CaptioningModelOutput, nll: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None
    ) -> Tensor:
        """Return a loss term with the policy gradient of Eq. 25 with respect to the attention weights.

        It raises the probability of sampled locations where the negative log-likelihood is below the baseline, and
        raises the entropy of the weights. In training it updates the baseline.

        Args:
            outputs: outputs of the model with `cross_attentions` and `locations`.
            nll: `[B * K, T]`, negative log-likelihoods of the real tokens.
            labels: `[B * K, T]`.
            num_items_in_batch: see `CaptioningForConditionalGeneration.forward`.
        """
        in_all = self.config.location_loss_reduction == "batch_sum"
        real = torch.ones_like(nll) if in_all else (labels != IGNORED_LABEL).to(nll.dtype)
        advantage = self.location_advantage(nll.detach(), real)  # [B * K, T]
        terms = torch.zeros_like(nll)
        locations = outputs.locations or (None,) * len(outputs.cross_attentions)
        for weights, drawn in zip(outputs.cross_attentions, locations, strict=True):
            # Hidden regions have weight 0: without the floor, 0 * log 0 is NaN.
            log_weights = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()  # [B * K, T, R]
            if drawn is not None:
                chosen = log_weights.gather(-1, drawn.clamp(min=0)[..., None])[..., 0]  # [B * K, T]
                terms = terms + self.config.location_reward_weight * advantage * chosen * (drawn != EXPECTED)
            # lambda_e H[s] of Eq. 25, with the sign of a loss
            terms = terms + self.config.location_entropy_weight * (weights * log_weights).sum(-1)
        if self.training:
            self.location_baseline.copy_(self.next_location_baseline(nll.detach(), real))
        terms = terms * real
        return terms.sum() if in_all else self.reduce_nll(terms, labels, num_items_in_batch)

    def location_advantage(self, nll: Tensor, real: Tensor) -> Tensor:
        """Return the negative log-likelihood credited to each sampled location, minus the baseline, `[B * K, T]`."""
        if self.config.location_reward == "token":
            return nll  # the program subtracts no baseline here
        caption_nll = nll.sum(-1, keepdim=True)  # [B * K, 1]
        if self.config.location_reward == "caption_mean":
            caption_nll = caption_nll / real.sum(-1, keepdim=True).clamp(min=1)
        return (caption_nll - self.location_baseline).expand_as(nll)  # [B * K, T]

    def next_location_baseline(self, nll: Tensor, real: Tensor) -> Tensor:
        """Update the baseline: moving average of negative log-likelihood per token (per caption for "caption_sum")."""
        if self.config.location_reward == "caption_sum":
            mean_nll = nll.sum(-1).mean()
        else:
            mean_nll = nll.sum() / real.sum()
        decay = self.config.location_baseline_decay
        return decay * self.location_baseline + (1 - decay) * mean_nll

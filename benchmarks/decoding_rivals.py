"""Decoders with the same weights to which `decoding.py` compares `generate()`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin

from hf_captioners.modeling.layers_recurrent import LSTMState
from hf_captioners.modeling.layers_region_attention import DotRegionAttention


def with_stock_search(model: Any) -> Any:
    """Return a captioner with the same weights and `generate()` of transformers.

    It repeats encoder results for each beam, and has the cache of transformers.
    """
    names = ["_expand_inputs_for_generation", "_get_logits_processor", "_beam_search", "_sample"]
    methods: dict[str, Any] = {name: getattr(GenerationMixin, name) for name in names}
    if hasattr(model.model.decoder, "mask_config"):
        methods["_prepare_cache_for_generation"] = _prepare_stock_cache
    stock = model.__new__(type(f"Stock{type(model).__name__}", (type(model),), methods))
    stock.__dict__.update(model.__dict__)
    return stock


def _prepare_stock_cache(self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
    config = self.model.decoder.mask_config
    model_kwargs["cache"] = EncoderDecoderCache(DynamicCache(config=config), DynamicCache())


def project_always(self: Any, levels: Any, cache: Any) -> Any:
    """Make cross-attention project keys and values in every step, as released code does."""
    return self.project_levels(levels())


def keys_of_every_step(model: Any) -> Callable[..., Any]:
    """Return a replacement of the attention's `prepare` that projects keys and values in every call."""
    prepare, encoder = DotRegionAttention.prepare, model.model.encoder

    def again(self: Any, encoder_outputs: Any, rows: int) -> tuple[Any, ...]:
        regions = encoder_outputs.last_hidden_state
        encoder_outputs = encoder_outputs.copy()
        keys_and_values = (encoder.key_projection(regions), encoder.value_projection(regions))
        encoder_outputs.level_states = torch.stack(keys_and_values, dim=1)
        return prepare(self, encoder_outputs, rows)

    return again


def captions_one_by_one(model: Any, features: Tensor, beams: int, tokens: int) -> Tensor:
    """Caption images `[B, R, D]` one after the other, as the PyTorch re-implementation of Show, Attend and Tell does.

    A loop over single images in plain PyTorch: regions are repeated for each beam, and the keys of the attention are
    projected at every step. Captions have exactly `tokens` words.

    Returns:
        `[B, 1 + tokens]`, with the token that begins a caption.
    """
    decoder, config = model.model.decoder, model.config
    (layer,), (keys_of,) = decoder.layers, model.model.encoder.keys
    captions = []
    for image in features:
        regions = image.expand(beams, *image.shape).contiguous()  # [K, R, D]
        words = torch.full((beams, 1), config.decoder_start_token_id)
        state: Any = decoder.initial_state(regions, None)[0]
        totals = torch.tensor([0.0] + [float("-inf")] * (beams - 1))
        for _ in range(tokens):
            embedded = decoder.embedding(words[:, -1])
            weights = layer.attention(state.hidden, keys_of(regions), None).flatten(0, 1)  # [K, R]
            context = (regions * weights[..., None]).sum(1)
            if layer.gate is not None:
                context = layer.gate(state.hidden).sigmoid() * context
            state, _ = layer.lstm(layer.lstm.word_projection(embedded), context, state)
            output = decoder.output(state.hidden[:, None], context[:, None], embedded[:, None])[:, 0]
            logits = model.lm_head(output)
            logprobs = logits.log_softmax(-1)
            logprobs[:, config.eos_token_id] = float("-inf")
            totals, chosen = (totals[:, None] + logprobs).flatten().topk(beams)
            rows, added = chosen // logprobs.shape[1], chosen % logprobs.shape[1]
            words = torch.cat([words[rows], added[:, None]], 1)
            state = LSTMState(state.hidden[rows], state.memory[rows])
        captions.append(words[totals.argmax()])
    return torch.stack(captions)

"""The shared layers against independent formulas, and what rides in the cache."""

import math

import pytest
import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, GPT2Config
from transformers.masking_utils import create_bidirectional_mask

from hf_captioners.modeling.configuration_captioning import CaptioningConfig
from hf_captioners.modeling.inputs_captioning import visible_tokens
from hf_captioners.modeling.layers_attention import (
    AttentionOnAttention,
    BeamFoldingCrossAttention,
    CaptionCache,
    FeedForward,
    MultiHeadAttention,
    Residual,
)
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.modeling.layers_region_attention import PreparedDotAttention
from hf_captioners.modeling.layers_regions import UnbiasedLayerNorm, mean_of_visible
from hf_captioners.modeling.layers_transformer import CachedSelfAttention, LevelGates, meshed_sum, sinusoids
from hf_captioners.modeling.modeling_captioning import CaptioningForConditionalGeneration

IMAGES, BEAMS, REGIONS, TOKENS, WIDTH, HEADS = 2, 3, 5, 4, 8, 2


@pytest.fixture(params=["eager", "sdpa"])
def config(request):
    """A configuration that selects an attention implementation."""
    found = CaptioningConfig()
    found._attn_implementation = request.param
    return found


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def softmax_attention(query, key, value, heads, scale, visible=None):
    """Attention of `[T, H * d]` to `[R, H * d]`, one head after the other."""
    parts = []
    for head in range(heads):
        own = [values.chunk(heads, dim=-1)[head] for values in (query, key, value)]
        scores = own[0] @ own[1].T * scale
        if visible is not None:
            scores = scores.masked_fill(~visible, -math.inf)
        parts.append(scores.softmax(-1) @ own[2])
    return torch.cat(parts, dim=-1)


def test_memory_slots_are_further_keys(config):
    """M2, Eq. 2: learned keys times sqrt(d_k) and values times sqrt(m) beside those of the regions; never masked."""
    attention = MultiHeadAttention(config, WIDTH, HEADS, memory_slots=3).eval()
    regions, visible = random(IMAGES, REGIONS, WIDTH), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    mask = create_bidirectional_mask(config=config, inputs_embeds=regions, attention_mask=visible)
    found, weights = attention(regions, regions, mask)
    for image in range(IMAGES):
        keys = torch.cat((attention.k_proj(regions[image]), math.sqrt(WIDTH / HEADS) * attention.memory_keys[0]))
        values = torch.cat((attention.v_proj(regions[image]), math.sqrt(3) * attention.memory_values[0]))
        seen = torch.cat((visible[image], torch.ones(3, dtype=torch.bool)))
        query = attention.q_proj(regions[image])
        joined = softmax_attention(query, keys, values, HEADS, (WIDTH / HEADS) ** -0.5, seen)
        torch.testing.assert_close(found[image], attention.o_proj(joined), atol=1e-5, rtol=0)
    assert weights is None or weights.shape == (IMAGES, HEADS, REGIONS, REGIONS + 3)
    hidden = torch.zeros(IMAGES, REGIONS, dtype=torch.bool)
    mask = create_bidirectional_mask(config=config, inputs_embeds=regions, attention_mask=hidden)
    assert torch.isfinite(attention(regions, regions, mask)[0]).all(), "the slots are visible where no region is"


def test_attention_without_output_projection(config):
    attention = MultiHeadAttention(config, WIDTH, HEADS, output_projection=False).eval()
    regions = random(1, REGIONS, WIDTH)
    projected = [layer(regions[0]) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)]
    expected = softmax_attention(*projected, HEADS, (WIDTH / HEADS) ** -0.5)
    torch.testing.assert_close(attention(regions, regions)[0][0], expected, atol=1e-5, rtol=0)
    assert {name for name, _ in attention.named_parameters()} == {
        f"{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")
    }


def test_prepared_keys_serve_all_rows_of_an_image(config):
    """Rows of an image attend to its keys; equal to attention of repeated images."""
    attention = PreparedDotAttention(config, WIDTH, HEADS, scale=2).eval()
    queries = random(IMAGES * BEAMS, WIDTH)
    keys, values = random(IMAGES, REGIONS, 2 * WIDTH, seed=1), random(IMAGES, REGIONS, 2 * WIDTH, seed=2)
    found, weights = attention(queries, keys, values)
    for row in range(IMAGES * BEAMS):
        own = (keys[row // BEAMS], values[row // BEAMS])
        query = attention.q_proj(queries[row : row + 1])
        expected = softmax_attention(query, *own, HEADS, (2 * WIDTH / HEADS) ** -0.5)
        torch.testing.assert_close(found[row], expected[0], atol=1e-5, rtol=0)
    if weights is not None:
        assert weights.shape == (IMAGES * BEAMS, HEADS, REGIONS)
        torch.testing.assert_close(weights.sum(-1), torch.ones(IMAGES * BEAMS, HEADS))


def test_cached_self_attention_equals_parallel(config):
    """Token by token with a cache = all tokens at once under a causal mask, also where sdpa gets none."""
    attention = CachedSelfAttention(config, WIDTH, HEADS, layer_idx=0).eval()
    hidden, cache = random(IMAGES, TOKENS, WIDTH), CaptionCache(DynamicCache())
    steps = [attention(hidden[:, step : step + 1], None, cache)[0] for step in range(TOKENS)]
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    if config._attn_implementation == "sdpa":
        together = attention(hidden)[0]
    else:
        added = torch.zeros(TOKENS, TOKENS).masked_fill(~causal, torch.finfo(torch.float32).min)
        together = attention(hidden, added[None, None])[0]
    torch.testing.assert_close(torch.cat(steps, 1), together, atol=1e-5, rtol=0)
    projected = [layer(hidden[0]) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)]
    expected = attention.o_proj(softmax_attention(*projected, HEADS, (WIDTH / HEADS) ** -0.5, causal))
    torch.testing.assert_close(together[0], expected, atol=1e-5, rtol=0)


def test_attention_on_attention_of_two_widths():
    layer = AttentionOnAttention(WIDTH, first_size=3)
    first, second = random(2, 3), random(2, WIDTH)
    found, gate = layer.with_gate(first, second)
    projected = torch.cat((first, second), -1) @ layer.projection.weight.T + layer.projection.bias
    torch.testing.assert_close(gate, projected[:, WIDTH:].sigmoid())
    torch.testing.assert_close(found, projected[:, :WIDTH] * gate)
    torch.testing.assert_close(layer(first, second), found)


def test_norm_with_the_unbiased_deviation():
    norm = UnbiasedLayerNorm(WIDTH)
    states = random(3, WIDTH)
    with torch.no_grad():
        norm.weight.copy_(random(WIDTH, seed=1))
        norm.bias.copy_(random(WIDTH, seed=2))
    centred = states - states.sum(-1, keepdim=True) / WIDTH
    deviation = (centred.square().sum(-1, keepdim=True) / (WIDTH - 1)).sqrt()
    torch.testing.assert_close(norm(states), norm.weight * centred / (deviation + 1e-6) + norm.bias)


def test_norm_before_and_after_a_sub_layer():
    states, output = random(3, WIDTH), random(3, WIDTH, seed=1)
    after, before = Residual(WIDTH).eval(), Residual(WIDTH, norm_first=True, norm=UnbiasedLayerNorm, eps=1e-6).eval()
    assert torch.equal(after.before(states), states)
    torch.testing.assert_close(after.after(states, output), nn.functional.layer_norm(states + output, (WIDTH,)))
    torch.testing.assert_close(before.before(states), before.norm(states))
    assert torch.equal(before.after(states, output), states + output)


def test_feed_forward_with_and_without_activation():
    states = random(3, WIDTH)
    for activation in (torch.relu, None):
        layer = FeedForward(WIDTH, 16, activation).eval()
        inner = states @ layer.fc1.weight.T + layer.fc1.bias
        inner = inner if activation is None else inner.clamp(min=0)
        torch.testing.assert_close(layer(states), inner @ layer.fc2.weight.T + layer.fc2.bias)


def test_level_gates_and_their_sum():
    gates, stream, attended = LevelGates(WIDTH, 3), random(2, TOKENS, WIDTH), random(2, TOKENS, 3, WIDTH, seed=1)
    found = gates(stream, attended)
    for level, layer in enumerate(gates.levels):
        torch.testing.assert_close(found[:, :, level], layer(torch.cat((stream, attended[:, :, level]), -1)).sigmoid())
    expected = sum(found[:, :, level] * attended[:, :, level] for level in range(3)) / math.sqrt(3)
    torch.testing.assert_close(meshed_sum(found, attended), expected)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids(width):
    table = sinusoids(5, width)
    for position in range(5):
        for column in range(width):
            angle = position / 10000 ** ((column - column % 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column].item() == pytest.approx(expected, abs=1e-5)


def test_mean_of_visible_regions():
    states, mask = random(2, 3, WIDTH), torch.tensor([[True, True, False], [True, False, False]])
    expected = torch.stack((states[0, :2].mean(0), states[1, 0]))
    torch.testing.assert_close(mean_of_visible(states, mask), expected)
    torch.testing.assert_close(mean_of_visible(states, None), states.mean(1))


def test_every_cross_attention_has_its_own_entry(config):
    """Two in one layer, with a cache of as many layers as a decoder of one layer has; equal to no cache."""
    first, second = (BeamFoldingCrossAttention(config, WIDTH, HEADS, layer_idx=index).eval() for index in range(2))
    queries, regions = random(IMAGES * BEAMS, 1, WIDTH), random(IMAGES, REGIONS, WIDTH, seed=1)
    attributes = random(IMAGES, 2, WIDTH, seed=2)
    one_layer = GPT2Config(n_layer=1)
    given = EncoderDecoderCache(DynamicCache(config=one_layer), DynamicCache(config=one_layer))
    cache = CaptionCache.of(given)
    for _ in range(2):  # the second time from the cache
        for attention, memory in ((first, regions), (second, attributes)):
            found = attention(queries, lambda memory=memory: memory[:, None], 1, None, cache)[0]
            torch.testing.assert_close(found, attention(queries, lambda memory=memory: memory[:, None])[0])
    assert [layer.keys.shape[2] for layer in cache.cross_attention_cache.layers] == [REGIONS, 2]


def test_states_follow_the_text_rows():
    """Update, reorder, repeat, select, crop and reset."""
    cache, states = RecurrentCache(), random(2, 3)
    cache.update(0, 3, hidden=states + 2)
    cache.update(0, 1, hidden=states, context=states + 1)
    assert cache.layer(0).get_seq_length() == 4 and torch.equal(cache.state(0)["hidden"], states)
    cache.reorder_cache(torch.tensor([1, 0]))
    assert torch.equal(cache.state(0)["context"], states.flip(0) + 1)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    assert torch.equal(cache.state(0)["hidden"], states.flip(0))
    with pytest.raises(ValueError, match="cannot be cropped"):
        cache.layer(0).crop(-1)
    cache.reset()
    assert cache.state(0) is None


def test_records_follow_the_text_rows():
    """Append, reorder, repeat, select, crop and reset; the cache that a caller gave has the same records."""
    given = EncoderDecoderCache(DynamicCache(), DynamicCache())
    cache, sums = CaptionCache.of(given), random(2, 4, 3, seed=1)
    assert cache.record(1, "sums") is None
    cache.append(1, "sums", sums[:, :3])
    assert torch.equal(cache.record(1, "sums"), sums[:, :3])
    cache.append(1, "sums", sums[:, 3:])
    assert torch.equal(cache.record(1, "sums"), sums)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    assert torch.equal(CaptionCache.of(given).record(1, "sums"), sums.flip(0))
    cache.crop(0)
    assert torch.equal(cache.record(1, "sums"), sums.flip(0))
    cache.crop(-3)
    assert torch.equal(cache.record(1, "sums"), sums.flip(0)[:, :1]) and cache.record(0, "sums") is None
    cache.reset()
    assert cache.record(1, "sums") is None


def test_tokens_after_the_end_are_hidden():
    """The first position never is, though the begin token is an end token; ids may be several."""
    config = CaptioningConfig(bos_token_id=0, eos_token_id=[0, 9], pad_token_id=0, token_mask_rule="after_end")
    ids = torch.tensor([[0, 4, 5, 0, 0, 7], [0, 9, 4, 4, 0, 4], [0, 3, 3, 3, 3, 3]])
    assert visible_tokens(config, ids).tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1] * 6]
    assert visible_tokens(CaptioningConfig(), ids) is None


@pytest.mark.parametrize("over", ["other_words", "all_words"])
def test_label_smoothing_is_a_divergence(over):
    """KL divergence from the smoothed target, which the target's own logits bring to zero."""
    config = CaptioningConfig(label_smoothing=0.2, label_smoothing_over=over)
    holder = type("Holder", (), {"config": config, "nll_of": CaptioningForConditionalGeneration.nll_of})()
    targets, words = torch.tensor([2, 0, 5]), 6
    share = 0.2 / words if over == "all_words" else 0.2 / (words - 1)
    smoothed = torch.full((3, words), share)
    smoothed[torch.arange(3), targets] = 1 - 0.2 + (share if over == "all_words" else 0)
    logits = random(3, words)
    expected = (smoothed * (smoothed.log() - logits.log_softmax(-1))).sum(-1)
    torch.testing.assert_close(holder.nll_of(logits, targets), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(holder.nll_of(smoothed.log(), targets), torch.zeros(3), atol=1e-6, rtol=0)

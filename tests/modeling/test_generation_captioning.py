"""The cache whose image side is not reordered."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GPT2Config

from hf_captioners.modeling.layers_attention import CaptionCache
from tests.hub.captioner_cases import case_of

IMAGES, BEAMS, HEADS, WIDTH = 2, 3, 2, 4


def filled(cache_class=CaptionCache):
    """Return a cache of two layers: four tokens for 2 x 3 rows, and five regions for two images."""
    generator = torch.Generator().manual_seed(0)
    text, images = DynamicCache(), DynamicCache()
    for layer in range(2):
        for cache, rows, length in ((text, IMAGES * BEAMS, 4), (images, IMAGES, 5)):
            cache.update(*torch.randn(2, rows, HEADS, length, WIDTH, generator=generator), layer)
    return cache_class(text, images)


def states(cache: EncoderDecoderCache) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return keys and values of the text, and of the images."""
    sides = (cache.self_attention_cache, cache.cross_attention_cache)
    text, images = ([kept for layer in side.layers for kept in (layer.keys, layer.values)] for side in sides)
    return text, images


@pytest.mark.parametrize(
    ("method", "argument", "rows"),
    [
        ("reorder_cache", torch.tensor([2, 2, 0, 3, 5, 5]), [2, 2, 0, 3, 5, 5]),
        ("batch_repeat_interleave", 2, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
        ("batch_select_indices", torch.tensor([0, 3]), [0, 3]),
    ],
)
def test_text_follows_and_images_stay(method, argument, rows):
    cache, before = filled(), filled()
    getattr(cache, method)(argument)
    (text, images), (text_before, images_before) = states(cache), states(before)
    assert all(torch.equal(now, then[rows]) for now, then in zip(text, text_before, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(images, images_before, strict=True))


def test_crop_shortens_the_text():
    cache, before = filled(), filled()
    cache.crop(-1)
    assert cache.get_seq_length() == 3
    (text, images), (text_before, images_before) = states(cache), states(before)
    assert all(torch.equal(now, then[:, :, :3]) for now, then in zip(text, text_before, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(images, images_before, strict=True))


def test_of_shares_the_storage():
    given = filled(EncoderDecoderCache)
    ours = CaptionCache.of(given)
    assert CaptionCache.of(ours) is ours
    assert ours.self_attention_cache is given.self_attention_cache
    assert ours.cross_attention_cache is given.cross_attention_cache
    ours.is_updated[0] = False
    assert given.is_updated[0] is False


def test_reset_forgets_the_images():
    cache = filled()
    assert cache.is_updated == {0: True, 1: True}
    cache.reset()
    assert cache.is_updated == {0: False, 1: False}


def test_a_cache_of_the_caller_keeps_its_sides():
    """An empty one too, whether its image side may grow or has a fixed number of entries."""
    one_layer = GPT2Config(n_layer=1)
    for given in (
        EncoderDecoderCache(DynamicCache(), DynamicCache()),
        EncoderDecoderCache(DynamicCache(config=one_layer), DynamicCache(config=one_layer)),
    ):
        text, images, updated = given.self_attention_cache, given.cross_attention_cache, given.is_updated
        assert CaptionCache.of(given).self_attention_cache is text
        assert given.self_attention_cache is text and given.cross_attention_cache is images
        assert given.is_updated is updated


def test_the_earlier_name_of_the_cache_is_taken():
    """`past_key_values`, the name before transformers 5.24, is a deprecated argument and output as in transformers."""
    case = case_of("m2_transformer")
    model, inputs, captions = (
        case.make_model().eval(),
        case.inputs("regions", images=2),
        torch.tensor([[1, 5], [1, 6]]),
    )
    with torch.no_grad():
        first = model(**inputs, decoder_input_ids=captions[:, :1], use_cache=True)
        expected = model(**inputs, decoder_input_ids=captions).logits[:, 1]
        with pytest.warns(FutureWarning, match="`past_key_values` is deprecated"):
            second = model(**inputs, decoder_input_ids=captions[:, 1:], past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits[:, 0], expected)

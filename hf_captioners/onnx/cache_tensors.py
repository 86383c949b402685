"""Caches as flat named tensors, as the inputs and outputs of exported decoders, and back."""

from collections.abc import Mapping

from torch import Tensor
from transformers import Cache, DynamicCache

from hf_captioners.modeling.layers_attention import CaptionCache, RecurrentCache

# Kinds of tensors, by the second part of a name.
TEXT, IMAGE, STATE, RECORD = "decoder", "encoder", "state", "record"


def cache_tensors(cache: Cache) -> dict[str, Tensor]:
    """Return the tensors of a decoder's cache by name.

    Names are `{layer}.decoder.key` and `.value` of self-attention `[rows, H, T, d]`, `{layer}.encoder.key` and
    `.value` of cross-attention, with one row for each image, `{layer}.state.{name}` of recurrent states `[rows, ...]`
    and `{layer}.record.{name}` of records `[rows, T, ...]`.

    Args:
        cache: a `CaptionCache` or a `RecurrentCache`.
    """
    found: dict[str, Tensor] = {}
    if isinstance(cache, CaptionCache):
        for kind, part in ((TEXT, cache.self_attention_cache), (IMAGE, cache.cross_attention_cache)):
            for index, layer in enumerate(part.layers):
                found |= {f"{index}.{kind}.key": layer.keys, f"{index}.{kind}.value": layer.values}
    recurrent = cache.records if isinstance(cache, CaptionCache) else cache
    for index, layer in enumerate(recurrent.layers):
        found |= {f"{index}.{STATE}.{name}": values for name, values in layer.states.items()}
        found |= {f"{index}.{RECORD}.{name}": values for name, values in layer.records.items()}
    return found


def cache_of_tensors(tensors: Mapping[str, Tensor], kind: type[Cache]) -> Cache:
    """Return the cache with these tensors, see `cache_tensors`.

    Args:
        tensors: by name; something is cached already.
        kind: `CaptionCache` or `RecurrentCache`.
    """
    text, image, recurrent = DynamicCache(), DynamicCache(), RecurrentCache()
    projected = []
    for name, values in tensors.items():
        number, part, entry = name.split(".", 2)
        index = int(number)
        if part in (STATE, RECORD):
            layer = recurrent.layer(index)
            (layer.states if part == STATE else layer.records)[entry] = values
            layer.lazy_initialization(values, values)
            layer.cumulative_length = 1  # it tells an empty layer from others, and nothing else here reads it
        elif entry == "key":
            of_part = image if part == IMAGE else text
            of_part.update(values, tensors[f"{number}.{part}.value"], index)
            projected += [index] if part == IMAGE else []
    if issubclass(kind, RecurrentCache):
        return recurrent
    cache = CaptionCache(text, image)
    cache.is_updated = dict.fromkeys(projected, True)
    cache.records = recurrent
    return cache

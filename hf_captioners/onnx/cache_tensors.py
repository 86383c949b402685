"""Conversion between decoder caches and flat named tensors, the inputs and outputs of ONNX graphs."""

from collections.abc import Mapping

from torch import Tensor
from transformers import Cache, DynamicCache

from hf_captioners.modeling.layers_attention import CaptionCache
from hf_captioners.modeling.layers_recurrent import RecurrentCache

# Kinds of tensors, by the second part of a name.
TEXT, IMAGE, STATE, RECORD = "decoder", "encoder", "state", "record"


def cache_tensors(cache: Cache) -> dict[str, Tensor]:
    """Return the tensors of a decoder's cache, by names that state layer, part and entry.

    Names are `{layer}.decoder.key` and `.value` of self-attention `[rows, H, T, d]`, `{layer}.encoder.key` and
    `.value` of cross-attention, with one row for each image, `{layer}.state.{name}` of recurrent states `[rows, ...]`
    and `{layer}.record.{name}` of records `[rows, T, ...]`.

    Args:
        cache: a `CaptionCache` or a `RecurrentCache`.
    """
    tensors: dict[str, Tensor] = {}
    if not isinstance(cache, CaptionCache):
        for index, layer in enumerate(cache.layers):
            tensors |= {f"{index}.{STATE}.{name}": values for name, values in layer.states.items()}
        return tensors
    for kind, part in ((TEXT, cache.self_attention_cache), (IMAGE, cache.cross_attention_cache)):
        for index, layer in enumerate(part.layers):
            tensors |= {f"{index}.{kind}.key": layer.keys, f"{index}.{kind}.value": layer.values}
    return tensors | {f"{index}.{RECORD}.{name}": entries for (index, name), entries in cache.records.items()}


def cache_of_tensors(tensors: Mapping[str, Tensor], kind: type[Cache]) -> Cache:
    """Build a decoder's cache from named tensors; the inverse of `cache_tensors`.

    Args:
        tensors: by name; something is cached already.
        kind: `CaptionCache` or `RecurrentCache`.
    """
    text, image, recurrent = DynamicCache(), DynamicCache(), RecurrentCache()
    projected, records = [], {}
    for name, values in tensors.items():
        number, part, entry = name.split(".", 2)
        index = int(number)
        if part == RECORD:
            records[index, entry] = values
        elif part == STATE:
            layer = recurrent.layer(index)
            layer.states[entry] = values
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
    cache.records = records
    return cache

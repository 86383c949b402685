"""Addition of new words to a trained captioner: tokens, and rows of the embedding and output layer."""

import copy
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from hf_captioners.hub.trimming import tokenizer_content
from hf_captioners.loading import architecture_of, require_merged

from .caption_checks import text_for_tokenizer


def unknown_words(captions: Iterable[str], processor: Any, at_least: int) -> dict[str, int]:
    """Return words outside the vocabulary with at least `at_least` occurrences, most frequent first.

    Args:
        captions: training captions.
        processor: the captioner's processor, whose tokenizer is one of words.
        at_least: smallest number of occurrences.

    Raises:
        ValueError: the tokenizer is not one of words, so that it has no unknown words.
    """
    kind = tokenizer_content(processor.tokenizer)["model"]["type"]
    if kind != "WordLevel":
        raise ValueError(
            f"`new_words={at_least}` adds words to a vocabulary of words, and the captioner's is a {kind}, which can "
            "write every word: leave it out."
        )
    backend = processor.tokenizer.backend_tokenizer
    vocabulary, counts = backend.get_vocab(), Counter[str]()
    for caption in captions:
        text = text_for_tokenizer(caption, processor)
        text = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    frequent = [(word, count) for word, count in counts.items() if count >= at_least and word not in vocabulary]
    return dict(sorted(frequent, key=lambda entry: (-entry[1], entry[0])))


def add_words(model: Any, processor: Any, words: Iterable[str]) -> tuple[Any, Any]:
    """Return a captioner with additional words in its tokenizer, embedding and output layer.

    The ids and the logits of all other tokens stay as they are. The rows of new words are the mean of those of all
    tokens, and their bias is the lowest one: they are read as an average word, and are not generated before they are
    learnt.

    Args:
        model: a captioner of this library with a vocabulary of words, without an adapter; it is not changed.
        processor: its processor; it is not changed.
        words: the words, in lower case if the tokenizer converts to it.

    Returns:
        A new captioner and its processor.

    Raises:
        ValueError: the model is not of this library or has an adapter, or a word is known.

    Example:

    ```python
    from hf_captioners.training.new_words import add_words

    model, processor = add_words(model, processor, ["giraffe", "zebra"])
    ```
    """
    require_merged(model)
    architecture_of(model)
    words, content = list(words), tokenizer_content(processor.tokenizer)
    vocabulary, size = content["model"]["vocab"], model.config.get_text_config().vocab_size
    if known := [word for word in words if word in vocabulary or words.count(word) > 1]:
        raise ValueError(f"The captioner knows the word {known[0]!r} already, or it is given twice.")
    vocabulary |= {word: size + place for place, word in enumerate(words)}
    larger_processor = copy.copy(processor)
    larger_processor.tokenizer = copy.deepcopy(processor.tokenizer)
    larger_processor.tokenizer._tokenizer = Tokenizer.from_str(json.dumps(content))
    return _with_rows(model, len(words)), larger_processor


def _with_rows(model: Any, number: int) -> Any:
    """Return a captioner with additional rows in the embedding and output layer."""
    config = copy.deepcopy(model.config)
    config.get_text_config().vocab_size += number
    larger = type(model)(config).to(model.dtype)
    layers = [layer for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer is not None]
    of_tokens = {id(weight) for layer in layers for weight in layer.parameters()}
    larger.load_state_dict(
        {
            name: _grown(values.detach(), number) if id(values) in of_tokens else values.detach()
            for name, values in model.state_dict(keep_vars=True).items()
        }
    )
    larger.generation_config = copy.deepcopy(model.generation_config)
    return larger.to(model.device).train(model.training)


def _grown(weight: Tensor, number: int) -> Tensor:
    """Append rows to `[V, ...]`: the mean row to weights `[V, D]`, the lowest value to biases `[V]`."""
    new = weight.mean(0, keepdim=True) if weight.dim() > 1 else weight.min()[None]
    return torch.cat((weight, new.expand(number, *weight.shape[1:])))

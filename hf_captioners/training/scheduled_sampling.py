"""Scheduled sampling (Bengio et al., 2015): a captioner reads some words of its own instead of a caption's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL


@torch.no_grad()
def mix_in_own_words(model: Any, inputs: Mapping[str, Tensor], probability: float) -> Tensor:
    """Replace words that the captioner reads by draws from what it expected in their place.

    As in AoANet's code a coin is tossed for each word behind the first, and a word is drawn behind the words that were
    drawn before it. Unlike there, draws are made without dropout.

    Args:
        model: a captioner of this library.
        inputs: a batch of B images with `labels` `[B * K, T]`.
        probability: of a draw.

    Returns:
        `decoder_input_ids` `[B * K, T]`. They are no gradient's business.
    """
    labels = inputs["labels"]
    images = {name: value for name, value in inputs.items() if name != "labels"}
    words = model.prepare_decoder_input_ids_from_labels(labels)
    tossed = torch.rand(words.shape, device=words.device) < probability
    # A label is the word that stands one place further on: only such words are replaced.
    replaced = torch.zeros_like(tossed)
    replaced[:, 1:] = tossed[:, 1:] & (labels[:, :-1] != IGNORED_LABEL)
    was_training = model.training
    model.eval()
    try:
        encoded = model.get_encoder()(**images, return_dict=True)
        past = None
        for step in range(1, words.shape[1]):
            outputs = model(
                encoder_outputs=encoded,
                decoder_input_ids=words[:, step - 1 : step],
                past_key_values=past,
                use_cache=True,
            )
            past = outputs.past_key_values
            drawn = torch.multinomial(outputs.logits[:, -1].float().softmax(-1), 1)[:, 0]
            words[:, step] = torch.where(replaced[:, step], drawn, words[:, step])
    finally:
        model.train(was_training)
    return words

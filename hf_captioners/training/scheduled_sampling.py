"""Scheduled sampling (Bengio et al., 2015): in training, the captioner also reads words that it sampled."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL


@torch.no_grad()
def mix_in_samples(model: Any, inputs: Mapping[str, Tensor], probability: float) -> Tensor:
    """Replace some input words by samples from the captioner's predictions.

    As in AoANet's code, each word after the first is replaced with a probability, and a sample depends on the words
    that were sampled before it. Unlike there, sampling runs without dropout.

    Args:
        model: a captioner of this library.
        inputs: a batch of B images with `labels` `[B * K, T]`.
        probability: of a replacement.

    Returns:
        `decoder_input_ids` `[B * K, T]`, without a gradient.
    """
    labels = inputs["labels"]
    images = {name: value for name, value in inputs.items() if name != "labels"}
    words = model.prepare_decoder_input_ids_from_labels(labels)
    chosen = torch.rand(words.shape, device=words.device) < probability
    # Input word t is label t - 1: only inputs that are real labels are replaced.
    replaced = torch.zeros_like(chosen)
    replaced[:, 1:] = chosen[:, 1:] & (labels[:, :-1] != IGNORED_LABEL)
    was_training = model.training
    model.eval()
    try:
        encoded = model.get_encoder()(**images, return_dict=True)
        past = None
        for step in range(1, words.shape[1]):
            outputs = model(
                encoder_outputs=encoded,
                decoder_input_ids=words[:, step - 1 : step],
                cache=past,
                use_cache=True,
            )
            past = outputs.cache
            drawn = torch.multinomial(outputs.logits[:, -1].float().softmax(-1), 1)[:, 0]
            words[:, step] = torch.where(replaced[:, step], drawn, words[:, step])
    finally:
        model.train(was_training)
    return words

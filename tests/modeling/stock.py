"""Reference: `generate()` of transformers on the same weights."""

import copy
from functools import cache
from typing import Any

import torch
from transformers import GenerationMixin

from hf_captioners.modeling.generation_captioning import CaptionGenerationMixin


@cache
def stock_class(captioner: type) -> type:
    """Return a subclass of a captioner's class with transformers' version of every overridden method."""
    overridden = [name for name in vars(CaptionGenerationMixin) if name in vars(GenerationMixin)]
    methods = {name: vars(GenerationMixin)[name] for name in overridden if not name.startswith("__")}
    assert {"_expand_inputs_for_generation", "_beam_search"} <= methods.keys()
    return type(f"Stock{captioner.__name__}", (captioner,), methods)


def stock(model: Any) -> Any:
    """Return a captioner that shares the weights and generates as transformers does."""
    twin = copy.copy(model)
    twin.__class__ = stock_class(type(model))
    return twin


@torch.no_grad()
def stock_generate(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    """Run `generate()` of transformers on encoder states, which it repeats for beams."""
    recorded = ("output_attentions", "output_hidden_states")
    asked = {name: options[name] for name in recorded if name in options}
    return stock(model).generate(encoder_outputs=model.get_encoder()(**inputs, **asked), **options)

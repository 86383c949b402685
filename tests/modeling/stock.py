"""The same weights under transformers' own `generate()`, as the reference of ours."""

import copy
from typing import Any

import torch
from transformers import GenerationMixin

from hf_captioners.modeling.generation_captioning import CaptionGenerationMixin


def stock(model: Any) -> Any:
    """The captioner, sharing its weights, with every method that we override in transformers' form."""
    overridden = [name for name in vars(CaptionGenerationMixin) if name in vars(GenerationMixin)]
    methods = {name: vars(GenerationMixin)[name] for name in overridden if not name.startswith("__")}
    assert {"_expand_inputs_for_generation", "_beam_search"} <= methods.keys()
    twin = copy.copy(model)
    twin.__class__ = type(f"Stock{type(model).__name__}", (type(model),), methods)
    return twin


@torch.no_grad()
def stock_generate(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    """Stock generate over encoder states that it repeats for beams by itself."""
    recorded = ("output_attentions", "output_hidden_states")
    asked = {name: options[name] for name in recorded if name in options}
    return stock(model).generate(encoder_outputs=model.get_encoder()(**inputs, **asked), **options)

"""Base class of an architecture's test class, with tiny models and inputs for the checks."""

import copy
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, DynamicCache, EncoderDecoderCache

WAYS_IN = ("pixels", "regions")
both_inputs = pytest.mark.parametrize("way_in", WAYS_IN)

IMAGE_SIZE = 32
FEATURE_SIZE = 24
VISION = {
    "model_type": "vit",
    "hidden_size": FEATURE_SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": IMAGE_SIZE,
    "patch_size": 16,
    "hidden_dropout_prob": 0.0,
}
IMAGES, REGIONS, TOKENS = 3, 5, 6


class CaptionerCase:
    """Tiny models and inputs of an architecture.

    A test class inherits from `CaptionerChecks` and implements the two methods without a body. Its models have a ViT
    of two layers, and read region features of the same width.
    """

    # Package that registers the architecture when it is imported.
    package = "hf_captioners"
    # Configuration of the vision part.
    vision: dict[str, Any] = VISION
    # Fields with which training draws no random numbers but for the rates of dropout that have fields of their own.
    without_draws: ClassVar[dict[str, Any]] = {}
    # Keys of encoder attention after the regions that are no regions, such as the memory slots of M2.
    encoder_slots = 0
    # Matrices of its own whose rows belong to several parts, such as the gates of a cell: name -> number of parts.
    joined_parts: ClassVar[dict[str, int]] = {}

    def make_config(self, **fields: Any) -> Any:
        """Return a tiny configuration; `fields` take precedence over its own values."""
        raise NotImplementedError

    def make_processor(self) -> Any:
        """Return a processor for images of 32 x 32 whose token ids agree with the configuration."""
        raise NotImplementedError

    def make_cache(self) -> Any:
        """Return an empty cache, as a user creates one."""
        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    def make_model(self, seed: int = 0, attn_implementation: str | None = None, **fields: Any) -> Any:
        """Return a captioner in evaluation mode in which every parameter matters."""
        fields = {"vision_config": copy.deepcopy(self.vision), "region_feature_size": FEATURE_SIZE} | fields
        torch.manual_seed(seed)
        config = self.make_config(**fields)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation=attn_implementation)
        return disturb(model, seed).eval()

    def inputs(self, way_in: str, images: int = IMAGES, seed: int = 0) -> dict[str, Tensor]:
        """Return images, or regions whose number differs between images."""
        generator = torch.Generator().manual_seed(seed)
        if way_in == "pixels":
            return {"pixel_values": torch.randn(images, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)}
        corners = torch.rand(images, REGIONS, 2, 2, generator=generator).sort(dim=2).values
        counts = REGIONS - torch.arange(images) % (REGIONS - 1)
        return {
            "region_features": torch.randn(images, REGIONS, FEATURE_SIZE, generator=generator),
            "region_boxes": corners.flatten(2),
            "region_mask": torch.arange(REGIONS) < counts[:, None],
        }

    def words(self, model: Any, rows: int, length: int, seed: int = 0) -> Tensor:
        """Return random tokens `[rows, length]` without special ones."""
        config = model.config
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        special = {config.bos_token_id, config.pad_token_id, *ends}
        ordinary = torch.tensor([token for token in range(config.vocab_size) if token not in special])
        generator = torch.Generator().manual_seed(seed)
        return ordinary[torch.randint(len(ordinary), (rows, length), generator=generator)]

    def captions(self, model: Any, rows: int = IMAGES, length: int = TOKENS, seed: int = 0) -> Tensor:
        """Return decoder inputs `[rows, length]`: the begin token and random words."""
        begin = torch.full((rows, 1), model.config.decoder_start_token_id)
        return torch.cat((begin, self.words(model, rows, length - 1, seed)), dim=1)

    def labels(self, model: Any, rows: int = IMAGES, length: int = TOKENS, seed: int = 0) -> Tensor:
        """Return targets `[rows, length]` of different lengths, padded with -100."""
        labels = self.words(model, rows, length, seed)
        lengths = length - torch.arange(rows) % (length - 1)
        return labels.masked_fill(torch.arange(length) >= lengths[:, None], -100)


def disturb(model: nn.Module, seed: int = 0, scale: float = 0.2) -> Any:
    """Add noise to every parameter, so that none keeps the value of its initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def clone(model: Any) -> Any:
    """Return a copy for a check that changes the model."""
    return copy.deepcopy(model)


def row(inputs: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    """Return one image of a batch, without the padding of its regions."""
    alone = {name: tensor[index : index + 1] for name, tensor in inputs.items()}
    if "region_mask" in alone:
        real = alone["region_mask"][0]
        alone = {name: tensor[:, real] if name.startswith("region") else tensor for name, tensor in alone.items()}
    return alone


def assert_close(actual: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    """Assert `|actual - expected| <= atol` everywhere, same shape and type."""
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0.0)

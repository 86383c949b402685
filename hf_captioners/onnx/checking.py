"""Comparison of an exported captioner with the captioner that it was exported from."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from .graphs import SIZES, make_example
from .onnx_captioner import OnnxCaptioner
from .onnx_images import prepare_image
from .onnx_search import DecoderStates

# Largest differences of logits, relative to the largest logit if that is above 1. Measured: 5e-7 to 2e-6 in float32;
# with 8-bit weights 0.013 (trained AoANet), 0.011 (trained ZoDIAC), 0.061 (large VisualGPT with random weights).
TOLERANCES = {"float32": 1e-4, "int8": 0.1}
STEPS = 4
IMAGE_SIZES = ((50, 35), (31, 64), (40, 40))  # width and height of images whose preparation is compared


@torch.no_grad()
def compare_with_captioner(folder: Path, model: Any, processor: Any) -> float:
    """Compare the logits, image preparation and tokenization of an exported captioner with the original.

    Args:
        folder: the exported folder.
        model, processor: of the captioner, in float32 on the CPU.

    Returns:
        The largest difference of logits, in units of the largest magnitude if that is above 1.

    Raises:
        ValueError: something is different.
    """
    captioner = OnnxCaptioner(folder)
    if captioner.reads_images:
        compare_preparation(captioner, processor)
    compare_texts(captioner, model, processor)
    difference = max(logits_difference(captioner, model, images) for images in (1, 3))
    require_small(difference, captioner.facts["weights"])
    return difference


def require_small(difference: float, weights: str) -> None:
    """Raise a `ValueError` if the logits of exported and original captioner differ by more than the tolerance.

    Args:
        difference: see `logits_difference`.
        weights: kind of the exported weights.
    """
    limit = TOLERANCES[weights]
    if not difference <= limit:  # also if it is not a number
        advice = "Please report this with the configuration of the captioner."
        if weights != "float32":
            advice = "Pass `weights=float32`, or train the captioner further: its weights do not fit 8 bits."
        raise ValueError(
            f"The exported captioner computes other logits: they differ by {difference:.2g} of the largest one, "
            f"expected at most {limit:g}. {advice}"
        )


def logits_difference(captioner: OnnxCaptioner, model: Any, images: int) -> float:
    """Return the largest difference of the first steps' logits between exported and original captioner."""
    height, width = 0, 0
    for node in captioner.encoder.get_inputs():
        if node.name == "pixel_values":
            height, width = node.shape[-2:]
    sizes = {**SIZES[0], "images": images, "copies": 2, "past": STEPS}
    example = make_example(model, sizes, (height, width), seed=7)
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(model.config.vocab_size, (2 * images, STEPS), generator=generator)
    tokens[:, 0] = model.config.decoder_start_token_id
    mask = model.decoding_mask(tokens)
    expected = model(encoder_outputs=example.output, decoder_input_ids=tokens, decoder_attention_mask=mask).logits
    names = [node.name for node in captioner.encoder.get_outputs()]
    inputs = {name: example.inputs[name].numpy() for name in captioner.inputs}
    encoded = dict(zip(names, captioner.encoder.run(names, inputs), strict=True))
    states = DecoderStates(captioner.decoder, encoded, captioner.facts["reads_all_tokens"])
    states.reorder(np.arange(images).repeat(2))
    logits = np.stack([states.step(tokens[:, : place + 1].numpy()) for place in range(STEPS)], 1)
    difference = np.abs(logits - expected.numpy()).max() / max(1.0, expected.abs().max().item())
    return float(difference)


def compare_preparation(captioner: OnnxCaptioner, processor: Any) -> None:
    """Raise a `ValueError` if the exported captioner's pixel values differ from the image processor's."""
    generator = np.random.default_rng(0)
    for width, height in IMAGE_SIZES:
        image = PIL.Image.fromarray(generator.integers(0, 256, (height, width, 3), np.uint8))
        pixels = prepare_image(image, captioner.facts["image"])
        expected = processor.image_processor(image, return_tensors="np")["pixel_values"][0]
        if pixels.shape != expected.shape or np.abs(pixels - expected).max() > 1e-5:
            raise ValueError("The exported captioner prepares images in another way than its image processor.")


def compare_texts(captioner: OnnxCaptioner, model: Any, processor: Any) -> None:
    """Raise a `ValueError` if the exported captioner's texts or prompt tokens differ from the processor's."""
    generator = np.random.default_rng(0)
    vocabulary = min(len(processor.tokenizer), model.config.vocab_size)
    for _ in range(20):
        tokens = generator.integers(0, vocabulary, 8).tolist()
        text = captioner.decode(tokens)
        expected = processor.decode([model.config.decoder_start_token_id, *tokens])
        if text != expected:
            raise ValueError(
                f"The exported captioner decodes {tokens} as {text!r}, and its processor as {expected!r}: the "
                "processor has rules of its own for text, which are not exported."
            )
        prompt = processor.encode_prompts([text])["decoder_input_ids"][0].tolist()
        if captioner.prompt_ids(text) != prompt:
            raise ValueError(f"The exported captioner has other tokens for the prompt {text!r} than its processor.")

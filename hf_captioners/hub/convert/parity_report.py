"""Comparison of a converted captioner with the authors' program: weights, logits, log-probabilities of captions."""

import copy
import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText

from .released import Released

LOGPROBS, COMPARED = "logprobs", "compared"
IMAGES, REGIONS, TOKENS = 2, 5, 6


def parity_report(
    released: Released,
    model: Any,
    checkpoint: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    expected: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Load the saved captioner and compare it with its source.

    Args:
        released: what was read from the checkpoint.
        model: the captioner that was saved.
        checkpoint: the authors' file.
        directory: directory of the captioner.
        expected: `.safetensors` file of the authors' program: inputs of `forward()` by name, `logprobs` `[B, T, V]`
            for them, and optionally `compared` `[B, T]`, True where a position counts.

    Returns:
        The comparisons: `weights` of the checkpoint with those of the directory; `logits` on random regions before
        and after saving; `figures`, if `expected` is given. Each states how many numbers were compared and the
        largest and mean absolute difference.

    Raises:
        ValueError: the expected numbers do not fit.
        OSError: they cannot be read.
    """
    loaded = AutoModelForImageTextToText.from_pretrained(directory).eval()
    weights = loaded.state_dict()
    inputs = random_inputs(model)
    report: dict[str, Any] = {
        "checkpoint": {"file": Path(checkpoint).name, "sha256": sha256_of(checkpoint)},
        "architecture": type(model).__name__,
        "left_out": released.unused,
        "weights": difference([(weights[name], tensor) for name, tensor in released.weights.items()]),
        "logits": {"regions": [IMAGES, REGIONS], **difference([(logits(loaded, inputs), logits(model, inputs))])},
    }
    if expected is not None:
        report["figures"] = {"file": Path(expected).name, **compare_figures(loaded, Path(expected))}
    return report


def compare_figures(model: Any, path: Path) -> dict[str, Any]:
    """Compare the captioner's log-probabilities, in double precision, with those of the authors' program.

    Args:
        model: the captioner.
        path: `.safetensors` file, see `parity_report`.

    Raises:
        ValueError: a tensor is missing or of the wrong size.
        OSError: the file cannot be read.
    """
    tensors = load_file(path)
    if LOGPROBS not in tensors:
        raise ValueError(f"{path} has {', '.join(sorted(tensors))}, and no `{LOGPROBS}` to compare with.")
    theirs = tensors.pop(LOGPROBS).float()
    counted = tensors.pop(COMPARED, torch.ones(theirs.shape[:2])).bool()
    # What is compared is the conversion, not the rounding of the machine.
    ours = logits(copy.deepcopy(model).double(), tensors).log_softmax(-1)
    if ours.shape != theirs.shape or counted.shape != theirs.shape[:2]:
        raise ValueError(
            f"`{LOGPROBS}` of {path} is {list(theirs.shape)}, expected {list(ours.shape)}, and `{COMPARED}` "
            f"{list(ours.shape[:2])}."
        )
    return difference([(ours[counted], theirs[counted])])


def random_inputs(model: Any) -> dict[str, Tensor]:
    """Return random regions, boxes, vectors and tokens for a captioner, from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(model.config.vocab_size, (IMAGES, TOKENS - 1), generator=generator)
    begin = torch.full((IMAGES, 1), model.config.decoder_start_token_id)
    features = torch.randn(IMAGES, REGIONS, model.config.region_feature_size, generator=generator)
    vectors = {
        name: torch.randn(IMAGES, width, generator=generator) for name, width in model.config.required_vectors.items()
    }
    inputs = {"region_features": features, **vectors, "decoder_input_ids": torch.cat((begin, words), dim=1)}
    if model.config.needs_region_boxes:
        inputs["region_boxes"] = torch.rand(IMAGES, REGIONS, 2, 2, generator=generator).sort(dim=2).values.flatten(2)
    return inputs


@torch.no_grad()
def logits(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return the logits `[B, T, V]`. Hard attention samples the same locations in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        logits = model(**inputs).logits
        return logits if logits.dtype == torch.float64 else logits.float()


def difference(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Return the number of compared values, and their largest and mean absolute difference."""
    apart = torch.cat([(ours.double() - theirs.double()).abs().flatten() for ours, theirs in pairs])
    return {"numbers": apart.numel(), "largest_difference": apart.max().item(), "mean_difference": apart.mean().item()}


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""How far a converted captioner is from what it was made of: weights, logits, and figures of the authors' program."""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForImageTextToText

from .converting import Released, sha256_of

LOGPROBS, COMPARED = "logprobs", "compared"
IMAGES, REGIONS, TOKENS = 2, 5, 6


def parity_report(
    released: Released,
    model: Any,
    checkpoint: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    expected: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Load what was written and compare it.

    Args:
        released: what was read from the checkpoint.
        model: the captioner that was written.
        checkpoint: the authors' file. directory: the captioner's.
        expected: a `.safetensors` of the authors' program: inputs of `forward()` by name, `logprobs` `[B, T, V]` for
            them, and perhaps `compared` `[B, T]`, True where a position counts.

    Returns:
        What was compared: `weights` of the checkpoint with those of the directory; `logits` on drawn regions before
        and after saving; `figures`, if any are expected. Each says how many numbers, and the largest difference.

    Raises:
        ValueError: the expected figures do not fit.
        OSError: they cannot be read.
    """
    loaded = AutoModelForImageTextToText.from_pretrained(directory).eval()
    weights = loaded.state_dict()
    inputs = drawn_inputs(model)
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
    """Log-probabilities of the captioner beside those of the authors' program.

    Raises:
        ValueError: a tensor is missing, or is of another size.
        OSError: the file cannot be read.
    """
    tensors = load_file(path)
    if LOGPROBS not in tensors:
        raise ValueError(f"{path} has {', '.join(sorted(tensors))}, and no `{LOGPROBS}` to compare with.")
    theirs = tensors.pop(LOGPROBS).float()
    counted = tensors.pop(COMPARED, torch.ones(theirs.shape[:2])).bool()
    ours = logits(model, tensors).log_softmax(-1)
    if ours.shape != theirs.shape or counted.shape != theirs.shape[:2]:
        raise ValueError(
            f"`{LOGPROBS}` of {path} is {list(theirs.shape)}, expected {list(ours.shape)}, and `{COMPARED}` "
            f"{list(ours.shape[:2])}."
        )
    return difference([(ours[counted], theirs[counted])])


def drawn_inputs(model: Any) -> dict[str, Tensor]:
    """Regions and words that nobody saw, always the same."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(model.config.vocab_size, (IMAGES, TOKENS - 1), generator=generator)
    begin = torch.full((IMAGES, 1), model.config.decoder_start_token_id)
    features = torch.randn(IMAGES, REGIONS, model.config.region_feature_size, generator=generator)
    return {"region_features": features, "decoder_input_ids": torch.cat((begin, words), dim=1)}


@torch.no_grad()
def logits(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Logits `[B, T, V]`; attention that draws places draws the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model(**inputs).logits.float()


def difference(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """How many numbers were compared, and how far they are apart at most and on average."""
    apart = torch.cat([(ours.double() - theirs.double()).abs().flatten() for ours, theirs in pairs])
    return {"numbers": apart.numel(), "largest_difference": apart.max().item(), "mean_difference": apart.mean().item()}

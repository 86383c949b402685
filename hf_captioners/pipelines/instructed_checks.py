"""Checks of image-to-text models that were not compared with transformers, before their first caption.

A model passes if its inputs hold the image, its logits depend on it, and padding changes nothing. The result is kept
in the cache, by a digest of the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from huggingface_hub import constants

from .image_captioning import IMAGE_CAPTIONERS
from .instructed_inputs import CHAT_FAMILIES, PROMPTS, CaptionRequest, InstructedInputs, chat_template_of

# Models of transformers whose captions were compared with those of their own processors and `generate()`; other models
# need inputs or prompts that are not known.
COMPARED = (*IMAGE_CAPTIONERS, *PROMPTS, *CHAT_FAMILIES)

VERSION = 1  # of the checks, part of the digest
IMAGE_SIDE = 224
STEPS = 3  # tokens that are compared
MIN_EFFECT = 100  # difference of two images, as a multiple of that of one image run twice
SAMPLES = 16  # values of each weight in the digest
SHORT, LONG = "Describe this image.", "Describe this image in one long sentence, with all the things that it shows."


def inputs_of(model: Any, processor: Any, has_own_code: bool) -> tuple[InstructedInputs, bool]:
    """Return the `InstructedInputs` of a model, and True if its family was not compared with transformers.

    Args:
        model: an image-to-text model that does not read an image alone.
        processor: its whole processor.
        has_own_code: whether the model is code of its checkpoint, which may call itself as a family does.

    Raises:
        ValueError: the model is of another family and has no chat template, or there is no processor.
    """
    is_compared = model.config.model_type in COMPARED and not has_own_code
    if not is_compared and chat_template_of(processor) is None:
        raise ValueError(
            f"The captioner is a model of the type {model.config.model_type!r}, for which this pipeline is not "
            f"supported. Supported: captioners of hf_captioners, of transformers {', '.join(COMPARED)}, and other "
            "models with a chat template."
        )
    if processor is None:
        raise ValueError(f"A {type(model).__name__} needs its whole processor; pass `processor=`.")
    return InstructedInputs(processor, model, None if is_compared else {}), not is_compared


def require_consistent(model: Any, instructed: InstructedInputs) -> None:
    """Raise an error unless a model passes the checks; results are cached per checkpoint.

    Args:
        model: the model, on its device.
        instructed: makes its inputs.

    Raises:
        ValueError: a check fails.
    """
    path = Path(constants.HF_HOME, "hf_captioners", "checked_models", f"{digest_of(model, instructed)}.json")
    try:
        fault = json.loads(path.read_text(encoding="utf-8"))["fault"]
    except (OSError, ValueError, KeyError, TypeError):  # not checked yet, or the file is damaged
        fault = fault_of(model, instructed)
        keep_result(path, {"model_type": instructed.model_type, "fault": fault})
    if fault is not None:
        raise ValueError(
            f"{model.name_or_path} is a {instructed.model_type}, which was not compared with transformers, and fails "
            f"a check of such models: {fault}. See docs/other_models.md for those that are supported."
        )


def keep_result(path: Path, result: dict[str, Any]) -> None:
    """Store the result of a check; a cache that cannot be written only costs a repeated check."""
    partial = path.with_name(f".{path.name}-{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(result), encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)


def digest_of(model: Any, instructed: InstructedInputs) -> str:
    """Return a digest of a checkpoint: configuration, processor and some values of each weight."""
    processor = instructed.processor.to_dict() if hasattr(instructed.processor, "to_dict") else {}
    settings = [VERSION, model.config.to_dict(), processor, instructed.settings(None), str(model.dtype)]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        values = weight.detach().flatten()
        values = values[:: max(1, len(values) // SAMPLES)][:SAMPLES].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + values.numpy().tobytes())
    return digest.hexdigest()[:32]


def noise_image(seed: int) -> PIL.Image.Image:
    """Return an image of large random squares."""
    levels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return PIL.Image.fromarray(levels).resize((IMAGE_SIDE, IMAGE_SIDE), PIL.Image.Resampling.NEAREST)


def fault_of(model: Any, instructed: InstructedInputs) -> str | None:
    """Return a sentence on the first check that a model fails; None if it passes all."""
    first, second = (CaptionRequest(noise_image(seed), SHORT) for seed in (0, 1))
    longer = CaptionRequest(second.image, LONG)
    try:
        if fault := fault_of_inputs(instructed, first):
            return fault
        alone, again = (logits_of(model, instructed, [first])[0] for _ in range(2))
        second_logits = logits_of(model, instructed, [second])[0]
        padded = logits_of(model, instructed, [first, longer])[0]
    except Exception as error:  # of code that is not known
        return f"it cannot generate: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    noise, effect = difference(alone[:1], again[:1]), difference(alone[:1], second_logits[:1])
    if not effect > MIN_EFFECT * noise:
        return f"the logits of two images differ by {effect:.2g}, those of one image run twice by {noise:.2g}"
    same = (alone.argmax(-1) == padded.argmax(-1)).long().cumprod(0)  # steps are compared after the same tokens
    steps = 1 + int(same[: STEPS - 1].sum())
    limit = torch.finfo(model.dtype).eps ** 0.5 * float(alone[alone.isfinite()].abs().max())
    if (padding := difference(alone[:steps], padded[:steps])) > limit:
        return f"the logits of an image alone and beside a longer row differ by {padding:.2g}, expected {limit:.2g}"
    return None


def fault_of_inputs(instructed: InstructedInputs, request: CaptionRequest) -> str | None:
    """Return a sentence on what is wrong with the encoded inputs of an image; None if they are right."""
    ids = instructed.encode([request]).tensors.get("input_ids")
    if ids is None:
        return "its processor makes no `input_ids`"
    row, begin = ids[0].tolist(), instructed.processor.tokenizer.bos_token_id
    if instructed.placeholders and not instructed.placeholders & set(row):
        return "the processed input has no placeholder of the image"
    if begin is not None and row[:2] == [begin, begin]:
        return "the processed input has two begin tokens"
    return None


@torch.no_grad()
def logits_of(model: Any, instructed: InstructedInputs, requests: list[CaptionRequest]) -> torch.Tensor:
    """Return the logits `[B, STEPS, V]` of the first generated tokens."""
    tensors = {
        name: values.to(model.device, model.dtype) if values.is_floating_point() else values.to(model.device)
        for name, values in instructed.encode(requests).tensors.items()
    }
    length = {"max_new_tokens": STEPS, "min_new_tokens": STEPS}
    output = model.generate(
        **tensors, **length, do_sample=False, num_beams=1, return_dict_in_generate=True, output_logits=True
    )
    return torch.stack(output.logits, 1).float().cpu()


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest absolute difference of logits; entries that are infinite in both count as equal."""
    return float((first - second).nan_to_num(0.0).abs().max())

"""Diagnostics of a run besides metrics: images with captions in logging tools, and mean visual gates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from hf_captioners.processing.vocabulary import word_means

TAG = "evaluation/examples"


@dataclass(frozen=True)
class CaptionedExample:
    """One evaluation image.

    Args:
        image: RGB.
        caption: the generated caption.
        references: the reference captions.
    """

    image: Image
    caption: str
    references: Sequence[str]

    @property
    def text(self) -> str:
        """Caption and first reference in one line."""
        return f"{self.caption}  (reference: {self.references[0]})" if self.references else self.caption


def show_examples(callbacks: Iterable[Any], examples: Sequence[CaptionedExample], step: int) -> None:
    """Log examples with those of a trainer's callbacks that can show images.

    Args:
        callbacks: all callbacks of the trainer; those of transformers' integrations keep their tool in an attribute.
        examples: images with captions.
        step: the training step.
    """
    for callback in callbacks:
        if (writer := getattr(callback, "tb_writer", None)) is not None:
            for number, example in enumerate(examples):
                pixels = np.asarray(example.image.convert("RGB"))
                writer.add_image(f"{TAG}/{number}", pixels, step, dataformats="HWC")
                writer.add_text(f"{TAG}/{number}", example.text, step)
        for name in ("_wandb", "_trackio"):
            if (tool := getattr(callback, name, None)) is not None:
                images = {
                    f"{TAG}/{number}": tool.Image(example.image, caption=example.text)
                    for number, example in enumerate(examples)
                }
                tool.log({**images, "train/global_step": step})


def visual_gate_means(model: Any, outputs: Any, real: Tensor) -> list[float]:
    """Return the mean visual gate of each layer over real tokens; empty for models without visual gates.

    Args:
        model: the captioner. Its gates are visual if they have a field `visual`, or if it has visual scores.
        outputs: its outputs with gates.
        real: `[B * K, T]`, True at real tokens.
    """
    is_visual = getattr(model, "has_visual_scores", False)
    layers = getattr(outputs, "gates", None) or ()
    gates = [getattr(layer, "visual", layer if is_visual else None) for layer in layers]
    return [float(gate.detach()[real].float().mean()) for gate in gates if isinstance(gate, Tensor)]


def scored_words(model: Any, processor: Any, labels: Tensor, **images: Any) -> list[tuple[str, float]]:
    """Return the words of a caption with their visual scores.

    Args:
        model: a captioner with visual scores.
        processor: its processor.
        labels: `[1, T]`, the caption up to its end token.
        **images: model inputs of the image.
    """
    begin = model.prepare_decoder_input_ids_from_labels(labels)
    sequence = torch.cat((begin, labels[:, -1:]), dim=1)
    words, scores = word_means(processor, sequence[0].tolist(), model.visual_scores(sequence, **images)[0].tolist())
    return list(zip(words, map(float, scores), strict=True))

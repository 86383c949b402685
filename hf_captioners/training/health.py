"""Health checks of training: captions, losses and weights, and example captions for logging tools."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_captioners.loading import weight_that_is_not_finite
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.processing.vocabulary import word_means

from .collator import CaptionEncoder
from .images import CaptionedImages
from .resume import last_complete_checkpoint

logger = logging.get_logger(__name__)

EXAMPLES_TAG = "evaluation/examples"
SHOWN = 5  # captions named in a message
AT_ONCE = 1000  # captions that are encoded together


def warn_of_wordless(images: CaptionedImages) -> None:
    """Warn about captions without words, of punctuation or emoji only, from which nothing can be learned."""
    empty = [
        (row, caption)
        for row, captions in enumerate(images.captions)
        for caption in captions
        if not any(map(str.isalnum, caption))
    ]
    if empty:
        row, caption = empty[0]
        total = sum(map(len, images.captions))
        logger.warning(
            f"{len(empty):,} of {total:,} training captions have no words, only punctuation or emoji; the first is "
            f"{caption[:40]!r} of the image {images.image_ids[row]!r}. Leave them out of the data."
        )


def positions_of(model: PreTrainedModel) -> int | None:
    """Return the maximum caption length of the decoder in tokens; None if unlimited or unknown."""
    config = model.config
    for name in ("text_config", "decoder"):
        part = getattr(config, name, None)
        config = config if part is None else part
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def require_short_captions(
    images: CaptionedImages, encoder: CaptionEncoder, model: PreTrainedModel, name: str
) -> None:
    """Check that no caption is longer than the decoder's maximum length.

    Args:
        images: the images with their captions.
        encoder: encodes captions; it cuts them where `max_caption_tokens` is set.
        model: the captioner.
        name: of the data, for the message.

    Raises:
        ValueError: captions are too long. The message names the first ones.
    """
    positions = positions_of(model)
    if positions is None:
        return
    # A token stands for at least one byte, beside a few special ones: short texts need not be encoded.
    texts = [
        (row, caption)
        for row, captions in enumerate(images.captions)
        for caption in captions
        if len(caption.encode(errors="replace")) + 8 > positions
    ]
    lengths = [length for first in range(0, len(texts), AT_ONCE) for length in _lengths(texts, first, encoder)]
    long = [(length, row, text) for length, (row, text) in zip(lengths, texts, strict=True) if length > positions]
    if not long:
        return
    shown = "\n".join(
        f"  row {row}, image {images.image_ids[row]!r}: {length:,} tokens: {text[:60]!r}"
        for length, row, text in long[:SHOWN]
    )
    more = f"\n  ... and {len(long) - SHOWN:,} more" if len(long) > SHOWN else ""
    raise ValueError(
        f"{len(long):,} {name} captions have more tokens than the {positions:,} positions of the decoder:\n"
        f"{shown}{more}\nCut them with `max_caption_tokens={positions}` (or a smaller number), or leave them out."
    )


def _lengths(texts: Sequence[tuple[int, str]], first: int, encoder: CaptionEncoder) -> Sequence[int]:
    """Return the number of tokens of each caption in the next batch."""
    encoded: dict[str, Any] = encoder.encode_captions([text for _, text in texts[first : first + AT_ONCE]])
    if "attention_mask" in encoded:  # of a model that reads the begin token too
        return encoded["attention_mask"].sum(1).tolist()
    return (encoded["labels"] != IGNORED_LABEL).sum(1).tolist()


class DivergenceError(FloatingPointError):
    """The loss or the weights are not finite: training has diverged."""


def require_finite_loss(loss: float, name: str, trainer: Any) -> None:
    """Raise an error if the loss is NaN or infinite.

    Args:
        loss: its value.
        name: what it is the loss of, for the message.
        trainer: the trainer, for its step and arguments.

    Raises:
        DivergenceError: it is not finite.
    """
    if not math.isfinite(loss):
        raise DivergenceError(f"{name} is {loss}, expected a finite number. {remedy(trainer)}")


def require_targets(labels: Tensor | None, step: int) -> None:
    """Check that a batch has labels, after its loss was NaN or infinite.

    Raises:
        ValueError: all labels are ignored, so that the loss is a mean over nothing.
    """
    if labels is not None and not bool((labels != IGNORED_LABEL).any()):
        raise ValueError(
            f"All labels of a batch {list(labels.shape)} at step {step} are {IGNORED_LABEL}, which the loss ignores: "
            "expected at least one token, for example the end token. Check the data collator."
        )


def require_finite_weights(trainer: Any) -> None:
    """Check that all weights are finite before they are saved.

    Raises:
        DivergenceError: a weight is not finite.
    """
    if name := weight_that_is_not_finite(trainer.model):
        raise DivergenceError(
            f"The weight {name} is not finite at step {trainer.state.global_step}, so it is not saved. "
            f"{remedy(trainer)}"
        )


def remedy(trainer: Any) -> str:
    """Return advice after a divergence: settings to try, and the last good checkpoint.

    The weights of the current step are those that diverged, so the last good ones are of an earlier step.
    """
    args = trainer.args
    kept = last_complete_checkpoint(args.output_dir, before=trainer.state.global_step)
    where = f"The last good weights are in {kept}: start again with `model={kept}`," if kept else "Start again with"
    clip = "" if args.max_grad_norm or args.max_grad_value else ", `max_grad_norm=1`"
    precision = ", `bf16` instead of `fp16`" if args.fp16 else ""
    return (
        f"Training has diverged and stops. {where} a different `output_dir` and a lower `learning_rate` (now "
        f"{args.learning_rate:g}) or `warmup_steps`{clip}{precision}."
    )


@dataclass(frozen=True)
class CaptionedExample:
    """Evaluation image with its generated caption and references.

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
        """Generated caption and first reference on one line."""
        return f"{self.caption}  (reference: {self.references[0]})" if self.references else self.caption


def show_examples(callbacks: Iterable[Any], examples: Sequence[CaptionedExample], step: int) -> None:
    """Log example captions with their images to TensorBoard, Weights & Biases and Trackio.

    Args:
        callbacks: all callbacks of the trainer; those of transformers' integrations keep their tool in an attribute.
        examples: images with captions.
        step: the training step.
    """
    for callback in callbacks:
        if (writer := getattr(callback, "tb_writer", None)) is not None:
            for number, example in enumerate(examples):
                pixels = np.asarray(example.image.convert("RGB"))
                writer.add_image(f"{EXAMPLES_TAG}/{number}", pixels, step, dataformats="HWC")
                writer.add_text(f"{EXAMPLES_TAG}/{number}", example.text, step)
        for name in ("_wandb", "_trackio"):
            if (tool := getattr(callback, name, None)) is not None:
                images = {
                    f"{EXAMPLES_TAG}/{number}": tool.Image(example.image, caption=example.text)
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

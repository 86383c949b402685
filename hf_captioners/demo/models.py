"""Pretraining of the demonstration's vision model and language model, each without the other."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, ResNetConfig, ResNetModel

from hf_captioners.data.scene_drawing import DrawnObject
from hf_captioners.data.scene_world import COLOURS, INVERSE, MAX_COUNT, PLACES, RELATIONS, SHAPES, SIZES, Scene
from hf_captioners.data.scenes import draw_located
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor

END_TOKEN = "<|endoftext|>"
WHERE = (*PLACES, *RELATIONS, INVERSE["inside"])  # places of a group, and its relations to the other group
# Labels of a cell, and their numbers of classes.
LABELS = {
    "object": 2,
    "colour": len(COLOURS),
    "shape": len(SHAPES),
    "size": len(SIZES),
    "count": MAX_COUNT,
    "where": len(WHERE),
}
HELD_OUT = 200  # images that measure the accuracy of the vision model
BATCH = 16
SHAPE_WEIGHT = 3.0  # of the loss of shapes, which are learned last


def image_preparation(image_size: int) -> CaptioningImageProcessor:
    """Return the image processor of drawn images: no resizing, pixel values from -1 to 1."""
    return CaptioningImageProcessor(
        size={"height": image_size, "width": image_size},
        do_center_crop=False,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


class CellClassifier(nn.Module):
    """Small ResNet that classifies each cell of its last feature map by every label.

    The last stage has two blocks: with one, a cell would not see the whole image, so it could not count.
    """

    stride = 16  # pixels per cell

    def __init__(self) -> None:
        super().__init__()
        config = ResNetConfig(
            embedding_size=24, hidden_sizes=[24, 64, 128], depths=[1, 1, 2], layer_type="basic", num_channels=3
        )
        self.backbone = ResNetModel(config)
        self.heads = nn.Conv2d(128, sum(LABELS.values()), 1)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return the logits of every label, `[B, classes, rows, columns]` each."""
        logits = self.heads(self.backbone(pixel_values).last_hidden_state)
        return dict(zip(LABELS, logits.split(list(LABELS.values()), dim=1), strict=True))


def train_backbone(num_images: int, image_size: int, seed: int) -> tuple[ResNetModel, dict[str, float]]:
    """Train a vision model to classify drawn objects by their boxes, without captions.

    In each cell of its map it learns whether there is an object, its colour, shape and size, how many objects its
    group has, and where the group is: its place, or its relation to the other group.

    Args:
        num_images: images to draw; each one is seen once.
        image_size: side of the images in pixels.
        seed: seed of images and weights.

    Returns:
        The model in evaluation mode, and its accuracy on 200 held-out images by label: of all cells for `object`, and
        of cells with an object for the others.
    """
    torch.manual_seed(seed)
    drawn = draw_located(num_images + HELD_OUT, image_size, seed)
    held_out, held_out_labels = _cells_of_images(islice(drawn, HELD_OUT), image_size)
    # Convolutions of so few channels take two thirds of the time with channels last.
    model, steps = CellClassifier().to(memory_format=torch.channels_last), num_images // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        images, labels = _cells_of_images(islice(drawn, BATCH), image_size)
        loss = _loss_of_cells(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        logits = model(held_out)
    accuracy = {
        name: float(
            (logits[name].argmax(1) == held_out_labels[name])[held_out_labels[name] != IGNORED_LABEL].float().mean()
        )
        for name in LABELS
    }
    return model.backbone.to(memory_format=torch.contiguous_format), accuracy


def _loss_of_cells(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> Tensor:
    """Return the weighted sum, over labels, of the mean cross-entropy of cells."""
    losses = {name: nn.functional.cross_entropy(logits[name], labels[name]) for name in LABELS}
    return torch.stack(list(losses.values())).sum() + (SHAPE_WEIGHT - 1) * losses["shape"]


def _cells_of_images(
    drawn: Iterable[tuple[Scene, PIL.Image.Image, list[DrawnObject]]], image_size: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return drawn images `[N, 3, H, W]` and the class of each cell by label, `[N, rows, columns]` each."""
    side = -(-image_size // CellClassifier.stride)
    images, cells = [], []
    for scene, image, objects in drawn:
        images.append(image)
        cells.append(_cells_of_scene(scene, objects, side))
    pixels = image_preparation(image_size)(images, return_tensors="pt")["pixel_values"]
    labels = torch.tensor(np.stack(cells))  # [N, labels, rows, columns]
    return pixels.contiguous(memory_format=torch.channels_last), dict(zip(LABELS, labels.unbind(1), strict=True))


def _cells_of_scene(scene: Scene, objects: Sequence[DrawnObject], side: int) -> NDArray[np.int64]:
    """Return classes `[labels, side, side]` of cells whose centre an object covers, and of the object's centre cell.

    Of several objects, the smallest one counts; cells without an object have only the label `object`.
    """
    labels = np.full((len(LABELS), side, side), IGNORED_LABEL)
    labels[0] = 0
    centres = (np.arange(side) + 0.5) / side
    for drawn in sorted(objects, key=lambda drawn: drawn.box[0] - drawn.box[2]):  # the smallest one last
        left, top, right, bottom = drawn.box
        covered = ((top <= centres) & (centres <= bottom))[:, None] & ((left <= centres) & (centres <= right))
        covered[int((top + bottom) / 2 * side), int((left + right) / 2 * side)] = True
        group = scene.groups[drawn.group]
        where = WHERE.index(scene.where if drawn.group == 0 else INVERSE[scene.where])
        kind = COLOURS.index(group.colour), SHAPES.index(group.shape), SIZES.index(group.size)
        values = 1, *kind, group.count - 1, where
        labels[:, covered] = np.array(values)[:, None]
    return labels


def train_language_model(
    rows: Sequence[Sequence[str]], steps: int, seed: int, layers: int = 2, rows_per_step: int = 64
) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast, float]:
    """Train a small GPT-2 and its byte-level BPE on text.

    Args:
        rows: captions that follow one another, in the case and punctuation of the captioner. In a row of several
            captions of one scene, each one repeats what the first one says in its own words and order, so the model
            learns to look back at what was said.
        steps: optimiser steps.
        seed: seed of weights and order.
        layers: of the GPT-2.
        rows_per_step: rows in a step.

    Returns:
        Model, tokenizer, and the perplexity per token over the last 50 steps.
    """
    torch.manual_seed(seed)
    tokenizer = _train_tokenizer([text for row in rows for text in row])
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64 * max(map(len, rows)),
        n_embd=128,
        n_layer=layers,
        n_head=4,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    end = tokenizer.eos_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    losses = []
    for _ in range(steps):
        chosen = [rows[index] for index in torch.randint(len(rows), (rows_per_step,)).tolist()]
        batch = [torch.tensor([end, *_ids_of_row(row, tokenizer)]) for row in chosen]
        ids = nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=end)
        lengths = torch.tensor([len(row) for row in batch])
        padding = torch.arange(ids.shape[1])[None] >= lengths[:, None]
        loss = model(ids, labels=ids.masked_fill(padding, IGNORED_LABEL)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model.eval(), tokenizer, float(torch.tensor(losses[-50:]).mean().exp())


def _ids_of_row(row: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Encode captions to token ids, each with an end token."""
    return [
        token
        for ids in tokenizer([f" {text}" for text in row])["input_ids"]
        for token in (*ids, tokenizer.eos_token_id)
    ]


def _train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator((f" {text}" for text in texts), vocab_size=500, special_tokens=[END_TOKEN])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=END_TOKEN, eos_token=END_TOKEN, unk_token=END_TOKEN
    )

"""The vision model and the language model of the demonstration, each pretrained without the other."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, ResNetConfig, ResNetModel

from hf_captioners.data.scene_drawing import DrawnObject
from hf_captioners.data.scene_world import COLOURS, MAX_COUNT, SHAPES, SIZES, Scene
from hf_captioners.data.scenes import draw_located
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor

END_TOKEN = "<|endoftext|>"
# Labels of a cell, and their numbers of classes.
LABELS = {"object": 2, "colour": len(COLOURS), "shape": len(SHAPES), "size": len(SIZES), "count": MAX_COUNT}
HELD_OUT = 200  # images that measure the accuracy of the vision model


def image_preparation(image_size: int) -> CaptioningImageProcessor:
    """Return the image processor of drawn images: no resizing, pixel values between -1 and 1."""
    return CaptioningImageProcessor(
        size={"height": image_size, "width": image_size},
        do_center_crop=False,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


class CellClassifier(nn.Module):
    """A small ResNet with a classifier per label for each cell of its last map."""

    stride = 16  # pixels per cell

    def __init__(self) -> None:
        super().__init__()
        config = ResNetConfig(
            embedding_size=32, hidden_sizes=[32, 64, 128], depths=[1, 1, 1], layer_type="basic", num_channels=3
        )
        self.backbone = ResNetModel(config)
        self.heads = nn.ModuleDict({name: nn.Conv2d(128, count, 1) for name, count in LABELS.items()})

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Compute the logits of every label, `[B, classes, rows, columns]`."""
        features = self.backbone(pixel_values).last_hidden_state
        return {name: head(features) for name, head in self.heads.items()}


def train_backbone(num_images: int, epochs: int, image_size: int, seed: int) -> tuple[ResNetModel, dict[str, float]]:
    """Train a vision model on drawn objects with boxes, without captions.

    In each cell of its map it learns whether there is an object, its colour, shape and size, and how many objects its
    group has.

    Args:
        num_images: images to draw.
        epochs: epochs over them, in half of the batches mirrored.
        image_size: side of the images in pixels.
        seed: seed of images, weights and order.

    Returns:
        The model in evaluation mode, and its accuracy on 200 held-out images by label: of all cells for `object`, and
        of cells with an object for the others.
    """
    torch.manual_seed(seed)
    pixels, labels = _cells_of_images(num_images + HELD_OUT, image_size, seed)
    # Convolutions of so few channels take two thirds of the time with channels last.
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    model, batch_size = CellClassifier().to(memory_format=torch.channels_last), 32
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = epochs * (num_images // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for step in range(steps):
        place = step % (num_images // batch_size)
        if place == 0:
            batches = torch.randperm(num_images).split(batch_size)
        batch = batches[place]
        chosen = {name: values[batch] for name, values in labels.items()}
        images = pixels[batch]
        if torch.rand(()) < 0.5:
            images, chosen = images.flip(-1), {name: values.flip(-1) for name, values in chosen.items()}
        logits = model(images)
        loss = torch.stack([nn.functional.cross_entropy(logits[name], chosen[name]) for name in LABELS]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        logits = model(pixels[num_images:])
    known = {name: values[num_images:] for name, values in labels.items()}
    accuracy = {
        name: float((logits[name].argmax(1) == known[name])[known[name] != IGNORED_LABEL].float().mean())
        for name in LABELS
    }
    return model.backbone.to(memory_format=torch.contiguous_format), accuracy


def _cells_of_images(num_images: int, image_size: int, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Return drawn images `[N, 3, H, W]` and the labels of their cells, `[N, rows, columns]` each."""
    preparation, side = image_preparation(image_size), -(-image_size // CellClassifier.stride)
    images, cells = [], []
    for scene, image, objects in draw_located(num_images, image_size, seed):
        images.append(image)
        cells.append(_cells_of_scene(scene, objects, side))
    pixels = [preparation(images[first : first + 100], return_tensors="pt") for first in range(0, num_images, 100)]
    found = torch.tensor(np.stack(cells))  # [N, labels, rows, columns]
    return torch.cat([one["pixel_values"] for one in pixels]), dict(zip(LABELS, found.unbind(1), strict=True))


def _cells_of_scene(scene: Scene, objects: Sequence[DrawnObject], side: int) -> NDArray[np.int64]:
    """Return the labels `[labels, side, side]` of the cells whose centre an object covers, and of its own centre.

    Of several objects, the smallest one counts; cells without an object have only the label `object`.
    """
    labels = np.full((len(LABELS), side, side), IGNORED_LABEL)
    labels[0] = 0
    centres = (np.arange(side) + 0.5) / side
    for one in sorted(objects, key=lambda one: one.box[0] - one.box[2]):  # the smallest one last
        left, top, right, bottom = one.box
        covered = ((top <= centres) & (centres <= bottom))[:, None] & ((left <= centres) & (centres <= right))
        covered[int((top + bottom) / 2 * side), int((left + right) / 2 * side)] = True
        group = scene.groups[one.group]
        values = (1, COLOURS.index(group.colour), SHAPES.index(group.shape), SIZES.index(group.size), group.count - 1)
        labels[:, covered] = np.array(values)[:, None]
    return labels


def train_language_model(
    texts: Sequence[str], steps: int, seed: int, layers: int = 2
) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast, float]:
    """Train a small GPT-2 and its byte-level BPE on text.

    Args:
        texts: captions in the case and punctuation of the captioner.
        steps: optimiser steps of 64 captions.
        seed: seed of weights and order.
        layers: of the GPT-2.

    Returns:
        Model, tokenizer, and the perplexity per token over the last 50 steps.
    """
    torch.manual_seed(seed)
    tokenizer = _train_tokenizer(texts)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
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
    rows = [[end, *ids, end] for ids in tokenizer([f" {text}" for text in texts])["input_ids"]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    losses = []
    for _ in range(steps):
        batch = [torch.tensor(rows[index]) for index in torch.randint(len(rows), (64,)).tolist()]
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


def _train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator((f" {text}" for text in texts), vocab_size=500, special_tokens=[END_TOKEN])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=END_TOKEN, eos_token=END_TOKEN, unk_token=END_TOKEN
    )

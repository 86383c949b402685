"""The vision model and the language model of the demonstration, each pretrained without the other."""

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, ResNetConfig, ResNetModel

from hf_captioners.data.scenes import draw_labelled
from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor

END_TOKEN = "<|endoftext|>"
LABELS = ("colour", "shape", "size", "count")


def image_preparation(image_size: int) -> CaptioningImageProcessor:
    """Return the image processor of drawn images: no resizing, pixel values between -1 and 1."""
    return CaptioningImageProcessor(
        size={"height": image_size, "width": image_size},
        do_center_crop=False,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


class LabelClassifier(nn.Module):
    """A small ResNet with one classifier per label."""

    def __init__(self, classes: dict[str, int]) -> None:
        super().__init__()
        config = ResNetConfig(
            embedding_size=32, hidden_sizes=[32, 64, 128], depths=[1, 1, 1], layer_type="basic", num_channels=3
        )
        self.backbone = ResNetModel(config)
        self.heads = nn.ModuleDict({name: nn.Linear(128, count) for name, count in classes.items()})

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Compute the logits of every label, `[B, classes]`."""
        pooled = self.backbone(pixel_values).pooler_output.flatten(1)
        return {name: head(pooled) for name, head in self.heads.items()}


def train_backbone(num_images: int, epochs: int, image_size: int, seed: int) -> tuple[ResNetModel, dict[str, float]]:
    """Train a vision model to classify colour, shape, size and count of drawn objects, without captions.

    Args:
        num_images: labelled images to draw.
        epochs: epochs over them.
        image_size: side of the images in pixels.
        seed: seed of images, weights and order.

    Returns:
        The model in evaluation mode, and its accuracy on 200 held-out images by label.
    """
    torch.manual_seed(seed)
    rows = draw_labelled(num_images + 200, image_size=image_size, seed=seed)
    pixels, labels = _tensors(rows, image_preparation(image_size))
    model = LabelClassifier({name: int(values.max()) + 1 for name, values in labels.items()})
    batch_size = 64
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    steps = epochs * (num_images // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(num_images)[: num_images // batch_size * batch_size].split(batch_size):
            logits = model(pixels[batch])
            losses = [nn.functional.cross_entropy(logits[name], labels[name][batch]) for name in LABELS]
            loss = torch.stack(losses).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        logits = model(pixels[num_images:])
    accuracy = {name: float((logits[name].argmax(-1) == labels[name][num_images:]).float().mean()) for name in LABELS}
    return model.backbone, accuracy


def _tensors(rows: Dataset, preparation: Any) -> tuple[Tensor, dict[str, Tensor]]:
    pixels = torch.cat(
        [
            preparation(rows[start : start + 100]["image"], return_tensors="pt")["pixel_values"]
            for start in range(0, len(rows), 100)
        ]
    )
    return pixels, {name: torch.tensor(rows[name]) for name in LABELS}


def train_language_model(
    texts: Sequence[str], steps: int, seed: int
) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast, float]:
    """Train a small GPT-2 and its byte-level BPE on text.

    Args:
        texts: captions in the case and punctuation of the captioner.
        steps: optimiser steps of 64 captions.
        seed: seed of weights and order.

    Returns:
        Model, tokenizer, and the perplexity per token over the last 50 steps.
    """
    torch.manual_seed(seed)
    tokenizer = _train_tokenizer(texts)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=128,
        n_layer=4,
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

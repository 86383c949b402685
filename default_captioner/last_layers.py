"""Train the last layers of the vision model together with the decoder, by cross-entropy and then by rewards.

The first layers stay as they are: their activations for several views of each photograph are computed once, so that a
step takes a third of the time of one from pixels.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn

from hf_captioners.loading import load_captioner
from hf_captioners.metrics import CiderD, PTBTokenizer
from hf_captioners.training.scst.loss import sample_baseline, self_critical_loss

FIRST_BLOCKS = 7  # of the 16 blocks of MobileNetV2; the map after them has 18 x 18 cells for 288 pixels
VIEWS = 8  # as it is, mirrored, and six crops; every other view is mirrored
SIDES = {"left": "right", "right": "left"}
BATCH_OF_EVALUATION = 50


@dataclass(frozen=True)
class Part:
    """Part of the training.

    Args:
        steps: optimiser steps over which the learning rates fall to 0, with rewards to 5 %.
        last_step: the step after which the part ends.
        learning_rate: of the decoder.
        vision_learning_rate: of the last layers of the vision model.
        images: images in a batch, all of them different views.
        captions: captions of an image in a step, references or samples.
        average: decay of the moving average of the weights, which is what is evaluated and kept.
        evaluate_every: steps between evaluations.
        warm_up: steps in which the learning rates rise.
        seed: of order, captions and dropout.
        rewards: CIDEr-D of samples instead of cross-entropy.
    """

    steps: int
    last_step: int
    learning_rate: float
    vision_learning_rate: float
    images: int
    captions: int
    average: float
    evaluate_every: int
    warm_up: int
    seed: int
    rewards: bool


CROSS_ENTROPY = Part(
    steps=1500,
    last_step=1500,
    learning_rate=4e-4,
    vision_learning_rate=1.5e-4,
    images=32,
    captions=2,
    average=0.998,
    evaluate_every=300,
    warm_up=100,
    seed=1,
    rewards=False,
)
REWARDED = Part(
    steps=1600,
    last_step=600,
    learning_rate=1e-4,
    vision_learning_rate=2e-5,
    images=16,
    captions=5,
    average=0.995,
    evaluate_every=200,
    warm_up=20,
    seed=11,
    rewards=True,
)
LABEL_SMOOTHING = 0.1


def vision_model(captioner: Any) -> Any:
    """Return the MobileNetV2 of a captioner."""
    return captioner.get_encoder().vision.model


def last_layers(vision: Any) -> list[nn.Module]:
    """Return the layers that are trained."""
    return [*vision.layer[FIRST_BLOCKS:], vision.conv_1x1]


def views_of(path: Path, number: int) -> list[Image.Image]:
    """Return the views of a photograph: itself, mirrored, then crops in changed light, every other one mirrored."""
    chance = random.Random(number)
    with Image.open(path) as file:
        image = file.convert("RGB")
    crops = [changed(image, chance) for _ in range(VIEWS - 2)]
    return [image, ImageOps.mirror(image), *(ImageOps.mirror(one) if n % 2 else one for n, one in enumerate(crops))]


def changed(image: Image.Image, chance: random.Random) -> Image.Image:
    """Return a random part of an image with changed brightness, contrast and colour."""
    share, ratio = chance.uniform(0.7, 0.95), chance.uniform(0.92, 1.08)
    width = min(image.width, int(image.width * share * ratio))
    height = min(image.height, int(image.height * share / ratio))
    left, top = chance.randint(0, image.width - width), chance.randint(0, image.height - height)
    part = image.crop((left, top, left + width, top + height))
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        part = change(part).enhance(chance.uniform(0.8, 1.2))
    return part


def other_side(match: re.Match[str]) -> str:
    """Return `right` for `left`, and the reverse."""
    return SIDES[match[0]]


def mirrored(caption: str) -> str:
    """Return the caption of a mirrored image."""
    return re.sub(r"\b(left|right)\b", other_side, caption)


def rows_of(data_dir: Path, split: str) -> list[dict[str, Any]]:
    """Return the rows of a split."""
    return [json.loads(line) for line in (data_dir / split / "metadata.jsonl").read_text().splitlines()]


def store_activations(captioner: Path, data_dir: Path, folder: Path, workers: int = 2) -> None:
    """Store what the first layers give for every view of the training photographs, and for those of validation.

    Training views are computed in bfloat16, whose errors are small beside the changes of the views.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, views in (("validation", 1), ("train", VIEWS)):
        rows, done = rows_of(data_dir, split), folder / f"{split}.done"
        if done.exists():
            continue
        shape = (len(rows), views, 64, 18, 18)
        np.lib.format.open_memmap(folder / f"{split}.npy", "w+", np.float16, shape).flush()
        with ProcessPoolExecutor(workers) as pool:
            compute = partial(store_part, captioner, data_dir, folder, split, workers)
            list(pool.map(compute, range(workers)))
        done.touch()


@torch.no_grad()
def store_part(captioner: Path, data_dir: Path, folder: Path, split: str, parts: int, part: int) -> None:
    """Store the activations of every `parts`-th photograph."""
    torch.set_num_threads(1)
    model, processor = load_captioner(captioner)
    vision = vision_model(model.eval()).to(memory_format=torch.channels_last)
    stored = np.lib.format.open_memmap(folder / f"{split}.npy", "r+")
    for number, row in enumerate(rows_of(data_dir, split)):
        if number % parts != part:
            continue
        path = data_dir / split / row["file_name"]
        images = views_of(path, number) if split == "train" else [Image.open(path)]
        pixels = processor.image_processor(images, return_tensors="pt")["pixel_values"]
        with torch.autocast("cpu", torch.bfloat16, enabled=split == "train"):
            states = vision.conv_stem(pixels.contiguous(memory_format=torch.channels_last))
            for block in vision.layer[:FIRST_BLOCKS]:
                states = block(states)
        stored[number] = states.half().numpy()
    stored.flush()


class Captioned:
    """Photographs with captions, as activations of the first layers.

    Args:
        data_dir: folder of the data set.
        folder: see `store_activations`.
        split: `train` or `validation`.
    """

    def __init__(self, data_dir: Path, folder: Path, split: str) -> None:
        self.activations = np.load(folder / f"{split}.npy", mmap_mode="r")
        self.captions = [row["captions"] for row in rows_of(data_dir, split)]
        tokenize = PTBTokenizer()
        plain = [tokenize(texts) for texts in self.captions]
        turned = [tokenize([mirrored(text) for text in texts]) for texts in self.captions]
        self.tokenize = tokenize
        self.scorers = [CiderD(plain)]
        self.scorers.append(CiderD(turned, self.scorers[0].document_frequency))

    def batches(self, images: int, generator: np.random.Generator) -> Iterator[list[tuple[int, int]]]:
        """Yield pairs of photograph and view without end, each pair once in a pass."""
        count, views = self.activations.shape[:2]
        while True:
            order = generator.permutation(count * views)
            for first in range(0, len(order) - images + 1, images):
                yield [divmod(int(one), views) for one in np.sort(order[first : first + images])]

    def regions(self, captioner: Any, chosen: Sequence[tuple[int, int]]) -> Tensor:
        """Compute the region features `[B, R, D]` of chosen views."""
        states = torch.from_numpy(np.stack([self.activations[pair] for pair in chosen])).float()
        states = states.contiguous(memory_format=torch.channels_last)
        for layer in last_layers(vision_model(captioner)):
            states = layer(states)
        cells = nn.functional.adaptive_avg_pool2d(states, captioner.config.vision_grid_size)
        return cells.flatten(2).transpose(1, 2)

    def texts(self, chosen: Sequence[tuple[int, int]], each: int, generator: np.random.Generator) -> list[str]:
        """Return random captions of chosen views."""
        found = []
        for number, view in chosen:
            for one in generator.permutation(len(self.captions[number]))[:each]:
                text = self.captions[number][one]
                found.append(mirrored(text) if view % 2 else text)
        return found

    def rewards(self, samples: Sequence[str], chosen: Sequence[tuple[int, int]], each: int) -> Tensor:
        """Compute the CIDEr-D `[B, K]` of K consecutive samples of each chosen view."""
        scores, words = np.zeros(len(samples)), self.tokenize(samples)
        for side, scorer in enumerate(self.scorers):
            places = [place for place in range(len(words)) if chosen[place // each][1] % 2 == side]
            if places:
                images = [chosen[place // each][0] for place in places]
                scores[places] = scorer.score([words[place] for place in places], images=images)
        return torch.tensor(scores, dtype=torch.float32).view(-1, each)


def cross_entropy(captioner: Any, processor: Any, data: Captioned, part: Part, chosen: Any, generator: Any) -> Tensor:
    """Compute the loss of a batch with reference captions."""
    labels = processor(text_target=data.texts(chosen, part.captions, generator), max_length=24, return_tensors="pt")
    loss: Tensor = captioner(region_features=data.regions(captioner, chosen), **labels).loss
    return loss


def rewarded(captioner: Any, processor: Any, data: Captioned, part: Part, chosen: Any, generator: Any) -> Tensor:
    """Compute the self-critical loss of a batch: the beams of each view, against the mean reward of the others."""
    regions, config, number = data.regions(captioner, chosen), captioner.config, part.captions
    with torch.no_grad():
        found = captioner.generate(region_features=regions.detach(), num_beams=number, num_return_sequences=number)
    captioner.train()
    tokens = found[:, 1:]  # without the begin token
    rewards = data.rewards(processor.batch_decode(tokens, skip_special_tokens=True), chosen, number)
    ends = tokens == config.eos_token_id
    real = (ends.cumsum(1) - ends.long() == 0) & (tokens != config.pad_token_id)
    logits = captioner(region_features=regions, decoder_input_ids=found[:, :-1]).logits.float()
    logprobs = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    shape = (len(chosen), number, -1)
    advantages = rewards - sample_baseline("leave_one_out", rewards)
    return self_critical_loss(logprobs.view(shape), real.view(shape), advantages, None)


@torch.no_grad()
def evaluate(captioner: Any, processor: Any, data: Captioned) -> float:
    """Compute the CIDEr-D of captions of beam 5."""
    captioner.eval()
    captions: list[str] = []
    for first in range(0, len(data.captions), BATCH_OF_EVALUATION):
        numbers = range(first, min(first + BATCH_OF_EVALUATION, len(data.captions)))
        regions = data.regions(captioner, [(number, 0) for number in numbers])
        captions += processor.batch_decode(
            captioner.generate(region_features=regions, num_beams=5), skip_special_tokens=True
        )
    return float(data.scorers[0].score(data.tokenize(captions), images=range(len(captions))).mean())


def train_part(start: Path, output: Path, data_dir: Path, folder: Path, part: Part) -> list[Path]:
    """Train a captioner further.

    Args:
        start: the captioner.
        output: folder for the moving averages of the weights at every evaluation, named by their step.
        data_dir: folder of the data set.
        folder: see `store_activations`.
        part: what is done.

    Returns:
        The folders in `output`, that with the highest CIDEr-D on the validation photographs first.
    """
    torch.manual_seed(part.seed)
    generator = np.random.default_rng(part.seed)
    captioner, processor = load_captioner(start)
    data, validation = Captioned(data_dir, folder, "train"), Captioned(data_dir, folder, "validation")
    vision, loss_of = vision_model(captioner), rewarded if part.rewards else cross_entropy
    captioner.requires_grad_(True)
    vision.requires_grad_(False)
    of_vision = [weight for layer in last_layers(vision) for weight in layer.requires_grad_(True).parameters()]
    of_decoder = [weight for name, weight in captioner.named_parameters() if ".vision." not in name]
    groups = [
        {"params": of_decoder, "lr": part.learning_rate},
        {"params": of_vision, "lr": part.vision_learning_rate},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99 if part.rewards else 0.999), weight_decay=0.0, fused=True)
    lowest = 0.05 if part.rewards else 0.0
    factor: Callable[[int], float] = lambda step: (  # noqa: E731
        min(1, (step + 1) / part.warm_up) * max(lowest, 1 - step / part.steps)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    weights = of_decoder + of_vision
    averages = [weight.detach().clone() for weight in weights]
    captioner.config.label_smoothing = 0.0 if part.rewards else LABEL_SMOOTHING
    scores: dict[Path, float] = {}
    started = time.time()
    for step, chosen in zip(range(1, part.last_step + 1), data.batches(part.images, generator), strict=False):
        captioner.train()
        vision.eval()
        loss = loss_of(captioner, processor, data, part, chosen, generator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in (of_decoder, of_vision):
            nn.utils.clip_grad_norm_(group, 1.0)
        optimizer.step()
        schedule.step()
        kept = min(part.average, step / (step + 10))
        torch._foreach_lerp_(averages, [weight.detach() for weight in weights], 1 - kept)
        if step % part.evaluate_every == 0 or step == part.last_step:
            trained = [weight.detach().clone() for weight in weights]
            exchange(weights, averages)
            place = output / str(step)
            score = scores[place] = evaluate(captioner, processor, validation)
            print(f"step {step}: CIDEr-D {score:.4f}, {(time.time() - started) / step:.2f} s a step", flush=True)
            smoothing, captioner.config.label_smoothing = captioner.config.label_smoothing, 0.0
            captioner.save_pretrained(place)
            processor.save_pretrained(place)
            captioner.config.label_smoothing = smoothing
            exchange(weights, trained)
    return sorted(scores, key=scores.__getitem__, reverse=True)


@torch.no_grad()
def exchange(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give weights these values."""
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)

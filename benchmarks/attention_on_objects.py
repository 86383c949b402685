"""Measure how much attention, and relevance, lies on the drawn object that a word names, for each architecture.

    python benchmarks/attention_on_objects.py --architectures transformer aoanet

A small captioner is trained on drawn scenes. Then captions of other scenes are explained (`explain_caption`), and the
attention of every noun is compared with the pixels of the object that it names, which are known; so is its relevance
(attention times gradient). Three figures are chance: even attention to all regions; the same attention over the
objects of other scenes; and, in scenes with two groups of objects, the share of the other group. Results are added to
`benchmarks/results/attention_on_objects.json`, so that the architectures may be measured one by one.
"""

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from PIL import Image
from provenance import records_of, write_results
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetModel

from hf_captioners.data.scene_captions import PLURALS, SHAPE_WORDS
from hf_captioners.data.scene_drawing import PAINT
from hf_captioners.data.scene_world import COLOURS, Scene
from hf_captioners.data.scenes import caption_texts, draw_example, draw_labelled
from hf_captioners.demo.models import image_preparation, train_language_model
from hf_captioners.explain.explanation import explain_caption
from hf_captioners.training.starting import ModelArguments, start_captioner

SIDE = 64
LABELS = ("colour", "shape", "size", "count")
TRANSFORMER = "hidden_size=128 num_attention_heads=4 ffn_dim=256 encoder_layers=1 decoder_layers=2"
ATTENTION_LSTM = "embedding_size=128 hidden_size=128 num_heads=4"
FIELDS = {
    "transformer": TRANSFORMER,
    "m2_transformer": TRANSFORMER.replace("encoder_layers=1", "encoder_layers=2"),
    "zodiac": TRANSFORMER,
    "eta": TRANSFORMER + " fusion=visual_only",  # attributes would name the objects without a look at the regions
    "aoanet": ATTENTION_LSTM + " refiner_layers=1",
    "zodiac_aoanet": ATTENTION_LSTM + " refiner_layers=1",
    "image_transformer": ATTENTION_LSTM + " encoder_layers=1 vision_grid_size=[1,2,8]",
    "show_attend_tell": "embedding_size=128 hidden_size=128 attention_size=128",
    "visualgpt": "encoder_layers=1",
    "aoa_transformer": "encoder_layers=1",
}
NOUNS = {
    form: shape
    for shape, words in SHAPE_WORDS.items()
    for word in words
    for form in (word, PLURALS.get(word, f"{word}s"))
}
NOUNS["plus"] = "cross"  # plus sign


class LabelClassifier(nn.Module):
    """Small ResNet with one classifier per label (colour, shape, size, count)."""

    def __init__(self, classes: dict[str, int]) -> None:
        super().__init__()
        config = ResNetConfig(
            embedding_size=32, hidden_sizes=[32, 64, 128], depths=[1, 1, 1], layer_type="basic", num_channels=3
        )
        self.backbone = ResNetModel(config)
        self.heads = nn.ModuleDict({name: nn.Linear(128, count) for name, count in classes.items()})

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return the logits of every label, `[B, classes]` each."""
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


def object_pixels(scene: Scene, image: Image.Image, group: int) -> NDArray[np.bool_]:
    """Return a mask `[H, W]` of the pixels of an object group, by its colour."""
    pixels = np.asarray(image, dtype=float)
    colours = [PAINT[scene.background], *(PAINT[painted.colour] for painted in scene.groups)]
    distances = [np.linalg.norm(pixels - np.array(colour), axis=-1) for colour in colours]
    return np.argmin(distances, axis=0) == 1 + group


def shares(pixels: NDArray[np.bool_], boxes: NDArray[Any]) -> NDArray[np.floating[Any]]:
    """Return the fraction `[R]` of each region's area that these pixels cover."""
    corners = (boxes * np.array([*pixels.shape[::-1], *pixels.shape[::-1]])).round().astype(int)
    return np.array([pixels[top:bottom, left:right].mean() for left, top, right, bottom in corners])


def named_groups(words: list[str], scene: Scene) -> list[tuple[int, int]]:
    """Return (word number, object group number) of each noun in a caption."""
    nouns = []
    for index in range(1, len(words)):
        colour, noun = words[index - 1].strip("."), words[index].strip(".")
        if colour in COLOURS and noun in NOUNS:
            groups = [(group.colour, group.shape) for group in scene.groups]
            nouns.append((index, groups.index((colour, NOUNS[noun]))))
    return nouns


def start(name: str, folder: Path, seed: int, captions: list[str]) -> tuple[Any, Any]:
    """Build an untrained captioner of an architecture over the pretrained backbone (and language model)."""
    parts: dict[str, Any] = {"vision_model": str(folder / "backbone"), "image_size": SIDE}
    if name in ("visualgpt", "aoa_transformer"):
        parts["language_model"] = str(folder / "language_model")
    else:
        parts["min_word_count"] = 1
    fields = ["vision_feature_layer=-2", *FIELDS[name].split()]
    torch.manual_seed(seed)
    return start_captioner(ModelArguments(architecture=name, model_config=fields, **parts), captions)


def write_backbone(folder: Path, seed: int, quick: bool) -> dict[str, float]:
    """Train and save the backbone; return its accuracy by label."""
    backbone, accuracy = train_backbone(200 if quick else 1500, 1 if quick else 8, SIDE, seed)
    image_preparation(SIDE).save_pretrained(folder / "backbone")
    backbone.save_pretrained(folder / "backbone")
    return {name: round(share, 3) for name, share in accuracy.items()}


def write_language_model(folder: Path, seed: int, quick: bool) -> None:
    """Train and save the language model of the architectures that start from one."""
    texts = [" ".join(text.lower().split()).rstrip(".") for text in caption_texts(100 if quick else 2000, seed)]
    model, tokenizer, _ = train_language_model([[text] for text in texts], 5 if quick else 100, seed, layers=4)
    tokenizer.save_pretrained(folder / "language_model")
    model.save_pretrained(folder / "language_model")


def train(model: Any, processor: Any, examples: list[Any], steps: int, seed: int) -> float:
    """Train the captioner over its frozen backbone; return the mean loss of the last 20 steps."""
    rng, model_inputs = random.Random(seed), []
    with torch.no_grad():
        for first in range(0, len(examples), 100):
            images = [image for _, image, _ in examples[first : first + 100]]
            model_inputs.append(model.get_region_features(**processor(images=images, return_tensors="pt")))
    regions = {
        name: torch.cat([inputs[name] for inputs in model_inputs])
        for name in ("region_features", "region_boxes", "region_mask")
    }
    model.train()
    parameters = [parameter for name, parameter in model.named_parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps)
    losses = []
    for _ in range(steps):
        batch = rng.sample(range(len(examples)), 32)
        texts = [rng.choice(examples[index][2]) for index in batch]
        labels = processor(text_target=texts, return_tensors="pt")["labels"]
        loss = model(**{name: tensor[batch] for name, tensor in regions.items()}, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return float(np.mean(losses[-20:]))


def measure(model: Any, processor: Any, examples: list[Any], seed: int, method: str) -> dict[str, Any]:
    """Measure how much attention (or relevance, by `method`) lies on the object that each noun names.

    A noun without relevance, which no region makes more probable, counts as nothing on any object.
    """
    by_image, maps, covers = [], [], []
    started = time.process_time()
    for scene, image, captions in examples:
        explanation = explain_caption(model, processor, image, captions[0], method=method)
        words = [word.lower() for word in explanation.words]
        covered = [shares(object_pixels(scene, image, group), explanation.boxes) for group in range(len(scene.groups))]
        rows = []
        for word, group in named_groups(words, scene):
            weights, others = explanation.maps[word], [draw for index, draw in enumerate(covered) if index != group]
            rows.append(
                {
                    "on": float(weights @ covered[group]),
                    "even": float(covered[group].mean()),
                    "strongest": bool(weights.max() > 0 and covered[group][weights.argmax()] > 0),
                    "strongest_even": float((covered[group] > 0).mean()),
                    "other": float(weights @ others[0]) if others else None,
                    "other_even": float(others[0].mean()) if others else None,
                }
            )
            maps.append(weights)
            covers.append(covered[group])
        if rows:
            by_image.append(rows)
    shuffled = float(np.mean([weights @ covers[index - 1] for index, weights in enumerate(maps)]))
    rng = np.random.default_rng(seed)
    draws = [figures([by_image[i] for i in rng.integers(0, len(by_image), len(by_image))]) for _ in range(1000)]
    result = figures(by_image)
    for name in ("times_even", "named_of_both"):
        result[f"{name}_interval"] = [
            round(float(q), 3) for q in np.quantile([draw[name] for draw in draws], [0.025, 0.975])
        ]
    empty = sum(weights.sum() == 0 for weights in maps)
    seconds = round((time.process_time() - started) / len(examples), 3)
    also = {"on_other_scene": round(shuffled, 4), "empty": int(empty), "seconds_an_image": seconds}
    return {"images": len(by_image), "nouns": len(maps), **result, **also}


def figures(by_image: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Average the measurements of nouns over images."""
    rows = [row for rows in by_image for row in rows]
    mean = {
        name: float(np.mean([row[name] for row in rows])) for name in ("on", "even", "strongest", "strongest_even")
    }
    both = [row for row in rows if row["other"] is not None]
    named, other = (sum(row[name] for row in both) for name in ("on", "other"))
    named_even, other_even = (sum(row[name] for row in both) for name in ("even", "other_even"))
    return {
        **{name: round(value, 4) for name, value in mean.items()},
        "times_even": round(mean["on"] / mean["even"], 3),
        "named_of_both": round(named / (named + other), 3) if both else 0.0,
        "named_of_both_even": round(named_even / (named_even + other_even), 3) if both else 0.0,
    }


def usable(scene: Scene) -> bool:
    """Return True if the object groups of a scene have different colours."""
    return len({group.colour for group in scene.groups}) == len(scene.groups)


def main() -> None:
    """Train and measure all architectures, and add them to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", nargs="+", default=list(FIELDS), choices=list(FIELDS))
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--train_images", type=int, default=400)
    parser.add_argument("--images", type=int, default=60, help="other scenes whose captions are explained")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", type=Path, help="folder of the backbone and the language model, trained if missing")
    parser.add_argument("--quick", action="store_true", help="a trial without meaning")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "attention_on_objects.json")
    args = parser.parse_args()
    results = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"runs": {}}
    with tempfile.TemporaryDirectory() as temporary:
        parts = args.parts or Path(temporary)
        if not (parts / "backbone" / "config.json").exists():
            results["backbone_accuracy"] = write_backbone(parts, args.seed, args.quick)
        if {"visualgpt", "aoa_transformer"} & {*args.architectures} and not (parts / "language_model").exists():
            write_language_model(parts, args.seed, args.quick)
        examples = [draw_example(args.seed, index, "train", SIDE) for index in range(args.train_images)]
        tests = (draw_example(args.seed, index, "test", SIDE) for index in range(10 * args.images))
        chosen = [example for example in tests if usable(example[0])][: args.images]
        captions = [caption for _, _, texts in examples for caption in texts]
        for name in args.architectures:
            started = time.process_time()
            model, processor = start(name, parts, args.seed, captions)
            model.set_attn_implementation("eager")
            loss = train(model, processor, examples, args.steps, args.seed)
            trained = time.process_time()
            run = {"loss": round(loss, 3), **measure(model, processor, chosen, args.seed, "attention")}
            run["relevance"] = measure(model, processor, chosen, args.seed, "relevance")
            run |= {"steps": args.steps, "train_images": args.train_images, "seed": args.seed}
            run |= {
                "training_cpu_seconds": round(trained - started),
                "regions": len(regions_of(model, processor, chosen)),
            }
            results["runs"][name] = run
            print(name, json.dumps(run), f"{time.process_time() - trained:.0f} s for the measurement", flush=True)
            results["hardware"] = f"{os.cpu_count()} CPU cores"
            write_results(args.output, results, records_of(args.output))


def regions_of(model: Any, processor: Any, examples: list[Any]) -> Any:
    """Compute the regions of the first image."""
    with torch.no_grad():
        return model.get_region_features(**processor(images=examples[0][1], return_tensors="pt")).region_boxes[0]


if __name__ == "__main__":
    main()

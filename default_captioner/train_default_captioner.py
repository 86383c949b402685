"""Train the default captioner, and make its folder.

The files of `recipe` are followed in their order, on changed images: cross-entropy twice, then rewards. From what the
second one ends with, the last layers of the vision model are trained with the decoder, too, by cross-entropy and then
by rewards (`last_layers.py`). The mean of the weights of both ways is the captioner: it is better than either.

    python default_captioner/train_default_captioner.py --data_dir FLICKR8K --vision_model MOBILENETV2 \\
        --output_dir runs/default --frozen docs/photo.jpg

Several hours on two CPU cores. Killed, it goes on when the command is typed again: in the recipe from the last
checkpoint, after it from the last part that has ended.
"""

import argparse
import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from last_layers import CROSS_ENTROPY, REWARDED, Part, mirrored, store_activations, train_part
from make_default_captioner import add_output_arguments, finish, make
from PIL import Image, ImageOps

from hf_captioners.cli import main as command
from hf_captioners.loading import load_captioner

CROPPED = (0.75, 0.92)  # smallest and largest share of each side that a crop keeps
RECIPE = Path(__file__).parent / "recipe"
BEST = 2  # evaluations of the last part whose weights are averaged


def train(folder: Path, *arguments: str | Path) -> Path:
    """Run `hf-captioners train`, resumed if it was killed; nothing is done where it has ended.

    Raises:
        SystemExit: the training failed.
    """
    resume = ["--resume"] if folder.exists() else []
    typed = ["train", *map(str, arguments), "--output_dir", str(folder), *resume]
    print("hf-captioners", *typed, flush=True)
    if status := command(typed):
        raise SystemExit(status)
    return folder


def change_images(source: Path, target: Path) -> Path:
    """Write each training image as it is, mirrored, cropped, and cropped and mirrored; validation stays as it is.

    `left` and `right` change places in the captions of mirrored images.
    """
    if (target / "train" / "metadata.jsonl").exists():
        return target
    for split in ("train", "validation"):
        (target / split).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as workers:
        rows = [json.loads(line) for line in (source / "train" / "metadata.jsonl").read_text().splitlines()]
        changed = workers.map(partial(forms_of, source / "train", target / "train"), enumerate(rows), chunksize=100)
        lines = [json.dumps(row) for forms in changed for row in forms]
    for row in map(json.loads, (source / "validation" / "metadata.jsonl").read_text().splitlines()):
        link(source / "validation" / row["file_name"], target / "validation" / row["file_name"])
    (target / "validation" / "metadata.jsonl").write_text((source / "validation" / "metadata.jsonl").read_text())
    (target / "train" / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return target


def forms_of(source: Path, target: Path, numbered: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Write the forms of one image and return their rows."""
    number, row = numbered
    chance, stem = random.Random(number), Path(row["file_name"]).stem
    image = Image.open(source / row["file_name"]).convert("RGB")
    captions, turned = row["captions"], [mirrored(text) for text in row["captions"]]
    forms = {"m": ImageOps.mirror(image), "c": crop(image, chance), "mc": ImageOps.mirror(crop(image, chance))}
    for name, form in forms.items():
        form.save(target / f"{stem}_{name}.jpg", quality=95)
    link(source / row["file_name"], target / row["file_name"])
    rows = [{"file_name": f"{stem}_{name}.jpg", "captions": turned if "m" in name else captions} for name in forms]
    return [*rows, {"file_name": row["file_name"], "captions": captions}]


def crop(image: Image.Image, chance: random.Random) -> Image.Image:
    """Return a random part of an image."""
    share = chance.uniform(*CROPPED)
    width, height = (int(side * share) for side in image.size)
    left, top = chance.randint(0, image.width - width), chance.randint(0, image.height - height)
    return image.crop((left, top, left + width, top + height))


def link(source: Path, target: Path) -> None:
    """Make a symbolic link, unless it is there."""
    if not target.exists():
        target.symlink_to(source.resolve())


def train_layers(start: Path, folder: Path, images: Path, activations: Path, part: Part) -> list[Path]:
    """Train a part of `last_layers.py`, unless it has ended; return its checkpoints, the best one first."""
    ended = folder.with_suffix(".json")
    if not ended.exists():
        found = train_part(start, folder, images, activations, part)
        ended.write_text(json.dumps([str(one) for one in found]) + "\n")
    return [Path(one) for one in json.loads(ended.read_text())]


@torch.no_grad()
def average(folders: Sequence[Path], output: Path) -> Path:
    """Write a captioner whose weights are the mean of those of captioners that were trained from the same one.

    Source: Wortsman et al., ICML 2022, "Model soups", a uniform soup.
    """
    captioner, processor = load_captioner(folders[0])
    states = [load_captioner(folder)[0].state_dict() for folder in folders]
    for name, weight in captioner.state_dict().items():
        if weight.is_floating_point():
            weight.copy_(torch.stack([state[name].double() for state in states]).mean(0))
    captioner.save_pretrained(output)
    processor.save_pretrained(output)
    return output


def main(argv: Sequence[str] | None = None) -> None:
    """Train by the parts of the recipe, one after the other, and make the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="Flickr8k: train/ and validation/ with captions")
    parser.add_argument("--vision_model", required=True, help="an ImageNet-trained MobileNetV2")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the trainings")
    add_output_arguments(parser)
    args = parser.parse_args(argv)
    place: Path = args.output_dir
    images = change_images(args.data_dir, place / "images")
    start = ["--vision_model", args.vision_model]
    for part in sorted(RECIPE.glob("*.yaml")):
        options = ["--train_dir", images, "--feature_cache_dir", place / "features", "--use_cpu"]
        start = ["--model", train(place / part.stem, part, *start, *options)]
    activations = place / "activations"
    store_activations(place / "2_second", args.data_dir, activations)

    chosen = sorted((place / "3_rewards").glob("checkpoint-*"))
    layers = partial(train_layers, images=args.data_dir, activations=activations)
    layers(place / "2_second", place / "4_cross_entropy", part=CROSS_ENTROPY)
    last = place / "4_cross_entropy" / str(CROSS_ENTROPY.last_step)
    chosen += layers(last, place / "5_rewards", part=REWARDED)[:BEST]
    mean = average(chosen, place / "6_mean")
    print(json.dumps(make(str(mean), args.output, str(args.data_dir)), indent=2))
    finish(args)


if __name__ == "__main__":
    main()

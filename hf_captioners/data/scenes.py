"""`scenes`: images drawn by code, with five captions each; no download and no third-party rights.

Objects of six shapes in six colours and two sizes form one group at a place of the image, or two groups in a
relation. A model that ignores the image scores badly, because nearly all images differ. The content of an image
determines its split for every seed, so no caption of an evaluation image occurs in training or in `caption_texts`.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import PIL.Image
from datasets import ClassLabel, Dataset, Features, Image, List, Value

from .reader import Annotations, CaptionReader, LazyRows, SourceCard
from .report import DataReport
from .scene_captions import caption_scene
from .scene_drawing import DrawnObject, draw_objects, draw_scene
from .scene_languages import LANGUAGES, caption_in
from .scene_world import COLOURS, MAX_COUNT, SHAPES, SIZES, SPLIT_SHARES, Scene, sample_scene
from .schema import CaptionRow

ENGLISH = "en"
IMAGE_SIZES = range(32, 513)
# Labels of objects, such as "red circle".
OBJECT_LABELS = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]


@dataclass(kw_only=True)
class Scenes(CaptionReader):
    """Reader of drawn scenes.

    Rows have the columns `scene`, a description, and `objects`: `label` (`OBJECT_LABELS`) and `box`, x1, y1, x2, y2 of
    the drawn pixels as shares of the image's side.

    Attributes:
        num_images: number of images of each split: `train`, `validation`, `test`.
        image_size: side of the square images in pixels, 32 to 512; 64 to 128 is usual.
        seed: seed of the images; the split of a scene does not depend on it.
        language: of the captions: `en`, `de`, `zh` or `ar`; the images are the same.
    """

    name: ClassVar[str] = "scenes"
    card: ClassVar[SourceCard] = SourceCard(
        "Drawn scenes of coloured shapes with five captions each.", licence="Apache-2.0"
    )

    num_images: Mapping[str, int] = field(default_factory=lambda: {"train": 1000, "validation": 200, "test": 200})
    image_size: int = 96
    seed: int = 0
    language: str = ENGLISH

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.language not in (ENGLISH, *LANGUAGES):
            raise ValueError(f"`language` is {self.language!r}, expected one of {', '.join((ENGLISH, *LANGUAGES))}.")
        _check_size(self.image_size)
        unknown = sorted(set(self.num_images) - set(SPLIT_SHARES))
        empty = sorted(split for split, count in self.num_images.items() if count < 1)
        if unknown or empty or not self.num_images:
            raise ValueError(
                f"`num_images` is {dict(self.num_images)}; expected at least one image for some of "
                f"{', '.join(SPLIT_SHARES)}."
            )

    def annotation_files(self) -> tuple[()]:
        """Return no files: scenes are made by code."""
        return ()

    def read(self, report: DataReport) -> Annotations:
        """Return rows that are drawn on access."""
        splits = {
            split: _DrawnRows(split, count, self.image_size, self.seed, self.language)
            for split, count in self.num_images.items()
        }
        box = List(Value("float32"), length=4)
        objects = List({"label": ClassLabel(names=OBJECT_LABELS), "box": box})
        return Annotations(splits, Features({"scene": Value("string"), "objects": objects}))


class _DrawnRows(LazyRows):
    """Rows of a split, each drawn from its seed and index."""

    def __init__(self, split: str, num_images: int, image_size: int, seed: int, language: str) -> None:
        self.split, self.num_images, self.image_size, self.seed = split, num_images, image_size, seed
        self.language = language

    def __len__(self) -> int:
        return self.num_images

    def row(self, index: int) -> CaptionRow:
        """Draw one image."""
        scene, image, captions, drawn = _draw(self.seed, index, self.split, self.image_size)
        if self.language != ENGLISH:
            captions = caption_in(self.language, scene, random.Random(f"{self.language}/{self.seed}/{index}"))
        name = f"{self.split}-{self.seed}-{index:06d}"
        stored = {"bytes": png_bytes(image), "path": f"{name}.png"}
        groups = [scene.groups[one.group] for one in drawn]
        objects = [
            {"label": OBJECT_LABELS.index(f"{group.colour} {group.shape}"), "box": list(one.extent)}
            for group, one in zip(groups, drawn, strict=True)
        ]
        columns = {"scene": scene.describe(), "objects": objects}
        return CaptionRow(name, stored, captions, "scenes", index, columns)


def draw_example(
    seed: int, index: int, split: str = "train", image_size: int = 96
) -> tuple[Scene, PIL.Image.Image, list[str]]:
    """Draw one scene; the same arguments give the same result in every process.

    Args:
        seed: seed of the data set.
        index: number of the image in its split, from 0.
        split: `train`, `validation` or `test`.
        image_size: side of the image in pixels.

    Returns:
        The scene, an RGB image, and five captions.
    """
    return _draw(seed, index, split, image_size)[:3]


def _draw(
    seed: int, index: int, split: str, image_size: int
) -> tuple[Scene, PIL.Image.Image, list[str], list[DrawnObject]]:
    rng = random.Random(f"scenes/{seed}/{split}/{index}")
    scene = sample_scene(rng, split)
    captions = caption_scene(scene, rng)
    image, objects = draw_objects(scene, rng, image_size)
    return scene, image, captions, objects


def draw_labelled(num_images: int, image_size: int = 96, seed: int = 0) -> Dataset:
    """Draw images of one kind of object each, with labels and without captions, to train a backbone.

    Only scenes of the training split are drawn.

    Args:
        num_images: number of images.
        image_size: side of the images in pixels, 32 to 512.
        seed: seed of the images; they differ from those of `load_captions("scenes", seed=seed)`.

    Returns:
        A data set with `image` and the class labels `colour` (6), `shape` (6), `size` (2), `count` (4: one to four).

    Raises:
        ValueError: `image_size` is out of range.
    """
    _check_size(image_size)
    labels = {
        "colour": ClassLabel(names=list(COLOURS)),
        "shape": ClassLabel(names=list(SHAPES)),
        "size": ClassLabel(names=list(SIZES)),
        "count": ClassLabel(names=[str(count) for count in range(1, MAX_COUNT + 1)]),
    }
    rows = [_labelled(f"labelled/{seed}/{index}", image_size) for index in range(num_images)]
    return Dataset.from_list(rows, features=Features({"image": Image(), **labels}))


def _labelled(seed: str, image_size: int) -> dict[str, Any]:
    rng = random.Random(seed)
    scene = sample_scene(rng, "train", groups=1)
    group = scene.groups[0]
    return {
        "image": {"bytes": png_bytes(draw_scene(scene, rng, image_size)), "path": None},
        "colour": group.colour,
        "shape": group.shape,
        "size": group.size,
        "count": str(group.count),
    }


def draw_located(
    num_images: int, image_size: int = 96, seed: int = 0
) -> Iterator[tuple[Scene, PIL.Image.Image, list[DrawnObject]]]:
    """Draw images with the boxes of their objects and without captions, to train a backbone on regions.

    Only scenes of the training split are drawn.

    Args:
        num_images: number of images.
        image_size: side of the images in pixels, 32 to 512.
        seed: seed of the images; they differ from those of `load_captions("scenes", seed=seed)`.

    Yields:
        The scene, an RGB image, and its objects.

    Raises:
        ValueError: `image_size` is out of range.
    """
    _check_size(image_size)
    for index in range(num_images):
        rng = random.Random(f"located/{seed}/{index}")
        scene = sample_scene(rng, "train")
        yield scene, *draw_objects(scene, rng, image_size)


def caption_texts(num_scenes: int, seed: int = 0) -> Iterator[str]:
    """Yield captions of scenes without drawing them, to pretrain a language model.

    Only scenes of the training split are described, so no caption of an evaluation image occurs.

    Args:
        num_scenes: number of scenes; each has five captions.
        seed: seed of the texts; they differ from those of `load_captions("scenes", seed=seed)`.
    """
    for index in range(num_scenes):
        rng = random.Random(f"texts/{seed}/{index}")
        yield from caption_scene(sample_scene(rng, "train"), rng)


def png_bytes(image: PIL.Image.Image) -> bytes:
    """Return an image as the bytes of a PNG file."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _check_size(image_size: int) -> None:
    if image_size not in IMAGE_SIZES:
        raise ValueError(f"`image_size` is {image_size}; expected {IMAGE_SIZES[0]} to {IMAGE_SIZES[-1]} pixels.")

"""Low-data subsets: captions or images of a training split, drawn by seed and stored for reuse.

    subset = draw_subset(dataset, share=0.01, unit="caption", seed=42)
    subset.save("coco-1-percent-seed-42.json")
    small = CaptionSubset.load("coco-1-percent-seed-42.json").of(dataset)

A subset stores the ids of captions or images, not the data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset

from hf_captioners.output_files import MAX_TABLE_BYTES, read_text_inside, write_text

from .references import PER_CAPTION
from .schema import CAPTIONS, IMAGE_ID

Unit = Literal["caption", "image"]


@dataclass(frozen=True)
class CaptionSubset:
    """List of the captions or images of a subset.

    Attributes:
        unit: `caption`: pairs of an image and a caption, as VisualGPT counts; `image`: images with all their
            captions, as Kim et al. count.
        share: the requested share, in (0, 1].
        seed: the seed.
        method: the drawing method in words.
        ids: ids of captions (`caption_ids`, or `<image_id>#<number from 0>` if a data set has none) or `image_id`s.
    """

    unit: Unit
    share: float
    seed: int
    method: str
    ids: tuple[str, ...]

    def save(self, path: str | Path) -> None:
        """Write the subset to a JSON file."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> CaptionSubset:
        """Read a subset that `save` wrote.

        Raises:
            ValueError: the file is no JSON, or has a different structure.
            UnsafeFileError: it is no plain file, or too large.
        """
        try:
            content = json.loads(read_text_inside(path, limit=MAX_TABLE_BYTES, follow_links=True))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no JSON of a subset: {error}.") from error
        if not isinstance(content, dict) or set(content) != {"unit", "share", "seed", "method", "ids"}:
            raise ValueError(f"{path} is not a subset: expected unit, share, seed, method and ids.")
        return cls(**{**content, "ids": tuple(content["ids"])})

    def of(self, dataset: Dataset) -> Dataset:
        """Return the data set's rows that are in the subset, in the data set's order.

        Raises:
            ValueError: the data set lacks some of the ids.
        """
        kept = set(self.ids)
        keys = caption_keys(dataset)
        ids = dataset[IMAGE_ID][:]
        if self.unit == "image":
            rows = [row for row, image_id in enumerate(ids) if image_id in kept]
            present = {ids[row] for row in rows}
        else:
            rows = [row for row, captions in enumerate(keys) if not kept.isdisjoint(captions)]
            present = {key for row in rows for key in keys[row]} & kept
        if missing := kept - present:
            raise ValueError(
                f"The data set lacks {len(missing):,} of the {len(kept):,} {self.unit}s of the subset, such as "
                f"{', '.join(sorted(missing)[:3])}. Was the subset drawn from a different data set or split?"
            )
        chosen = dataset.select(rows)
        if self.unit == "image" or all(kept.issuperset(keys[row]) for row in rows):
            return chosen
        columns = [CAPTIONS, *(name for name in PER_CAPTION if name in dataset.features)]
        places = [[place for place, key in enumerate(keys[row]) if key in kept] for row in rows]
        return _with_cut_captions(chosen, columns, places)


def draw_subset(
    dataset: Dataset, share: float, unit: Unit = "caption", seed: int = 42, nested: bool = True
) -> CaptionSubset:
    """Draw a random share of the captions or images of a data set.

    Args:
        dataset: a training split.
        share: in (0, 1]; `int(count * share)` are drawn, at least one.
        unit: what the share counts.
        seed: seed of the choice.
        nested: a smaller subset is contained in a larger one of the same seed; otherwise each share is drawn
            independently.

    Raises:
        ValueError: `share` or `unit` is out of range.

    Examples:
        >>> from hf_captioners.data import load_captions
        >>> from hf_captioners.data.subsets import draw_subset
        >>> scenes = load_captions("scenes", split="train", num_images={"train": 10}, image_size=32)
        >>> len(draw_subset(scenes, share=0.5, unit="image", seed=42).of(scenes))
        5
    """
    if unit not in ("caption", "image"):
        raise ValueError(f"`unit` is {unit!r}; expected caption or image.")
    ids = [key for keys in caption_keys(dataset) for key in keys] if unit == "caption" else list(dataset[IMAGE_ID])
    ids = list(dict.fromkeys(ids))
    count = max(1, _count(len(ids), share))
    rng = np.random.default_rng([seed] if nested else [seed, round(share * 10**9)])
    order = rng.permutation(len(ids))[:count]
    method = "nested" if nested else "independent"
    return CaptionSubset(unit, share, seed, method, tuple(ids[place] for place in sorted(order)))


def released_subset(
    train_ids: Sequence[int], restval_ids: Sequence[int], share: float, seed: int = 42
) -> CaptionSubset:
    """Draw captions exactly as VisualGPT's released script does.

    One generator shuffles the caption ids of train, then those of restval, and the first `int(count * share)` of each
    are used. The order of the ids matters: it is that of `coco_train_ids.npy` and `coco_restval_ids.npy`.

    Args:
        train_ids: annotation ids of train.
        restval_ids: annotation ids of restval.
        share: in (0, 1].
        seed: the script's default is 42; the seeds of the paper's runs are unknown.

    Raises:
        ValueError: `share` is out of range.
    """
    rng = np.random.RandomState(seed)
    chosen: list[int] = []
    for ids in (train_ids, restval_ids):
        shuffled = np.array(ids)
        rng.shuffle(shuffled)
        chosen += shuffled[: _count(len(shuffled), share)].tolist()
    return CaptionSubset("caption", share, seed, "released script of VisualGPT", tuple(map(str, chosen)))


def caption_keys(dataset: Dataset) -> list[list[str]]:
    """Return a unique key for each caption: its id in the source, or the image's id and a number."""
    if "caption_ids" in dataset.features:
        return [[str(caption_id) for caption_id in ids] for ids in dataset["caption_ids"]]
    pairs = zip(dataset[IMAGE_ID], dataset[CAPTIONS], strict=True)
    return [[f"{image_id}#{number}" for number in range(len(captions))] for image_id, captions in pairs]


def _count(available: int, share: float) -> int:
    if not 0 < share <= 1:
        raise ValueError(f"`share` is {share}; expected more than 0, at most 1 (1 % is 0.01).")
    return int(available * share)


def _with_cut_captions(dataset: Dataset, columns: list[str], places: list[list[int]]) -> Dataset:
    def cut(row: dict[str, Any], index: int) -> dict[str, Any]:
        return {name: [row[name][place] for place in places[index]] for name in columns}

    # Only the columns of captions are read and written; images are unchanged.
    return dataset.map(
        lambda *values: cut(dict(zip(columns, values[:-1], strict=True)), values[-1]),
        with_indices=True,
        input_columns=columns,
        desc="Choosing captions",
    )

"""List of a training run's held-out images, stored in the captioner's folder."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from datasets import Dataset

from hf_captioners.image_names import ImageNames
from hf_captioners.names import did_you_mean
from hf_captioners.output_files import MAX_TABLE_BYTES, read_text_inside, write_text

HELD_OUT = "held_out"
"""Name of the split of these images."""
FILE = "held_out.json"


@dataclass(frozen=True)
class HeldOut:
    """Images held out from training for evaluation.

    Args:
        image_ids: their ids in the data set.
        seed: seed with which they were drawn.
    """

    image_ids: Sequence[str]
    seed: int

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the list into the captioner's folder."""
        write_text(Path(folder, FILE), json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], follow_links: bool = False) -> "HeldOut":
        """Read the list from the captioner's folder.

        Args:
            folder: the folder.
            follow_links: whether the file may be a symbolic link that leads out of it.

        Raises:
            FileNotFoundError: its training held out no images.
            UnsafeFileError: the file is such a link, no plain file, or too large.
            ValueError: the file is damaged.
        """
        path = Path(folder, FILE)
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} has no {FILE}: its training held out no images at random. Pass a split of the data set."
            )
        try:
            content = json.loads(read_text_inside(path, folder, MAX_TABLE_BYTES, follow_links))
            held_out = cls(image_ids=content["image_ids"], seed=content["seed"])
            if not all(isinstance(name, str) for name in held_out.image_ids):
                raise TypeError("a name is no text")
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}). Pass a split of the data set instead.") from error
        return held_out

    def of(self, rows: Dataset) -> Dataset:
        """Return the held-out images of a data set.

        Raises:
            ValueError: an image is not among the rows.
        """
        places = {name: place for place, name in enumerate(rows["image_id"])}
        names = ImageNames(places)
        images = [names.find(name) for name in self.image_ids]
        missing = [name for name, image in zip(self.image_ids, images, strict=True) if image is None]
        if missing:
            raise ValueError(
                f"{len(missing):,} of {len(self.image_ids):,} held-out images are not in this data set, first "
                f"{missing[0]!r}.{did_you_mean(missing[0], places)} Pass the folder that the captioner was trained on."
            )
        return rows.select([places[image] for image in images if image is not None])

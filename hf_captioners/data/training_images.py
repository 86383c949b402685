"""List of the images that a captioner was trained on, stored in its folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset

from hf_captioners.output_files import MAX_TABLE_BYTES, read_text_inside, write_text

from .image_digests import image_digests
from .schema import IMAGE_ID

FILE = "training_images.json"
DIGITS = 32  # of the digest of an image


@dataclass(frozen=True)
class TrainingImages:
    """Images that a captioner was trained on, in its last and all earlier training runs.

    Args:
        images: id and digest of each image; the digest is None where only features of the image are known.
    """

    images: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, rows: Dataset) -> "TrainingImages":
        """Return the images of a data set.

        Raises:
            OSError: an image file cannot be read.
        """
        names = [str(name) for name in rows[IMAGE_ID]]
        digests = image_digests(rows) or []
        short = [digest[:DIGITS] for digest in digests] if digests else [None] * len(names)
        return cls(tuple(zip(names, short, strict=True)))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "TrainingImages | None":
        """Read the list from the captioner's folder; None if there is no list.

        Raises:
            UnsafeFileError: the file is a link that leads out of the folder, no plain file, or too large.
            ValueError: the file is damaged.
        """
        path = Path(folder, FILE)
        if not path.exists():
            return None
        try:
            content = json.loads(read_text_inside(path, folder, MAX_TABLE_BYTES))
            pairs = tuple((name, digest) for name, digest in content["images"])
            if not all(isinstance(name, str) and isinstance(digest, str | None) for name, digest in pairs):
                raise TypeError("an entry is not a name with a digest")
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}). Delete it: then its images count as not known.") from error
        return cls(pairs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the list into the captioner's folder."""
        write_text(Path(folder, FILE), json.dumps({"images": self.images}, ensure_ascii=False) + "\n")

    def union_with(self, *folders: str | os.PathLike[str]) -> "TrainingImages":
        """Return the union with the lists of other captioners' folders, which may have no list."""
        lists = [images for folder in folders if (images := TrainingImages.load(folder)) is not None]
        return TrainingImages(tuple(dict.fromkeys(pair for images in (self, *lists) for pair in images.images)))

    def among(self, rows: Dataset) -> set[str]:
        """Return the ids of rows whose images are in this list, matched by content or else by name.

        Raises:
            OSError: an image file cannot be read.
        """
        digests = {digest for _, digest in self.images if digest is not None}
        all_names = {name for name, _ in self.images}
        names_only = {name for name, digest in self.images if digest is None}
        return {
            name
            for name, digest in TrainingImages.of(rows).images
            if (digest in digests or name in names_only if digest is not None else name in all_names)
        }

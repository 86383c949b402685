"""The image column of data sets, decoded with this library's list of allowed formats."""

from __future__ import annotations

import copy
import io
import os
from dataclasses import dataclass
from typing import Any, TypeVar

import PIL.Image
from datasets import (
    Dataset,
    DatasetDict,
    DownloadConfig,
    Features,
    Image,
    IterableDataset,
    IterableDatasetDict,
    List,
    config,
)
from datasets.utils.file_utils import is_local_path, xopen

from hf_captioners.processing.image_reading import named_faults, open_image, upright

AnyDataset = TypeVar("AnyDataset", Dataset, DatasetDict, IterableDataset, IterableDatasetDict)


@dataclass(eq=False)
class AllowedImage(Image):
    """`datasets.Image` that opens only `IMAGE_FORMATS` and ignores damaged metadata.

    `datasets` itself opens every format of Pillow, which starts Ghostscript for PostScript files.

    Attributes:
        source: name of the data set and split for messages; no field, since `datasets` stores fields.
    """

    source = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and (self.mode, self.decode, self.id) == (other.mode, other.decode, other.id)

    def __hash__(self) -> int:
        return hash((self.mode, self.decode, self.id))

    def decode_example(
        self, value: Any, token_per_repo_id: dict[str, str | bool | None] | None = None
    ) -> PIL.Image.Image:
        """Decode an image `{"bytes": ..., "path": ...}`, rotated upright.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the image cannot be read; the message has its name and `source`.
        """
        if not self.decode or not isinstance(value, dict) or (value["bytes"] is None and value["path"] is None):
            return super().decode_example(value, token_per_repo_id)
        path, content = value["path"], value["bytes"]
        if content is None and not is_local_path(path):
            on_hub = path.split("::")[-1].startswith(("hf://", config.HF_ENDPOINT))
            token = next(iter((token_per_repo_id or {}).values()), None) if on_hub else None
            with xopen(path, "rb", download_config=DownloadConfig(token=token)) as file:
                content = file.read()
        name = " of ".join(part for part in (path or "given as bytes", self.source) if part)
        if content is None and not os.path.isfile(path):
            raise FileNotFoundError(f"There is no image {name}.")
        with named_faults(name), open_image(path if content is None else io.BytesIO(content)) as opened:
            image = upright(opened)
        return image.convert(self.mode) if self.mode and self.mode != image.mode else image


def with_allowed_formats(dataset: AnyDataset, source: str = "") -> AnyDataset:
    """Return a data set that opens only images of allowed formats, see `AllowedImage`.

    Args:
        dataset: a data set or its splits.
        source: its name for messages on images, which may be bytes without a name.

    Rows and columns are the same. `Dataset.map` returns a data set with the images of `datasets` again.
    """
    if isinstance(dataset, dict):
        return type(dataset)({name: with_allowed_formats(rows, source) for name, rows in dataset.items()})  # type: ignore
    if dataset.features is None:
        return dataset
    changed = copy.copy(dataset)
    changed._info = dataset.info.copy()
    changed._info.features = Features(
        {name: allowed_feature(feature, source) for name, feature in dataset.features.items()}
    )
    return changed


def allowed_feature(feature: Any, source: str = "") -> Any:
    """Return the feature type of a column with `AllowedImage` in place of `datasets.Image`."""
    if isinstance(feature, Image):
        allowed = AllowedImage(mode=feature.mode, decode=feature.decode, id=feature.id)
        allowed.source = source or getattr(feature, "source", "")
        return allowed
    if isinstance(feature, List):
        return List(allowed_feature(feature.feature, source), length=feature.length)
    if isinstance(feature, dict):
        return {name: allowed_feature(part, source) for name, part in feature.items()}
    return feature

"""Reader of folders with one region file per image: ImageCaptioning.pytorch, AoANet, Image Transformer, ZoDIAC.

`cocobu_att/<id>.npz` (key `feat`, a few sets have `z`) or `.npy`, `cocobu_box/<id>.npy` in pixels,
`cocobu_flag/<id>.npy`. Names are the ids without leading zeros. Grids [14, 14, D] become [196, D]. The means over the
regions in `cocobu_fc` are not needed: they are `features.mean(axis=0)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hf_captioners.features.region_source import MAX_NUMBERS, Regions, RegionSource, as_float32, normalised

from .array_files import read_array

FEATURE_KEYS = ("feat", "z")


class RegionFolder(RegionSource):
    """Reader of a folder with one region file per image.

    Args:
        att_dir: folder of the features (`cocobu_att`).
        box_dir: folder of the boxes (`cocobu_box`); None: no boxes.
        sizes: width and height of each image by its id (`cocotalk.json` has them); needed with `box_dir`.
        flag_dir: folder of the relations (`cocobu_flag`); None: no relations.
        normalise: divide each row by its L2 norm (`norm_att_feat`).
        append_boxes: append x1/w, y1/h, x2/w, y2/h and the share of the area to each row, then order the regions by
            that share, largest first (`use_box`; the published commands of AoANet and ZoDIAC leave it off).
        max_numbers: largest number of features of one image (R x D); larger arrays are refused before they are read.

    Raises:
        FileNotFoundError: a folder is missing.
        ValueError: boxes are asked for without sizes or folder.
    """

    SUFFIXES = (".npz", ".npy")

    def __init__(
        self,
        att_dir: str | Path,
        box_dir: str | Path | None = None,
        sizes: Mapping[str, tuple[int, int]] | None = None,
        flag_dir: str | Path | None = None,
        normalise: bool = False,
        append_boxes: bool = False,
        max_numbers: int = MAX_NUMBERS,
    ) -> None:
        self.att_dir = Path(att_dir)
        self.box_dir = None if box_dir is None else Path(box_dir)
        self.flag_dir = None if flag_dir is None else Path(flag_dir)
        for folder in filter(None, (self.att_dir, self.box_dir, self.flag_dir)):
            if not folder.is_dir():
                raise FileNotFoundError(f"There is no folder {folder}.")
        if (self.box_dir is None) != (sizes is None) or (append_boxes and sizes is None):
            raise ValueError(
                "Boxes need both box_dir=... and sizes=... (width and height by id, as in cocotalk.json)."
            )
        self.name = str(att_dir)
        self.sizes, self.normalise, self.append_boxes, self.max_numbers = sizes, normalise, append_boxes, max_numbers
        self._paths = {path.stem: path for path in sorted(self.att_dir.iterdir()) if path.suffix in self.SUFFIXES}

    def ids(self) -> Mapping[str, Path]:
        """Return the image ids with their files."""
        return self._paths

    def _numbers(self, path: Path) -> np.ndarray:
        return as_float32(read_array(path, FEATURE_KEYS, self.max_numbers), str(path), self.max_numbers)

    def regions(self, image_id: str) -> Regions:
        """Read the regions of an image."""
        features = _grid_rows(self._numbers(self._paths[image_id]), self._paths[image_id])
        if self.normalise:
            with np.errstate(invalid="ignore"):  # a row of zeros has no direction, and is refused as NaN
                features = features / np.linalg.norm(features, axis=1, keepdims=True)
        relations = None if self.flag_dir is None else read_array(self.flag_dir / f"{image_id}.npy")
        if self.box_dir is None or self.sizes is None:
            return Regions(features, relations=relations)
        box_path = self.box_dir / f"{image_id}.npy"
        try:
            boxes = normalised(self._numbers(box_path), self.sizes[image_id])
        except KeyError:
            raise ValueError(
                f"`sizes` has no width and height of the image {image_id!r}, needed for {box_path}."
            ) from None
        except ValueError as error:
            raise ValueError(f"{box_path}: {error}.") from error
        if self.append_boxes:
            if len(boxes) != len(features):
                raise ValueError(f"{box_path} has {len(boxes)} boxes for {len(features)} regions.")
            area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
            features = np.concatenate([features, boxes, area[:, None]], axis=1)
            return Regions(features, boxes, relations).ordered(np.argsort(-area, kind="stable"))
        return Regions(features, boxes, relations)


def _grid_rows(features: np.ndarray, path: Path) -> np.ndarray:
    """Reshape features to regions [R, D]; a grid [height, width, D] is flattened."""
    if features.ndim not in (2, 3):
        raise ValueError(
            f"{path} has the shape {list(features.shape)}; expected regions [R, D] or a grid [height, width, D]."
        )
    return features.reshape(-1, features.shape[-1]) if features.size else features.reshape(0, features.shape[-1])

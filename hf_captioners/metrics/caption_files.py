"""Files of predicted and reference captions, matched image by image.

| ending | contents |
|---|---|
| `.json` | COCO results (a list of `image_id`, `caption`), COCO annotations, objects, `{image: captions}` |
| `.jsonl` | one object per line |
| `.csv`, `.tsv` | named columns, one row per caption or per image; TSV without quoting |
| `.txt` | lines of `image TAB caption`, `image#0 TAB caption` or `image,caption` |

For a folder, its `metadata.jsonl` (or `.csv`) is read. The column of images is `image_id`, `image`,
`file_name` or `id`; the column of captions `caption`, `captions`, `text`, `generated_text` or `references`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hf_captioners.image_names import ImageNames, file_part, path_form
from hf_captioners.output_files import require_link_inside, unquoted_name

from .annotation_files import FirstFault, read_json
from .caption_tables import table_rows

_IMAGE_KEYS = ("image_id", "image", "file_name", "filename", "id")
_NAME_KEYS = ("file_name", "filename", "image")
_CAPTION_KEYS = ("caption", "captions", "text", "generated_text", "references")
IMAGES = "images"  # place of the file names by image in COCO's format
_ENDINGS = (".json", ".jsonl", ".csv", ".tsv", ".txt")
_TABLES = tuple(stem + ending for stem in ("metadata", "captions") for ending in (".jsonl", ".csv", ".json"))


class CaptionTable(NamedTuple):
    """Captions and file names of the images in a caption file.

    Attributes:
        captions: the captions of each image, in the order of the file.
        file_names: file names of images, if the file has both a number and a name.
    """

    captions: dict[str, list[str]]
    file_names: dict[str, str]


class MatchedCaptions(NamedTuple):
    """Predictions and references of the images that both files have, in the order of the references."""

    images: list[str]
    predictions: list[str]
    references: list[list[str]]
    missing: list[str]  # images with references but without a prediction
    extra: list[str]  # predicted images without references


def read_captions(path: str | os.PathLike[str]) -> CaptionTable:
    """Read the captions of each image from a caption file, or from the metadata table of a folder of images.

    Raises:
        FileNotFoundError: there is no such file, or no table in the folder.
        UnsafeFileError: the table of the folder is a symbolic link that leads out of it, or no plain file.
        ValueError: the file is empty, in an unknown format, or a row lacks an image or a caption; the message
            names the row.
    """
    file = _table_of(Path(path))
    if _ending(file) not in _ENDINGS:
        raise ValueError(f"{file} ends in {_ending(file)!r}, expected one of {', '.join(_ENDINGS)}.")
    table, images = CaptionTable({}, {}), dict[str, str]()
    for place, row in _rows(file):
        if place == IMAGES:
            table.file_names.update(row)
            continue
        if not isinstance(row, Mapping):
            raise ValueError(f"{file}, {place} is {row!r}, expected an object with an image and a caption.")
        if row.get("rejected") is True:  # by a person, on the page of `hf-captioners review`
            continue
        written = unquoted_name(str(_value(row, _IMAGE_KEYS, "the image", file, place)))
        image = images.setdefault(path_form(written), written)  # `./a.png` is `a.png`
        table.captions.setdefault(image, []).extend(_captions(row, file, place))
        for name in (row[key] for key in _NAME_KEYS if isinstance(row.get(key), str)):
            table.file_names.setdefault(image, name)
    if not table.captions:
        raise ValueError(f"{file} has no captions.")
    return table


def match_captions(predictions: CaptionTable, references: CaptionTable) -> MatchedCaptions:
    """Match the predicted caption of each image with its references, by image name or by file name.

    A predicted image is matched with the references of the same name; if there are none, with those of the same file
    name without folders (`hf-captioners caption` writes paths).

    Raises:
        ValueError: an image has several predictions, two images have the same file name, or none is in both files.
    """
    several = [image for image, captions in predictions.captions.items() if len(captions) > 1]
    if several:
        raise ValueError(
            f"{len(several)} image(s) have more than one prediction, first {several[0]!r} with "
            f"{predictions.captions[several[0]]}. Keep one caption per image."
        )
    images_by_name = _by_any_name(references)
    names = ImageNames(images_by_name)
    predictions_by_image: dict[str, str] = {}
    extra: list[str] = []
    for image, captions in predictions.captions.items():
        short = file_part(predictions.file_names.get(image, image))
        name = next((images_by_name[key] for key in (names.find(image), names.find(short)) if key is not None), None)
        if name is None:
            extra.append(image)
        elif name in predictions_by_image:
            raise ValueError(f"Two predictions are for the image {name!r}, the second under the name {image!r}.")
        else:
            predictions_by_image[name] = captions[0]
    if not predictions_by_image:
        raise ValueError(
            f"No image is in both files: predictions are for {_some(predictions.captions)}, references for "
            f"{_some(references.captions)}."
        )
    images = [image for image in references.captions if image in predictions_by_image]
    return MatchedCaptions(
        images,
        [predictions_by_image[image] for image in images],
        [references.captions[image] for image in images],
        [image for image in references.captions if image not in predictions_by_image],
        extra,
    )


def _by_any_name(table: CaptionTable) -> dict[str, str]:
    """Map image names, and file names without folders that are unique, to the names of the images."""
    short: dict[str, str | None] = {}
    for image in table.captions:
        name = file_part(table.file_names.get(image, image))
        short[name] = None if name in short else image
    unique = {name: image for name, image in short.items() if image is not None}
    return unique | {image: image for image in table.captions}


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")


def _table_of(path: Path) -> Path:
    if path.is_dir():
        tables = [table for table in (path / name for name in _TABLES) if table.exists() and not table.is_dir()]
        if not tables:
            raise FileNotFoundError(f"The folder {path} has none of {', '.join(_TABLES)}. Pass the file itself.")
        require_link_inside(tables[0], path, advice="If that is right, pass that file itself.")
        return tables[0]
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    return path


Row = tuple[str, Mapping[str, Any]]


def _rows(file: Path) -> Iterator[Row]:
    if _ending(file) == ".json":
        return _json_rows(file)
    # The name of an image may be in any of `_IMAGE_KEYS`; lines of a .txt have it as `file_name`.
    return ((f"line {number}", row) for number, row in table_rows(file, FirstFault()))


def _ending(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix.lower()


def _json_rows(file: Path) -> Iterator[Row]:
    content = read_json(file)
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        images = content.get("images") or []
        if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
            raise ValueError(f"{file} has `images` that are no list of objects: {images!r:.80}.")
        with_names = [image for image in images if "id" in image and isinstance(image.get("file_name"), str)]
        yield IMAGES, {str(image["id"]): image["file_name"] for image in with_names}
        content = content["annotations"]
        for row in content:
            if isinstance(row, dict):
                row.pop("id", None)  # of the annotation, not of the image
    elif isinstance(content, dict):
        content = [{"image_id": key, "captions": captions} for key, captions in content.items()]
    if not isinstance(content, list):
        raise ValueError(f"{file} contains a {type(content).__name__}, expected a list of objects or an object.")
    yield from ((f"entry {number}", row) for number, row in enumerate(content, 1))


def _value(row: Mapping[str, Any], keys: tuple[str, ...], what: str, file: Path, place: str) -> Any:
    for key in keys:
        if row.get(key) is not None:
            return row[key]
    raise ValueError(f"{file}, {place} has {sorted(map(str, row))}, expected {what} under one of {', '.join(keys)}.")


def _captions(row: Mapping[str, Any], file: Path, place: str) -> list[str]:
    value = _value(row, _CAPTION_KEYS, "the caption", file, place)
    captions = value if isinstance(value, list) else [value]
    for caption in captions:
        if not isinstance(caption, str):
            raise ValueError(f"{file}, {place} has the caption {caption!r}, expected a string or a list of strings.")
    if not captions:
        raise ValueError(f"{file}, {place} has an empty list of captions.")
    return captions

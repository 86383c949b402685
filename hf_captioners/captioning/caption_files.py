"""Files of captions: records are appended to a partial file, then written in the format of the output."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from hf_captioners.output_files import atomic_file

WORKING_SUFFIX = ".partial"


def output_writer(path: Path) -> Callable[[Iterable[dict[str, Any]], IO[str]], None]:
    """Return the writer of a file by its suffix.

    Raises:
        ValueError: the suffix is unknown.
    """
    if path.suffix.lower() not in WRITERS:
        raise ValueError(
            f"`--output` is {path}, expected a name that ends with {', '.join(WRITERS)} (.json: COCO results)."
        )
    return WRITERS[path.suffix.lower()]


def write_jsonl(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write one JSON record per line: `image`, `caption`, `score`."""
    for record in records:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_csv(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write the columns `image`, `caption`, `score`."""
    writer = csv.DictWriter(file, ("image", "caption", "score"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def write_txt(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write lines of `name TAB caption`."""
    for record in records:
        file.write(f"{record['image']}\t{record['caption']}\n")


def write_coco(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write the result format of the COCO caption evaluation: a list of `image_id` and `caption`."""
    file.write("[")
    for index, record in enumerate(records):
        result = {"image_id": coco_id(record["image"]), "caption": record["caption"]}
        file.write(("," if index else "") + "\n" + json.dumps(result, ensure_ascii=False))
    file.write("\n]\n")


WRITERS = {".jsonl": write_jsonl, ".csv": write_csv, ".txt": write_txt, ".json": write_coco}


def coco_id(name: str) -> int:
    """Return the number of an image: the last digits of its file name, as in `COCO_val2014_000000391895.jpg`.

    Raises:
        ValueError: the name has no digits at its end.
    """
    match = re.search(r"(\d+)$", Path(name).stem)
    if match is None:
        raise ValueError(
            f"COCO results need a number for each image, and {name} does not end with one. Write .jsonl or .csv."
        )
    return int(match[1])


def check_coco_ids(images: Iterable[str]) -> None:
    """Check that every image has a number of its own.

    Raises:
        ValueError: an image has no number, or two images have the same.
    """
    seen: dict[int, str] = {}
    for name in images:
        other = seen.setdefault(coco_id(name), name)
        if other != name:
            raise ValueError(f"{other} and {name} have the same number; COCO results need distinct ones.")


class CaptionFile:
    """The output file of a captioning job, which can be interrupted and resumed.

    Records are appended to `OUTPUT.partial`, one line each, as soon as they are known. `finish` writes the output
    atomically and removes that file.

    Args:
        path: the output; its suffix gives the format, see `WRITERS`.
        settings: what the captions depend on. A job with other settings does not resume the file.
        resume: resume an interrupted job.
        overwrite: replace what an earlier job left.

    Raises:
        FileExistsError: the output or the partial file of an interrupted job exists, and neither `resume` nor
            `overwrite` is set.
        ValueError: the partial file has other settings, or the format is unknown.
        PermissionError: the folder cannot be written to.

    Example:
        ```python
        from pathlib import Path
        from hf_captioners.captioning.batches import caption_into_file, load_pipeline
        from hf_captioners.captioning.caption_files import CaptionFile
        from hf_captioners.captioning.image_list import find_images

        with CaptionFile(Path("captions.jsonl"), {"model": "my_captioner"}, resume=True) as file:
            caption_into_file(file, load_pipeline("my_captioner"), find_images(["holiday"]))
        ```
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool = False, overwrite: bool = False) -> None:
        self.path, self.working = path, path.with_name(path.name + WORKING_SUFFIX)
        self.write = output_writer(path)
        self.done: set[str] = set()
        if path.exists() and not overwrite:
            hint = "It is complete, there is nothing to resume. " if resume else ""
            raise FileExistsError(f"{path} exists. {hint}Pass --overwrite to replace it, or a different --output.")
        if self.working.exists() and not (resume or overwrite):
            raise FileExistsError(
                f"{self.working} exists: an earlier run was interrupted. Pass --resume to resume it, or --overwrite."
            )
        if resume and self.working.exists():
            self._read_working(settings)
        try:
            self.file = open(self.working, "a" if self.done else "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise PermissionError(f"{self.working} cannot be written ({error.strerror}).") from error
        if not self.done:
            self._append({"settings": settings})

    def __enter__(self) -> "CaptionFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_working(self, settings: dict[str, Any]) -> None:
        """Read which images are done; an incomplete last line is removed."""
        whole = 0
        with open(self.working, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                record = json.loads(line)
                if record.get("settings", settings) != settings:
                    raise ValueError(
                        f"{self.working} was written with other settings: {record['settings']}, now {settings}. Pass "
                        "the same ones, or --overwrite."
                    )
                if "image" in record:
                    self.done.add(record["image"])
        os.truncate(self.working, whole)

    def _append(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Append records."""
        for record in records:
            self._append(record)
        self.file.flush()

    def records(self) -> Iterator[dict[str, Any]]:
        """Read all records from disk."""
        with open(self.working, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if "image" in record:
                    yield record

    def finish(self) -> None:
        """Write the output and remove the partial file."""
        self.file.close()
        with atomic_file(self.path, newline="") as file:
            self.write(self.records(), file)
        self.working.unlink()

    def close(self) -> None:
        """Close the partial file, which stays for a later run unless the output is finished."""
        self.file.close()

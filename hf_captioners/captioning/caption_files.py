"""Captions on disk: written one by one to a working file that survives a kill, then in the form that was asked for."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

WORKING_SUFFIX = ".partial"


def output_form(path: Path) -> Callable[[Iterable[dict[str, Any]], TextIO], None]:
    """The writer for a file's name.

    Raises:
        ValueError: the name ends in another way.
    """
    if path.suffix.lower() not in WRITERS:
        raise ValueError(
            f"`--output` is {path}, expected a name that ends with {', '.join(WRITERS)} (.json: COCO results)."
        )
    return WRITERS[path.suffix.lower()]


def write_jsonl(records: Iterable[dict[str, Any]], file: TextIO) -> None:
    """One record a line: `image`, `caption`, `score`."""
    for record in records:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_csv(records: Iterable[dict[str, Any]], file: TextIO) -> None:
    """Columns `image`, `caption`, `score`."""
    writer = csv.DictWriter(file, ("image", "caption", "score"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def write_txt(records: Iterable[dict[str, Any]], file: TextIO) -> None:
    """`name TAB caption`."""
    for record in records:
        file.write(f"{record['image']}\t{record['caption']}\n")


def write_coco(records: Iterable[dict[str, Any]], file: TextIO) -> None:
    """The result format of the COCO caption evaluation: a list of `image_id` and `caption`."""
    file.write("[")
    for index, record in enumerate(records):
        result = {"image_id": coco_id(record["image"]), "caption": record["caption"]}
        file.write(("," if index else "") + "\n" + json.dumps(result, ensure_ascii=False))
    file.write("\n]\n")


WRITERS = {".jsonl": write_jsonl, ".csv": write_csv, ".txt": write_txt, ".json": write_coco}


def coco_id(name: str) -> int:
    """The number of an image: the last digits of its file name, as in `COCO_val2014_000000391895.jpg`.

    Raises:
        ValueError: the name has none.
    """
    match = re.search(r"(\d+)$", Path(name).stem)
    if match is None:
        raise ValueError(
            f"COCO results need a number for each image, and {name} does not end with one. Write .jsonl or .csv."
        )
    return int(match[1])


def check_coco_ids(images: Iterable[str]) -> None:
    """See that every image has a number of its own.

    Raises:
        ValueError: one has none, or two have the same.
    """
    seen: dict[int, str] = {}
    for name in images:
        other = seen.setdefault(coco_id(name), name)
        if other != name:
            raise ValueError(f"{other} and {name} have the same number; COCO results need distinct ones.")


class CaptionFile:
    """The output of a captioning job.

    Records go to `OUTPUT.partial`, a line each, as soon as they are known; `finish` writes the output in one piece and
    removes the working file.

    Args:
        path: the output.
        settings: what the captions depend on; a run with other settings does not go on with the working file.
        resume: go on with what an earlier run left. overwrite: throw it away.

    Raises:
        FileExistsError: the output, or the working file of an unfinished run, is there, and neither was asked for.
        ValueError: the working file is of other settings.
        PermissionError: the folder cannot be written to.
    """

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool, overwrite: bool) -> None:
        self.path, self.working = path, path.with_name(path.name + WORKING_SUFFIX)
        self.write = output_form(path)
        self.done: set[str] = set()
        if path.exists() and not overwrite:
            hint = "It is complete, there is nothing to resume." if resume else "An earlier run made it."
            raise FileExistsError(f"{path} exists. {hint} Pass --overwrite to replace it, or another --output.")
        if self.working.exists() and not (resume or overwrite):
            raise FileExistsError(
                f"{self.working} exists: an earlier run was stopped. Pass --resume to go on with it, or --overwrite."
            )
        if resume and self.working.exists():
            self._read_working(settings)
        try:
            self.file = open(self.working, "a" if self.done else "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise PermissionError(f"{self.working} cannot be written ({error.strerror}).") from error
        if not self.done:
            self._append({"settings": settings})

    def _read_working(self, settings: dict[str, Any]) -> None:
        """Find what is done; a last line that the kill cut off is removed."""
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
        """Keep some records for good."""
        for record in records:
            self._append(record)
        self.file.flush()

    def records(self) -> Iterator[dict[str, Any]]:
        """Everything that was kept, read from disk."""
        with open(self.working, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if "image" in record:
                    yield record

    def finish(self) -> None:
        """Write the output and remove the working file."""
        self.file.close()
        temporary = self.path.with_name(self.path.name + ".tmp")
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            self.write(self.records(), file)
        os.replace(temporary, self.path)
        self.working.unlink()

    def close(self) -> None:
        """Leave the working file for a later run."""
        self.file.close()

"""Files of captions: records are appended to a partial file, then written in the format of the output."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Self

from hf_captioners.output_files import (
    UnsafeFileError,
    atomic_file,
    explain_write_errors,
    only_writer_of,
    open_for_writing,
    open_plain,
    quoted_name,
    require_safe_target,
    require_writable_folder,
    truncate_file,
)

PARQUET = ".parquet"
FURTHER_COLUMNS = ("captions", "scores", "confidence", "words", "confidences")
ROWS_PER_GROUP = 10_000  # of a Parquet file
WORKING_SUFFIX = ".partial"
MAX_LINE_BYTES = 2**24  # of a record; a longer line is damaged
ESCAPED = "backslashreplace"  # of the bytes of a name that are no UTF-8: in JSON, \\udcXX is read as that byte again
RESUME_ADVICE = "Free some space, then repeat the command with `resume`; what is written already is kept."


def output_writer(path: Path) -> Callable[[Iterable[dict[str, Any]], IO[Any]], None]:
    """Return the writer of a file by its suffix.

    Raises:
        ValueError: the suffix is unknown.
    """
    if path.suffix.lower() not in WRITERS:
        raise ValueError(
            f"`output` is {path}, expected a name that ends with {', '.join(WRITERS)} (.json: COCO results), or a "
            "folder for Parquet parts."
        )
    return WRITERS[path.suffix.lower()]


def write_jsonl(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write one JSON record per line: `image`, `caption`, `score`; non-UTF-8 bytes of names are written as `\\udcXX`.

    Of several captions, `caption` is the best, and `captions` and `scores` have all. Records of a model whose captions
    are unverified (docs/other_models.md) have `unverified`. Where confidence was asked for, records have `confidence`
    and `words`, of several captions also `confidences`.
    """
    for record in records:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def scored_captions(record: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the captions of a record with their scores, the best first."""
    if "captions" in record:
        return list(zip(record["captions"], record["scores"], strict=True))
    return [(record["caption"], record.get("score"))]


def write_csv(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write a CSV row per caption: `image` (see `quoted_name`), `caption`, `score`, and `confidence` if recorded."""
    writer = csv.writer(file, lineterminator="\n")
    iterator = iter(records)
    first = list(islice(iterator, 1))
    is_assessed = bool(first) and "confidence" in first[0]
    writer.writerow(("image", "caption", "score", *(("confidence",) if is_assessed else ())))
    for record in chain(first, iterator):
        confidences = record.get("confidences", [record.get("confidence")]) if is_assessed else None
        for place, (caption, score) in enumerate(scored_captions(record)):
            sure = () if confidences is None else (confidences[place],)
            writer.writerow((quoted_name(record["image"], one_line=False), caption, score, *sure))


def write_txt(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write one line `name TAB caption` per caption; names are written as `quoted_name` does."""
    for record in records:
        for caption, _ in scored_captions(record):
            file.write(f"{quoted_name(record['image'])}\t{caption}\n")


def write_coco(records: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """Write the result format of the COCO caption evaluation: a list of `image_id` and best `caption`."""
    file.write("[")
    for index, record in enumerate(records):
        result = {"image_id": coco_id(record["image"]), "caption": record["caption"]}
        file.write(("," if index else "") + "\n" + json.dumps(result, ensure_ascii=False))
    file.write("\n]\n")


def write_parquet(records: Iterable[dict[str, Any]], file: IO[bytes]) -> None:
    """Write a Parquet file: `image` (see `quoted_name`), `caption`, `score`, and recorded `FURTHER_COLUMNS`."""
    import pyarrow
    import pyarrow.parquet

    fields = [("image", pyarrow.string()), ("caption", pyarrow.string()), ("score", pyarrow.float64())]
    word = pyarrow.struct([("word", pyarrow.string()), ("confidence", pyarrow.float64())])
    numbers = pyarrow.list_(pyarrow.float64())
    kinds = (pyarrow.list_(pyarrow.string()), numbers, pyarrow.float64(), pyarrow.list_(word), numbers)
    iterator = iter(records)
    part = list(islice(iterator, ROWS_PER_GROUP))
    further = [pair for pair in zip(FURTHER_COLUMNS, kinds, strict=True) if part and pair[0] in part[0]]
    schema = pyarrow.schema(fields + further)
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while part:
            rows = [record | {"image": quoted_name(record["image"], one_line=False)} for record in part]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            part = list(islice(iterator, ROWS_PER_GROUP))


WRITERS: dict[str, Callable[[Iterable[dict[str, Any]], IO[Any]], None]] = {
    ".jsonl": write_jsonl,
    ".csv": write_csv,
    ".txt": write_txt,
    ".json": write_coco,
    PARQUET: write_parquet,
}


def is_working_file(path: Path) -> bool:
    """Return whether a file name is that of an unfinished job's partial file, see `CaptionFile`."""
    return path.suffix == WORKING_SUFFIX and Path(path.stem).suffix.lower() in WRITERS


def part_of_output(path: Path, shard: str | None) -> Path:
    """Return the output file of a job; in an output folder, `part-00002-of-00004.parquet` for the shard `2/4`.

    Args:
        path: the output as typed: a file, or a folder, which has no suffix or exists.
        shard: see `shard_of`.

    Raises:
        PermissionError, NotADirectoryError: the folder cannot be written to.
    """
    if not path.is_dir() and (path.suffix or path.is_file()):
        return path
    require_writable_folder(path)
    part, _, parts = (shard or "1/1").partition("/")
    return path / f"part-{int(part):05d}-of-{int(parts):05d}{PARQUET}"


def coco_id(name: str) -> int:
    """Return the COCO id of an image: the last digits of its name, as in `COCO_val2014_000000391895.jpg`.

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
    """Check that every image has a COCO id, and no two images the same.

    Raises:
        ValueError: an image has no number, or two images have the same.
    """
    names: dict[int, str] = {}
    for name in images:
        other = names.setdefault(coco_id(name), name)
        if other != name:
            raise ValueError(f"{other} and {name} have the same number; COCO results need distinct ones.")


def require_free_output(path: Path, resume: bool = False, overwrite: bool = False) -> None:
    """Check that a captioning job may write its output file, before a model is loaded.

    Raises:
        FileExistsError: the output, or the partial file of an interrupted job, exists, and neither `resume` nor
            `overwrite` is set.
        UnsafeFileError: one of them is a symbolic link or no plain file.
        ValueError: the format is unknown.
    """
    output_writer(path)
    working = path.with_name(path.name + WORKING_SUFFIX)
    for file in (path, working):
        require_safe_target(file)
    if path.exists() and not overwrite:
        hint = "It is complete, there is nothing to resume. " if resume else ""
        raise FileExistsError(f"{path} exists. {hint}Pass `overwrite` to replace it, or a different `output`.")
    if working.exists() and not (resume or overwrite):
        raise FileExistsError(
            f"{working} exists: an earlier run was interrupted. Pass `resume` to resume it, or `overwrite`."
        )


def seed_of_interrupted(path: Path) -> int | None:
    """Return the random seed of an interrupted job from its partial file; None if the file states no seed.

    Args:
        path: the output, see `CaptionFile`, which checks the partial file.
    """
    try:
        with open(path.with_name(path.name + WORKING_SUFFIX), encoding="utf-8") as file:
            seed = json.loads(file.readline())["settings"].get("seed")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return seed if type(seed) is int else None


class CaptionFile:
    """The output file of a captioning job, which can be interrupted and resumed.

    Records are appended to `OUTPUT.partial`, one line each, as soon as they are known. `finish` writes the output
    atomically and removes that file. While it is open, no other process can write the same output.

    Args:
        path: the output; its suffix gives the format, see `WRITERS`.
        settings: what the captions depend on, see `job_settings`. A job with other settings does not resume the file.
        resume: resume an interrupted job.
        overwrite: replace what an earlier job left.

    Attributes:
        done: images that are captioned or skipped.
        skipped: images that could not be read, by name, with the reasons.

    Raises:
        FileExistsError: the output or the partial file of an interrupted job exists, and neither `resume` nor
            `overwrite` is set.
        ValueError: the partial file has other settings or is damaged, or the format is unknown.
        PermissionError: the folder cannot be written to.
        UnsafeFileError: the output, its partial file or its lock is a symbolic link or no plain file.
        BlockingIOError: another process writes this output.

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
        self.skipped: dict[str, str] = {}
        with ExitStack() as locked:
            locked.enter_context(only_writer_of(path))
            require_safe_target(self.working)
            self._require_free(resume, overwrite)
            begun = resume and self.working.exists() and self._read_working(settings)
            try:
                self.file = open_for_writing(self.working, "a" if begun else "w", errors=ESCAPED)
            except UnsafeFileError:
                raise
            except OSError as error:
                raise PermissionError(f"{self.working} cannot be written ({error.strerror}).") from error
            locked.callback(self._close_working)
            if not begun:
                self._append([{"settings": settings}])
            self._open = locked.pop_all()

    def _require_free(self, resume: bool, overwrite: bool) -> None:
        require_free_output(self.path, resume, overwrite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_working(self, settings: dict[str, Any]) -> bool:
        """Read the finished images from the partial file, drop an incomplete line; return whether it has lines."""
        whole = 0
        with open_plain(self.working) as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES), b""), 1):
                if not line.endswith(b"\n"):
                    break
                record = self._record(line, number)
                whole += len(line)
                if number == 1:
                    self._require_same(record["settings"], settings)
                elif "skipped" in record:
                    self.skipped[record["skipped"]] = record["reason"]
                    self.done.add(record["skipped"])
                else:
                    self.done.add(record["image"])
        truncate_file(self.working, whole)
        return whole > 0

    def _record(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
            if number == 1:
                is_valid = isinstance(record["settings"], dict)
            else:
                is_valid = isinstance(record["skipped"] if "skipped" in record else record["image"], str)
            if is_valid:
                return record
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise ValueError(f"{self.working}, line {number} is damaged. Pass `overwrite` to begin the job again.")

    def _require_same(self, stored: dict[str, Any], settings: dict[str, Any]) -> None:
        settings = json.loads(json.dumps(settings))
        changed = [name for name in {**stored, **settings} if stored.get(name) != settings.get(name)]
        if changed:
            shown = "; ".join(f"{name} was {stored.get(name)!r}, is {settings.get(name)!r}" for name in changed)
            raise ValueError(
                f"{self.working} was written with other settings: {shown}. Pass the same ones to resume the job, or "
                "`overwrite` to begin it again."
            )

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        with explain_write_errors(self.working, RESUME_ADVICE):
            self.file.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
            self.file.flush()

    def add(self, records: Iterable[dict[str, Any]], skipped: Iterable[tuple[str, str]] = ()) -> None:
        """Append caption records, and unreadable images with the reasons, to the partial file.

        Raises:
            OSError: the disk is full; the message names the file.
        """
        captioned, reasons = list(records), dict(skipped)
        bad = ({"skipped": image, "reason": reason} for image, reason in reasons.items())
        self._append([*captioned, *bad])
        self.skipped |= reasons
        self.done |= reasons.keys() | {record["image"] for record in captioned}

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all caption records of the partial file."""
        with open_plain(self.working) as file:
            for line in file:
                record = json.loads(line)
                if "image" in record:
                    yield record

    def finish(self) -> None:
        """Write the output file and remove the partial file."""
        self._close_working()
        form = {"mode": "wb"} if self.path.suffix.lower() == PARQUET else {"newline": "", "errors": ESCAPED}
        with explain_write_errors(self.path, RESUME_ADVICE), atomic_file(self.path, **form) as file:
            self.write(self.records(), file)
        self.working.unlink()

    def close(self) -> None:
        """Close the partial file; an unfinished one stays on disk for a resumed job."""
        self._open.close()

    def _close_working(self) -> None:
        with suppress(OSError):  # the rest of a line for which there was no space; reading removes incomplete lines
            self.file.close()

"""Checks of a data set without building its Arrow files."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .building import ROWS_AT_ONCE
from .generated_captions import unchanged_files
from .images import usable_rows
from .loading import make_reader
from .reader import CaptionReader
from .report import DataReport, ProblemKind
from .schema import CaptionRow


@dataclass
class DataCheck:
    """Result of `check_dataset`.

    Attributes:
        report: kept rows and all problems.
        captions: histogram of the captions per image (`{5: 998, 4: 2}`).
        words: histogram of the words per caption, split at spaces.
    """

    report: DataReport
    captions: Counter[int] = field(default_factory=Counter)
    words: Counter[int] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Return the check's result as lines of text."""
        lines = [f"{split}: {count:,} images" for split, count in self.report.kept.items()]
        lines += [f"{count:,} x {note}" for note, count in self.report.notes.items()]
        for title, counts in (("captions per image", self.captions), ("words per caption", self.words)):
            if counts:
                mean = statistics.fmean(counts.elements())
                lines.append(f"{title}: {min(counts)} to {max(counts)}, mean {mean:.2f}")
        return [*lines, *self.report.remarks]


def check_dataset(name: str, data_dir: str | Path | None = None, **options: Any) -> DataCheck:
    """Read a data set and decode all its images, without building Arrow files.

    Args:
        name: one of `list_datasets()` that is read from files.
        data_dir: its folder.
        options: its own options.

    Faults of a whole table, such as columns of mixed types, are problems of the report, and the other tables are read.

    Raises:
        ValueError: nothing of it can be read, or an option is unknown.
        FileNotFoundError: its folder or annotations are missing.
        UnsafeFileError: a table or text file is a symbolic link out of the folder, or no plain file.
    """
    reader = make_reader(name, data_dir, {"check_images": True, **options})
    if not isinstance(reader, CaptionReader):
        raise ValueError(
            f"{name!r} is not read from a folder. Check its folder as `dataset='caption_folder'`, or load it with "
            "strict=True in Python."
        )
    with suppress(ValueError, FileNotFoundError):  # faults of tables are reported by the pass over the rows
        for file in reader.annotation_files():
            reader.require_link_inside(file)
    check = DataCheck(DataReport(name, goes_on=True))
    splits: Mapping[str, Sequence[CaptionRow]] = {}
    try:
        splits = reader.read(check.report).splits
    except (ValueError, FileNotFoundError) as error:
        if not check.report.problems:
            raise
        check.report.add(ProblemKind.UNREADABLE_TABLE, reader.folder, None, str(error))  # beside what was found before
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        for split, rows in splits.items():
            for start in range(0, len(rows), ROWS_AT_ONCE):
                part = [rows[index] for index in range(start, min(start + ROWS_AT_ONCE, len(rows)))]
                for row in usable_rows(part, check.report, reader.check_images, workers):
                    check.report.kept[split] += 1
                    check.captions[len(row.captions)] += 1
                    check.words.update(len(caption.split()) for caption in row.captions)
    if name == "caption_folder":
        check.report.remarks += _generated(reader.folder, options)
    return check


def _generated(folder: Path, options: Mapping[str, Any]) -> list[str]:
    """Return a warning about caption files written by a captioner, which training refuses; empty without any."""
    with suppress(ValueError, OSError):  # faults that the pass over the rows has reported
        files = unchanged_files(folder, options.get("metadata_file"), bool(options.get("follow_links")))
        if count := sum(1 for _ in files):
            return [
                f"A captioner wrote {count:,} text file(s) and nobody changed them: training takes them with "
                "`train_on_generated` only."
            ]
    return []

"""Builder for `datasets` that uses a reader: Arrow files in the cache, or a stream of the same rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
from datasets import ArrowBasedBuilder, DatasetInfo, SplitGenerator
from datasets.builder import Key
from datasets.exceptions import DatasetGenerationError

from hf_captioners.output_files import write_text

from .fingerprint import fingerprint
from .images import usable_rows
from .reader import Annotations, CaptionReader
from .report import DataReport, ProblemKind, first_lines
from .schema import CaptionRow, caption_features

REPORT_FILE = "report.json"
# A streamed split has this many parts, which are distributed to processes and loader workers.
STREAMED_PARTS = 64
ROWS_AT_ONCE = 256
# Errors of values that a column cannot hold.
ARROW_FAULTS = (pyarrow.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)


class CaptionBuilder(ArrowBasedBuilder):
    """Builds a data set from a reader.

    Args:
        reader: reads the annotations.
        report: receives the problems and the number of kept rows.
        strict: whether any problem is an error.
        cache_dir: folder of the Arrow files (default: the cache of `datasets`).
    """

    def __init__(
        self, reader: CaptionReader, report: DataReport, strict: bool = False, cache_dir: str | Path | None = None
    ) -> None:
        self.reader, self.report, self.strict = reader, report, strict
        self._annotations: Annotations | None = None
        super().__init__(
            cache_dir=None if cache_dir is None else str(cache_dir),
            dataset_name=f"captions_{reader.name}",
            hash=fingerprint(reader),
        )

    def _info(self) -> DatasetInfo:
        card = self.reader.card
        return DatasetInfo(
            description=card.description, citation=card.citation, license=card.licence, homepage=card.homepage
        )

    def __getstate__(self) -> dict[str, Any]:
        # Loader workers read the annotations themselves, which is faster than sending millions of rows.
        return {**super().__getstate__(), "_annotations": None}

    @property
    def annotations(self) -> Annotations:
        """Annotations of the reader, read once."""
        if self._annotations is None:
            self.report.begin(self.reader.name)
            self._annotations = self.reader.read(self.report)
        return self._annotations

    def split_names(self) -> list[str]:
        """Return the names of the splits without building the data set."""
        return list(self.info.splits or self.annotations.splits)

    def _split_generators(self, dl_manager: Any) -> list[SplitGenerator]:
        annotations = self.annotations
        if self.strict:
            self.report.raise_if_bad()
        self.info.features = caption_features(annotations.extra, annotations.views)
        self._check_counts({split: len(rows) for split, rows in annotations.splits.items()})
        return [
            SplitGenerator(name=split, gen_kwargs={"split": split, "parts": _parts(len(rows))})
            for split, rows in annotations.splits.items()
        ]

    def _generate_tables(self, split: str, parts: list[tuple[int, int]]) -> Iterator[tuple[Key, pyarrow.Table]]:
        annotations = self.annotations
        schema = caption_features(annotations.extra, annotations.views).arrow_schema
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as workers:
            for part, (start, stop) in enumerate(parts):
                for first in range(start, stop, ROWS_AT_ONCE):
                    rows = [
                        annotations.splits[split][index] for index in range(first, min(first + ROWS_AT_ONCE, stop))
                    ]
                    rows = usable_rows(rows, self.report, self.reader.check_images, workers)
                    table = self._table(rows, split, schema)
                    if self.strict:
                        self.report.raise_if_bad()
                    self.report.kept[split] += len(table)
                    if len(table):
                        yield Key(part, first), table

    def _table(self, rows: list[CaptionRow], split: str, schema: pyarrow.Schema) -> pyarrow.Table:
        """Return rows as an Arrow table; report and drop rows with values of wrong types."""
        records = [row.as_record(split, self.annotations.views) for row in rows]
        try:
            return pyarrow.Table.from_pylist(records, schema=schema)
        except ARROW_FAULTS:  # find the rows
            good = []
            for row, record in zip(rows, records, strict=True):
                try:
                    pyarrow.Table.from_pylist([record], schema=schema)
                except ARROW_FAULTS as error:
                    self.report.add(ProblemKind.MALFORMED_ROW, row.file, row.line, str(error).replace("\n", " ")[:200])
                else:
                    good.append(record)
            return pyarrow.Table.from_pylist(good, schema=schema)

    def _download_and_prepare(self, dl_manager: Any, verification_mode: Any, **kwargs: Any) -> None:
        super()._download_and_prepare(dl_manager, verification_mode, **kwargs)
        for split, rows in self.annotations.splits.items():
            if not self.report.kept[split]:
                raise ValueError(
                    f"The split {split!r} of {self.reader.name!r} has no usable row (of {len(rows)}).\n"
                    f"{first_lines(self.report.problems, 10)}"
                )
        self._check_counts(self.report.kept)
        # In the folder that is renamed when it is complete, so a stored data set always has its report.
        write_text(Path(self._output_dir, REPORT_FILE), self.report.to_json())

    def _check_counts(self, counts: Mapping[str, int]) -> None:
        """Check that each split has as many rows as the reader announces."""
        expected = self.annotations.expected
        if any(counts.get(split, 0) != count for split, count in expected.items()):
            raise ValueError(
                f"{self.reader.name!r} should have {dict(expected)} rows and has "
                f"{ {split: counts.get(split, 0) for split in expected} }. Complete the data, or pass "
                f"`allow_partial=True` to load the available part.\n{first_lines(self.report.problems, 10)}"
            )

    def prepare(self) -> None:
        """Build the Arrow files, or find them in the cache with the report of their build.

        Raises:
            BadRowsError: `strict` is set and there is a problem.
            ValueError: a split has no usable rows, or the annotations cannot be read.
        """
        try:
            self.download_and_prepare()
        except DatasetGenerationError as error:  # the reason is its cause
            raise error.__cause__ or error from None
        self.report.update_from_json(Path(self.cache_dir, REPORT_FILE).read_text(encoding="utf-8"))
        if self.strict:
            self.report.raise_if_bad()


def _parts(count: int) -> list[tuple[int, int]]:
    parts = max(1, min(STREAMED_PARTS, count))
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]

"""Reports of data sets: every bad row, with file and line."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WHOLE_LIST = "All of them: load_captions(..., report=DataReport())."
WHOLE_LIST_TYPED = "All of them: hf-captioners check-data."  # on the command line


class ProblemKind(enum.StrEnum):
    """Kinds of bad rows."""

    UNREADABLE_TABLE = "unreadable table"
    MIXED_TYPES = "mixed types"
    MALFORMED_ROW = "malformed row"
    MISSING_CAPTION = "missing caption"
    MISSING_IMAGE = "missing image"
    UNREADABLE_IMAGE = "unreadable image"
    DUPLICATE = "duplicate"
    IN_TWO_SPLITS = "image in two splits"
    IMAGE_WITHOUT_CAPTION = "image without caption"


@dataclass(frozen=True)
class Problem:
    """Bad row: its kind, place and message.

    Attributes:
        kind: kind of the problem.
        file: the file that contains the row.
        line: its line or record number, from 1; None if there is none.
        message: description, with the value found.
        dropped: whether the row was left out (otherwise it is only reported).
    """

    kind: ProblemKind
    file: str
    line: int | None
    message: str
    dropped: bool = True

    def __str__(self) -> str:
        return f"{self.file}{'' if self.line is None else f':{self.line}'}: {self.kind}: {self.message}"


class BadRowsError(ValueError):
    """Raised if rows are bad and `strict=True`."""


@dataclass
class DataReport:
    """Counts of rows and the list of problems found while loading.

    Pass an empty report to `load_captions(..., report=report)` and read it afterwards. When streaming, it fills while
    rows are read, in the process that reads them.

    Attributes:
        name: the name of the data set.
        kept: rows of the data set (one per image) by split; of a stream, the rows read so far.
        problems: all problems in the order in which they were found.
        notes: counts of expected losses, such as dead links.
        remarks: what was assumed about files, such as a guessed encoding, for a person to check.
        goes_on: whether a fault of a whole table or column is only listed, to find the others too; it is an error
            otherwise, because such a data set cannot be loaded.
    """

    name: str = ""
    kept: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    goes_on: bool = False
    _known: set[Problem] = field(default_factory=set, repr=False, compare=False)

    def add(
        self, kind: ProblemKind | str, file: str | Path, line: int | None, message: str, dropped: bool = True
    ) -> None:
        """Add a problem, unless an earlier pass over a stream added it."""
        problem = Problem(ProblemKind(kind), str(file), line, message, dropped)
        if problem not in self._known:
            self._known.add(problem)
            self.problems.append(problem)

    def remark(self, file: str | Path, message: str) -> None:
        """Add a note on how a file was interpreted, unless the report has it already."""
        text = f"{file}: {message}"
        if text not in self.remarks:
            self.remarks.append(text)

    @contextmanager
    def whole(self, file: str | Path, kind: ProblemKind = ProblemKind.UNREADABLE_TABLE) -> Iterator[None]:
        """Context manager that reports an error about a whole table or column as one problem if `goes_on`.

        Args:
            file: the table, or the folder of the tables.
            kind: kind of the problem.

        Raises:
            ValueError, FileNotFoundError: as inside, unless `goes_on`.
        """
        try:
            yield
        except (ValueError, FileNotFoundError) as error:
            if not self.goes_on:
                raise
            self.add(kind, file, None, str(error))

    def begin(self, name: str) -> None:
        """Reset the report for loading the data set `name`."""
        self.name = name
        self.kept.clear()
        self.problems.clear()
        self._known.clear()
        self.notes.clear()
        self.remarks.clear()

    def counts(self) -> dict[str, int]:
        """Return the number of problems by kind."""
        return dict(Counter(problem.kind.value for problem in self.problems))

    def summary(self, shown: int = 10) -> str:
        """Return the counts of rows and problems, and the first `shown` problems.

        Images without captions, as in a folder that is not yet reviewed as a whole, are one line.
        """
        kept = ", ".join(f"{count:,} {split}" for split, count in self.kept.items()) or "no rows"
        kept += "".join(f"; {count:,} x {note}" for note, count in self.notes.items())
        if not self.problems:
            return "\n".join([f"{self.name}: kept {kept}. Nothing is wrong.", *self.remarks])
        uncaptioned = [problem for problem in self.problems if problem.kind == ProblemKind.IMAGE_WITHOUT_CAPTION]
        lines = [f"{self.name}: kept {kept}."]
        if uncaptioned:
            lines.append(f"{len(uncaptioned):,} image(s) have no captions yet, such as {uncaptioned[0].file}.")
        if counted := [problem for problem in self.problems if problem.kind != ProblemKind.IMAGE_WITHOUT_CAPTION]:
            counts = Counter(problem.kind.value for problem in counted)
            lines[0] += f" Problems: {', '.join(f'{count:,} x {kind}' for kind, count in counts.items())}."
            lines += [first_lines(counted, shown), WHOLE_LIST]
        return "\n".join([*lines, *self.remarks])

    def raise_if_bad(self) -> None:
        """Raise `BadRowsError` if there are any problems."""
        if self.problems:
            raise BadRowsError(
                f"{self.name} has {len(self.problems):,} bad rows:\n{first_lines(self.problems, 20)}\n"
                "Repair them, or pass strict=False to leave out the unusable ones."
            )

    def to_json(self) -> str:
        """Return the report as JSON text."""
        problems = [asdict(problem) for problem in self.problems]
        stored: dict[str, Any] = {"name": self.name, "kept": self.kept, "notes": self.notes, "problems": problems}
        stored["remarks"] = self.remarks
        return json.dumps(stored)  # ASCII: names may have surrogates in place of bytes that are no UTF-8

    def update_from_json(self, text: str) -> None:
        """Fill this report from the output of `to_json`."""
        stored = json.loads(text)
        self.name = stored["name"]
        self.kept = Counter(stored["kept"])
        self.notes, self.remarks = Counter(stored["notes"]), stored["remarks"]
        self.problems = [Problem(ProblemKind(p.pop("kind")), **p) for p in stored["problems"]]


def first_lines(problems: Iterable[Problem], shown: int) -> str:
    """Return the first problems, one per line, and how many more there are."""
    lines = [f"  {problem}" for problem in problems]
    more = [f"  ... and {len(lines) - shown:,} more"] if len(lines) > shown else []
    return "\n".join(lines[:shown] + more)

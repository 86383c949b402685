"""Table of kept captions: `metadata.jsonl` of a folder, changed row by row."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_captioners.captioning.sidecars import sidecar_of
from hf_captioners.data.folder_tables import (
    IMAGE_FOLDERS,
    REJECTED,
    find_image,
    find_tables,
)
from hf_captioners.data.images import list_images, readable_suffixes
from hf_captioners.data.schema import CAPTIONS, storable
from hf_captioners.image_names import FolderNames
from hf_captioners.metrics.annotation_files import FirstFault
from hf_captioners.metrics.caption_tables import table_rows
from hf_captioners.metrics.table_columns import CAPTION_COLUMNS, FILE_COLUMNS
from hf_captioners.metrics.text_encoding import decoded
from hf_captioners.output_files import (
    MAX_TABLE_BYTES,
    change_file,
    only_writer_of,
    read_bytes_inside,
    require_link_inside,
    require_plain,
    require_safe_target,
    require_writable_folder,
    writer_lock_of,
)

TABLE = "metadata.jsonl"
MAX_CAPTIONS, LONGEST_CAPTION = 20, 2_000


class ChangedCaptionsError(Exception):
    """Another program has changed an image's captions since the user saw them.

    Args:
        captions: those of the table.
    """

    def __init__(self, captions: Sequence[str]) -> None:
        super().__init__("The captions of this image were changed meanwhile.")
        self.captions = list(captions)


@dataclass(frozen=True)
class StoredCaptions:
    """Captions of an image in the table, and whether they are kept or rejected.

    Attributes:
        captions: their captions.
        rejected: whether a person rejected the image, so that data sets leave it out.
    """

    captions: list[str]
    rejected: bool

    @property
    def kept(self) -> bool:
        """True if the image has captions that the user kept."""
        return bool(self.captions) and not self.rejected


@dataclass(frozen=True)
class RowChange:
    """Lines of an image in the table before and after a change."""

    before: tuple[str, ...]
    after: tuple[str, ...]


class ReviewTable:
    """Images of a folder, with their proposed captions and the captions that the user keeps.

    The file is read again before each change and replaced atomically, under a lock, so that another program may change
    it in between. Lines of other images, other columns and lines that cannot be read stay as they are.

    Args:
        folder: a folder with images, also in folders below it.
        captions: a table with captions of these images, as `hf-captioners caption` writes it.
        ending: ending of the text files beside the images, which are proposals too.
        follow_links: whether these text files may be symbolic links that lead out of the folder.

    Attributes:
        path: the table, `metadata.jsonl` in the folder.
        images: the images, sorted by path.
        proposed_rows: the first row of the table of captions for each image that it has.

    Raises:
        FileNotFoundError: there is no such folder, or it has no images.
        ValueError: the folder has another table, or the table of captions names none of its images.
        PermissionError: the folder cannot be written to.
        UnsafeFileError: the table is a symbolic link, or a text file is one that leads out of the folder; or one of
            them is no plain file.
    """

    def __init__(
        self,
        folder: str | Path,
        captions: str | Path | None = None,
        ending: str = "txt",
        follow_links: bool = False,
    ) -> None:
        self.folder, self.ending, self.follow_links = Path(folder), ending, follow_links
        self.path = self.folder / TABLE
        if not self.folder.is_dir():
            raise FileNotFoundError(f"There is no folder {folder}.")
        self.images = list_images(self.folder)
        if not self.images:
            raise FileNotFoundError(f"{folder} has no images. The endings {' '.join(readable_suffixes())} are read.")
        self._require_no_other_table()
        require_safe_target(self.path)
        for text in (sidecar_of(str(image), ending) for image in self.images):
            if text.exists():
                require_link_inside(text, self.folder, follow_links)
                require_plain(text, text.stat().st_mode)
        require_writable_folder(self.folder)
        self.names = [image.relative_to(self.folder).as_posix() for image in self.images]
        self._by_path = dict(zip(self.images, self.names, strict=True))
        self._lock = writer_lock_of(self.path)
        self._places = [FolderNames(self.folder / place) for place in IMAGE_FOLDERS]
        self.proposed_rows: dict[str, dict[str, Any]] = {}
        self.proposed = self._read_captions(Path(captions)) if captions is not None else {}

    def _require_no_other_table(self) -> None:
        if self.path.exists():
            return
        try:
            tables = find_tables(self.folder, None)
        except FileNotFoundError:  # images without captions
            return
        for table in tables:
            if not table.path.is_dir():
                advice = "review that folder" if table.folder != self.folder else f"convert it to {TABLE}"
                raise ValueError(f"{self.folder} has the table {table.path}; captions are kept in {TABLE}: {advice}.")

    def _read_captions(self, path: Path) -> dict[str, list[str]]:
        """Return the captions in a table by image name."""
        images = {image.resolve(): name for image, name in zip(self.images, self.names, strict=True)}
        folders = [FolderNames(folder) for folder in ("", self.folder, path.parent)]
        captions_by_name: dict[str, list[str]] = {}
        for _, row in table_rows(path, FirstFault()):
            file = next((row[column] for column in FILE_COLUMNS if isinstance(row.get(column), str)), None)
            if file is None:
                continue
            candidates = (find_image([names], file)[1].resolve() for names in folders)
            name = next((images[image] for image in candidates if image in images), None)
            if name is not None:
                captions_by_name.setdefault(name, []).extend(captions_of(row))
                self.proposed_rows.setdefault(name, row)
        if not captions_by_name:
            raise ValueError(f"{path} names no image of {self.folder}, expected what `hf-captioners caption` wrote.")
        return captions_by_name

    def stored(self) -> dict[str, StoredCaptions]:
        """Return the table's data about the folder's images, by image name."""
        records: dict[str, list[dict[str, Any]]] = {}
        for _, record, name in self._lines():
            if name is not None:
                records.setdefault(name, []).append(record)
        return {name: stored_captions(of_image) for name, of_image in records.items()}

    def rows(self) -> dict[str, list[str]]:
        """Return the kept captions by image name."""
        return {name: row.captions for name, row in self.stored().items() if row.kept}

    def captions(self, number: int) -> tuple[list[str], str]:
        """Return the captions to show for an image, and their origin.

        Args:
            number: index of the image.

        Returns:
            Captions, and `"kept"`, `"rejected"`, `"table"`, `"text file"` or `"none"`.
        """
        name = self.names[number]
        row = self.stored().get(name)
        if row is not None and row.captions:
            return row.captions, "kept" if row.kept else "rejected"
        if proposed := self.proposed.get(name):
            return proposed, "table"
        with suppress(OSError, UnicodeDecodeError):
            file = sidecar_of(str(self.images[number]), self.ending)
            text, _ = decoded(read_bytes_inside(file, self.folder, follow_links=self.follow_links))
            if lines := [line.strip() for line in text.splitlines() if line.strip()]:
                return lines, "text file"
        return [], "none"

    def only_writer(self, patience: float = 5.0) -> AbstractContextManager[None]:
        """Context manager that locks the table against other programs, for an open page or a single change.

        Args:
            patience: seconds to wait for another program.

        Raises:
            BlockingIOError: another program holds it.
        """
        advice = "It may be a page of `hf-captioners review` that is open: end it first (Ctrl+C)."
        return only_writer_of(self.path, self._lock, patience, advice)

    def keep(
        self, number: int, captions: Sequence[Any], shown: Sequence[str] | None = None, rejected: bool = False
    ) -> RowChange:
        """Write kept captions, or a rejection, to `metadata.jsonl`; return the change of lines for undo.

        A row of the image that is there keeps its other columns, and its form: a list, or a caption a row. Of several
        rows each keeps its own columns, in their order.

        Args:
            number: index of the image.
            captions: at least one, unless the image is rejected.
            shown: the captions of the table that a person saw. None: they are replaced whatever they are.
            rejected: whether the image is rejected: data sets leave its rows out.

        Returns:
            The lines of the image before and after, see `restore`.

        Raises:
            ChangedCaptionsError: the table has other captions than those that were shown.
            ValueError: there is no caption, or one is not a line of text; or the row has a number that is too large.
            BlockingIOError: another program writes the table.
            OSError: the table cannot be written.
        """
        texts = checked_captions(captions, may_be_none=rejected)

        def lines(records: list[dict[str, Any]]) -> list[list[str]]:
            current = stored_captions(records).captions
            if shown is not None and current not in (list(shown), texts):
                raise ChangedCaptionsError(current)
            return changed_rows(records, texts or current, rejected)

        mark = {REJECTED: True} if rejected else {}
        return self._change(number, lines, {"file_name": self.names[number], CAPTIONS: texts, **mark})

    def restore(self, number: int, change: RowChange) -> None:
        """Restore the lines of an image from before a change.

        Raises:
            ChangedCaptionsError: another program changed them since.
            BlockingIOError, OSError: see `keep`.
        """

        def lines(records: list[dict[str, Any]]) -> list[list[str]]:
            if [json.loads(line) for line in change.after] != records:
                raise ChangedCaptionsError(stored_captions(records).captions)
            if len(change.before) == len(records):
                return [[line] for line in change.before]
            return [list(change.before), *([] for _ in records[1:])] if records else []

        self._change(number, lines, None, change.before)
        with suppress(FileNotFoundError):
            if not self.path.stat().st_size:
                self.path.unlink()  # an empty table would stand before the text files

    def _change(
        self,
        number: int,
        lines_of: Callable[[list[dict[str, Any]]], list[list[str]]],
        new: dict[str, Any] | None,
        new_lines: Sequence[str] = (),
    ) -> RowChange:
        """Replace each row of an image by given lines, or append lines if it has no row."""
        name, change = self.names[number], RowChange((), ())

        def changed(content: bytes | None) -> bytes:
            nonlocal change
            rows = [] if content is None else list(self._rows_in(content))
            records = [record for _, record, of_image in rows if of_image == name]
            replaced = lines_of(records)
            parts = iter(replaced)
            lines = [line for line, _, of_image in rows for line in ([line] if of_image != name else next(parts))]
            added = [] if records else [json_line(new)] if new is not None else list(new_lines)
            before = tuple(line for line, _, of_image in rows if of_image == name)
            change = RowChange(before, tuple(line for part in replaced for line in part) + tuple(added))
            # Bytes, since lines that cannot be read are kept.
            return "".join(f"{line}\n" for line in (*lines, *added)).encode("utf-8", "surrogateescape")

        with self.only_writer():
            change_file(self.path, changed, self.folder)
        return change

    def _lines(self) -> Iterator[tuple[str, dict[str, Any], str | None]]:
        """Yield the table's lines with parsed records, and each line's image in the folder, if any."""
        require_safe_target(self.path)
        if self.path.exists():
            yield from self._rows_in(read_bytes_inside(self.path, self.folder, MAX_TABLE_BYTES))

    def _rows_in(self, content: bytes) -> Iterator[tuple[str, dict[str, Any], str | None]]:
        text = content.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
        for line in (line for line in text.split("\n") if line.strip()):
            record: Any = None
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
            if not isinstance(record, dict):
                yield line, {}, None
                continue
            file = next((record[column] for column in FILE_COLUMNS if isinstance(record.get(column), str)), "")
            yield line, record, self._by_path.get(find_image(self._places, file)[1])


def captions_of(record: dict[str, Any]) -> list[str]:
    """Return the captions of a row, from the first column with a usual name."""
    value: Any = next((record[column] for column in CAPTION_COLUMNS if column in record), [])
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str) and text.strip()]


def stored_captions(records: Sequence[dict[str, Any]]) -> StoredCaptions:
    """Return an image's captions in the table, from rows that are not rejected, or from all rows if all are."""
    used = [record for record in records if record.get(REJECTED) is not True]
    return StoredCaptions(
        [caption for record in used or records for caption in captions_of(record)], bool(records) and not used
    )


def changed_rows(
    records: Sequence[dict[str, Any]], captions: Sequence[str], rejected: bool = False
) -> list[list[str]]:
    """Return the lines of an image's rows with new captions.

    A row with a list has all of them. Rows with one caption each have one each, and the last of them as many as are
    left; rows without a caption are gone.

    Args:
        records: the rows, in their order.
        captions: the captions.
        rejected: whether the rows are rejected.

    Returns:
        For each row the lines in its place.

    Raises:
        ValueError: a row has a number that JSON cannot express.
    """
    lines: list[list[str]] = []
    remaining: list[Any] = list(captions)
    if not captions:  # a rejected image without any
        return [[json_line({**record, REJECTED: True})] for record in records]
    for place, record in enumerate(records):
        column = next((column for column in CAPTION_COLUMNS if column in record), CAPTIONS)
        if not isinstance(record.get(column), str):
            values, remaining = [remaining] if remaining else [], []
        else:
            count = 1 if place + 1 < len(records) else len(remaining)
            values, remaining = remaining[:count], remaining[count:]
        marks = {name: value for name, value in record.items() if name != REJECTED or value is not True}
        marks |= {REJECTED: True} if rejected else {}
        lines.append([json_line({**marks, column: value}) for value in values])
    return lines


def json_line(record: dict[str, Any]) -> str:
    """Return a row as JSON; in ASCII if it has a file name that is not UTF-8.

    Raises:
        ValueError: it has a number that JSON cannot express.
    """
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"The row of this image has a number that is too large or none: {record!r:.200}.") from error
    return text if storable(text) == text else json.dumps(record)


def checked_captions(captions: Sequence[Any], may_be_none: bool = False) -> list[str]:
    """Return captions with runs of spaces collapsed.

    Args:
        captions: texts.
        may_be_none: whether there may be no caption.

    Raises:
        ValueError: there is none, there are too many, or one is too long or not text.
    """
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise ValueError(f"The captions are {captions!r:.80}, expected a list of texts.")
    texts = [text for text in (" ".join(text.split()) for text in captions) if text]
    if not texts and may_be_none:
        return texts
    if not texts:
        raise ValueError("There is no caption. Write one, or skip the image.")
    if len(texts) > MAX_CAPTIONS or max(map(len, texts)) > LONGEST_CAPTION:
        raise ValueError(
            f"There are {len(texts)} captions of up to {max(map(len, texts)):,} characters, expected at most "
            f"{MAX_CAPTIONS} of up to {LONGEST_CAPTION:,}."
        )
    if any(storable(text) != text for text in texts):
        raise ValueError("A caption has characters that cannot be stored as UTF-8.")
    return texts

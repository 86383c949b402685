"""The table of captions that a person keeps: `metadata.jsonl` of a folder, changed row by row."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hf_captioners.captioning.sidecars import sidecar_of
from hf_captioners.data.folder_tables import CAPTION_COLUMNS, FILE_COLUMNS, find_tables
from hf_captioners.data.images import READ_SUFFIXES, list_images
from hf_captioners.data.schema import CAPTIONS, storable
from hf_captioners.metrics.caption_tables import FirstFault, table_rows
from hf_captioners.output_files import (
    MAX_TABLE_BYTES,
    atomic_file,
    read_text_inside,
    require_link_inside,
    require_plain,
    require_safe_target,
    require_writable_folder,
    unquoted_name,
)

TABLE = "metadata.jsonl"
MOST_CAPTIONS, LONGEST_CAPTION = 20, 2_000


class ReviewTable:
    """The images of a folder, the captions proposed for them, and those that a person keeps.

    The file is read again before each change and replaced atomically, so that another program may change it in
    between. Lines of other images, other columns and lines that cannot be read stay as they are.

    Args:
        folder: a folder with images, also in folders below it.
        captions: a table with captions of these images, as `hf-captioners caption` writes it.
        ending: ending of the text files beside the images, which are proposals too.
        follow_links: whether these text files may be symbolic links that lead out of the folder.

    Attributes:
        path: the table, `metadata.jsonl` in the folder.
        images: the images, sorted by path.

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
            raise FileNotFoundError(f"{folder} has no images. The endings {' '.join(READ_SUFFIXES)} are read.")
        self._require_no_other_table()
        require_safe_target(self.path)
        for text in (sidecar_of(str(image), ending) for image in self.images):
            if text.exists():
                require_link_inside(text, self.folder, follow_links)
                require_plain(text, text.stat().st_mode)
        require_writable_folder(self.folder)
        self.names = [image.relative_to(self.folder).as_posix() for image in self.images]
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
                what = "review that folder" if table.folder != self.folder else f"convert it to {TABLE}"
                raise ValueError(f"{self.folder} has the table {table.path}; captions are kept in {TABLE}: {what}.")

    def _read_captions(self, path: Path) -> dict[str, list[str]]:
        """Return the captions of a table by the names of images in the folder."""
        places = {image.resolve(): name for image, name in zip(self.images, self.names, strict=True)}
        found: dict[str, list[str]] = {}
        for _, row in table_rows(path, FirstFault()):
            file = next((row[column] for column in FILE_COLUMNS if isinstance(row.get(column), str)), None)
            if file is None:
                continue
            candidates = (Path(unquoted_name(file)), self.folder / unquoted_name(file), path.parent / file)
            name = next((places[place.resolve()] for place in candidates if place.resolve() in places), None)
            if name is not None:
                found.setdefault(name, []).extend(captions_of(row))
        if not found:
            raise ValueError(f"{path} names no image of {self.folder}, expected what `hf-captioners caption` wrote.")
        return found

    def rows(self) -> dict[str, list[str]]:
        """Return the kept captions by the name of the image, for images of the folder."""
        kept: dict[str, list[str]] = {}
        for _, record, name in self._lines():
            if name is not None:
                kept.setdefault(name, []).extend(captions_of(record))
        return {name: captions for name, captions in kept.items() if captions}

    def captions(self, number: int) -> tuple[list[str], str]:
        """Return the captions that are shown for an image, and where they are from.

        Args:
            number: index of the image.

        Returns:
            Captions, and `"kept"`, `"table"`, `"text file"` or `"none"`.
        """
        name = self.names[number]
        if kept := self.rows().get(name):
            return kept, "kept"
        if proposed := self.proposed.get(name):
            return proposed, "table"
        with suppress(OSError, UnicodeDecodeError):
            file = sidecar_of(str(self.images[number]), self.ending)
            text = read_text_inside(file, self.folder, follow_links=self.follow_links)
            if lines := [line.strip() for line in text.splitlines() if line.strip()]:
                return lines, "text file"
        return [], "none"

    def keep(self, number: int, captions: Sequence[Any]) -> None:
        """Write the captions of an image.

        A row of the image that is there keeps its other columns, and its form: a list, or a caption a row.

        Args:
            number: index of the image.
            captions: at least one.

        Raises:
            ValueError: there is no caption, or one is not a line of text.
            OSError: the table cannot be written.
        """
        texts, name = checked_captions(captions), self.names[number]
        lines, written = [], False
        for line, record, of_image in self._lines():
            if of_image != name:
                lines.append(line)
            elif not written:
                lines += changed_rows(record, texts)
                written = True
        if not written:
            lines.append(json_line({"file_name": name, CAPTIONS: texts}))
        with atomic_file(self.path, "wb") as file:  # bytes, since lines that cannot be read are kept
            file.write(("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))

    def _lines(self) -> Iterator[tuple[str, dict[str, Any], str | None]]:
        """Yield the lines of the table with their records, and the image of each that is one of the folder's."""
        require_safe_target(self.path)
        if not self.path.exists():
            return
        known = set(self.names)
        text = read_text_inside(self.path, limit=MAX_TABLE_BYTES, errors="surrogateescape")
        for line in (line for line in text.split("\n") if line.strip()):
            record: Any = None
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
            if not isinstance(record, dict):
                yield line, {}, None
                continue
            file = next((record[column] for column in FILE_COLUMNS if isinstance(record.get(column), str)), "")
            name = next((name for name in (file, f"images/{file}", f"Images/{file}") if name in known), None)
            yield line, record, name


def captions_of(record: dict[str, Any]) -> list[str]:
    """Return the captions of a row, from the first usual column that it has."""
    value: Any = next((record[column] for column in CAPTION_COLUMNS if column in record), [])
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str) and text.strip()]


def changed_rows(record: dict[str, Any], captions: Sequence[str]) -> list[str]:
    """Return the lines of a row with other captions: one with a list, or one for each caption."""
    column = next((column for column in CAPTION_COLUMNS if column in record), CAPTIONS)
    is_text = isinstance(record.get(column), str)
    values = list(captions) if is_text else [list(captions)]
    return [json_line({**record, column: value}) for value in values]


def json_line(record: dict[str, Any]) -> str:
    """Return a row as JSON; one with the name of a file that is not UTF-8 in ASCII."""
    text = json.dumps(record, ensure_ascii=False)
    return text if storable(text) == text else json.dumps(record)


def checked_captions(captions: Sequence[Any]) -> list[str]:
    """Return captions with single blanks.

    Raises:
        ValueError: there is none, there are too many, or one is too long or not text.
    """
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise ValueError(f"The captions are {captions!r:.80}, expected a list of texts.")
    texts = [text for text in (" ".join(text.split()) for text in captions) if text]
    if not texts:
        raise ValueError("There is no caption. Write one, or skip the image.")
    if len(texts) > MOST_CAPTIONS or max(map(len, texts)) > LONGEST_CAPTION:
        raise ValueError(
            f"There are {len(texts)} captions of up to {max(map(len, texts)):,} characters, expected at most "
            f"{MOST_CAPTIONS} of up to {LONGEST_CAPTION:,}."
        )
    if any(storable(text) != text for text in texts):
        raise ValueError("A caption has characters that cannot be stored as UTF-8.")
    return texts

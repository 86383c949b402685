"""A captioner's text files beside images; kept captions replace the generated ones in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_captioners.captioning.sidecars import owners_of, sidecar_of
from hf_captioners.data.generated_captions import generated_digests, record_generated, text_digest
from hf_captioners.output_files import change_file, read_bytes_inside

from .table import ReviewTable


@dataclass(frozen=True)
class TextChange:
    """Content of a text file before and after a change.

    Attributes:
        path: the file.
        before: its bytes before.
        after: its bytes after.
        by_person: whether a person kept the text before; otherwise a captioner wrote it.
        becomes_person: the same of the text after.
    """

    path: Path
    before: bytes
    after: bytes
    by_person: bool
    becomes_person: bool = True

    def reversed(self) -> "TextChange":
        """Return the inverse change, for undo."""
        return TextChange(self.path, self.after, self.before, self.becomes_person, self.by_person)


class TextFiles:
    """Text files beside the images of a folder.

    A file is written only if its text is recorded: a captioner wrote it, or this page did, and nobody changed it
    since. The record then says that a person kept the text, so that no captioner replaces it. Of `a.jpg` and `a.png`,
    the first one has the file, as for a captioner.

    Args:
        table: the images.
    """

    def __init__(self, table: ReviewTable) -> None:
        self.table = table
        self.owners = owners_of([str(image) for image in table.images], table.ending)

    def count(self) -> int:
        """Return the number of text files that keeping captions would write.

        Raises:
            UnsafeFileError: the record of a folder is a link that leads out of the folder, or no plain file.
        """
        records: dict[Path, dict[str, set[str]]] = {}
        for path in self.owners:
            if path.parent not in records:
                records[path.parent] = self._recorded(path.parent)
        return sum(self._content(path, records[path.parent].get(path.name, set())) is not None for path in self.owners)

    def write(self, number: int, captions: Sequence[str]) -> TextChange | None:
        """Write the captions of an image into its text file, one per line.

        Returns:
            The change; None if the file is not a captioner's, or that of another image, and stays as it is.

        Raises:
            OSError: the record or the file cannot be written.
        """
        path = sidecar_of(str(self.table.images[number]), self.table.ending)
        if not self.is_of(number):
            return None
        digests = self._recorded(path.parent).get(path.name, set())
        before = self._content(path, digests)
        if before is None:
            return None
        generated = generated_digests(path.parent, self.table.folder).get(path.name, set())
        by_person = text_digest(_text(before)) not in generated
        change = TextChange(path, before, "".join(f"{text}\n" for text in captions).encode(), by_person)
        return change if self.apply(change) else None

    def apply(self, change: TextChange) -> bool:
        """Write a text file unless it was changed meanwhile; return whether it was written.

        Raises:
            OSError: the record or the file cannot be written.
        """
        if self._content(change.path) != change.before:
            return False
        digest = text_digest(_text(change.after))
        record_generated(change.path.parent, {change.path.name: digest}, self.table.folder, change.becomes_person)
        return change.before == change.after or change_file(
            change.path, lambda content: change.after if content == change.before else None, self.table.folder
        )

    def is_of(self, number: int) -> bool:
        """Return whether an image's text file belongs to this image, not to another image of the same stem."""
        image = str(self.table.images[number])
        return self.owners[sidecar_of(image, self.table.ending)] == image

    def exists(self, number: int) -> bool:
        """Return whether an image has a text file."""
        return sidecar_of(str(self.table.images[number]), self.table.ending).is_file()

    def _recorded(self, folder: Path) -> dict[str, set[str]]:
        return generated_digests(folder, self.table.folder, also_kept=True)

    def _content(self, path: Path, digests: set[str] | None = None) -> bytes | None:
        """Return the content of a plain file; None if it is missing or its digest is not an expected one."""
        if path.is_symlink() or not path.is_file():  # links are never written
            return None
        try:
            content = read_bytes_inside(path, self.table.folder)
            is_recorded = digests is None or text_digest(_text(content)) in digests
        except (OSError, UnicodeDecodeError):
            return None
        return content if is_recorded else None


def _text(content: bytes) -> str:
    return content.decode("utf-8-sig")

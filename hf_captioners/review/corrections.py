"""Corrections by the user: kept captions, rejected images, drafts, and undo of each."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .drafts import Draft, Drafts, checked_draft, is_change
from .table import ChangedCaptionsError, ReviewTable, RowChange, StoredCaptions, checked_captions
from .text_files import TextChange, TextFiles

KEEP, REJECT, TYPE = "keep", "reject", "type"
NAMES_OF_CHANGES = {KEEP: "keeping the captions", REJECT: "rejecting the image", TYPE: "the change of the text"}
MAX_CHANGES = 1_000  # that can be undone
NOTHING = StoredCaptions([], False)


@dataclass(frozen=True)
class Change:
    """A change of one image's captions, which can be undone.

    Attributes:
        kind: `KEEP`, `REJECT` or `TYPE`.
        number: index of the image.
        before: the draft before.
        after: the draft after.
        row: the change of the table.
        text: the change of the text file.
    """

    kind: str
    number: int
    before: Draft | None
    after: Draft | None
    row: RowChange | None = None
    text: TextChange | None = None

    def reversed(self) -> "Change":
        """Return the inverse change, for undo."""
        row = None if self.row is None else RowChange(self.row.after, self.row.before)
        text = None if self.text is None else self.text.reversed()
        return Change(self.kind, self.number, self.after, self.before, row, text)


class Corrections:
    """Caption table, drafts and text files of a folder, changed together.

    What a person typed is stored in one of them at each moment, so that a kill between two writes loses nothing.

    Args:
        table: the images and their captions.
        text_files: the text files that are written too. None: none are.

    Raises:
        UnsafeFileError: the file of drafts is a link or no plain file.
    """

    def __init__(self, table: ReviewTable, text_files: TextFiles | None = None) -> None:
        self.table, self.text_files, self.drafts = table, text_files, Drafts(table.folder)
        self.done: deque[Change] = deque(maxlen=MAX_CHANGES)
        self.undone: list[Change] = []
        self.times: dict[int, float] = {}

    def states(self) -> dict[str, list[int]]:
        """Return the indices of the kept images, of the rejected images, and of the images with a draft."""
        stored, drafts = self.table.stored(), self.drafts.by_name
        rows = [(number, stored.get(name, NOTHING), drafts.get(name)) for number, name in enumerate(self.table.names)]
        return {
            "kept": [number for number, row, _ in rows if row.kept],
            "rejected": [number for number, row, _ in rows if row.rejected],
            "drafts": [number for number, row, draft in rows if draft is not None and _differs(draft, row)],
        }

    def captions(self, number: int) -> dict[str, Any]:
        """Return the page's data about an image: captions, their origin, and state."""
        name = self.table.names[number]
        captions, source = self.table.captions(number)
        row, draft = self.table.stored().get(name, NOTHING), self.drafts.by_name.get(name)
        shown = row.captions
        if draft is not None and _differs(draft, row):
            captions, source, shown = list(draft.captions), "draft", list(draft.shown)
        state = {"kept": row.kept, "rejected": row.rejected, "draft": source == "draft"}
        return {"captions": captions, "source": source, "shown": shown, **state}

    def type(self, number: int, captions: Any, shown: Any = (), begins: bool = True, time: float = 0.0) -> bool:
        """Store typed captions as a draft; captions equal to those in the table, or proposed, are not stored.

        Args:
            number: index of the image.
            captions: the texts as they are in the fields.
            shown: the captions that the table had when the person began to change them.
            begins: whether this is a change of its own, to be undone alone; otherwise a part of the one before.
            time: seconds in the clock of the page; a draft from before the last change of the image is out of date.

        Returns:
            Whether the image has a draft.

        Raises:
            ValueError: it is no draft, see `checked_draft`.
            OSError: it cannot be stored.
        """
        draft: Draft | None = checked_draft(captions, shown)
        name = self.table.names[number]
        before = self.drafts.by_name.get(name)
        if time and time < self.times.get(number, 0.0):
            return before is not None
        if not is_change(captions, self.table.captions(number)[0]):
            draft = None
        with self.table.only_writer():
            self.drafts.put(name, draft)
        self.times[number] = max(time, self.times.get(number, 0.0))
        last = self.done[-1] if self.done else None
        if last is not None and last.kind == TYPE and last.number == number and not begins:
            before = self.done.pop().before
        if before != draft:
            self._add(Change(TYPE, number, before, draft))
        return draft is not None

    def keep(self, number: int, captions: Any, shown: Sequence[str] | None = None, time: float = 0.0) -> str:
        """Write captions into the table and the captioner's text file, and delete the draft.

        Returns:
            What the person should know, or an empty text.

        Raises:
            ChangedCaptionsError, ValueError, BlockingIOError, OSError: see `ReviewTable.keep`; the draft stays.
        """
        texts = checked_captions(captions)
        with self.table.only_writer():
            self._require_shown(number, texts, shown)
            text = None if self.text_files is None else self.text_files.write(number, texts)
            row = self.table.keep(number, texts, shown)  # last: until then the image has its draft
            self._without_draft(KEEP, number, row, text, time)
        if self.text_files is not None and text is None and self.text_files.exists(number):
            whose = "not a captioner's" if self.text_files.is_of(number) else "that of another image"
            return f"Its text file is {whose}, and stays as it is."
        return ""

    def reject(self, number: int, captions: Any, shown: Sequence[str] | None = None, time: float = 0.0) -> None:
        """Mark an image as rejected for training; its captions stay in the table and its text file.

        Raises:
            ChangedCaptionsError, ValueError, BlockingIOError, OSError: see `ReviewTable.keep`.
        """
        with self.table.only_writer():
            row = self.table.keep(number, captions, shown, rejected=True)
            self._without_draft(REJECT, number, row, None, time)

    def undo(self) -> Change:
        """Undo the last change made on this page.

        Raises:
            LookupError: there is none.
            ChangedCaptionsError: another program changed the image since.
            OSError: a file cannot be written.
        """
        if not self.done:
            raise LookupError("There is nothing to undo.")
        change = self.done.pop()
        self.undone.append(self._apply(change.reversed()))
        return change

    def redo(self) -> Change:
        """Redo the change that was undone last.

        Raises:
            LookupError, ChangedCaptionsError, OSError: see `undo`.
        """
        if not self.undone:
            raise LookupError("There is nothing to bring back.")
        change = self.undone.pop().reversed()
        self.done.append(self._apply(change))
        return change

    def _apply(self, change: Change) -> Change:
        """Write the state after a change, and return the change."""
        name, times = self.table.names[change.number], self.times
        with self.table.only_writer():
            before = self.drafts.by_name.get(name)
            if change.after is not None:  # first, so that its words are stored somewhere at each moment
                self.drafts.put(name, change.after)
            try:
                if change.row is not None:
                    self.table.restore(change.number, RowChange(change.row.after, change.row.before))
            except ChangedCaptionsError:
                self.drafts.put(name, before)
                raise
            if change.text is not None and self.text_files is not None:
                self.text_files.apply(change.text)
            self.drafts.put(name, change.after)
        times.pop(change.number, None)
        return change

    def _require_shown(self, number: int, texts: Sequence[str], shown: Sequence[str] | None) -> None:
        """Check that the table has the captions that the user saw, before the text file is written."""
        captions_in_table = self.table.stored().get(self.table.names[number], NOTHING).captions
        if shown is not None and captions_in_table not in (list(shown), list(texts)):
            raise ChangedCaptionsError(captions_in_table)

    def _without_draft(self, kind: str, number: int, row: RowChange, text: TextChange | None, time: float) -> None:
        name = self.table.names[number]
        before = self.drafts.by_name.get(name)
        self.drafts.put(name, None)
        self.times[number] = max(time, self.times.get(number, 0.0))
        self._add(Change(kind, number, before, None, row, text))

    def _add(self, change: Change) -> None:
        self.done.append(change)
        self.undone.clear()


def _differs(draft: Draft, row: StoredCaptions) -> bool:
    """Return whether a draft differs from the table; an equal draft remains if the server dies while keeping."""
    return not (row.kept or row.rejected) or is_change(draft.captions, row.captions)

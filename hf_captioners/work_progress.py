"""Progress display: a bar in a terminal, one line a minute elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

SECONDS = 60.0  # between two lines


def duration(seconds: float) -> str:
    """Return a duration as text with one unit.

    Example:

    ```python
    from hf_captioners.work_progress import duration

    assert (duration(12), duration(150), duration(3 * 3600)) == ("12 s", "2.5 min", "3.0 h")
    ```
    """
    if seconds < 9.5:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def has_terminal() -> bool:
    """Return whether standard error is a terminal, for progress bars."""
    return sys.stderr is not None and sys.stderr.isatty()


class MinuteLines:
    """Progress as lines of text, at most one a minute.

    Args:
        work: what is done, such as `"captions"`.
        unit: plural of what is counted, such as `"images"`.
        total: number of them. None: it is not known.
        say: receives the lines.
    """

    def __init__(self, work: str, unit: str, total: int | None, say: Callable[[str], None]) -> None:
        self.work, self.unit, self.total, self.say = work, unit, total, say
        self.done = 0
        self.began = self.last_line = time.monotonic()

    def update(self, count: int) -> None:
        """Count finished items, and print progress if a minute has passed."""
        self.done += count
        now = time.monotonic()
        if now - self.last_line < SECONDS or not self.done:
            return
        self.last_line, spent = now, now - self.began
        of = "" if self.total is None else f" of {self.total:,}"
        eta = "" if self.total is None else f", about {duration(spent / self.done * (self.total - self.done))} left"
        self.say(f"{self.work}: {self.done:,}{of} {self.unit} after {duration(spent)}{eta}")


@contextmanager
def progress_of(work: str, unit: str, total: int | None, is_hidden: bool = False, leave: bool = True) -> Iterator[Any]:
    """Context manager that shows progress on standard error: a bar in a terminal, otherwise lines.

    Args:
        work: what is done, such as `"captions"`.
        unit: what is counted, such as `"image"`.
        total: number of them. None: it is not known.
        is_hidden: show nothing.
        leave: leave the bar in the terminal at the end.

    Yields:
        An object with `update(count)`.
    """
    if has_terminal() and not is_hidden:
        with tqdm(total=total, desc=work, unit=unit, disable=None, leave=leave) as bar:
            yield bar
    else:
        yield MinuteLines(work, f"{unit}s", total, _discard if is_hidden else _to_stderr)


def _discard(line: str) -> None:
    """Ignore a line of progress."""


def _to_stderr(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

"""Interruption of commands: Ctrl-C, SIGTERM (job queue, shutdown) and SIGHUP (closed terminal)."""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

SIGNALS = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class SignalInterrupt(KeyboardInterrupt):
    """Raised at signals other than Ctrl-C.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def raise_at_signals() -> None:
    """Raise `SignalInterrupt` at terminating signals; ignored signals (`nohup`) stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        return
    process = os.getpid()

    def interrupt(number: int, frame: Any) -> None:
        if os.getpid() == process:
            raise SignalInterrupt(number)
        signal.signal(number, signal.SIG_DFL)  # of a process that was forked
        os.kill(os.getpid(), number)

    for name in SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)


@contextmanager
def deferred(take: Callable[[KeyboardInterrupt], bool]) -> Iterator[None]:
    """Context manager: pass interruptions to a function; raise those that it declines.

    Args:
        take: receives an interruption; returns whether something will raise it later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        is_worker = os.getpid() != process
        if is_worker and number != signal.SIGTERM:
            return  # a terminal tells all processes; the parent ends this one
        interruption = KeyboardInterrupt() if number == signal.SIGINT else SignalInterrupt(number)
        if is_worker or not take(interruption):
            before[number](number, frame)

    process, before = os.getpid(), dict[int, Any]()
    for name in ("SIGINT", *SIGNALS):
        handler = signal.getsignal(getattr(signal, name)) if hasattr(signal, name) else None
        if callable(handler):  # neither ignored, nor left to the system
            before[getattr(signal, name)] = handler
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def note_at_interruption(sentence: Callable[[], str]) -> Iterator[None]:
    """Context manager that adds a job's progress to an interruption, for `--resume`.

    Args:
        sentence: returns it.
    """
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(sentence())
        raise


def report_interruption(interruption: KeyboardInterrupt, argv: Sequence[str]) -> int:
    """Print the progress of an interrupted command and the command to resume; return the exit status.

    Args:
        interruption: its notes say what is written; without notes the command cannot be resumed.
        argv: the arguments of the command.
    """
    notes = list(getattr(interruption, "__notes__", ()))
    lines = [" ".join(["hf-captioners: interrupted.", *notes])] if notes else ["hf-captioners: interrupted"]
    if notes:
        lines.append(f"Go on: {resume_command(argv)}")
    with suppress(OSError):  # the terminal is closed
        print("\n".join(lines), file=sys.stderr, flush=True)
    return 128 + getattr(interruption, "number", signal.SIGINT)


def resume_command(argv: Sequence[str]) -> str:
    """Return the shell command that resumes a job."""
    words, remaining = list[str](), iter(argv)
    for word in remaining:
        name, _, value = word.replace("-", "_").partition("=")
        if name != "__resume_from_checkpoint":
            words.append(word)
        elif not value:
            next(remaining, None)
    return shlex.join(["hf-captioners", *words, *([] if "--resume" in words else ["--resume"])])

"""Permitted outcomes of attacks.

An attack gives the library a damaged or hostile file. There are two permitted outcomes: a result, or one of our errors
whose message names the fault. Everything else has failed: another error, a crash, a program that was started, too much
time or memory, and a result that is wrong.
"""

from dataclasses import dataclass

# Exactly these types, or classes of this package: a subclass such as UnicodeDecodeError was not raised by us.
PERMITTED_ERRORS = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    TimeoutError,
    ConnectionError,
    ImportError,
)
PACKAGE = "hf_captioners"
LONGEST_MESSAGE = 10_000  # characters
CPU_SECONDS = 10.0
WALL_SECONDS = 90.0
MEMORY = 300 * 2**20  # bytes above what the process held before
MEMORY_PER_DECODED_BYTE = 4

RESULT, REFUSED, FAILED = "result", "refused", "failed"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attack.

    Attributes:
        kind: `RESULT`, `REFUSED` or `FAILED`.
        what: what was attacked, and how.
        reason: the message of the error, or why the attack has failed.
        seconds: CPU time.
        memory: bytes above what the process held before.
        attempts: how many attacks this is: a job that is killed three times counts as three.
        opens: how many opens and changes of files were looked at; 0 where they were not counted.
        outside: how many of them were outside of what was given, and whether a canary was disturbed.
    """

    kind: str
    what: str = ""
    reason: str = ""
    seconds: float = 0.0
    memory: int = 0
    attempts: int = 1
    opens: int = 0
    outside: int = 0


def judge(error: BaseException, names: tuple[str, ...]) -> tuple[str, str]:
    """Return kind and reason of the outcome of an attack that ended in an error.

    Args:
        error: the error.
        names: one of them must occur in its message.
    """
    message, kind = str(error), type(error)
    ours = kind in PERMITTED_ERRORS or kind.__module__.partition(".")[0] == PACKAGE
    shown = f"{kind.__name__}: {message[:600]}"
    if not ours:
        return FAILED, f"the error is not one of ours: {shown}"
    if not any(name in message for name in names):
        return FAILED, f"the message has none of {', '.join(names)}: {shown}"
    if len(message) > LONGEST_MESSAGE:
        return FAILED, f"the message has {len(message):,} characters: {shown}"
    return REFUSED, shown


def judge_limits(seconds: float, memory: int, decoded: int) -> str | None:
    """Return why time or memory is too much; None if it is not.

    Args:
        seconds: CPU time.
        memory: bytes above what the process held before.
        decoded: bytes of the decoded image, if the attack is one on an image within the limit of pixels.
    """
    if seconds > CPU_SECONDS:
        return f"it took {seconds:.1f} CPU seconds"
    if memory > MEMORY + MEMORY_PER_DECODED_BYTE * decoded:
        return f"it took {memory / 2**20:,.0f} MB for {decoded / 2**20:,.0f} MB of a decoded image"
    return None

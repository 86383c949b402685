"""Limits on untrusted pickles (instructions, memo, nesting, size), checked before any object is built.

A few hundred bytes can state a memo of gigabytes, or 60 levels of tuples that each hold the next one twice, whose hash
takes forever. The check follows the instructions of a pickle, and for each object keeps its depth and its size,
counted as if nothing were shared.
"""

from __future__ import annotations

import pickletools
from typing import Any, BinaryIO

MAX_DEPTH = 100
MAX_STEPS = 1_000_000
MAX_SIZE = 20_000_000  # objects, shared ones counted wherever they occur
LINES = {"GLOBAL": 2, "INST": 2}
LINE_ARGUMENTS = frozenset(("STRING", "UNICODE", "INT", "LONG", "FLOAT", "PERSID", *LINES))
PUTS, GETS = frozenset(("PUT", "BINPUT", "LONG_BINPUT")), frozenset(("GET", "BINGET", "LONG_BINGET"))
HASHES = frozenset(("SETITEM", "SETITEMS", "ADDITEMS", "DICT", "FROZENSET"))  # these compute hashes
FILLS = frozenset(("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"))  # into what lies below
CODES = {operation.code.encode("latin1"): operation for operation in pickletools.opcodes}

Part = tuple[int, int]  # depth and size of an object
MARK: Part = (-1, 0)


def check_pickle(file: BinaryIO, max_steps: int = MAX_STEPS) -> None:
    """Check that a pickle exceeds no limit, by following its instructions without building objects.

    Args:
        file: the pickle, which is read up to the end of its last instruction.
        max_steps: the most instructions.

    Raises:
        ValueError: the pickle is incomplete, or exceeds a limit.
    """
    stack: list[Part] = []
    memo: dict[int, Part] = {}
    hashed = 0
    for step in range(max_steps):
        operation, argument = _next_instruction(file)
        name = operation.name
        if name == "STOP":
            return
        if name in PUTS or name == "MEMOIZE":
            place = len(memo) if argument is None else argument
            if place > step:
                raise ValueError(f"it stores an object as number {place:,} of at most {step:,} objects")
            memo[place] = stack[-1] if stack else MARK
        elif name in GETS:
            stack.append(memo.get(argument or 0, MARK))
        elif name == "MARK":
            stack.append(MARK)
        else:
            parts = _taken(stack, operation)
            filled = [parts.pop()] if name in FILLS and parts else []
            depth = max([1 + part[0] for part in parts] + [part[0] for part in filled], default=1)
            made = (depth, 1 + sum(size for _, size in parts + filled))
            hashed += made[1] - sum(size for _, size in filled) if name in HASHES else 0
            if made[1] > MAX_SIZE or hashed > 2 * MAX_SIZE:
                raise ValueError(f"it repeats its objects to more than {MAX_SIZE:,}")
            if depth > 4 * MAX_DEPTH:  # one level of data takes up to four instructions
                raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
            stack.extend([made] * len(operation.stack_after))
    raise ValueError(f"it has more than {max_steps:,} instructions")


def _next_instruction(file: BinaryIO) -> tuple[Any, int | None]:
    """Read the next instruction of a pickle; return it, and its argument if that is a number."""
    code = file.read(1)
    operation = CODES.get(code)
    if operation is None:
        raise ValueError("it ends before its last instruction" if not code else f"it has the instruction {code!r}")
    if operation.arg is None:
        return operation, None
    if operation.name in LINE_ARGUMENTS:
        for _ in range(LINES.get(operation.name, 1)):
            file.readline()
        return operation, None
    argument = operation.arg.reader(file)
    return operation, argument if isinstance(argument, int) else None


def _taken(stack: list[Part], operation: Any) -> list[Part]:
    """Pop the stack entries that an instruction consumes, and return them."""
    consumed = operation.stack_before
    parts: list[Part] = []
    if pickletools.markobject in consumed:
        while stack and (part := stack.pop()) is not MARK:
            parts.append(part)
        consumed = consumed[: consumed.index(pickletools.markobject)]
    for _ in consumed:
        if stack:
            parts.append(stack.pop())
    return parts

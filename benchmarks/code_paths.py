"""Count the code of the project, and the files, functions and stack frames that two commands run through.

    python benchmarks/code_paths.py --earlier earlier_version.json

Size: lines with tokens other than comments and docstrings. Paths: functions of this project that are called in this
process by `caption DIR --sidecar` of 6 drawn scenes, as it is typed (on onnxruntime) and on torch, and by two training
steps of `train` on 24 of them, all with the installed default captioner. Bodies of modules and classes, and
comprehensions, are not counted. The depth is the largest number of the project's own frames that are on the stack at
once.
"""

import argparse
import ast
import importlib
import inspect
import io
import json
import os
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from provenance import ROOT, write_results

SOURCES = ("hf_captioners", "modeling", "processing", "hub_cards", "benchmarks")
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
CAPTIONED, TRAINED = 6, 24  # scenes


def source_files() -> list[Path]:
    """Return all Python files of the library and its benchmarks."""
    return sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the line numbers that docstrings occupy."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(path: Path) -> int:
    """Count the lines of a file that contain code."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def function_lengths() -> list[int]:
    """Return the lengths of all functions in lines, sorted."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in source_files())
    functions = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)


def import_closure(name: str) -> dict[str, int]:
    """Return the files of `modeling/` that run when an architecture's checkpoint is loaded, with their lines of text.

    Imports inside of functions are left out: they run when the function is called.
    """
    files, waiting = {}, [f"modeling_{name}", f"configuration_{name}"]
    while waiting:
        path = ROOT / "modeling" / f"{waiting.pop()}.py"
        if path.stem in files or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        files[path.stem] = text.count("\n")
        imports = (node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom))
        waiting += [node.module for node in imports if node.level == 1 and node.module]
    return files


class CallTrace:
    """Profiler that records which functions of this project are called, and their deepest stack.

    Attributes:
        functions: file and qualified name of each function.
        deepest: names of the project's frames on the deepest stack, outermost first.
    """

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.deepest: list[str] = []
        self._own: dict[CodeType, str | None] = {}  # file of each function of this project; None: of another one

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call, as a profile function of `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or (file := self._file(code)) is None:
            return
        self.functions.add((file, code.co_qualname))
        stack, above = [], frame
        while above is not None:
            if (file := self._file(above.f_code)) is not None:
                stack.append(f"{file}:{above.f_code.co_qualname}")
            above = above.f_back  # type: ignore[assignment]
        if len(stack) > len(self.deepest):
            self.deepest = stack[::-1]

    def _file(self, code: CodeType) -> str | None:
        """Return the file of a function of this project; None for other code."""
        if code not in self._own:
            is_function = bool(code.co_flags & inspect.CO_NEWLOCALS) and code.co_name not in COMPREHENSIONS
            path = Path(code.co_filename).resolve()  # an editable installation imports files through links
            is_own = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in SOURCES[:-1]
            self._own[code] = path.relative_to(ROOT).as_posix() if is_function and is_own else None
        return self._own[code]

    def figures(self) -> dict[str, Any]:
        """Return the numbers of files and functions, and the deepest stack."""
        files = {file for file, _ in self.functions}
        counts = {"files": len(files), "functions": len(self.functions), "frames": len(self.deepest)}
        return counts | {"deepest": self.deepest}


@contextmanager
def traced() -> Iterator[CallTrace]:
    """Context that traces calls in all threads."""
    trace = CallTrace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def draw_scenes(folder: Path, count: int) -> None:
    """Write drawn scenes with a table of their captions, for training."""
    from hf_captioners.data import load_captions

    folder.mkdir()
    rows = load_captions(
        "scenes", split="train", num_images={"train": count}, cache_dir=str(folder.with_suffix(".cache"))
    )
    with open(folder / "metadata.jsonl", "w", encoding="utf-8") as table:
        for index, row in enumerate(rows):
            row["image"].save(folder / f"{index}.png")
            table.write(json.dumps({"file_name": f"{index}.png", "captions": row["captions"]}) + "\n")


def trace_command(arguments: list[str]) -> dict[str, Any]:
    """Run a command of `hf-captioners` in this process, and return its call counts."""
    main: Callable[[list[str]], int] = importlib.import_module("hf_captioners.cli").main
    printed = io.StringIO()
    with traced() as trace, redirect_stdout(printed), redirect_stderr(printed):
        status = main(arguments)
    if status or not trace.functions:
        raise RuntimeError(f"hf-captioners {' '.join(arguments)} ended with {status}:\n{printed.getvalue()}")
    return trace.figures()


def command_paths() -> dict[str, Any]:
    """Return the call counts of both commands."""
    with tempfile.TemporaryDirectory() as folder:
        captioned, trained, output = (Path(folder, name) for name in ("captioned", "trained", "output"))
        draw_scenes(captioned, CAPTIONED)
        (captioned / "metadata.jsonl").unlink()  # images with captions of people are left out
        draw_scenes(trained, TRAINED)
        caption = ["caption", str(captioned), "--sidecar"]
        train = ["train", "--model", "default", "--train_dir", str(trained), "--output_dir", str(output)]
        return {
            "caption DIR --sidecar": trace_command(caption),
            "caption DIR --sidecar --backend torch": trace_command([*caption, "--backend", "torch", "--overwrite"]),
            "train --model default --max_steps 2": trace_command([*train, "--max_steps", "2", "--report_to", "none"]),
        }


def size_figures() -> dict[str, Any]:
    """Return code lines, lengths of functions and files, and import closures of all architectures."""
    from hf_captioners.architectures import ARCHITECTURES

    lengths = function_lengths()
    closures = {name: import_closure(name) for name in ARCHITECTURES}
    longest = sorted(
        (path.read_text("utf-8").count("\n"), path.relative_to(ROOT).as_posix()) for path in source_files()
    )
    return {
        "code_lines": sum(map(code_lines, source_files())),
        "functions": {
            "median": lengths[len(lengths) // 2],
            "p90": lengths[len(lengths) * 9 // 10],
            "max": lengths[-1],
        },
        "longest_files": [[name, lines] for lines, name in longest[-5:]],
        "closures": {name: {"files": len(files), "lines": sum(files.values())} for name, files in closures.items()},
    }


def main() -> None:
    """Count, then write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "code_paths.json")
    parser.add_argument("--size_only", action="store_true", help="run no command")
    parser.add_argument("--earlier", type=Path, help="result of this script in an earlier version, kept as `earlier`")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    figures = size_figures() | ({} if options.size_only else {"paths": command_paths()})
    if options.earlier is not None:
        figures["earlier"] = json.loads(options.earlier.read_text(encoding="utf-8"))
    print(json.dumps(figures, indent=1))
    if not options.size_only:
        write_results(options.output, figures)


if __name__ == "__main__":
    main()

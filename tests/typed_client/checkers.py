"""Type checkers, run on a program of a user in an environment that this project is installed into."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Libraries that the fast check does not look into: of 40 CPU seconds, it takes 2.
HEAVY = ("torch", "torchvision", "transformers", "accelerate", "timm", "tokenizers", "safetensors", "huggingface_hub")
FOLDER = Path(__file__).parent
PROGRAMS = ("client.py", "mistakes.py")


def expected_lines(text: str, whole: bool) -> list[int]:
    """Return the lines of a program that a checker must refuse.

    Args:
        text: the program.
        whole: whether the checker looks into transformers, too.
    """
    pattern = r"# error( with transformers)?$" if whole else r"# error$"
    return [number for number, line in enumerate(text.splitlines(), start=1) if re.search(pattern, line)]


def run_mypy(python: Path, folder: Path, whole: bool, *files: str) -> list[dict]:
    """Run `mypy --strict` in a folder; return its messages.

    Args:
        python: interpreter of the environment with this project.
        folder: where the files lie. The cache of mypy is in the folder above, so that several runs share it.
        whole: look into the libraries, too.
        files: names of the files.
    """
    heavy = "" if whole else f"[mypy-{','.join(f'{name}.*' for name in HEAVY)}]\nfollow_imports = skip\n"
    cache = folder.parent / f"mypy_cache_{'whole' if whole else 'fast'}"
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\ncache_dir = {cache}\n{heavy}")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--output", "json"]
    ran = subprocess.run(
        [*command, "--python-executable", str(python), *files],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def run_pyright(python: Path, folder: Path, *files: str) -> list[dict]:
    """Run pyright in a folder; return its messages, with the keys of those of mypy."""
    program = shutil.which("pyright") or str(Path(sys.executable).with_name("pyright"))
    (folder / "pyrightconfig.json").write_text("{}")
    command = [program, "--pythonpath", str(python), "--outputjson", *files]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    severities = {"error": "error", "information": "note", "warning": "note"}
    return [
        {
            "file": Path(one["file"]).name,
            "line": one["range"]["start"]["line"] + 1,
            "message": one["message"],
            "severity": severities[one["severity"]],
        }
        for one in json.loads(ran.stdout)["generalDiagnostics"]
    ]


def error_lines(messages: list[dict], file: str) -> list[int]:
    """Return the lines of a file that messages call an error, each once."""
    return sorted({one["line"] for one in messages if one["file"] == file and one["severity"] == "error"})

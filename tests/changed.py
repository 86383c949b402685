"""Selection of the tests that belong to changed files.

    python -m tests.changed [FILE ...]

prints the test files of the given files, or of those that differ from the last commit. A test file belongs to a source
file if it is named after it (`tests/metrics/test_bleu.py`, `test_bleu_*.py`), or imports its module, also by a public
name of a package. A file of `modeling` also has the tests of the architectures that import it.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.layout import ROOT, module_graph

SOURCES = ("hf_captioners", "modeling", "processing", "hub_cards")


def module_of(path: Path) -> str:
    """Return the module name under which tests import a file."""
    parts = path.with_suffix("").parts
    parts = parts if parts[0] in ("hf_captioners", "tests") else ("hf_captioners", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public_names() -> dict[str, str]:
    """Return the defining module of each lazily exported name, by `package.name`."""
    names = {}
    for stub in (ROOT / "hf_captioners").rglob("__init__.pyi"):
        package = ".".join(stub.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                module = f"{package}.{node.module}" if node.level else str(node.module)
                names.update({f"{package}.{alias.asname or alias.name}": module for alias in node.names})
    return names


@functools.cache
def imports_of_tests() -> dict[Path, set[str]]:
    """Return the project modules that each test file imports."""
    public, imports = public_names(), {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        package = path.relative_to(ROOT).parent.parts
        modules: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                module = ".".join([*base, *([node.module] if node.module else [])])
                names = {f"{module}.{alias.name}" for alias in node.names}
                modules |= {module, *names, *(public[name] for name in names if name in public)}
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
        imports[path.relative_to(ROOT)] = modules
    return imports


def architectures_of(path: Path) -> list[Path]:
    """Return the architectures whose files import a file of `modeling`, directly or indirectly."""
    graph, stems, found = module_graph(), [f"modeling.{path.stem}"], set()
    while path.parts[0] == "modeling" and stems:
        stem = stems.pop()
        importing = {name for name, used in graph.items() if stem in used and name.startswith("modeling.")} - found
        found |= importing
        stems += importing
    return [
        Path("modeling", f"{name.partition('.')[2]}.py") for name in found if name.startswith("modeling.modeling_")
    ]


def tests_of(changed: Iterable[str]) -> list[str]:
    """Return the test files that belong to changed files, sorted.

    Args:
        changed: paths from the root of the repository; those of other folders than the sources and tests are ignored.
    """
    imports = imports_of_tests()
    waiting = [Path(name) for name in changed if name.endswith(".py")]
    waiting = [path for path in waiting if path.parts[0] in (*SOURCES, "tests")]
    waiting += [model for path in waiting for model in architectures_of(path)]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        stem, module = path.stem.removeprefix("modeling_"), module_of(path)
        for test, modules in imports.items():
            is_named = path.parts[0] != "tests" and f"{test.stem}_".startswith((f"test_{stem}_", f"test_{path.stem}_"))
            if is_named or module in modules:
                waiting.append(test)
    return sorted(path.as_posix() for path in seen if path.name.startswith("test_") and (ROOT / path).exists())


def changed_files() -> list[str]:
    """Return the files that differ from the last commit, including new ones."""
    ran = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line[3:].partition(" -> ")[2] or line[3:] for line in ran.stdout.splitlines()]


if __name__ == "__main__":
    print("\n".join(tests_of(sys.argv[1:] or changed_files())))

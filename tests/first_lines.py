"""Random sample of first lines of docstrings, for a reader who has not seen the code.

    python -m tests.first_lines --seed 1

prints 60 of them with the names of what they describe. The reader writes what each is taken to mean; lines that are
misunderstood are mended.
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("hf_captioners", "modeling", "processing")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def first_lines() -> Iterator[tuple[str, str]]:
    """Yield the name and the first line of the docstring of every module, class and function."""
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in (tree, *(node for node in ast.walk(tree) if isinstance(node, DEFINITIONS))):
            if text := ast.get_docstring(node):
                name = "" if isinstance(node, ast.Module) else f":{node.name}"
                yield f"{path.relative_to(ROOT)}{name}", text.splitlines()[0]


def main() -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    args = parser.parse_args()
    for number, (name, line) in enumerate(random.Random(args.seed).sample(list(first_lines()), args.count), 1):
        print(f"{number:2} {name}\n   {line}")


if __name__ == "__main__":
    main()

"""Import graph of the package's folders, and the map of it in `CONTRIBUTING.md`.

    python -m tests.layout

draws the map anew.
"""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
MAP = re.compile(r"(?<=<!-- map -->\n).*?(?=<!-- end of the map -->)", re.DOTALL)
# Leaf modules of the package: every folder may import them; they import nothing of the project.
LEAVES = {
    "architectures",
    "default_model",
    "deprecation",
    "image_names",
    "image_text_processor",
    "inert_text",
    "interfaces",
    "names",
    "output_files",
    "processor_settings",
    "tokenizer_file",
    "work_progress",
    "_version",
}
BELOW_LOADING = {"modeling", "processing", "pipelines", "metrics", "data", "features", "loading"}
# folder or module -> folders of this project that it may import
ARROWS: dict[str, set[str]] = {
    "modeling": set(),
    "processing": set(),
    "metrics": set(),
    "confidence": {"metrics"},
    "loading": {"modeling", "processing"},
    "pipelines": {"modeling", "processing"},
    "hub": {"modeling", "processing", "pipelines", "loading", "metrics", "confidence"},
    "data": {"processing", "metrics"},
    "features": {"modeling", "processing", "data", "loading"},
    "captioning": BELOW_LOADING | {"onnx", "confidence"},
    "explain": BELOW_LOADING | {"confidence"},
    "server": {"captioning", "confidence"},
    "onnx": {"modeling", "processing", "loading", "confidence"},
    "training": BELOW_LOADING | {"hub"},
    "reproduce": BELOW_LOADING | {"hub", "training"},
    "demo": BELOW_LOADING | {"hub", "training", "explain"},
    "review": {"captioning", "data", "metrics", "processing"},
    "registration": {"modeling", "processing", "pipelines", "hub"},
    "cli": BELOW_LOADING
    | {"hub", "training", "reproduce", "demo", "explain", "captioning", "onnx", "review", "server"},
}


def room_of(path: Path) -> str:
    """Return a file's folder in the package; for top-level modules, the module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "hf_captioners" else parts[0]


def imported_modules(path: Path) -> list[tuple[int, str]]:
    """Return (level, module) of every import statement; `from package import module` names the module."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module == "hf_captioners":
                found += [(node.level, f"{module}.{alias.name}") for alias in node.names]
            else:
                found.append((node.level, module))
    return found


def package_files() -> list[Path]:
    files = [
        *(ROOT / "hf_captioners").rglob("*.py"),
        *(ROOT / "modeling").glob("*.py"),
        *(ROOT / "processing").glob("*.py"),
    ]
    return sorted(path for path in files if "modules" not in path.parts and path.parent.name != "hub_cards")


def rooms_imported(path: Path) -> dict[str, int]:
    """Return the folders that a file imports, including imports inside functions."""
    found = {}
    for level, module in imported_modules(path):
        parts = module.split(".")
        if level == 0 and parts[0] == "hf_captioners" and len(parts) > 1:
            found[parts[1]] = level
        elif level > 1:
            found["a folder above"] = level
    return found


@functools.cache
def module_graph() -> dict[str, set[str]]:
    """Return the imported modules of each module, including imports inside functions."""
    names = {}
    for path in package_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "hf_captioners" else parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
                module = ".".join([*base, *([node.module] if node.module else [])])
            elif (node.module or "").startswith("hf_captioners"):
                module = (node.module or "").removeprefix("hf_captioners").removeprefix(".")
            else:
                continue
            targets = {f"{module}.{alias.name}".removeprefix(".") for alias in node.names}
            graph[name] |= {target if target in names else module for target in targets} - {""}
    return graph


def folder_imports() -> dict[str, set[str]]:
    """Return the folders and modules of the package that each folder, or module at its top, imports."""
    rooms: dict[str, set[str]] = {}
    for path in package_files():
        if path.name != "__init__.py" or path.parent != ROOT / "hf_captioners":
            rooms.setdefault(room_of(path), set()).update(rooms_imported(path))
    return rooms


def layout_map() -> str:
    """Return the import graph as a Mermaid flowchart, without arrows that follow from others."""
    imports = {name: used & ARROWS.keys() - {name} for name, used in folder_imports().items() if name in ARROWS}

    def reached(name: str) -> set[str]:
        return imports[name].union(*(reached(other) for other in imports[name]))

    lines = ["```mermaid", "flowchart TD"]
    for name in sorted(imports):
        through = set().union(*(reached(other) for other in imports[name]))
        lines += [f"  {name} --> {other}" for other in sorted(imports[name] - through)]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(MAP.sub(lambda _: layout_map(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")

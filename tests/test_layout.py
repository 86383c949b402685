"""The rules of the house: what lies where, who may import whom, and what travels inside a checkpoint."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"hf_captioners", "modeling", "processing", "hub_cards", "tests", "pyproject.toml", "README.md"}
BESIDE = {"docs", "examples", "benchmarks", "Makefile", "LICENSE"} | {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CITATION.cff",
}
FOR_EVERYBODY = {"auto", "named_values", "word_values", "_version"}
# folder -> folders of this project that it may import
ARROWS = {
    "modeling": set(),
    "processing": set(),
    "hf_captioners/metrics": set(),
    "hf_captioners/pipelines": {"modeling", "processing"},
    "hf_captioners/data": {"processing"},
    "hf_captioners/hub": {"modeling", "processing", "pipelines"},
    "hf_captioners/training": {"modeling", "processing", "data", "metrics", "hub"},
}
TRAVELLING = ("modeling", "processing", "hf_captioners/pipelines")
TRAVELLING_IMPORTS = {"torch", "torchvision", "transformers", "numpy", "PIL", "timm"}
CODE = [
    path
    for folder in ("hf_captioners", "modeling", "processing", "hub_cards", "tests", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "fixtures" not in path.parts
]


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return listing.stdout.split("\n")


def imported_modules(path: Path) -> list[tuple[int, str]]:
    """(level, module) of every import statement, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or ""))
    return found


def test_top_level():
    names = {name.split("/")[0] for name in tracked() if name}
    assert names >= TOP_LEVEL
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL | BESIDE


@pytest.mark.parametrize("folder", ARROWS)
def test_arrows(folder):
    """Imports point one way."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        for level, module in imported_modules(path):
            parts = module.split(".")
            if level == 0 and parts[0] == "hf_captioners" and len(parts) > 1 and parts[1] not in FOR_EVERYBODY:
                assert parts[1] in ARROWS[folder] | {folder.split("/")[-1]}, f"{path} imports {module}"
            assert level <= 1 or "metrics/modules" in str(path), f"{path} imports from above: {module}"


@pytest.mark.parametrize("folder", TRAVELLING)
def test_travelling_files_stand_alone(folder):
    """They import the standard library, a few packages and flat siblings; transformers finds siblings by a regular
    expression, which sees only `from .name import`."""
    siblings = {path.stem for path in (ROOT / folder).glob("*.py")}
    for path in sorted((ROOT / folder).glob("*.py")):
        if path.stem == "__init__":
            continue
        for level, module in imported_modules(path):
            first = module.split(".")[0]
            if level:
                assert module in siblings, f"{path} imports .{module}"
            else:
                assert first in TRAVELLING_IMPORTS or first in sys.stdlib_module_names, f"{path} imports {module}"
        assert "isinstance(config" not in path.read_text(), f"{path}: compare config.model_type"


def test_architectures_do_not_import_each_other():
    from hf_captioners.auto import ARCHITECTURES

    for name in ARCHITECTURES:
        for folder, kinds in (("modeling", ("configuration", "modeling")), ("processing", ("processing",))):
            for kind in kinds:
                path = ROOT / folder / f"{kind}_{name}.py"
                others = {f"{k}_{other}" for other in ARCHITECTURES if other != name for k in (*kinds,)}
                assert not others & {module for level, module in imported_modules(path) if level}, path


def test_packages_are_all_listed():
    """setuptools maps folders by a list; a package that is missing there is missing in the wheel only."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "hf_captioners").rglob("__init__.py")
        if path.read_text(encoding="utf-8").strip()
    }
    found |= {"hf_captioners.modeling", "hf_captioners.processing", "hf_captioners.hub_cards"}
    assert found == {name for name in listed if (ROOT / name.replace(".", "/")).is_dir() or name in found}


def test_sizes():
    """A file is one job; a function fits a screen."""
    for path in CODE:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 800, f"{path} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = node.end_lineno - node.lineno + 1
                assert length <= 120, f"{path}: {node.name} has {length} lines"


def test_nothing_speaks_of_its_making():
    """No paths of machines, no registry hosts."""
    # written in two parts so that this file passes its own test
    words = ["/work" + "/", "../sha" + "red", "pypi" + ".org", "files.python" + "hosted"]
    for name in tracked():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".cff", "") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not [word for word in words if word in text], name


FRESH = """
import sys
ORDER
assert "modeling" not in sys.modules
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
config = AutoConfig.for_model("captioning_visualgpt", text_config={"n_embd": 8, "n_head": 2, "n_layer": 1})
model = AutoModelForImageTextToText.from_config(config)
assert type(model).__module__ == "hf_captioners.modeling.modeling_visualgpt", type(model)
from transformers.pipelines import PIPELINE_REGISTRY
assert "image-captioning" in PIPELINE_REGISTRY.get_supported_tasks()
print("registered")
"""


@pytest.mark.parametrize(
    "order",
    [
        "import hf_captioners, transformers",
        "import transformers, hf_captioners",
        "from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig",
    ],
)
def test_registration_in_any_order(order):
    ran = subprocess.run([sys.executable, "-c", FRESH.replace("ORDER", order)], capture_output=True, text=True)
    assert ran.stdout.strip() == "registered", ran.stderr


LIGHT = """
import sys, time
import hf_captioners
hf_captioners.list_architectures()
assert not {"torch", "transformers", "datasets"} & set(sys.modules), "import hf_captioners is heavy"
import hf_captioners.metrics
assert not {"torch", "transformers", "datasets"} & set(sys.modules), "import hf_captioners.metrics is heavy"
from hf_captioners.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
assert not {"torch", "transformers", "datasets"} & set(sys.modules), "hf-captioners --help is heavy"
print("light")
"""


def test_imports_are_light():
    ran = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert ran.stdout.strip().endswith("light"), ran.stderr


FIRST = """
import importlib, os, sys, traceback
import accelerate, datasets, timm, torch, torchvision  # what is slow and knows nothing of transformers
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            assert "transformers" not in sys.modules
            importlib.import_module(name)
            from transformers import AutoConfig
            AutoConfig.for_model("captioning_visualgpt")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print("failed:", failed)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, to import once what all need")
def test_any_module_may_be_imported_first():
    """Registration follows the first import of transformers, wherever in this package that happens."""
    modules = ["hf_captioners.data", "hf_captioners.hub.bundling", "hf_captioners.modeling.modeling_visualgpt"]
    modules += ["hf_captioners.pipelines.image_captioning", "hf_captioners.processing.processing_visualgpt"]
    modules += ["hf_captioners.training.trainer"]
    ran = subprocess.run([sys.executable, "-c", FIRST, *modules], capture_output=True, text=True)
    assert ran.stdout.strip() == "failed: []", ran.stdout + ran.stderr

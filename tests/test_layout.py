"""The layout of the project: folders, allowed imports, and the files that checkpoints contain."""

import ast
import importlib
import subprocess
import sys
import tomllib

import pytest

from tests.layout import ARROWS, LEAVES, MAP, PAGE, ROOT, folder_imports, imported_modules, layout_map, module_graph
from tests.variants import slow_unless

TOP_LEVEL = {"hf_captioners", "modeling", "processing", "hub_cards", "tests", "pyproject.toml", "README.md"}
BESIDE = {"docs", "default_captioner", "examples", "benchmarks", "release", "Makefile", "MANIFEST.in", "LICENSE"} | {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "RELEASE.md",
    "SECURITY.md",
    "CITATION.cff",
    "mkdocs.yml",
}
TRAVELLING = ("modeling", "processing", "hf_captioners/pipelines")
TRAVELLING_IMPORTS = {
    "torch",
    "torchvision",
    "transformers",
    "tokenizers",
    "numpy",
    "PIL",
    "timm",
    "pillow_heif",
    "huggingface_hub",
}
CODE = [
    path
    for folder in (
        "hf_captioners",
        "modeling",
        "processing",
        "hub_cards",
        "tests",
        "examples",
        "benchmarks",
        "release",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "fixtures" not in path.parts
]


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return listing.stdout.split("\n")


def wrong_arrows(rooms: dict[str, set[str]]) -> list[str]:
    """Return the imports that are not allowed, of folders by the folders that they import."""
    wrong = []
    for room, imported in rooms.items():
        allowed = set() if room in LEAVES else ARROWS[room] | LEAVES | {room}
        wrong += [f"{room} imports {other}" for other in sorted(imported - allowed)]
    return wrong


def circle_in(graph: dict[str, set[str]]) -> list[str] | None:
    """Return a circle of names that import each other, or None."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for other in sorted(graph.get(name, ())):
            if other != name and (found := visit(other, [*path, name])):
                return found
        done.add(name)
        return None

    return next((found for name in sorted(graph) if (found := visit(name, []))), None)


def test_top_level():
    names = {name.split("/")[0] for name in tracked() if name}
    assert names >= TOP_LEVEL
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL | BESIDE


def test_arrows():
    """Imports point one way, from the command line down to the models."""
    rooms = folder_imports()
    assert set(rooms) - LEAVES == set(ARROWS), "a folder without arrows, or arrows without a folder"
    assert wrong_arrows(rooms) == []


def test_map():
    """The map of CONTRIBUTING.md is drawn from the present imports: `python -m tests.layout`."""
    assert MAP.search(PAGE.read_text(encoding="utf-8"))[0] == layout_map()


def test_a_wrong_arrow_is_found():
    assert wrong_arrows({"captioning": {"loading", "training"}}) == ["captioning imports training"]
    assert wrong_arrows({"names": {"data"}}) == ["names imports data"]


def test_no_circles():
    graph = module_graph()
    assert len(graph) > 100 and graph["training.trainer"] > {"training.arguments"}
    assert circle_in(graph) is None
    rooms: dict[str, set[str]] = {}
    for name, imported in graph.items():
        rooms.setdefault(name.split(".")[0], set()).update(other.split(".")[0] for other in imported)
    rooms.pop("hf_captioners", None)
    rooms.pop("", None)
    assert circle_in(rooms) is None


def test_a_circle_is_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": set()}) is None
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    graph = module_graph()
    graph["names"] = {"cli.train"}  # as if one of its functions imported it
    graph["cli.train"] = {"names"}
    assert circle_in(graph) is not None


@pytest.mark.parametrize("folder", TRAVELLING)
def test_travelling_files_stand_alone(folder):
    """They import the standard library, a few packages and flat siblings. transformers finds siblings by a regular
    expression, which matches only `from .name import`. In a copy of the pipeline, `processing` is such a sibling."""
    siblings = {path.stem for path in (ROOT / folder).glob("*.py")}
    for path in sorted((ROOT / folder).glob("*.py")):
        if path.stem == "__init__":
            continue
        for level, module in imported_modules(path):
            first = module.split(".")[0]
            if level:
                assert module in siblings, f"{path} imports .{module}"
            elif folder != "hf_captioners/pipelines" or not module.startswith("hf_captioners.processing."):
                assert first in TRAVELLING_IMPORTS or first in sys.stdlib_module_names, f"{path} imports {module}"
        assert "isinstance(config" not in path.read_text(), f"{path}: compare config.model_type"


def test_architectures_do_not_import_each_other():
    from hf_captioners.architectures import ARCHITECTURES

    names = [name for name, architecture in ARCHITECTURES.items() if architecture.package is None]
    for name in names:
        for folder, kinds in (("modeling", ("configuration", "modeling")), ("processing", ("processing",))):
            for kind in kinds:
                path = ROOT / folder / f"{kind}_{name}.py"
                others = {f"{k}_{other}" for other in names if other != name for k in (*kinds,)}
                assert not others & {module for level, module in imported_modules(path) if level}, path


def test_test_files_do_not_import_each_other():
    """Helpers that several of them need lie in modules of their own, or are fixtures."""
    importing = {}
    for path in (ROOT / "tests").rglob("*.py"):
        names = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
                names += [f"{module}{alias.name}" for alias in node.names]
        found = [name for name in names if any(part.startswith("test_") for part in name.split("."))]
        if found := [name for name in found if not name.startswith("transformers_tests")]:  # not of this repository
            importing[str(path.relative_to(ROOT))] = found
    assert not importing


def test_packages_are_all_listed():
    """setuptools maps folders by a list; a package that is missing there is missing only in the wheel."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "hf_captioners").rglob("__init__.py")
        if path.read_text(encoding="utf-8").strip()
    }
    found |= {"hf_captioners.modeling", "hf_captioners.processing", "hf_captioners.hub_cards"}
    assert found == {name for name in listed if (ROOT / name.replace(".", "/")).is_dir() or name in found}


def test_sizes():
    """Files have at most 800 lines, functions at most 120."""
    for path in CODE:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 800, f"{path} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = node.end_lineno - node.lineno + 1
                assert length <= 120, f"{path}: {node.name} has {length} lines"


def test_no_local_paths_or_hosts():
    """No text contains paths of machines or hosts of registries."""
    # written in two parts, so that this file passes its own test
    words = ["/work" + "/", "../sha" + "red", "pypi" + ".org", "files.python" + "hosted"]
    for name in tracked():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yml", ".yaml", ".cff", "") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not [word for word in words if word in text], name


FRESH = """
import sys
assert "transformers" not in sys.modules
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
def test_registration_in_any_order(order, fork_server):
    ran = fork_server.run(["-c", FRESH.replace("ORDER", order)], libraries="torch")
    assert ran.stdout.strip() == "registered", ran.stderr


LIGHT = """
import sys, time
import hf_captioners
hf_captioners.list_architectures()
assert {"load_captions", "VisualGPTConfig", "metrics", "__version__"} <= set(dir(hf_captioners))
assert not {"torch", "transformers", "datasets"} & set(sys.modules), "import hf_captioners is heavy"
import hf_captioners.metrics
assert not {"torch", "transformers", "datasets"} & set(sys.modules), "import hf_captioners.metrics is heavy"
import hf_captioners.onnx
import hf_captioners.processing.image_reading
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


@pytest.mark.parametrize("package", ["hf_captioners", "hf_captioners.metrics", "hf_captioners.training"])
def test_public_names_resolve(package):
    """Names are loaded on first use, so a stale one would only fail there."""
    module = importlib.import_module(package)
    assert len(module.__all__) >= 5 and set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    with pytest.raises(AttributeError, match="missing"):
        module.missing  # noqa: B018


FIRST = """
import importlib, sys
assert "transformers" not in sys.modules
importlib.import_module(sys.argv[1])
from transformers import AutoConfig
AutoConfig.for_model("captioning_visualgpt")
print("registered")
"""


@pytest.mark.parametrize(
    "module",
    slow_unless(
        lambda module: module.endswith(("data", "modeling_captioning", "trainer")),
        [
            "hf_captioners.data",
            "hf_captioners.explain.explanation",
            "hf_captioners.hub.pushing",
            "hf_captioners.loading",
            "hf_captioners.modeling.modeling_captioning",
            "hf_captioners.pipelines.image_captioning",
            "hf_captioners.processing.processing_visualgpt",
            "hf_captioners.training.trainer",
        ],
    ),
)
def test_any_module_may_be_imported_first(module, fork_server):
    """Registration follows the first import of transformers from any module of this package."""
    ran = fork_server.run(["-c", FIRST, module], libraries="torch")
    assert ran.stdout.strip() == "registered", ran.stderr

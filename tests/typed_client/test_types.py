"""Type checkers find the types of this library, from an editable installation and from the wheel."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf_captioners.architectures import ARCHITECTURES, AUXILIARY_MODELS
from tests.distributions import ROOT, copy_sources, environment, interpreter, wheel  # noqa: F401

from .checkers import FOLDER, PROGRAMS, error_lines, expected_lines, run_mypy, run_pyright

INSTALLATIONS = ["editable", "wheel"]
STUBS = sorted((ROOT / "hf_captioners").rglob("__init__.pyi"))
LINKS = "this system does not allow links"


def public_names() -> list[tuple[str, str]]:
    """Return the packages with a stub, and the names that each has."""
    found = []
    for stub in STUBS:
        package = ".".join(stub.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found += [(package, alias.asname or alias.name) for alias in node.names]
    return found


@pytest.fixture(scope="session")
def editable(once_a_run) -> Path:
    """An environment with an editable installation of a copy of the sources, `sources` beside it."""

    def fill(folder):
        environment(folder / "environment", "-e", str(copy_sources(folder / "sources")))

    folder = once_a_run("editable", fill)
    if not (folder / "sources" / ".editable").is_dir():
        pytest.skip(LINKS)
    return interpreter(folder / "environment")


@pytest.fixture(scope="session")
def from_wheel(once_a_run, wheel) -> Path:  # noqa: F811
    """An environment with the wheel."""
    folder = once_a_run("from_wheel", lambda folder: environment(folder / "environment", str(wheel)))
    return interpreter(folder / "environment")


@pytest.fixture(params=INSTALLATIONS)
def python(request) -> Path:
    """The interpreter of each environment."""
    return request.getfixturevalue({"editable": "editable", "wheel": "from_wheel"}[request.param])


@pytest.fixture
def programs(tmp_path_factory) -> Path:
    """A folder with the programs, below one with the caches of checkers."""
    folder = tmp_path_factory.mktemp("client")
    for name in PROGRAMS:
        shutil.copy(FOLDER / name, folder / name)
    return folder


def require_expected(messages: list[dict], whole: bool) -> None:
    """Check that messages name the lines with mistakes, and no others."""
    for name in PROGRAMS:
        expected = expected_lines((FOLDER / name).read_text(), whole)
        assert error_lines(messages, name) == expected, [one for one in messages if one["file"] == name]


def test_mypy(python, programs):
    """`mypy --strict` of the programs; every public name has a type. It does not look into torch and transformers."""
    names = public_names()
    imports = [f"from {package} import {name} as n{place}" for place, (package, name) in enumerate(names)]
    shown = [f"reveal_type(n{place})" for place in range(len(names))]
    (programs / "names.py").write_text("\n".join([*imports, *shown, ""]))
    messages = run_mypy(python, programs, False, *PROGRAMS, "names.py")
    require_expected(messages, whole=False)
    assert not error_lines(messages, "names.py")
    revealed = [one["message"] for one in messages if one["file"] == "names.py" and "Revealed" in one["message"]]
    assert len(revealed) == len(names) > 100
    assert not [name for name, text in zip(names, revealed, strict=True) if text.endswith('"Any"')]


@pytest.mark.slow
def test_mypy_with_all_libraries(python, programs):
    require_expected(run_mypy(python, programs, True, *PROGRAMS), whole=True)


@pytest.mark.slow
def test_pyright(python, programs):
    if not (shutil.which("pyright") or Path(sys.executable).with_name("pyright").is_file()):
        pytest.skip("pyright is not installed: pip install pyright")
    require_expected(run_pyright(python, programs, *PROGRAMS), whole=True)


def test_a_lost_type_is_found(from_wheel, programs):
    """Without `py.typed` or a stub, the checks above fail."""
    (programs / "names.py").write_text("from hf_captioners import load_captioner\nreveal_type(load_captioner)\n")
    where = [from_wheel, "-c", "import hf_captioners; print(hf_captioners.__file__)"]
    ran = subprocess.run(where, check=True, capture_output=True, text=True, cwd=programs)
    package = shutil.copytree(Path(ran.stdout.strip()).parent, programs / "hf_captioners")
    (package / "__init__.pyi").unlink()
    messages = run_mypy(from_wheel, programs, False, *PROGRAMS, "names.py")
    with pytest.raises(AssertionError):
        require_expected(messages, whole=False)
    assert any('Revealed type is "Any"' in one["message"] for one in messages)


def test_public_classes_have_types():
    """The classes of every architecture are in the stub, which loads them, too."""
    found = {name for package, name in public_names() if package == "hf_captioners"}
    own = (row for row in (*ARCHITECTURES.values(), *AUXILIARY_MODELS.values()) if row.package is None)
    missing = {row.prefix + kind for row in own for kind in row.kinds} - found
    assert not missing, "add them to hf_captioners/__init__.pyi"


def test_sources_may_change(editable, tmp_path):
    """An editable installation follows changes of files, new files, and new files at the top of the package."""
    sources = shutil.copytree(editable.parents[2] / "sources", tmp_path / "sources", symlinks=True)
    python = environment(tmp_path / "environment", "-e", str(sources))

    def run(code: str) -> str:
        ran = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    version = "import hf_captioners; print(hf_captioners.__version__)"
    assert run(version) != "9.9.9"
    (sources / "hf_captioners" / "_version.py").write_text('__version__ = "9.9.9"\n')
    assert run(version) == "9.9.9"
    (sources / "modeling" / "new_layers.py").write_text("WIDTH = 7\n")
    (sources / "hf_captioners" / "metrics" / "new_metric.py").write_text("WIDTH = 8\n")
    (sources / "hf_captioners" / "new_module.py").write_text("WIDTH = 9\n")
    (sources / "hf_captioners" / "work_progress.py").rename(sources / "hf_captioners" / "progress.py")
    code = "from hf_captioners.{} import WIDTH; print(WIDTH)"
    modules = ("modeling.new_layers", "metrics.new_metric", "new_module")
    assert [run(code.format(module)) for module in modules] == ["7", "8", "9"]
    assert run("import importlib.util; print(importlib.util.find_spec('hf_captioners.work_progress'))") == "None"
    shutil.rmtree(sources / ".editable")
    assert run(version) == "9.9.9", "the links are for type checkers only"

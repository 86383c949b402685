"""The page about adding an architecture: its files are those of the toy, and a fresh process types what it types."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import MobileNetV2Config, MobileNetV2Model

from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor

ROOT = Path(__file__).parents[2]
PAGE, MODEL = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("adding_an_architecture.md", "adding_a_model.md")
)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CONFIGURATION, PROCESSOR, INIT, TRAIN, CAPTION, TESTS = BLOCK.findall(PAGE)
FILES = (CONFIGURATION, *BLOCK.findall(MODEL), PROCESSOR, INIT)
NAMES = ("configuration_toy.py", "modeling_toy.py", "processing_toy.py", "__init__.py")
VISION = "timm/mobilenetv3_small_100.lamb_in1k"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with the files of the page as a package, a tiny vision model and a photograph."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "toy").mkdir()
    for name, content in zip(NAMES, FILES, strict=True):
        (folder / "toy" / name).write_text(content)
    torch.manual_seed(0)
    MobileNetV2Model(MobileNetV2Config(image_size=32, depth_multiplier=0.25, min_depth=4)).save_pretrained(
        folder / "v"
    )
    CaptioningImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder / "v")
    shutil.copy(ROOT / "docs" / "photo.jpg", folder)
    return folder


def test_the_files_are_those_of_the_toy():
    assert list(FILES) == [(ROOT / "tests" / "modeling" / "toy" / name).read_text() for name in NAMES]
    assert TESTS.strip() in (ROOT / "tests" / "modeling" / "test_toy.py").read_text(), "the tests of the page run"


def test_shared_parts_are_in_their_files():
    rows = MODEL.partition("| file in `modeling/` |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) == 8
    for row in rows:
        files, names = (re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split(" | "))
        text = "".join((ROOT / "modeling" / file).read_text() for file in files)
        missing = [name for name in names if not re.search(rf"^ *(class|def) {name}\b|^{name} = ", text, re.MULTILINE)]
        assert names and not missing, row


@pytest.fixture
def typed(package, fork_server):
    """Run code in a fresh process in that folder, with folders of packages."""

    def run(code, *paths):
        (package / "typed.py").write_text(code)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HOME": str(package / "hub")}
        ran = fork_server.run([package / "typed.py"], cwd=package, env=environment)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def test_what_is_typed(package, typed):
    """Training in one process; captions in another one that has neither the package nor this library."""
    assert VISION in TRAIN
    said = typed(TRAIN.replace(VISION, "v"), package, ROOT)
    assert "A ToyForConditionalGeneration from v; everything else is new." in said
    saved = {path.name for path in (package / "my_toy").glob("*.py")}
    assert {"configuration_toy.py", "modeling_toy.py", "processing_toy.py", "modeling_captioning.py"} <= saved
    hidden = "import sys\nsys.modules['hf_captioners'] = None\n"
    (package / "toy").rename(package / "elsewhere")
    assert re.fullmatch(r"\['[a-z .]*'\]\n", typed(hidden + CAPTION))

"""The commands and the code of docs/explanations.md work as printed."""

import re
import shlex
import shutil
from pathlib import Path

from hf_captioners.cli import main
from tests.cli.conftest import captioner, images, language_model, offline, scenes, vision_model  # noqa: F401

PAGE = (Path(__file__).parents[2] / "docs" / "explanations.md").read_text(encoding="utf-8")


def test_page(captioner, images, tmp_path, monkeypatch):  # noqa: F811
    shutil.copytree(captioner, tmp_path / "my_captioner")
    (tmp_path / "holiday").mkdir()
    for index, name in enumerate(("photo.jpg", "holiday/beach.jpg")):
        shutil.copy(images / f"scene_00{index}.png", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in "".join(commands).strip().splitlines():
        assert main(shlex.split(line)[1:]) == 0
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "explanations.md", "exec"), {})
    written = {
        "photo.attention.png",
        "photo.relevance.png",
        "photo.svg",
        "explanations.html",
        "photo.attention.pdf",
        "photo.html",
    }
    assert written <= {path.name for path in tmp_path.iterdir()}

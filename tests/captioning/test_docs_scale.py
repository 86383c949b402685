"""The commands of docs/scale.md and docs/serving.md have known arguments, and the Python of docs/scale.md runs."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from hf_captioners import cli

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["scale.md", "serving.md"])
def test_commands_are_understood(page):
    blocks = re.findall(r"^```bash\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("hf-captioners")]
    assert len(commands) >= 2
    for name, *arguments in commands:
        cli.command_parser(name, cli.load_command(name)).parse_args(arguments)


def test_python_runs(images, captioner, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    shutil.copytree(images, "photos")
    shutil.copytree(captioner, "my_captioner")
    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(compile(block, "scale.md", "exec"), names)
    assert len(names["rows"]["caption"]) == 10 and names["rows"]["error"][0] is None

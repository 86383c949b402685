"""The commands and code of the README work, with small local models instead of those that it names."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from hf_captioners.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def reader(tmp_path_factory, images, language_model, vision_model):
    """A folder in which all names of the README exist, and a captioner trained as it says."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "holiday").mkdir()
    Image.new("RGB", (48, 40), "red").save(folder / "photo.jpg")
    Image.new("RGB", (48, 40), "blue").save(folder / "holiday" / "beach.jpg")
    (folder / "my_images").symlink_to(images)
    return {
        "folder": folder,
        "names": {
            '"gpt2"': f'"{language_model}"',
            "--language_model gpt2": f"--language_model {language_model}",
            "facebook/dinov2-small": vision_model,
            "path/or/name": "my_captioner",
        },
    }


def with_local_names(text: str, reader) -> str:
    for name, local in reader["names"].items():
        text = text.replace(name, local)
    return text


def test_first_screen():
    """What it is, the two commands, and five lines that caption an image."""
    first = "\n".join(README.splitlines()[:22])
    assert "make demo" in first and "make test" in first and 'pipeline("image-captioning"' in first
    assert len([line for line in BLOCKS[1][1].splitlines() if line.strip()]) <= 5


def test_commands_and_code(reader, monkeypatch, capsys):
    """All blocks in the order of a reader who trains first."""
    monkeypatch.chdir(reader["folder"])
    shell = [text for language, text in BLOCKS if language == "bash" and "hf-captioners" in text]
    assert len(shell) == 1
    for line in with_local_names(shell[0], reader).strip().splitlines():
        command, *arguments = shlex.split(line)
        assert command == "hf-captioners"
        few = [
            "--max_steps",
            "2",
            "--use_cpu",
            "--eval_strategy",
            "no",
            "--save_strategy",
            "no",
            "--validation_share",
            "0.3",
        ]
        assert main([*arguments, *(few if arguments[0] == "train" else [])]) == 0
    assert len((reader["folder"] / "captions.jsonl").read_text().splitlines()) == 1
    code = [text for language, text in BLOCKS if language == "python"]
    assert len(code) == 3
    for text in code:
        exec(compile(with_local_names(text, reader), "README.md", "exec"), {})

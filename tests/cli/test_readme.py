"""The commands and code of the README work, with small local models instead of those that it names."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from hf_captioners.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def reader(tmp_path_factory, images, language_model, vision_model):
    """A folder in which all names of the README exist, and a captioner trained as it says."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "holiday").mkdir()
    Image.new("RGB", (48, 40), "red").save(folder / "photo.jpg")
    Image.new("RGB", (48, 40), "blue").save(folder / "holiday" / "beach.jpg")
    (folder / "my_images").symlink_to(images)
    (folder / "docs").symlink_to(ROOT / "docs")
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
    """A photograph, its caption, what the library is, and the five lines that print the caption."""
    title, photograph, caption = [line for line in README.splitlines() if line][:3]
    assert title == "# hf_captioners" and photograph == f"![{caption.strip('*')}](docs/photo.jpg)"
    first = "\n".join(README.splitlines()[:22])
    assert "Image captioning for" in first and BLOCKS[0][1] in first and 'pipeline("image-captioning"' in BLOCKS[0][1]
    assert len([line for line in BLOCKS[0][1].splitlines() if line.strip()]) <= 5
    assert "make demo" in BLOCKS[2][1] and "make test" in BLOCKS[2][1]


FEW = ["--max_steps", "2", "--use_cpu", "--eval_strategy", "no", "--save_strategy", "no", "--validation_share", "0.3"]
SHELL = [text for language, text in BLOCKS if language == "bash" and "hf-captioners" in text]
CODE = [text for language, text in BLOCKS if language == "python"]


def run_commands(text, reader):
    for line in with_local_names(text, reader).replace("\\\n", " ").strip().splitlines():
        command, *arguments = shlex.split(line)
        assert command == "hf-captioners"
        assert main([*arguments, *(FEW if arguments[0] == "train" else [])]) == 0


def test_the_installed_captioner(reader, monkeypatch, capsys):
    """It says the sentence that stands beside the photograph."""
    pytest.importorskip("hf_captioners_default", reason="the default captioner is not installed")
    monkeypatch.chdir(reader["folder"])
    exec(compile(CODE[0], "README.md", "exec"), {})
    said = capsys.readouterr().out.strip()
    assert f"# {said}\n" in CODE[0] and f"![{said}](docs/photo.jpg)" in README
    run_commands(SHELL[0], reader)
    assert capsys.readouterr().out.splitlines()[0] == said
    assert (reader["folder"] / "holiday" / "beach.txt").is_file()
    assert (reader["folder"] / "my_captioner" / "NOTICE").is_file()


def test_commands_and_code(reader, monkeypatch):
    """All other blocks in the order of a reader who trains first."""
    monkeypatch.chdir(reader["folder"])
    shutil.rmtree("my_captioner", ignore_errors=True)
    assert len(SHELL) == 2 and len(CODE) == 3
    run_commands(SHELL[1], reader)
    assert len((reader["folder"] / "captions.jsonl").read_text().splitlines()) == 1
    for text in CODE[1:]:
        exec(compile(with_local_names(text, reader), "README.md", "exec"), {})

"""`hf-captioners review`: what is refused before the page is served, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from PIL import Image

from hf_captioners.cli import main


@pytest.mark.slow
def test_the_page_is_served_until_it_is_interrupted(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "captions": ["a dog"]}\n')
    command = [sys.executable, "-m", "hf_captioners.cli", "review", str(tmp_path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as child:
        try:
            assert child.stdout.readline() == f"{tmp_path}: 1 images, 1 with kept captions.\n"
            address = re.search(r"Open (http://127\.0\.0\.1:\d+/\S{32}/) in", child.stdout.readline())[1]
            with urllib.request.urlopen(address + "folder", timeout=60) as answer:
                assert answer.status == 200
        finally:
            child.send_signal(signal.SIGINT)
        printed, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert f"1 of 1 images have captions in {tmp_path}" in printed and errors == ""


@pytest.mark.parametrize(
    "arguments, fault",
    [
        (["missing"], "no folder missing"),
        ([".", "--port", "70000"], "`--port` is 70000"),
        ([".", "--sidecar", "jpg"], "the ending of images"),
        ([".", "--captions", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_what_cannot_be_served_is_told(arguments, fault, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save("a.png")
    assert main(["review", *arguments]) == 2
    assert fault in capsys.readouterr().err

"""`hf-captioners review`: what is refused before the page is served, and how it ends."""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest
from PIL import Image

from hf_captioners.cli import main
from hf_captioners.review.corrections import Corrections
from hf_captioners.review.table import ReviewTable
from hf_captioners.review.text_files import TextFiles


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
        (["missing"], "no file or folder missing"),
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


def test_its_drafts_and_locks_are_no_foreign_files(images, captioner, tmp_path, capsys):
    """`caption`, `check-data` and `train` say nothing of them, while the page is open too."""
    for image in sorted(images.glob("*.png"))[:6]:
        shutil.copy(image, tmp_path)
    table = ReviewTable(tmp_path)
    with table.only_writer():
        page = Corrections(table, TextFiles(table))
        for number in range(5):
            page.keep(number, [f"a scene with the number {number}"])
        page.type(5, ["half a sentence"])
        own = {".review_drafts.jsonl", ".metadata.jsonl.lock"}
        assert own <= {path.name for path in tmp_path.iterdir()}
        fast = ["--model", captioner, "--num_beams", "1", "--max_new_tokens", "3"]
        assert main(["caption", str(tmp_path), "--output", str(tmp_path.parent / "out.jsonl"), *fast]) == 0
        assert main(["caption", str(tmp_path), "--sidecar", *fast]) == 0
        (tmp_path / "scene_005.txt").unlink()
        assert main(["check-data", str(tmp_path)]) == 0
        train = ["train", "--model", captioner, "--train_dir", str(tmp_path), "--recipe", "none", "--max_steps", "1"]
        train += ["--output_dir", str(tmp_path.parent / "run"), "--validation_share", "0.4", "--use_cpu"]
        assert main([*train, "--disable_tqdm", "true", "--generation_max_new_tokens", "3"]) == 0
    said = "".join(capsys.readouterr())
    assert not [name for name in (*own, ".review", ".lock", "left out: ") if name in said], said


SERVED = """
import sys
import hf_captioners.review.server as server
from hf_captioners.cli import main
server.serve = lambda *arguments, **options: print("served")
assert main(["review", sys.argv[1]]) == 0
status = open("/proc/self/status").read() if sys.platform == "linux" else "VmHWM: 0 kB"
megabytes = int(status.partition("VmHWM:")[2].split()[0]) / 1024
print(sorted({"torch", "transformers", "datasets"} & set(sys.modules)), megabytes)
"""


def test_the_page_needs_no_model_and_little_memory(tmp_path):
    """The server had a gigabyte with the libraries of training."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    done = subprocess.run([sys.executable, "-c", SERVED, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules, _, megabytes = done.stdout.splitlines()[-1].rpartition(" ")
    assert modules == "[]" and float(megabytes) < 200, done.stdout

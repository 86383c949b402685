"""Fixtures of `conftest.py`."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest


def test_a_folder_is_filled_once(once_a_run, tmp_path):
    calls = []

    def fail(folder):
        (folder / "half").touch()
        raise OSError("no space")

    def fill(folder):
        calls.append(sorted(folder.iterdir()))
        (folder / "file").write_text(f"call {len(calls)}")

    name = tmp_path.name
    with pytest.raises(OSError, match="no space"):
        once_a_run(name, fail)
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(once_a_run(name, fill))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [[]], "what failed has left nothing"
    assert len(folders) == 4 and {(folder / "file").read_text() for folder in folders} == {"call 1"}


def test_threads_are_chosen_before_torch_is_imported():
    code = "import os, sys; import tests.conftest; print(os.environ['OMP_NUM_THREADS'], 'torch' in sys.modules)"
    for given, expected in (({}, "1 False"), ({"OMP_NUM_THREADS": "2"}, "2 False")):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | given
        root = Path(__file__).parents[1]
        done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == expected, done.stderr

"""Processes of the fork server are as fresh as a test needs them."""

import json
import os
import sys
import time

import pytest

from .fork_server import ForkServer, is_alive, spent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, `subprocess` starts the processes")

STATE = """
import json, os, random, sys
import datasets, huggingface_hub, torch
from huggingface_hub import constants
from transformers.dynamic_module_utils import HF_MODULES_CACHE
print(json.dumps({
    "own": sorted(name for name in sys.modules if name.partition(".")[0] in ("hf_captioners", "modeling", "tests")),
    "main": __name__, "arguments": sys.argv, "folder": os.getcwd(), "variables": dict(os.environ),
    "endpoints": [constants.ENDPOINT, huggingface_hub.HfApi().endpoint, datasets.config.HF_ENDPOINT,
                  huggingface_hub.hf_hub_url("me/it", "file")],
    "places": [constants.HF_HUB_CACHE, HF_MODULES_CACHE, str(datasets.config.HF_DATASETS_CACHE)],
    "offline": constants.HF_HUB_OFFLINE, "draw": random.random(), "threads": torch.get_num_threads(),
}))
"""


def state(fork_server, tmp_path, *arguments, **variables):
    environment = {"HF_HOME": "/empty", "HF_ENDPOINT": "http://127.0.0.1:9", **variables}
    done = fork_server.run(arguments or ["-c", STATE, "a b", "c"], cwd=tmp_path, env=environment, check=True)
    return json.loads(done.stdout), environment


def test_a_process_is_fresh(fork_server, tmp_path):
    found, environment = state(fork_server, tmp_path, HF_MODULES_CACHE="/modules")
    assert found["own"] == []
    assert (found["main"], found["arguments"], found["folder"]) == ("__main__", ["-c", "a b", "c"], str(tmp_path))
    assert {name: found["variables"][name] for name in environment} == environment
    assert found["endpoints"] == ["http://127.0.0.1:9"] * 3 + ["http://127.0.0.1:9/me/it/resolve/main/file"]
    assert found["places"] == ["/empty/hub", "/modules", "/empty/datasets"]
    assert not found["offline"] and found["threads"] == 1
    (tmp_path / "state.py").write_text(STATE)
    other, _ = state(fork_server, tmp_path, tmp_path / "state.py", 3, HF_HUB_OFFLINE="1")
    assert (other["main"], other["arguments"]) == ("__main__", [str(tmp_path / "state.py"), "3"])
    assert other["offline"] and other["places"][1] == "/empty/modules" and other["draw"] != found["draw"]
    module, _ = state(fork_server, tmp_path, "-m", "state", "4")
    assert (module["main"], module["arguments"]) == ("__main__", [str(tmp_path / "state.py"), "4"])


def test_processes_do_not_see_each_other(fork_server):
    code = "import torch, transformers as t; assert not hasattr(t, 'mark'); t.mark = 1; print(torch.rand(1))"
    first, second = (fork_server.run(["-c", code], check=True).stdout for _ in range(2))
    assert first == second


def test_what_is_imported(fork_server):
    code = "import sys; print('torch' in sys.modules, 'transformers' in sys.modules)"
    for libraries, expected in (("torch", "True False\n"), ("transformers", "True True\n")):
        assert fork_server.run(["-c", code], libraries=libraries).stdout == expected


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no such file')", 1, "no such file\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'end'); sys.stderr.write('the ')", 0, "the end"),
        ("import sys, threading; threading.Timer(0.1, sys.stderr.write, ['late']).start()", 0, "late"),
    ],
)
def test_ends_as_the_interpreter_does(fork_server, code, status, said):
    done = fork_server.run(["-c", code])
    assert done.returncode == status and done.stderr.endswith(said) and done.stdout == ""
    if status:
        with pytest.raises(RuntimeError, match=f"ended with {status}"):
            fork_server.run(["-c", code], check=True)


def test_options_of_the_interpreter_are_refused(fork_server):
    with pytest.raises(ValueError, match="expected -c, -m or a script, received -O"):
        fork_server.run(["-O", "-c", ""])


def test_seconds_of_children_are_counted(fork_server):
    before = spent["children"]
    fork_server.run(["-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert spent["children"] - before >= 0.25


def test_a_process_ends_on_demand_and_with_whoever_waited(fork_server, tmp_path):
    with open(tmp_path / "log.txt", "w") as log:
        one, two = (fork_server.start(["-c", "import time; time.sleep(60)"], log, log) for _ in range(2))
    assert one.poll() is None and is_alive(one.pid)
    one.terminate()
    assert one.wait() == one.poll() == -15
    two.lines.close()
    two.connection.close()
    until = time.monotonic() + 30
    while is_alive(two.pid):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_no_server_for_a_run_that_has_ended(tmp_path):
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    with pytest.raises(RuntimeError, match="The fork server did not start; see .*log.txt"):
        ForkServer(tmp_path, ended).run(["-c", ""], libraries="torch")
    assert "The run has ended." in (tmp_path / "fork_server" / "log.txt").read_text()

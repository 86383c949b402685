"""The metrics on the Hub: pushed by one command, and loaded by a process that has the wheel, not the repository."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from hf_captioners import __version__
from release import metric_modules
from tests.distributions import ROOT, installed, wheel  # noqa: F401
from tests.hub.loopback_hub import READ_TOKEN, loopback_hub  # noqa: F401

# Runs the example of each card, loaded from the Hub, and prints what the card says that it gives.
RUN_CARDS = """
import re, sys
from pathlib import Path
from huggingface_hub import hf_hub_download
import hf_captioners
assert not Path(hf_captioners.__file__).is_relative_to(sys.argv[1]), hf_captioners.__file__
for name in sys.argv[2:]:
    card = Path(hf_hub_download(name, "README.md", repo_type="space")).read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\\n(.*?)```", card, re.DOTALL)
    scope = {}
    exec(code, scope)
    said = re.findall(r"^# ([\\d.]+)$", code, re.MULTILINE)
    print(name, type(scope["metric"]).__module__, said[0] in {str(round(x, 4)) for x in scope["results"].values()})
"""


def push(hub, folder, token=None):
    environment = os.environ | hub.environment(folder / "pusher") | ({"HF_TOKEN": token} if token else {})
    typed = [sys.executable, "-m", "release.metric_modules", str(folder / "modules"), "--owner", "tester", "--push"]
    return subprocess.run(typed, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_pushed_and_loaded_without_the_repository(loopback_hub, installed, tmp_path):  # noqa: F811
    ran = push(loopback_hub, tmp_path)
    assert ran.returncode == 0, ran.stderr
    names = metric_modules.module_names()
    assert len(names) >= 6 and ran.stdout.split() == [f"{loopback_hub.url}/spaces/tester/{name}" for name in names]
    (tmp_path / "empty").mkdir()
    environment = os.environ | loopback_hub.environment(tmp_path / "reader", token=None)
    environment |= {"PYTHONPATH": str(installed), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    loaded = [f"tester/{name}" for name in names if name != "spice"]  # it needs a Java program
    typed = [sys.executable, "-c", RUN_CARDS, str(ROOT), *loaded]
    ran = subprocess.run(typed, cwd=tmp_path / "empty", env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [(name, said) for name, _, said in lines] == [(name, "True") for name in loaded]
    assert all(module.startswith("evaluate_modules.") for _, module, _ in lines), "of the Hub, not of the package"


def test_an_unchanged_module_is_not_pushed_again(loopback_hub, tmp_path):  # noqa: F811
    for _ in range(2):
        assert push(loopback_hub, tmp_path).returncode == 0
    commits = loopback_hub.repository("tester/cider_d", "space").branches["main"]
    assert [commit.title for commit in commits] == ["initial commit", f"hf-captioners {__version__}"]


def test_a_token_that_may_not_write(loopback_hub, tmp_path):  # noqa: F811
    ran = push(loopback_hub, tmp_path, READ_TOKEN)
    assert (ran.returncode, "may not write to tester/bleu" in ran.stderr) == (2, True), ran.stderr


@pytest.mark.parametrize("metric", metric_modules.module_names())
def test_files(metric):
    files = metric_modules.module_files(metric, "owner")
    assert set(files) == {"README.md", f"{metric}.py", "requirements.txt", "index.html"}
    card = files["README.md"]
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["sdk"] == "static" and {"evaluate", "metric"} <= set(front["tags"]) and front["title"]
    assert all(f"\n## {part}\n" in card for part in ("Use", "Inputs", "Values", "Source")), "what a person asks first"
    assert re.search(r"\d to \d", card.split("## Values")[1]), "the range"
    assert f'evaluate.load("owner/{metric}")' in card and "module_path" not in card
    assert f'evaluate.load("owner/{metric}")' in files["index.html"].replace("&quot;", '"')
    extra = r"\[metrics-data\]" if metric == "meteor" else ""
    assert re.fullmatch(rf"hf-captioners{extra}>={re.escape(__version__)}\n", files["requirements.txt"])
    assert files["requirements.txt"].strip() in card


def test_a_card_without_the_example_is_refused(monkeypatch, tmp_path):
    (tmp_path / "cider_d").mkdir()
    (tmp_path / "cider_d" / "README.md").write_text("---\ntitle: CIDEr-D\n---\n# CIDEr-D\n")
    monkeypatch.setattr(metric_modules, "MODULES", tmp_path)
    with pytest.raises(ValueError, match="The card of cider_d has no front matter, or no example"):
        metric_modules.module_files("cider_d", "owner")

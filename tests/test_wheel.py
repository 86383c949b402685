"""The built wheel: it is complete, installs one package, and works in an empty folder."""

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from release.distributions import MAX_WHEEL_BYTES, wheel_faults

from .distributions import build, copy_sources, installed, wheel  # noqa: F401
from .fork_server import ForkServer

PROBE = """
import hf_captioners, pathlib, sys
from importlib.resources import files
assert str(pathlib.Path(hf_captioners.__file__)).startswith(sys.argv[1]), hf_captioners.__file__
assert files("hf_captioners.hub_cards").joinpath("demo_page.html").is_file()
from hf_captioners.metrics import compute_caption_metrics
from hf_captioners.cli import main
assert main(["env"]) == 0
config = hf_captioners.VisualGPTConfig(text_config={"n_embd": 8, "n_head": 2, "n_layer": 1})
import transformers
model = transformers.AutoModelForImageTextToText.from_config(config)
model.save_pretrained("checkpoint")
print(type(model).__module__, len(list(pathlib.Path("checkpoint").glob("*.py"))))
"""


def changed_wheel(wheel: Path, folder: Path, lost: str = "", added: str = "") -> Path:  # noqa: F811
    """Copy a wheel without one of its files, or with another one."""
    changed = folder / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            if entry.filename != lost:
                target.writestr(entry, source.read(entry))
        if added:
            target.writestr(added, os.urandom(MAX_WHEEL_BYTES if added.endswith(".bin") else 1))
    return changed


def test_wheel_is_complete(wheel):  # noqa: F811
    assert wheel_faults(wheel) == []
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"hf_captioners"}


@pytest.mark.parametrize(
    "name",
    [
        "hf_captioners/py.typed",
        "hf_captioners/__init__.pyi",
        "hf_captioners/review/page.js",
        "hf_captioners/modeling/modeling_visualgpt.py",
        "hf_captioners/reproduce/recipes/visualgpt/table1.yaml",
    ],
)
def test_a_missing_file_is_found(wheel, tmp_path, name):  # noqa: F811
    assert wheel_faults(changed_wheel(wheel, tmp_path, lost=name)) == [f"{name} is missing in the wheel"]


def test_a_file_too_many_or_too_large_is_found(wheel, tmp_path):  # noqa: F811
    assert wheel_faults(changed_wheel(wheel, tmp_path, added="tests/x.py")) == ["tests/x.py is only in the wheel"]
    faults = wheel_faults(changed_wheel(wheel, tmp_path, added="hf_captioners/weights.bin"))
    assert len(faults) == 2 and "expected fewer than 1,500,000" in faults[1]


def test_source_distribution_builds_the_same_wheel(wheel, tmp_path):  # noqa: F811
    archive = build(copy_sources(tmp_path / "tree"), tmp_path / "built", "--sdist")
    with tarfile.open(archive) as sources:
        sources.extractall(tmp_path / "sources", filter="data")
    again = build(next((tmp_path / "sources").iterdir()), tmp_path / "again")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def run_installed(
    fork_server: ForkServer, site: Path, folder: Path, *arguments: str, libraries: str = "transformers"
) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"}
    return fork_server.run(arguments, cwd=folder, env=environment, libraries=libraries)


def test_wheel_works_in_an_empty_folder(fork_server, installed, tmp_path):  # noqa: F811
    ran = run_installed(fork_server, installed, tmp_path, "-c", PROBE, str(installed), libraries="torch")
    assert ran.returncode == 0, ran.stderr
    module, files = ran.stdout.strip().splitlines()[-1].split()
    assert module == "hf_captioners.modeling.modeling_visualgpt"
    assert 8 <= int(files) <= 20, "code files in a checkpoint"


def test_wheel_has_the_recipes(fork_server, installed, tmp_path):  # noqa: F811
    """From an empty folder: the commands of a table, and a recipe that is named by its path in the package."""
    typed = ["-m", "hf_captioners.cli", "reproduce", "visualgpt", "--table", "1", "--dry_run"]
    ran = run_installed(fork_server, installed, tmp_path, *typed)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 14 * 3 * 4, "two rows and twelve baselines, three regimes, four seeds"
    assert all(line.startswith("hf-captioners train --dataset coco ") for line in lines)
    assert all(" --architecture " in line for line in lines)
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"
    typed = ["train", "show_attend_tell/flickr8k_soft.yaml", "--use_cpu", "--train_dir", "missing"]
    ran = run_installed(fork_server, installed, tmp_path, "-m", "hf_captioners.cli", *typed, "--output_dir", "run")
    assert (ran.returncode, "no file or folder missing" in ran.stderr) == (2, True), ran.stderr


@pytest.mark.slow
def test_wheel_runs_the_demonstration(fork_server, installed, tmp_path):  # noqa: F811
    ran = run_installed(fork_server, installed, tmp_path, "-m", "hf_captioners.cli", "demo", "--quick")
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "demo" / "index.html").read_text()
    assert page.count("data:image/png") == 10 and "Does the language model help?" in page

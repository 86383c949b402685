"""The papers of a release: workflows, issue forms, citation, and the commands of RELEASE.md."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from hf_captioners import __version__
from hf_captioners.cli import COMMANDS
from tests.distributions import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
RELEASE = (ROOT / "RELEASE.md").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
SYSTEMS = ["ubuntu-latest", "macos-latest", "windows-latest"]


def read(path):
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # `on` is no truth value there


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows(path):
    """Rights are named, jobs end, actions have a version, and targets of make exist."""
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"} and workflow["on"]
    for name, job in workflow["jobs"].items():
        assert 0 < int(job["timeout-minutes"]) <= 120, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "@" in step.get("uses", "@"), step
            for target in re.findall(r"\bmake (?:--\S+ )*([a-z-]+)", step.get("run", "")):
                assert target in TARGETS, f"{name} runs make {target}"


def test_tests_run_on_three_systems_with_and_without_extras():
    jobs = read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]
    for name, target in (("test", "test"), ("alone", "test-alone"), ("extras", "test-extras")):
        assert jobs[name]["strategy"]["matrix"]["os"] == SYSTEMS
        assert re.search(rf"make (--\S+ )*{target} ", jobs[name]["steps"][-1]["run"])


def test_a_tag_publishes_by_trusted_publishing():
    workflow = read(ROOT / ".github" / "workflows" / "publish.yml")
    packages = workflow["jobs"]["packages"]
    assert workflow["on"] == {"push": {"tags": ["v*"]}} and packages["needs"] == "build"
    assert packages["permissions"] == {"id-token": "write"} and packages["environment"] == "pypi"
    assert "secrets." not in Path(WORKFLOWS[0].parent, "publish.yml").read_text()
    for said in ("`publish.yml`", "environment `pypi`", "`github-pages`"):
        assert said in RELEASE


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms(path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "labels", "body"}
    assert all(label in RELEASE for label in form["labels"])
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(field["attributes"]["label"] for field in fields)
    names = [field["id"] for field in fields]
    assert len(names) == len(set(names)) and any(field.get("validations") for field in fields)


def test_bugs_come_with_the_environment():
    assert "env" in COMMANDS
    for name in ("bug", "figure"):
        (field,) = [part for part in read(FORMS[0].parent / f"{name}.yml")["body"] if part.get("id") == "environment"]
        assert "`hf-captioners env`" in field["attributes"]["label"] and field["validations"] == {"required": "true"}
    config = read(FORMS[0].parent / "config.yml")
    assert config["blank_issues_enabled"] == "false" and "vulnerability" in config["contact_links"][0]["name"]


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["title"] and citation["authors"]
    if ".dev" not in __version__:
        assert citation["version"] == __version__
    from hf_captioners.architectures import ARCHITECTURES

    titles = {reference["title"].split(":")[0] for reference in citation["references"]}
    for architecture in ARCHITECTURES.values():
        assert any(title in architecture.paper for title in titles) or architecture.package, architecture.paper


def test_commands_of_the_page():
    """Targets of make, modules, commands, files and the linked page of RELEASE.md exist."""
    typed = "\n".join(re.findall(r"```bash\n(.*?)```", RELEASE, re.DOTALL))
    made = re.findall(r"^\s*make ([a-z-]+)", typed, re.MULTILINE)
    assert {"release-check", "dist", "docs", "metric-modules", "reference-models"} <= set(made) <= set(TARGETS)
    modules = re.findall(r"python -m ([\w.]+)", typed)
    assert {"release.cut", "release.public_api"} <= set(modules)
    for module in set(modules) - {"twine"}:
        assert importlib.util.find_spec(module), module
    for command in re.findall(r"hf-captioners ([a-z]+)", typed):
        assert command in COMMANDS
    for name in re.findall(r"`((?:[\w.]+/)*[\w.]+\.(?:md|py|toml|cff|yml))`", RELEASE):
        assert (ROOT / name).is_file() or (ROOT / ".github" / "workflows" / name).is_file(), name
    for page, anchor in re.findall(r"\]\((\S+?)#(\S+?)\)", RELEASE):
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_dist_builds_both_projects():
    done = subprocess.run(["make", "--dry-run", "dist", "OS="], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "--outdir dist ." in done.stdout
    assert "--outdir dist default_captioner" in done.stdout

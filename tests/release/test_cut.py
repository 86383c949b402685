"""The cut of a release: the version stands everywhere, and nothing is written where something is wrong."""

import datetime
import re
import shutil

import pytest
import yaml

from release.cut import ADDRESSED, EDITS, PLACEHOLDER, cut, main, placeholders
from tests.distributions import ROOT

DAY = datetime.date(2030, 1, 2)
CHANGES = "# Changelog\n\n## Unreleased\n\nThe first release.\n\n### Captioners\n- VisualGPT.\n"


@pytest.fixture
def tree(tmp_path):
    """The files of the repository, with addresses that are filled in."""
    for name in {*ADDRESSED, *EDITS}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(PLACEHOLDER, "captioners.test"), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
    return tmp_path


def contents(tree):
    return {name: (tree / name).read_text(encoding="utf-8") for name in EDITS}


def test_the_version_stands_everywhere(tree):
    before = contents(tree)
    cut(tree, "1.0.0", DAY)
    after = contents(tree)
    assert re.search(r'^__version__ = "1.0.0"$', after["hf_captioners/_version.py"], re.MULTILINE)
    citation = yaml.safe_load(after["CITATION.cff"])
    assert (citation["version"], citation["date-released"]) == ("1.0.0", DAY)
    assert '"Development Status :: 5 - Production/Stable"' in after["pyproject.toml"]
    head, _, section = after["CHANGELOG.md"].partition("## 1.0.0 (2030-01-02)\n")
    assert head.endswith("## Unreleased\n\n") and section.strip()
    assert after["CHANGELOG.md"].replace("\n## 1.0.0 (2030-01-02)\n", "", 1) == before["CHANGELOG.md"]


def test_the_changelog_has_the_heading_once():
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").count("\n## Unreleased\n") == 1


def test_a_second_release(tree):
    cut(tree, "1.0.0", DAY)
    with pytest.raises(ValueError, match='nothing under "## Unreleased"'):
        cut(tree, "1.0.1", DAY)
    with pytest.raises(ValueError, match=r"a section 1\.0\.0 already"):
        cut(tree, "1.0.0", DAY)
    changes = tree / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## Unreleased\n", "## Unreleased\n\n### Fixed\n- A fault.\n", 1))
    cut(tree, "1.0.1", DAY + datetime.timedelta(1))
    assert re.findall(r"^## (.*)$", changes.read_text(), re.MULTILINE) == [
        "Unreleased",
        "1.0.1 (2030-01-03)",
        "1.0.0 (2030-01-02)",
    ]
    assert (tree / "CITATION.cff").read_text().count("date-released") == 1


def test_addresses_that_are_not_filled_in_are_listed(tree):
    shutil.copy(ROOT / "SECURITY.md", tree / "SECURITY.md")
    before = contents(tree)
    if not placeholders(tree):
        pytest.skip("the owner has filled in the addresses")
    with pytest.raises(ValueError, match=rf"fill them in:\nSECURITY\.md:\d+: .*{PLACEHOLDER}"):
        cut(tree, "1.0.0", DAY)
    assert contents(tree) == before


@pytest.mark.parametrize(
    ("name", "text", "version", "message"),
    [
        ("SECURITY.md", "", "1.0", "The version is '1.0', expected three numbers"),
        ("SECURITY.md", "", "0.2.0", "expected three numbers such as 1.0.0"),
        ("CITATION.cff", "title: x\n", "1.0.0", "CITATION.cff has 0 lines of the form"),
        ("CHANGELOG.md", "# Changelog\n", "1.0.0", "nothing under"),
    ],
)
def test_nothing_is_written_where_something_is_wrong(tree, name, text, version, message):
    (tree / name).write_text(text)
    before = contents(tree)
    with pytest.raises(ValueError, match=message):
        cut(tree, version, DAY)
    assert contents(tree) == before


def test_the_command_says_what_is_wrong(capsys):
    assert main(["1.0"]) == 2
    assert "expected three numbers" in capsys.readouterr().err

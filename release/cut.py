"""The cut of a release: `python -m release.cut 1.0.0` writes the version wherever it stands.

These places are `_version.py`, `CITATION.cff` (with the date), the classifier in `pyproject.toml`, and `CHANGELOG.md`,
where what is under "Unreleased" becomes the section of the version. Nothing is written while an address is a
placeholder. `RELEASE.md` has the steps before and after.
"""

import argparse
import datetime
import re
import sys
from pathlib import Path

from hf_captioners.output_files import write_text
from release.distributions import ROOT

VERSION = re.compile(r"[1-9]\d*\.\d+\.\d+")
PLACEHOLDER = "example.org"
# Files with addresses that only the owner knows.
ADDRESSED = ("SECURITY.md", "CITATION.cff", "pyproject.toml", ".github/ISSUE_TEMPLATE/config.yml")
# file -> (what stands there once, what replaces it)
EDITS = {
    "hf_captioners/_version.py": (r'__version__ = ".*"', '__version__ = "{version}"'),
    "CITATION.cff": (r"^version: .*(\ndate-released: .*)?$", "version: {version}\ndate-released: {date}"),
    "CHANGELOG.md": (r"^## Unreleased$", "## Unreleased\n\n## {version} ({date})"),
    "pyproject.toml": (r"Development Status :: [^\"]+", "Development Status :: 5 - Production/Stable"),
}


def placeholders(root: Path) -> list[str]:
    """Return the lines whose addresses are placeholders, with their files and numbers."""
    found = []
    for name in ADDRESSED:
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        found += [f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if PLACEHOLDER in line]
    return found


def cut(root: Path, version: str, date: datetime.date) -> None:
    """Write the version of a release into all files that have it.

    Args:
        root: folder of the repository.
        version: the version, such as `1.0.0`.
        date: day of the release.

    Raises:
        ValueError: the version has another form or is released already, an address is a placeholder, there is nothing
            under "Unreleased", or a file has another form. Nothing is written.
    """
    if not VERSION.fullmatch(version):
        raise ValueError(f"The version is {version!r}, expected three numbers such as 1.0.0.")
    if left := placeholders(root):
        raise ValueError("These addresses are placeholders, fill them in:\n" + "\n".join(left))
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        raise ValueError(f"CHANGELOG.md has a section {version} already.")
    if not re.search(r"^## Unreleased\n(?:(?!## ).*\n)*?(?!#)\S", changes, re.MULTILINE):
        raise ValueError('CHANGELOG.md has nothing under "## Unreleased".')
    texts = {}
    for name, (pattern, replacement) in EDITS.items():
        text = (root / name).read_text(encoding="utf-8")
        filled = replacement.format(version=version, date=date.isoformat())
        texts[name], count = re.subn(pattern, filled, text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{name} has {count} lines of the form {pattern!r}, expected one.")
    for name, text in texts.items():
        write_text(root / name, text)


def main(arguments: list[str] | None = None) -> int:
    """Cut, and print what follows."""
    parser = argparse.ArgumentParser(prog="release.cut", description=__doc__)
    parser.add_argument("version", help="such as 1.0.0")
    parser.add_argument("--date", type=datetime.date.fromisoformat, default=datetime.date.today(), help="YYYY-MM-DD")
    args = parser.parse_args(arguments)
    try:
        cut(ROOT, args.version, args.date)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{args.version} is in {', '.join(EDITS)}. Next: python -m release.public_api --release\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Unpack the tests of the installed transformers from its source distribution.

`python -m tests.transformers_suite.distribution FOLDER` downloads the distribution from the package index and writes
the package `transformers_tests` into FOLDER. Modules that the distribution lacks become stand-ins.
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import transformers

PACKAGE = "transformers_tests"
# Modules that the common tests import and that are not in the distribution: content by path.
STAND_INS = {
    f"{PACKAGE}/generation/test_utils.py": "class GenerationTesterMixin:\n    is_stand_in = True\n",
    f"{PACKAGE}/exporters/test_export.py": "class ExportTesterMixin:\n    is_stand_in = True\n",
    f"{PACKAGE}/utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
    "fetch_hub_objects_for_ci.py": "def url_to_local_path(url, return_url_if_not_found=True):\n    return url\n",
}
# What is therefore not run, for the report.
NOT_RUN = {
    f"{PACKAGE}/generation/test_utils.py": "`GenerationTesterMixin` (`generate()`)",
    f"{PACKAGE}/exporters/test_export.py": "`ExportTesterMixin` (`torch.export`, ONNX)",
    f"{PACKAGE}/utils/test_configuration_utils.py": "the common arguments of `ConfigTester`",
}


def download(folder: Path) -> Path:
    """Download the source distribution of the installed version, and return its path."""
    name = f"transformers=={transformers.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers", name]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    return next(folder.glob("transformers-*.tar.gz"))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the tests of a source distribution as the package `transformers_tests`, with stand-ins."""
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            _, _, path = member.name.partition("/")
            if path.startswith("tests/") and member.isfile():
                target = folder / PACKAGE / path.removeprefix("tests/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files.extractfile(member).read())  # type: ignore[union-attr]
    for path, content in STAND_INS.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_text(content, encoding="utf-8")
    for directory in (folder / PACKAGE).rglob("*"):
        if directory.is_dir():
            (directory / "__init__.py").touch()
    (folder / PACKAGE / "__init__.py").touch()


def main(folder: Path) -> None:
    """Download and unpack, unless the tests of this version are in the folder."""
    done = folder / f"unpacked-{transformers.__version__}"
    if done.exists():
        return
    with tempfile.TemporaryDirectory() as temporary:
        unpack(download(Path(temporary)), folder)
    done.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

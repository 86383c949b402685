"""Build backend: that of setuptools, with editable installations that type checkers find.

`modeling`, `processing` and `hub_cards` are packages inside `hf_captioners`, but folders beside it. setuptools
installs such a layout in editable form as an import hook, which type checkers do not run. This backend adds a folder
of links, `.editable/hf_captioners`, in which all packages lie where their names say, and a `.pth` file that puts it on
`sys.path`. The hook stays: it finds modules that were added to the top of `hf_captioners` after the installation.
"""

import base64
import hashlib
import locale
import os
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

PACKAGE = "hf_captioners"
LINKS = ".editable"  # not below build/, which `make clean` removes
PTH = "__editable__.hf_captioners_links.pth"


def build_editable(
    wheel_directory: str,
    config_settings: Mapping[str, str | list[str] | None] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel of an editable installation, see PEP 660; return its name.

    Args:
        wheel_directory: folder of the wheel.
        config_settings: those of setuptools. With `editable_mode`, its wheel is left as it is.
        metadata_directory: metadata that was prepared before.
    """
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    if "editable_mode" in (config_settings or {}):
        return name
    try:
        folder = link_packages(Path.cwd())
    except OSError as error:
        sys.stderr.write(f"No links in {LINKS} ({error}): imports work, type checkers do not find {PACKAGE}.\n")
        return name
    # Python before 3.13 reads these files in the encoding of the locale.
    encoding = "utf-8" if sys.version_info >= (3, 13) else locale.getpreferredencoding(False)
    add_to_wheel(Path(wheel_directory, name), PTH, f"{folder}\n".encode(encoding))
    return name


def link_packages(root: Path) -> Path:
    """Link all files and folders of the package into one folder, each where its name says; return the folder above.

    Args:
        root: the checkout.

    Raises:
        OSError: the file system, or Windows without its developer mode, does not allow links.
    """
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    targets = {path.name: path for path in (root / PACKAGE).iterdir() if path.name != "__pycache__"}
    targets |= {name.removeprefix(f"{PACKAGE}."): root / path for name, path in settings["package-dir"].items()}
    package = root / LINKS / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        if link.is_symlink() and link.name not in targets:
            link.unlink()
    for name, target in targets.items():
        link, path = package / name, os.path.relpath(target, package)
        if link.is_symlink() and os.readlink(link) == path:
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(path, target_is_directory=target.is_dir())
    return package.parent


def add_to_wheel(wheel: Path, name: str, content: bytes) -> None:
    """Add a file to a wheel, and to its record of files.

    Args:
        wheel: the wheel, which is replaced.
        name: name of the file in the wheel.
        content: content of the file.
    """
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    changed = wheel.with_suffix(".changed")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                data += f"{name},sha256={digest},{len(content)}\n".encode()
            target.writestr(entry, data)
        target.writestr(name, content)
    changed.replace(wheel)

"""Matching of image names in tables, lists or arguments to files and images.

`./a.png`, `sub//a.png`, a name in the quotation marks of `quoted_name`, and the composed and decomposed forms of
Unicode (NFC and NFD: a Mac writes one, most other programs the other) mean the same image. A name that differs in case
means a different one. A name that is equal to the last character always comes first, so that two images whose names
differ in such a form only stay two. `sub\\a.png`, as Windows writes it, is `sub/a.png` unless a file has that name.
"""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

from .output_files import unquoted_name


def path_form(name: str) -> str:
    """Return a name without surrounding spaces, quotation marks of `quoted_name`, `./`, `//` and `sub/../`."""
    form = posixpath.normpath(unquoted_name(name.strip()).replace(os.sep, "/"))
    return f"/{form.lstrip('/')}" if form.startswith("/") else form  # POSIX keeps two slashes at the beginning


def plain_form(name: str) -> str:
    """Return the `path_form` of a name in Unicode form NFC, equal for all spellings of the name."""
    return unicodedata.normalize("NFC", path_form(name))


def is_absolute(name: str) -> bool:
    """Return whether a name is an absolute path on this system or on Windows, such as `C:\\a.png`."""
    name = unquoted_name(name.strip())
    return os.path.isabs(name) or bool(PureWindowsPath(name).root)


def file_part(name: str) -> str:
    """Return the file name in a path of this system or Windows."""
    return PureWindowsPath(name).name if "\\" in name else PurePosixPath(name).name


def last_parts(name: str) -> Iterator[str]:
    """Yield the trailing parts of an absolute path, longest first: `b/a.png` and `a.png` of `C:\\b\\a.png`."""
    path = PureWindowsPath(unquoted_name(name.strip()))
    parts = path.parts[1 if path.anchor else 0 :]
    for start in range(len(parts)):
        yield "/".join(parts[start:])


class ImageNames:
    """Image names, searchable by any spelling.

    Args:
        names: the names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)

    @cached_property
    def _by_form(self) -> dict[str, list[str]]:
        forms: dict[str, list[str]] = {}
        for name in sorted(self.names):
            forms.setdefault(plain_form(name), []).append(name)
        return forms

    @cached_property
    def _by_case(self) -> dict[str, str]:
        return {plain_form(name).casefold(): name for name in sorted(self.names, reverse=True)}

    def find(self, name: str) -> str | None:
        """Return the image with a written name; None if none or several match."""
        for form in (name, path_form(name)):
            if form in self.names:
                return form
        candidates = self._by_form.get(plain_form(name), [])
        if not candidates and "\\" in name:
            candidates = self._by_form.get(plain_form(name.replace("\\", "/")), [])
        return candidates[0] if len(candidates) == 1 else None

    def near(self, name: str) -> str | None:
        """Return an image name that differs from a written name in case only; None if none does."""
        return self._by_case.get(plain_form(name).casefold())


class FolderNames:
    """File and subfolder names of a folder, searchable by any spelling; folders are read once.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._listings: dict[Path, ImageNames] = {}

    def find(self, name: str) -> str | None:
        """Return the path, relative to the folder, of the file with a written name; None if none matches."""
        parts = PurePosixPath(name.replace(os.sep, "/")).parts
        path = None if ".." in parts else self._follow(parts, ImageNames.find)
        path = path or self._follow(self._parts(name), ImageNames.find)
        if path is None and "\\" in name:
            path = self._follow(self._parts(name.replace("\\", "/")), ImageNames.find)
        return path

    def find_end(self, name: str) -> str | None:
        """Return the file that matches most trailing parts of an absolute path; None if none matches."""
        paths = (self._follow(self._parts(end), ImageNames.find) for end in last_parts(name))
        return next(filter(None, paths), None)

    def near(self, name: str) -> str | None:
        """Return a file whose path differs from a written name in case only; None if none does."""
        names = [name, *([name.replace("\\", "/")] if "\\" in name else [])]
        names += last_parts(name) if PureWindowsPath(name.strip()).drive else []
        paths = (self._follow(self._parts(each), lambda all, part: all.find(part) or all.near(part)) for each in names)
        return next(filter(None, paths), None)

    def _parts(self, name: str) -> tuple[str, ...]:
        """Return the parts of a name relative to the folder; an absolute name may lie in the folder."""
        form = path_form(name)
        if os.path.isabs(form):
            form = os.path.relpath(form, os.path.abspath(self.folder))
        return PurePosixPath(form.replace(os.sep, "/")).parts

    def _follow(self, parts: tuple[str, ...], choose: Callable[[ImageNames, str], str | None]) -> str | None:
        path = self.folder
        for part in parts:
            name = choose(self._names_in(path), part)
            if name is None:
                return None
            path = path / name
        return path.relative_to(self.folder).as_posix() if path.is_file() else None

    def _names_in(self, folder: Path) -> ImageNames:
        if folder not in self._listings:
            try:
                self._listings[folder] = ImageNames(os.listdir(folder))
            except OSError:  # there is no such folder
                self._listings[folder] = ImageNames(())
        return self._listings[folder]

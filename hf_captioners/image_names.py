"""Names of images: the image that a table, a list or a person means by a name.

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
    """Return a name without blanks around it, quotation marks of `quoted_name`, `./`, `//` and `sub/../`."""
    form = posixpath.normpath(unquoted_name(name.strip()).replace(os.sep, "/"))
    return f"/{form.lstrip('/')}" if form.startswith("/") else form  # POSIX keeps two slashes at the beginning


def plain_form(name: str) -> str:
    """Return the `path_form` of a name with composed Unicode (NFC), which is equal for all forms of the name."""
    return unicodedata.normalize("NFC", path_form(name))


def is_absolute(name: str) -> bool:
    """Return whether a name is an absolute path of this system or of Windows, such as `C:\\a.png`."""
    name = unquoted_name(name.strip())
    return os.path.isabs(name) or bool(PureWindowsPath(name).root)


def file_part(name: str) -> str:
    """Return the name of the file in a path of this system or of Windows."""
    return PureWindowsPath(name).name if "\\" in name else PurePosixPath(name).name


def last_parts(name: str) -> Iterator[str]:
    """Yield the ends of an absolute path, the longest one first: `b/a.png` and `a.png` of `C:\\b\\a.png`."""
    path = PureWindowsPath(unquoted_name(name.strip()))
    parts = path.parts[1 if path.anchor else 0 :]
    for start in range(len(parts)):
        yield "/".join(parts[start:])


class ImageNames:
    """The names of some images, found by any form of them.

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
        """Return the name of the image that a written name means; None if there is none, or none of several."""
        for form in (name, path_form(name)):
            if form in self.names:
                return form
        candidates = self._by_form.get(plain_form(name), [])
        if not candidates and "\\" in name:
            candidates = self._by_form.get(plain_form(name.replace("\\", "/")), [])
        return candidates[0] if len(candidates) == 1 else None

    def near(self, name: str) -> str | None:
        """Return a name that differs from a written one in case only; None if there is none."""
        return self._by_case.get(plain_form(name).casefold())


class FolderNames:
    """The names of files in a folder and the folders in it, found by any form of them; each folder is read once.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._listings: dict[Path, ImageNames] = {}

    def find(self, name: str) -> str | None:
        """Return the path of the file that a written name means, relative to the folder and with `/`; None if none."""
        parts = PurePosixPath(name.replace(os.sep, "/")).parts
        found = None if ".." in parts else self._follow(parts, ImageNames.find)
        found = found or self._follow(self._parts(name), ImageNames.find)
        if found is None and "\\" in name:
            found = self._follow(self._parts(name.replace("\\", "/")), ImageNames.find)
        return found

    def find_end(self, name: str) -> str | None:
        """Return the path of the file that has the longest end of an absolute path of another place; None if none."""
        found = (self._follow(self._parts(end), ImageNames.find) for end in last_parts(name))
        return next(filter(None, found), None)

    def near(self, name: str) -> str | None:
        """Return the path of a file that differs from a written name in case only; None if there is none."""
        names = [name, *([name.replace("\\", "/")] if "\\" in name else [])]
        names += last_parts(name) if PureWindowsPath(name.strip()).drive else []
        found = (self._follow(self._parts(one), lambda all, part: all.find(part) or all.near(part)) for one in names)
        return next(filter(None, found), None)

    def _parts(self, name: str) -> tuple[str, ...]:
        """Return the parts of a name below the folder; an absolute one may lead into it."""
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

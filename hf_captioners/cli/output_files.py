"""Whether results can be written where they were asked for; known before any work is done."""

import os
import tempfile
from pathlib import Path


def require_writable_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder if it is missing and see that files can be written there.

    Raises:
        PermissionError: they cannot.
        NotADirectoryError: a file has this name.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file, expected a folder to write into.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise PermissionError(f"{path} cannot be written to ({error.strerror}). Choose another folder.") from error

"""A text file beside each image, written once by a job that may be killed and resumed."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hf_captioners.data.generated_captions import RECORD_NAME, record_generated, text_digest
from hf_captioners.data.images import IMAGE_SUFFIXES
from hf_captioners.output_files import (
    LONGEST_NAME,
    UnsafeFileError,
    change_file,
    explain_write_errors,
    read_bytes_inside,
    require_safe_target,
    require_writable_folder,
)

from .caption_files import RESUME_ADVICE, WORKING_SUFFIX, CaptionFile, scored_captions
from .containers import HUB_PREFIX, split_name
from .image_list import views_of

# What is done with a text file that exists.
REFUSE, SKIP, APPEND, PREPEND, OVERWRITE = "refuse", "skip_existing", "append", "prepend", "overwrite"
MODES = (SKIP, APPEND, PREPEND, OVERWRITE)


def checked_ending(ending: str) -> str:
    """Return the ending of text files without its first dot.

    Raises:
        ValueError: it is that of an image, or no ending at all.
    """
    bare = ending.removeprefix(".")
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", bare) or Path(ending).is_dir() or Path(ending).is_file():
        raise ValueError(
            f"`sidecar` is {ending!r}, expected the ending of the text files, such as txt or caption. Images and "
            "folders stand first: hf-captioners caption DIR --sidecar"
        )
    if f".{bare.rpartition('.')[2].lower()}" in IMAGE_SUFFIXES:
        raise ValueError(f"`sidecar` is {ending!r}, the ending of images, expected that of text files, such as txt.")
    return bare


def sidecar_of(image: str, ending: str) -> Path:
    """Return the path of the text file of an image."""
    return Path(image).with_suffix(f".{ending}")


def typed_folder_of(path: Path, folders: Iterable[Path]) -> Path:
    """Return the folder that a person typed of which a file is a part: the innermost one, or that of the file.

    Args:
        path: the file, named as its input names it: `typed/sub/0.txt`.
        folders: the typed folders, and those of typed lists of paths.
    """
    around = [folder for folder in folders if path.is_relative_to(folder)]
    innermost = max(around, key=lambda folder: len(folder.parts), default=path.parent)
    # A list may name files elsewhere, as a person may type them.
    return path.parent if ".." in path.relative_to(innermost).parts else innermost


def check_sidecars(images: Sequence[str], ending: str, folders: Sequence[Path] = ()) -> None:
    """Check that each image has a text file of its own, in a folder that can be written.

    Args:
        images: their paths.
        ending: ending of the text files.
        folders: the folders that a person typed, see `typed_folder_of`.

    Raises:
        UnsafeFileError: a symbolic link leads out of a typed folder, or the record of a folder is one.
        ValueError: two images have the same name but for the ending, the name of a text file is too long, or an item
            is a study of several views.
        PermissionError: a folder cannot be written to.
    """
    inputs, owners = set(images), dict[Path, str]()
    for image in images:
        if len(views_of(image)) > 1:
            raise ValueError(f"`sidecar` writes a file beside one image, and {image!r} is a study of several.")
        if image.startswith(HUB_PREFIX) or split_name(image) is not None:
            raise ValueError(f"`sidecar` writes files beside images, and {image} is in no folder. Pass `output`.")
        path = sidecar_of(image, ending)
        if (length := len(os.fsencode(path.name))) > LONGEST_NAME:
            raise ValueError(
                f"The name of the text file of {image} would have {length} bytes, expected {LONGEST_NAME} at most. "
                "Rename the image, or pass a shorter ending."
            )
        other = owners.setdefault(path, image)
        if other != image:
            raise ValueError(f"{other} and {image} would both have the text file {path}. Rename one of them.")
        if str(path) in inputs:
            raise ValueError(f"The text file of {image} would be {path}, which is an image of this job.")
    for folder in {path.parent for path in owners}:
        record = folder / RECORD_NAME
        require_safe_target(record, typed_folder_of(record, folders))
        require_writable_folder(folder)


def existing_sidecars(images: Iterable[str], ending: str) -> list[str]:
    """Return the images that have a text file.

    Raises:
        ValueError: a folder has the name of a text file.
    """
    found = []
    for image in images:
        path = sidecar_of(image, ending)
        if path.is_dir():
            raise ValueError(f"{path} is a folder, expected the text file of {image}. Move one of them.")
        if os.path.lexists(path):  # a link that leads nowhere is no free name
            found.append(image)
    return found


def require_free_sidecars(images: Iterable[str], ending: str, mode: str) -> None:
    """Check that no image has a text file, unless `mode` says what is done with it.

    Raises:
        FileExistsError: there are some; the message names the first one.
        UnsafeFileError: a text file that is to be changed is a symbolic link or no plain file.
    """
    found = existing_sidecars(images, ending)
    for image in found if mode not in (REFUSE, SKIP) else ():
        require_safe_target(sidecar_of(image, ending))
    if found and mode == REFUSE:
        options = ", ".join(f"--{name}" for name in MODES[:-1])
        raise FileExistsError(
            f"{len(found):,} image(s) have a text file, such as {sidecar_of(found[0], ending)}. Pass {options} or "
            f"--{OVERWRITE}."
        )


class SidecarFiles(CaptionFile):
    """The text files beside the images of a captioning job, which can be interrupted and resumed.

    The captions of a batch are first appended to `sidecars.ENDING.jsonl.partial` with the digests of the text files
    before and after, then the text files are written, each atomically. A resumed job writes those of the last batch
    that are as before. So each file is written once, and a change that somebody makes in between is kept. The record
    `RECORD_NAME` in each folder says what a captioner wrote.

    Args:
        folder: where the partial file is; it is removed at the end.
        ending: ending of the text files.
        mode: what is done with text files that exist: one of `MODES`, or `REFUSE`.
        settings: what the captions depend on, see `job_settings`.
        shard: the part of the job.
        resume: resume an interrupted job.
        typed_folders: the folders that a person typed, see `typed_folder_of`. None: `folder`.

    Attributes and errors: see `CaptionFile`.
    """

    def __init__(
        self,
        folder: Path,
        ending: str,
        mode: str,
        settings: dict[str, Any],
        shard: str | None = None,
        resume: bool = False,
        typed_folders: Sequence[Path] | None = None,
    ) -> None:
        self.ending, self.mode, self.batch = ending, mode, 0
        self.typed_folders = [folder] if typed_folders is None else typed_folders
        super().__init__(
            journal_of(folder, ending, shard),
            {**settings, "sidecar": ending, "mode": mode},
            resume=resume,
            overwrite=mode in (OVERWRITE, SKIP),
        )
        try:
            last: list[dict[str, Any]] = []
            for record in self.records():
                last = [*last, record] if last and record["batch"] == last[0]["batch"] else [record]
            self.batch = last[0]["batch"] + 1 if last else 0
            self._write(last)
        except BaseException:
            self.close()
            raise

    def _require_free(self, resume: bool, overwrite: bool) -> None:
        if self.working.exists() and not (resume or overwrite):
            raise FileExistsError(
                f"{self.working} exists: an earlier run was interrupted. Pass `resume` to resume it, or delete that "
                "file to begin a new one."
            )

    def add(self, records: Iterable[dict[str, Any]], skipped: Iterable[tuple[str, str]] = ()) -> None:
        """Write the text files of captions, and note images that could not be read with the reasons.

        Raises:
            OSError: the disk is full; the message names the file.
        """
        planned, faults = [], list(skipped)
        for record in records:
            path = sidecar_of(record["image"], self.ending)
            try:
                before = self._text_of(path)
            except UnsafeFileError as error:
                faults.append((record["image"], str(error)))
                continue
            except UnicodeDecodeError as error:
                faults.append((record["image"], f"The text file {path} is not UTF-8 ({error.reason}); it is kept."))
                continue
            if before is not None and self.mode in (REFUSE, SKIP):
                faults.append((record["image"], f"The text file {path} was made while this job ran; it is kept."))
                continue
            digests = {"before": _digest(before), "after": _digest(self._joined(before, record))}
            planned.append(record | digests | {"batch": self.batch})
        self.batch += 1
        super().add(planned, faults)
        if changed := self._write(planned):
            super().add([], changed)

    def _joined(self, before: str | None, record: dict[str, Any]) -> str:
        """Return the text of a file: the captions, one a line, and what it had."""
        captions = [" ".join(caption.splitlines()) for caption, _ in scored_captions(record)]
        kept = [before.strip("\r\n")] if before and before.strip() and self.mode in (APPEND, PREPEND) else []
        return "\n".join([*captions, *kept] if self.mode == PREPEND else [*kept, *captions]) + "\n"

    def _write(self, planned: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
        """Write the text files that are as they were when the captions were noted; return the others with reasons."""
        by_folder: dict[Path, list[dict[str, Any]]] = {}
        changed = []
        for record in planned:
            path = sidecar_of(record["image"], self.ending)
            before = _digest(self._text_of(path))
            if before == record["before"] != record["after"]:
                by_folder.setdefault(path.parent, []).append(record)
            elif before != record["after"]:
                changed.append(record)
        for folder, records in by_folder.items():
            typed = typed_folder_of(folder / RECORD_NAME, self.typed_folders)
            names = [sidecar_of(record["image"], self.ending).name for record in records]
            with explain_write_errors(folder, RESUME_ADVICE):
                digests = {name: record["after"] for name, record in zip(names, records, strict=True)}
                record_generated(folder, digests, typed)
                changed += [record for record in records if not self._replaced(record, typed)]
        reason = "The text file {} was changed by another program while this job ran; it is kept."
        return [(record["image"], reason.format(sidecar_of(record["image"], self.ending))) for record in changed]

    def _replaced(self, record: dict[str, Any], typed: Path) -> bool:
        """Write the text file of a record if it is still as noted; return whether it was."""

        def joined(content: bytes | None) -> bytes | None:
            before = None if content is None else content.decode("utf-8-sig", "surrogateescape")
            return self._joined(before, record).encode() if _digest(before) == record["before"] else None

        return change_file(sidecar_of(record["image"], self.ending), joined, typed)

    def _text_of(self, path: Path) -> str | None:
        """Return the text of a file that is to be changed, with its line ends; None if there is no file.

        Raises:
            UnsafeFileError: it cannot be written, see `require_safe_target`, or is too large.
        """
        require_safe_target(path, typed_folder_of(path, self.typed_folders))
        try:
            return read_bytes_inside(path).decode("utf-8-sig")
        except FileNotFoundError:
            return None

    def finish(self) -> None:
        """Remove the partial file."""
        self._close_working()
        self.working.unlink()


def journal_of(folder: Path, ending: str, shard: str | None = None) -> Path:
    """Return the path of which `SidecarFiles` makes the name of its partial file."""
    part = "" if shard is None else f".{shard.replace('/', '_of_')}"
    return folder / f"sidecars.{ending}{part}.jsonl"


def is_interrupted(folder: Path, ending: str, shard: str | None = None) -> bool:
    """Return whether a job of such text files was interrupted.

    Raises:
        UnsafeFileError: its partial file is a symbolic link or no plain file.
    """
    path = journal_of(folder, ending, shard)
    working = path.with_name(path.name + WORKING_SUFFIX)
    require_safe_target(working)
    return working.exists()


def _digest(text: str | None) -> str | None:
    return None if text is None else text_digest(text)

"""Sidecars: caption text files beside images, each written once by a job that can be killed and resumed."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_captioners.data.containers import HUB_PREFIX, split_name
from hf_captioners.data.generated_captions import RECORD_NAME, record_generated, text_digest
from hf_captioners.data.images import IMAGE_SUFFIXES, readable_suffixes
from hf_captioners.output_files import (
    MAX_NAME_BYTES,
    UnsafeFileError,
    change_file,
    explain_write_errors,
    read_bytes_inside,
    require_safe_target,
    require_writable_folder,
)

from .caption_files import RESUME_ADVICE, WORKING_SUFFIX, CaptionFile, scored_captions
from .image_list import views_of

# What is done with a text file that exists.
REFUSE, SKIP, APPEND, PREPEND, OVERWRITE = "refuse", "skip_existing", "append", "prepend", "overwrite"
OVERWRITE_GENERATED = "overwrite_generated"
ADDING = (APPEND, PREPEND)
MODES = (SKIP, OVERWRITE_GENERATED, *ADDING, OVERWRITE)


def checked_ending(ending: str) -> str:
    """Return the file ending for sidecars, without its leading dot.

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
    """Return the path of an image's text file: `a.jpg` has `a.txt`."""
    return Path(image).with_suffix(f".{ending}")


def typed_folder_of(path: Path, folders: Iterable[Path]) -> Path:
    """Return the innermost user-supplied folder that contains a file, or else the file's parent folder.

    Args:
        path: the file, named as its input names it: `typed/sub/0.txt`.
        folders: the typed folders, and those of typed lists of paths.
    """
    around = [folder for folder in folders if path.is_relative_to(folder)]
    innermost = max(around, key=lambda folder: len(folder.parts), default=path.parent)
    # A list may name files elsewhere, as a person may type them.
    return path.parent if ".." in path.relative_to(innermost).parts else innermost


def check_sidecars(images: Sequence[str], ending: str, folders: Sequence[Path] = ()) -> dict[str, str]:
    """Check that text files can be written beside the images.

    Args:
        images: their paths.
        ending: ending of the text files.
        folders: the folders that a person typed, see `typed_folder_of`.

    Returns:
        The images that cannot have a text file of their own because of their names, with the reasons.

    Raises:
        UnsafeFileError: a symbolic link leads out of a typed folder, or the record of a folder is one.
        ValueError: an item is a study of several views, in a container, or the text file of an image.
        PermissionError: a folder cannot be written to.
    """
    inputs, paths = set(images), dict[str, Path]()
    for image in images:
        if len(views_of(image)) > 1:
            raise ValueError(f"`sidecar` writes a file beside one image, and {image!r} is a study of several.")
        if image.startswith(HUB_PREFIX) or split_name(image) is not None:
            raise ValueError(f"`sidecar` writes files beside images, and {image} is in no folder. Pass `output`.")
        paths[image] = sidecar_of(image, ending)
        if str(paths[image]) in inputs:
            raise ValueError(f"The text file of {image} would be {paths[image]}, which is an image of this job.")
    for folder in {path.parent for path in paths.values()}:
        record = folder / RECORD_NAME
        require_safe_target(record, typed_folder_of(record, folders))
        require_writable_folder(folder)
    return _unusable_names(paths, ending)


def owners_of(images: Iterable[str], ending: str) -> dict[Path, str]:
    """Map each text file to one image: `a.txt` to `a.jpg` rather than to an unreadable `a.dng`."""
    owners, readable = dict[Path, str](), readable_suffixes()
    for image in sorted(images, key=lambda name: not name.lower().endswith(readable)):
        owners.setdefault(sidecar_of(image, ending), image)
    return owners


def _unusable_names(paths: Mapping[str, Path], ending: str) -> dict[str, str]:
    """Return images whose text file belongs to another image or has an invalid name, with the reasons."""
    faults, owners = dict[str, str](), owners_of(paths, ending)
    for image, path in paths.items():
        owner = owners[path]
        size = len(os.fsencode(path.name))
        if owner != image:
            faults[image] = f"{image} has no text file of its own: {path} is that of {owner}. Rename one of them."
        elif size > MAX_NAME_BYTES:
            faults[image] = (
                f"The text file of {image} would have a name of {size:,} bytes, more than {MAX_NAME_BYTES}."
            )
        elif path.is_dir():
            faults[image] = f"{path} is a folder, expected the text file of {image}. Move one of them."
    return faults


def existing_sidecars(images: Iterable[str], ending: str) -> list[str]:
    """Return the images that already have a text file."""
    # A link that leads nowhere is no free name.
    return [image for image in images if os.path.lexists(sidecar_of(image, ending))]


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

    Attributes:
        replaceable: digests of the texts that are replaced, by file, see `plan_sidecars`. A file with another text was
            changed while the job ran, and is kept.

    Further attributes and errors: see `CaptionFile`.
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
        self.replaceable: Mapping[Path, str] = {}
        self.typed_folders = [folder] if typed_folders is None else typed_folders
        super().__init__(
            journal_of(folder, ending, shard),
            {**settings, "sidecar": ending, "mode": mode},
            resume=resume,
            overwrite=mode in (OVERWRITE, OVERWRITE_GENERATED, SKIP),
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
        """Write the text files of captions, and record unreadable images with the reasons.

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
            if before is not None and self.mode not in ADDING and _digest(before) != self.replaceable.get(path):
                done = "changed" if path in self.replaceable else "made"
                faults.append((record["image"], f"The text file {path} was {done} while this job ran; it is kept."))
                continue
            digests = {"before": _digest(before), "after": _digest(self._joined(before, record))}
            planned.append(record | digests | {"batch": self.batch})
        self.batch += 1
        super().add(planned, faults)
        if changed := self._write(planned):
            super().add([], changed)

    def _joined(self, before: str | None, record: dict[str, Any]) -> str:
        """Return the new content of a text file: one caption per line, and the old text in the modes that add."""
        captions = [" ".join(caption.splitlines()) for caption, _ in scored_captions(record)]
        kept = [before.strip("\r\n")] if before and before.strip() and self.mode in ADDING else []
        return "\n".join([*captions, *kept] if self.mode == PREPEND else [*kept, *captions]) + "\n"

    def _write(self, planned: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
        """Write the text files that nobody changed since planning; return the changed ones with the reasons."""
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
                of_files = dict(zip(names, records, strict=True))
                digests = {name: record["after"] for name, record in of_files.items()}
                assessed = {name: _assessed(record) for name, record in of_files.items() if "confidence" in record}
                record_generated(folder, digests, typed, assessed=assessed)
                changed += [record for record in records if not self._replaced(record, typed)]
        reason = "The text file {} was changed by another program while this job ran; it is kept."
        return [(record["image"], reason.format(sidecar_of(record["image"], self.ending))) for record in changed]

    def _replaced(self, record: dict[str, Any], typed: Path) -> bool:
        """Write the text file of a record if it is unchanged since planning; return whether it was written."""

        def joined(content: bytes | None) -> bytes | None:
            before = None if content is None else content.decode("utf-8-sig", "surrogateescape")
            return self._joined(before, record).encode() if _digest(before) == record["before"] else None

        return change_file(sidecar_of(record["image"], self.ending), joined, typed)

    def _text_of(self, path: Path) -> str | None:
        """Return the current content of a text file; None if there is no file.

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
    """Return the path from which `SidecarFiles` derives the name of its partial file."""
    part = "" if shard is None else f".{shard.replace('/', '_of_')}"
    return folder / f"sidecars.{ending}{part}.jsonl"


def is_interrupted(folder: Path, ending: str, shard: str | None = None) -> bool:
    """Return whether an interrupted job for these text files left a partial file.

    Raises:
        UnsafeFileError: its partial file is a symbolic link or no plain file.
    """
    path = journal_of(folder, ending, shard)
    working = path.with_name(path.name + WORKING_SUFFIX)
    require_safe_target(working)
    return working.exists()


def _assessed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best caption of a record on one line, with its confidence."""
    caption = " ".join(record["caption"].splitlines())
    return {"caption": caption, "confidence": record["confidence"], "words": record["words"]}


def _digest(text: str | None) -> str | None:
    return None if text is None else text_digest(text)

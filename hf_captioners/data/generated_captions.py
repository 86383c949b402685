"""Record of the caption text files that a captioner wrote, to tell them from human captions."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hf_captioners.output_files import MAX_TABLE_BYTES, open_for_writing, read_bytes_inside, read_text_inside

from .folder_tables import find_tables

# In the folder of the text files: one line {"file": NAME, "sha256": DIGEST} for each time a captioner wrote a file,
# and one with "kept": true for each time a person kept the captions of the image, which end up in the file. Where
# confidence was asked for, "assessed" has the caption, its confidence and those of its words.
RECORD_NAME = ".generated_captions.jsonl"
SHOWN = 3


def text_digest(text: str) -> str:
    """Return a digest of a text's lines, ignoring surrounding spaces and empty lines.

    Editors and version control change line ends; a text that differs in nothing else has the same digest.
    """
    lines = (line.strip() for line in text.splitlines())
    return hashlib.sha256("\n".join(line for line in lines if line).encode(errors="surrogateescape")).hexdigest()


def record_generated(
    folder: Path,
    digests: Mapping[str, str],
    inside: Path | None = None,
    by_person: bool = False,
    assessed: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Record the digests of caption texts in their folder, before the texts are written.

    Args:
        folder: the folder of the files.
        digests: the digest of the text of each file, by its name.
        inside: the folder that a person typed. None: `folder`.
        by_person: whether a person kept these texts; otherwise a captioner wrote them.
        assessed: `caption`, `confidence` and `words` of the best caption of a file, by its name. None: of no file.

    Raises:
        UnsafeFileError: the record is a symbolic link or no plain file, or lies outside of the typed folder.
    """
    path = folder / RECORD_NAME
    mark = {"kept": True} if by_person else {}
    facts = {name: {"assessed": dict(values)} for name, values in (assessed or {}).items()}
    entries = [{"file": name, "sha256": digest, **mark, **facts.get(name, {})} for name, digest in digests.items()]
    lines = [json.dumps(entry) + "\n" for entry in entries]
    # Appended at once, so that several processes may record in one folder.
    with open_for_writing(path, "ab+", inside) as file:
        begun = file.tell() and file.seek(-1, 2) and file.read(1) != b"\n"
        file.write(("\n" if begun else "").encode() + "".join(lines).encode("ascii"))


def generated_digests(
    folder: Path, inside: Path | None = None, follow_links: bool = False, also_kept: bool = False
) -> dict[str, set[str]]:
    """Return the recorded digests of all texts that captioners wrote, by file name.

    Once a person kept the text of a file, what captioners wrote before is that person's.

    Args:
        folder: the folder of the files.
        inside: the folder that a person typed. None: `folder`.
        follow_links: whether the record may be a link that leads out of it.
        also_kept: return the digests of all recorded texts, with those that a person kept.

    Raises:
        UnsafeFileError: the record is such a link, no plain file, or too large.
    """
    digests: dict[str, set[str]] = {}
    for entry in _entries(folder, inside, follow_links):
        if entry.get("kept") is True and not also_kept:
            digests.pop(entry["file"], None)
        else:
            digests.setdefault(entry["file"], set()).add(str(entry.get("sha256")))
    return digests


def assessed_files(folder: Path, inside: Path | None = None, follow_links: bool = False) -> dict[str, Any]:
    """Return the recorded confidence of the last generated caption of each file.

    Once a person kept the text of a file, it has no confidence.

    Args:
        folder, inside, follow_links: see `generated_digests`.

    Raises:
        UnsafeFileError: see `generated_digests`.
    """
    last = {entry["file"]: entry for entry in _entries(folder, inside, follow_links)}
    return {name: entry["assessed"] for name, entry in last.items() if "assessed" in entry}


def _entries(folder: Path, inside: Path | None, follow_links: bool) -> Iterator[dict[str, Any]]:
    """Yield the entries of a folder's record that name a file."""
    path = folder / RECORD_NAME
    if not path.exists():
        return
    for line in read_bytes_inside(path, inside, MAX_TABLE_BYTES, follow_links).splitlines():
        entry: Any = None
        with suppress(ValueError, RecursionError):  # a line that was cut off
            entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("file"), str):
            yield entry


def unchanged_files(folder: Path, metadata_file: str | None = None, follow_links: bool = False) -> Iterator[Path]:
    """Yield the text files beside images that a captioner wrote and nobody has changed since."""
    records: dict[Path, dict[str, set[str]]] = {}
    for table in find_tables(folder, metadata_file):
        for path in table.files() if table.path.is_dir() else ():
            if path.parent not in records:
                records[path.parent] = generated_digests(path.parent, folder, follow_links)
            digests = records[path.parent].get(path.name)
            with suppress(OSError, UnicodeDecodeError):  # the reader of the data set reports these
                if digests and text_digest(read_text_inside(path, folder, follow_links=True)) in digests:
                    yield path


def require_captions_of_people(
    folder: Path, metadata_file: str | None = None, allowed: bool = False, follow_links: bool = False
) -> None:
    """Refuse a training folder that has unchanged captions of a captioner.

    Args:
        folder: of the data set `caption_folder`.
        metadata_file: its option of this name.
        allowed: take them.
        follow_links: its option of this name.

    Raises:
        ValueError: there are such files; the message names the first ones.
    """
    generated = [] if allowed else list(unchanged_files(folder, metadata_file, follow_links))
    if generated:
        names = ", ".join(str(path) for path in generated[:SHOWN])
        more = f" and {len(generated) - SHOWN:,} more" if len(generated) > SHOWN else ""
        raise ValueError(
            f"A captioner wrote {len(generated):,} text file(s) of {folder} and nobody changed them: {names}{more}. "
            "Correct them, move them away, or pass `train_on_generated` to train on them as they are."
        )

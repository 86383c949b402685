"""Record of a run's training data, so that the run resumes on the same images and captions only."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset

from hf_captioners.data.schema import CAPTIONS, IMAGE, IMAGE_ID, IMAGES
from hf_captioners.output_files import MAX_TABLE_BYTES, read_text_inside, write_text

from .streams import rows_of, undecoded

FILE = "training_data.json"
STREAMED_ROWS = 256  # of a stream, which is not read to its end before training
CHANGES = "changes"


def resumed_data(
    output: Path,
    checkpoint: str | None,
    rows: Mapping[str, Any],
    allow_changed: bool = False,
    is_main: bool = True,
) -> list[str]:
    """Check that a resumed run has the same data as before, and record the data in the output folder.

    Args:
        output: output folder of the run.
        checkpoint: the checkpoint that the run resumes from. None: it begins.
        rows: the rows by what they are for: `"training"`, `"evaluation"`.
        allow_changed: go on with other data.
        is_main: whether this is the main process of the run; only that one writes.

    Returns:
        The changes of the data since the run began, as sentences for the card.

    Raises:
        ValueError: the data were changed, and `allow_changed` is not set; or the record is damaged.
    """
    now = {purpose: describe_rows(of_purpose) for purpose, of_purpose in rows.items()}
    before = None if checkpoint is None else _read(Path(checkpoint).parent / FILE)
    changes: list[str] = [] if before is None else list(before.pop(CHANGES, []))
    faults = (
        []
        if before is None
        else [fault for purpose in now for fault in changes_between(before.get(purpose), now[purpose], purpose)]
    )
    if faults and not allow_changed:
        raise ValueError(
            f"The data changed since {checkpoint} was written: {'; '.join(faults)}. Pass the data of the first run, a "
            "different `output_dir` for a new run, or `allow_changed_data` to go on; the card will say so."
        )
    if faults:
        changes.append(f"After {Path(str(checkpoint)).name} it was resumed on changed data: {'; '.join(faults)}.")
    if is_main and (before is None or faults or not (output / FILE).exists()):
        write_text(output / FILE, json.dumps({**now, CHANGES: changes}, indent=1) + "\n")
    return changes


def describe_rows(rows: Dataset | IterableDataset) -> dict[str, Any]:
    """Return the number of images, and digests of their names, order, captions and file sizes.

    Of a stream, these are those of its first rows.
    """
    if isinstance(rows, IterableDataset):
        columns = [name for name in (IMAGE_ID, CAPTIONS) if name in (rows.features or (IMAGE_ID, CAPTIONS))]
        head = list(islice(rows_of(undecoded(rows).select_columns(columns)), STREAMED_ROWS))
        names = [str(row.get(IMAGE_ID, number)) for number, row in enumerate(head)]
        return {"images": None, **_digests(names, [row[CAPTIONS] or [] for row in head], [])}
    plain = rows.with_format(None)
    names = (
        [str(name) for name in plain[IMAGE_ID]]
        if IMAGE_ID in plain.column_names
        else list(map(str, range(len(plain))))
    )
    return {"images": len(plain), **_digests(names, list(plain[CAPTIONS]), list(_sizes(plain)))}


def _digests(names: list[str], captions: Iterable[list[str]], sizes: Iterable[int]) -> dict[str, str]:
    order = sorted(range(len(names)), key=names.__getitem__)
    texts, numbers = list(captions), list(sizes)
    return {
        "order": _digest(names),
        "names": _digest([names[place] for place in order]),
        "captions": _digest([texts[place] for place in order]),
        "sizes": _digest([numbers[place] for place in order] if numbers else []),
    }


def _sizes(rows: Dataset) -> Iterator[int]:
    """Yield the total file size of each row's images; nothing if images are stored in the rows."""
    column = next((name for name in (IMAGE, IMAGES) if name in rows.column_names), None)
    if column is None or not len(rows):
        return
    for row in undecoded(rows.select_columns([column])):  # type: ignore[arg-type]
        views = row[column] if isinstance(row[column], list) else [row[column]]
        paths = [view["path"] for view in views if isinstance(view, dict) and view.get("bytes") is None]
        if len(paths) < len(views):
            return
        yield sum(os.path.getsize(path) for path in paths if path and os.path.isfile(path))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def changes_between(before: Mapping[str, Any] | None, now: Mapping[str, Any], purpose: str) -> list[str]:
    """Return messages about the differences between two data descriptions: images, captions or file sizes.

    Args:
        before: see `describe_rows`. None: there were no rows.
        now: the same.
        purpose: `"training"` or `"evaluation"`.
    """
    before = before or {}
    if before.get("images") != now["images"]:
        return [f"{before.get('images')} {purpose} images before, {now['images']} now"]
    if before.get("names") != now["names"]:
        return [f"other {purpose} images"]
    faults = {
        "order": f"the {purpose} images are in a different order",
        "captions": f"captions of {purpose} images were edited",
        "sizes": f"files of {purpose} images were replaced",
    }
    return [fault for name, fault in faults.items() if before.get(name) != now[name]]


def _read(path: Path) -> dict[str, Any] | None:
    """Read the data record of a run; None for a run of an earlier version without a record.

    Raises:
        ValueError: the record is damaged.
    """
    if not path.exists():
        return None
    try:
        content = json.loads(read_text_inside(path, limit=MAX_TABLE_BYTES))
        if not all(isinstance(description, dict) for name, description in content.items() if name != CHANGES):
            raise TypeError("a description is no object")
        if not all(isinstance(change, str) for change in content.get(CHANGES, [])):
            raise TypeError("a change is no text")
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}). Delete it to resume without a comparison of the data."
        ) from error
    return content

"""Confidence of proposed captions, which the page underlines and by which it orders images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_captioners.captioning.sidecars import owners_of, sidecar_of
from hf_captioners.data.generated_captions import assessed_files

from .table import ReviewTable, captions_of

DOUBTFUL_BELOW = 0.5  # a word is more often wrong than right
MAX_WORDS = 200


class Confidences:
    """Confidence of the captions that a captioner proposed for a folder's images.

    They are in the table of captions, or in the record of the text files beside the images, if the captions were
    written with `--confidence`. Captions that a person typed have none.

    Args:
        table: the images and their captions.

    Raises:
        UnsafeFileError: the record of a folder is a link that leads out of the folder, or no plain file.
    """

    def __init__(self, table: ReviewTable) -> None:
        self.table = table
        of_table = {name: assessed_of(row) for name, row in table.proposed_rows.items()}  # before the text files
        assessed = {**self._of_text_files(), **of_table}
        self.by_name = {name: of_captions for name, of_captions in assessed.items() if of_captions}

    def _of_text_files(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the recorded confidences of captions in text files, by image name."""
        owners = owners_of([str(image) for image in self.table.images], self.table.ending)
        records: dict[Path, dict[str, Any]] = {}
        found = {}
        for image, name in zip(self.table.images, self.table.names, strict=True):
            path = sidecar_of(str(image), self.table.ending)
            if path.parent not in records:
                records[path.parent] = assessed_files(path.parent, self.table.folder, self.table.follow_links)
            record = records[path.parent].get(path.name)
            if isinstance(record, dict) and owners[path] == str(image) and (assessed := assessed_of(record)):
                found[name] = assessed
        return found

    def of_images(self) -> list[float | None] | None:
        """Return the confidence of each image's best caption, None if unknown; None if no caption has a confidence."""
        if not self.by_name:
            return None
        best = (next(iter(self.by_name.get(name, {}).values()), {}) for name in self.table.names)
        return [assessed.get("confidence") for assessed in best]

    def of_captions(self, number: int, captions: list[str], source: str) -> list[dict[str, Any] | None]:
        """Return `confidence` and `words` of each caption on the page, None if unknown.

        Args:
            number: index of the image.
            captions: the captions that are shown. Those of a draft have the words of the proposed ones in their place.
            source: where they are from, see `Corrections.captions`.
        """
        assessed = self.by_name.get(self.table.names[number], {})
        if source in ("kept", "rejected") or not assessed:
            return [None] * len(captions)
        if source != "draft":
            return [assessed.get(caption) for caption in captions]
        proposed, _ = self.table.captions(number)
        places = [assessed.get(caption) for caption in proposed[: len(captions)]]
        return places + [None] * (len(captions) - len(places))


def assessed_of(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return `confidence` and `words` of a row's captions by caption text; nothing for invalid values.

    Args:
        row: as `hf-captioners caption --confidence` writes it. Of several captions, the first one has words.
    """
    if "confidence" not in row:
        return {}
    captions, others = captions_of(dict(row)), row.get("confidences")
    values = list(others) if isinstance(others, list) else [row["confidence"]]
    if not all(value is None or _is_share(value) for value in values):
        return {}
    words = row.get("words")
    kept = [
        {"word": word["word"], "confidence": float(word["confidence"])}
        for word in (words[:MAX_WORDS] if isinstance(words, list) else ())
        if isinstance(word, dict) and isinstance(word.get("word"), str) and _is_share(word.get("confidence"))
    ]
    return {
        caption: {"confidence": value, "words": [] if place else kept}
        for place, (caption, value) in reversed(list(enumerate(zip(captions, values, strict=False))))
    }


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1

"""Merging of two cards: text that a person wrote is kept, generated text is replaced, metadata are joined.

The generated part of a card is enclosed in two marks. The first mark contains digests of the generated text and of the
metadata that were written with it, which show whether a person changed either.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from huggingface_hub.utils import yaml_dump

logger = logging.getLogger(__name__)

FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
BEGIN = "<!-- hf-captioners: generated (%s %s); text outside the two marks is kept -->"
END = "<!-- hf-captioners: end -->"
MARKED = re.compile(
    re.escape(BEGIN).replace("%s", r"(\w+)") + r"\r?\n(?P<text>.*?)\r?\n" + re.escape(END) + r"\r?\n?", re.DOTALL
)
# Text that PEFT appends to every card when it saves an adapter.
ADDED_BY_PEFT = re.compile(r"\n### Framework versions\s+- PEFT \S+\s*\Z")


@dataclass(frozen=True)
class Card:
    """The parts of a card.

    Attributes:
        metadata: metadata of the front matter.
        own_metadata: whether the metadata are unchanged since they were generated.
        before: text before the generated part.
        generated: the generated part with its marks; None if there is none or if a person changed it. All text is
            then in `before`.
        after: text after the generated part.
        front_matter: the metadata as text, with the dashed lines.
    """

    metadata: dict[str, Any]
    own_metadata: bool
    before: str
    generated: str | None
    after: str
    front_matter: str

    @property
    def has_persons_text(self) -> bool:
        """Whether the card has text that a person wrote."""
        text = ADDED_BY_PEFT.sub("", self.before + self.after).strip()
        return bool(text) and text not in library_templates()


def digest(content: str) -> str:
    """Return a short hash that ignores line endings."""
    return hashlib.sha256("\n".join(content.splitlines()).strip().encode()).hexdigest()[:12]


def metadata_digest(metadata: Mapping[str, Any]) -> str:
    """Return a short hash that ignores the order of keys."""
    return digest(json.dumps(metadata, sort_keys=True, default=str))


@cache
def library_templates() -> frozenset[str]:
    """Return the texts of the empty card that transformers pushes with a processor or model."""
    description = (
        "This is the model card of a 🤗 transformers model that has been pushed on the Hub. This model card has been "
        "automatically generated."
    )
    data = ModelCardData(library_name="transformers")
    cards = (ModelCard.from_template(data, model_description=text) for text in (description, None))
    return frozenset(card.text.strip() for card in cards)


def is_generated(content: str) -> bool:
    """Return whether a card has a part that this library generated."""
    return MARKED.search(content) is not None


def new_card(metadata: Mapping[str, Any], text: str) -> str:
    """Return a card whose whole text is generated."""
    return front_matter(metadata) + mark(metadata, text)


def mark(metadata: Mapping[str, Any], text: str) -> str:
    """Enclose a generated text in the two marks."""
    return f"{BEGIN % (metadata_digest(metadata), digest(text))}\n{text.strip()}\n{END}\n"


def front_matter(metadata: Mapping[str, Any]) -> str:
    """Return metadata as the front matter of a card."""
    return f"---\n{yaml_dump(dict(metadata), sort_keys=False)}---\n" if metadata else ""


def read_card(content: str, place: str) -> Card:
    """Split a card into its parts.

    Args:
        content: content of the file.
        place: its location, for error messages.

    Raises:
        ValueError: the metadata are not a YAML mapping, or the Hub cannot read their `model-index`.
    """
    found = FRONT_MATTER.match(content)
    body = content[found.end() :] if found else content
    try:
        metadata = (yaml.safe_load(found[1]) if found else None) or {}
        if not isinstance(metadata, dict):
            raise ValueError(f"expected a mapping, got {type(metadata).__name__}")
        if metadata.get("model-index"):
            model_index_to_eval_results(metadata["model-index"])
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"The metadata of the card {place} cannot be read: {reason}. Correct them first.") from error
    marked = MARKED.search(body)
    top = found[0] if found else ""
    if marked is None or digest(marked["text"]) != marked[2]:
        return Card(metadata, False, body, None, "", top)
    own = metadata_digest(metadata) == marked[1]
    return Card(metadata, own, body[: marked.start()], marked[0], body[marked.end() :], top)


def merge_cards(present: str | None, new: str, place: str) -> str:
    """Merge a new card into an existing one.

    Text and metadata of the existing card that a person wrote are kept, as is a generated part that a person changed.
    Missing metadata are added, lists are joined, and results of the same evaluation are replaced.

    Args:
        present: the existing card; None if there is none.
        new: the new card.
        place: location of the existing card, for errors and warnings.

    Returns:
        The merged card.

    Raises:
        ValueError: metadata cannot be read.
    """
    if present is None or not present.strip():
        return new
    old, fresh = read_card(present, place), read_card(new, "to be written")
    if old.own_metadata:
        top = fresh.front_matter
    else:
        merged = merge_metadata(old.metadata, fresh.metadata)
        top = old.front_matter if merged == old.metadata else front_matter(merged)
    if not old.has_persons_text:
        return top + fresh.before + (fresh.generated or "") + fresh.after
    persons_text = fresh.before + fresh.after
    if fresh.has_persons_text and persons_text.strip() != (old.before + old.after).strip():
        logger.warning(
            f"The card {place} has text that a person wrote and that differs from the new card. The text was kept; "
            "only the metadata and the generated part were updated. To replace the card: hf upload REPO README.md"
        )
    if old.generated is None:
        return top + old.before
    return top + old.before + (fresh.generated or old.generated) + old.after


def merge_metadata(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Add new metadata to existing ones. Existing values are kept, except results of the same evaluation."""
    merged = dict(old)
    for key, value in new.items():
        present = old.get(key)
        if present is None or present == "" or present == []:
            merged[key] = value
        elif key == "model-index":
            merged[key] = _merge_figures(present, value)
        elif isinstance(value, list):
            several = present if isinstance(present, list) else [present]
            merged[key] = [*several, *(item for item in value if item not in several)]
    return merged


def _merge_figures(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    name, kept = model_index_to_eval_results(old)
    _, fresh = model_index_to_eval_results(new)
    results = [result for result in kept if not any(result.is_equal_except_value(other) for other in fresh)]
    return eval_results_to_model_index(name, [*results, *fresh])

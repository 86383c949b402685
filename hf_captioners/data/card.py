"""Data set cards: contents, source, licence, citation and dropped rows of a captioned data set."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

from datasets import Dataset
from huggingface_hub import DatasetCard, DatasetCardData

from hf_captioners.inert_text import code_span, inert_text

from .loading import make_reader
from .reader import CaptionReader, SourceCard
from .report import DataReport
from .schema import CAPTIONS

# Options with local paths, which cards omit.
PLACES = ("data_dir", "image_dir", "reports", "split_lists", "data_files", "metadata_file", "token_file")
SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

{{ source.description }}

| split | rows | captions | captions per row | words per caption |
|---|---|---|---|---|
{% for cells in splits %}| {{ cells | join(" | ") }} |
{% endfor %}
Columns: {{ columns | join(", ") }}.

Loaded with `hf_captioners`: {{ options | join(", ") }}.

{{ reported }}
{% if source.homepage %}
Source: {{ source.homepage }}
{% endif %}{% if source.licence %}
Licence: {{ source.licence }}.
{% endif %}{% if source.citation %}
Please cite: {{ source.citation }}
{% endif %}"""


def dataset_card(
    name: str, splits: Mapping[str, Dataset], report: DataReport | None = None, **options: Any
) -> DatasetCard:
    """Make the Hub card of a loaded data set.

    Args:
        name: the name that `load_captions` was given.
        splits: what it returned.
        report: its report, from which the card states what was left out.
        options: the options that it was given. The card omits local paths.

    Returns:
        The card: `card.save("README.md")` writes it, `card.push_to_hub(repo)` uploads it, `str(card)` is its Markdown.

    Raises:
        ValueError: an option is unknown.

    Examples:
        >>> from hf_captioners.data import load_captions
        >>> from hf_captioners.data.card import dataset_card
        >>> scenes = load_captions("scenes", num_images={"train": 5}, image_size=32)
        >>> card = dataset_card("scenes", scenes, num_images={"train": 5}, image_size=32)
        >>> card.data.size_categories
        ['n<1K']
    """
    reader = make_reader(name, None, options)
    rows = sum(map(len, splits.values()))
    data = DatasetCardData(
        task_categories=["image-to-text"],
        task_ids=["image-captioning"],
        size_categories=[next((label for limit, label in SIZES if rows < limit), "n>10M")],
        tags=["image-captioning", name],
    )
    values = {field.name: getattr(reader, field.name) for field in dataclasses.fields(reader)}
    counts = {} if report is None else {**report.counts(), **report.notes}
    reported = ", ".join(f"{count:,} x {inert_text(kind)}" for kind, count in counts.items())
    complete = "" if report is None else "Every row of the source is included."
    return DatasetCard.from_template(
        data,
        template_str=TEMPLATE,
        name=name,
        source=reader.card if isinstance(reader, CaptionReader) else SourceCard(),
        splits=[_cells(split, list(rows[CAPTIONS])) for split, rows in splits.items()],
        columns=[code_span(column) for column in next(iter(splits.values())).column_names],
        options=[code_span(f"{option}={value!r}") for option, value in values.items() if option not in PLACES],
        reported=f"Reported while loading: {reported}." if reported else complete,
    )


def _cells(split: str, captions: list[list[str]]) -> list[str]:
    counts = [len(texts) for texts in captions]
    words = [len(text.split()) for texts in captions for text in texts] or [0]
    mean = f"{min(words)} to {max(words)}, mean {statistics.fmean(words):.1f}"
    return [split, f"{len(captions):,}", f"{sum(counts):,}", f"{min(counts)} to {max(counts)}", mean]

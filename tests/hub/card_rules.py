"""Checks of the Hub on the metadata of a card: types of fields, and forms of their values."""

import re
from typing import Any

# Fields of a model card, and the form of each entry.
FORMS = {
    "license": r"[a-z0-9]+([.-][a-z0-9]+)*",
    "license_name": r"[a-z0-9]+([._-][a-z0-9]+)*",
    "license_link": r"LICEN[CS]E(\.\w+)?|NOTICE|https://\S+",
    "language": r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*",
    "base_model": r"[\w.-]+(/[\w.-]+)?",
    "base_model_relation": "adapter|finetune|merge|quantized",
    "datasets": r"[\w.-]+(/[\w.-]+)?",
    "library_name": r"[a-z0-9]+([._-][a-z0-9]+)*",
    "pipeline_tag": "image-to-text|image-text-to-text",  # the tasks that describe images
    "tags": r"\S(.*\S)?",
    "metrics": r"[\w./-]+",
}
LISTS = {"datasets", "tags", "metrics"}
TEXTS_OR_LISTS = {"base_model", "language"}


def card_errors(metadata: dict[str, Any]) -> list[str]:
    """Return what is wrong with the fields of a card's metadata."""
    errors = []
    for name in FORMS.keys() & metadata.keys():
        value = metadata[name]
        if name not in TEXTS_OR_LISTS and isinstance(value, list) != (name in LISTS):
            errors.append(f'"{name}" is of a wrong type')
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, str) or not re.fullmatch(FORMS[name], entry):
                errors.append(f'"{name}" has the value {entry!r}')
    if metadata.get("license") == "other" and "license_name" not in metadata:
        errors.append('"license_name" is missing')
    return errors

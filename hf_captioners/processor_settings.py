"""Image processor settings of a loaded captioner, such as the image size."""

from collections.abc import Mapping
from typing import Any

from .names import did_you_mean, listed


def with_processor_options(processor: Any, options: Mapping[str, Any]) -> Any:
    """Return a copy of a processor with other image processor settings.

    Args:
        processor: of a captioner.
        options: settings of its image processor by name, for example `max_pixels` or `size`.

    Raises:
        ValueError: the image processor has no such setting, or does not take the value.
    """
    if not options:
        return processor
    settings = processor.image_processor.to_dict()
    names = [name for name in settings if not name.endswith(("_type", "_class"))]
    names += (
        ["max_pixels", "min_pixels"] if {"shortest_edge", "longest_edge"} <= set(settings.get("size") or ()) else []
    )
    for name in options:
        if name not in names:
            raise ValueError(
                f"`processor` has {name!r}, and a {type(processor.image_processor).__name__} has no such setting; it "
                f"has {listed(sorted(names))}.{did_you_mean(name, names)}"
            )
    try:
        changed = type(processor.image_processor).from_dict(settings, **options)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"`processor` has {dict(options)}, which the image processor does not take: {error}"
        ) from error
    processor.image_processor = changed
    return processor

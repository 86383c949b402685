"""Computation of all caption metrics in one call."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .caption_tokenizers import caption_tokenizer, require_blanks, require_tokenizer
from .chair import Chair
from .document_frequency import DocumentFrequency
from .input_checks import check_pairs
from .meteor import Meteor
from .meteor_tables import MeteorTables
from .registry import DEFAULT_METRICS, SHUFFLED_CONTROL, Metric, MetricFunction, Score, find_metrics
from .spice import OriginalSpice


def compute_caption_metrics(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str | MetricFunction] = DEFAULT_METRICS,
    tokenizer: str = "ptb",
    document_frequency: DocumentFrequency | None = None,
    meteor: Meteor | None = None,
    tables: MeteorTables | None = None,
    spice: OriginalSpice | None = None,
    chair: Chair | None = None,
) -> dict[str, Any]:
    """Compute caption metrics by name from one predicted caption and the references of each image.

    Args:
        predictions: one caption per image.
        references: the reference captions of each image, in the order of the predictions.
        metrics: names of `METRICS`, `module:function` of a metric of one's own (modules of the current folder are
            found), or functions. `cider` is CIDEr-D, as in papers and in coco-caption.
        tokenizer: `"ptb"` for the tokenizer of the COCO evaluation (English); `"none"` if the captions are already
            words separated by blanks; `"characters"` for languages without blanks (Chinese, Japanese, Thai);
            `"unicode"` for words by the rules of Unicode (Korean, Arabic, Hindi, German).
        document_frequency: the document frequencies of the CIDEr metrics. By default they are counted in
            `references`.
        meteor: the scorer of `meteor`, to select stages or tables.
        tables: the tables of `meteor`. By default they are read from the installed pycocoevalcap.
        spice: the original program, which `spice` requires.
        chair: the scorer of `chair`, with a table of objects and annotations of the images. By default the categories
            of COCO, and the objects of the references.

    Returns:
        A dictionary with the corpus scores in natural units (papers print a CIDEr-D of 1.2 as 120) under `bleu_1` ..
        `bleu_4`, `rouge_l`, `cider_d`, ...; `per_image`, the list of image scores of each metric; `variants`, the
        exact variant of each metric; `tokenizer` and `document_frequency`, the ones that were used.

    Raises:
        TypeError: a caption is not a string, or a string was passed where a list is expected.
        ValueError: lengths differ, a list is empty, a metric or tokenizer is unknown, `spice` is missing, or the
            tokenizer is `"ptb"` and the references have no blanks between words.
        FileNotFoundError: METEOR's tables are not installed.

    Examples:
        >>> from hf_captioners.metrics import compute_caption_metrics
        >>> predictions = ["A man rides a horse.", "Two dogs run."]
        >>> references = [["A man riding a horse.", "A horse and a man."], ["Two dogs run on grass.", "Dogs!"]]
        >>> results = compute_caption_metrics(predictions, references, metrics=["bleu", "cider_d"])
        >>> round(results["bleu_1"], 4), round(results["cider_d"], 4)
        (0.875, 3.2551)
        >>> results["variants"]["cider_d"]
        'CIDEr-D (clipped, sigma 6)'
    """
    check_pairs(predictions, references)
    selected = check_choice(metrics, tokenizer)
    takes_frequency = {name for name, metric in selected.items() if "document_frequency" in metric.resources}
    if len(predictions) < 2 and document_frequency is None and takes_frequency:
        warnings.warn(
            "CIDEr of a single image is always 0, because every n-gram occurs in all documents. Score several images "
            "together or pass `document_frequency`.",
            stacklevel=2,
        )
    require_blanks([text for captions in references for text in captions], tokenizer)
    tokenize = caption_tokenizer(tokenizer)
    predictions, references = tokenize(predictions), [tokenize(captions) for captions in references]
    warn_of_wordless(references)
    resources = {
        "document_frequency": document_frequency,
        "meteor": meteor,
        "tables": tables,
        "spice": spice,
        "chair": chair,
    }
    result: dict[str, Any] = {"per_image": {}, "variants": {}, "tokenizer": tokenizer}
    for name, metric in selected.items():
        for score in compute_scores(name, metric, predictions, references, resources):
            result[score.name] = float(score.corpus)
            result["variants"][score.name] = score.variant
            if score.per_image is not None:
                result["per_image"][score.name] = [float(value) for value in score.per_image]
    if takes_frequency:
        frequency_source = f"the references of this set: {len(references)} images"
        result["document_frequency"] = (
            frequency_source if document_frequency is None else f"a given corpus: {document_frequency.source}"
        )
    return result


def warn_of_wordless(references: Sequence[Sequence[str]]) -> None:
    """Warn if reference captions have no words after tokenisation, such as punctuation or emoji only."""
    empty = [row for row, captions in enumerate(references) if not all(text.strip() for text in captions)]
    if empty:
        count = sum(not text.strip() for row in empty for text in references[row])
        total = sum(map(len, references))
        warnings.warn(
            f"{count:,} of {total:,} reference captions have no words, only punctuation or emoji, which the tokenizer "
            f"removes; the first is of image {empty[0]} (from 0). They are scored as empty texts: leave them out.",
            stacklevel=3,
        )


def with_control(metrics: Sequence[Any], shuffled_control: bool) -> list[Any]:
    """Return the names of the metrics, and the name of the shuffled control if `shuffled_control` is True."""
    return [*metrics, *([SHUFFLED_CONTROL] if shuffled_control and SHUFFLED_CONTROL not in metrics else [])]


def check_choice(metrics: Sequence[str | MetricFunction], tokenizer: str) -> dict[str, Metric]:
    """Check the names of the metrics and of the tokenizer, and return the metrics by name.

    Raises:
        ValueError: a name is unknown.
    """
    selected = find_metrics(metrics)
    require_tokenizer(tokenizer)
    return selected


def compute_scores(
    name: str,
    metric: Metric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    resources: Mapping[str, Any],
) -> list[Score]:
    """Call the function of a metric with the inputs it takes, and check the scores that it returns.

    Args:
        name: of the metric.
        metric: its entry.
        predictions: one tokenised caption per image.
        references: the tokenised references of each image.
        resources: values of `RESOURCES`.

    Raises:
        TypeError: the function returned something else than numbers or scores.
        ValueError: it returned a different number of values than there are images, or a value that is not finite.
    """
    used_resources = {name: resources[name] for name in metric.resources if name in resources}
    returned = metric.load()(predictions=predictions, references=references, **used_resources)
    if not isinstance(returned, Iterable) or isinstance(returned, (str, Mapping)):
        raise TypeError(f"The metric {name!r} returned {returned!r}, expected one number per image.")
    values = list(returned)
    if all(isinstance(value, Score) for value in values) and values:
        return values
    _check_values(name, values, predictions)
    return [Score(name, float(np.mean(values)), metric.about, values)]


def _check_values(name: str, values: Sequence[Any], predictions: Sequence[str]) -> None:
    if len(values) != len(predictions):
        raise ValueError(f"The metric {name!r} returned {len(values)} values for {len(predictions)} images.")
    for place, value in enumerate(values):
        try:
            is_number = math.isfinite(float(value))
        except (TypeError, ValueError):
            is_number = False
        if not is_number:
            raise ValueError(
                f"The metric {name!r} returned {value!r} for image {place} ({predictions[place]!r}), expected a "
                "finite number."
            )

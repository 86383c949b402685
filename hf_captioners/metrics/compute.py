"""All caption metrics in one call."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bleu import bleu_counts, bleu_from_counts, corpus_bleu
from .cider import CiderD, CiderOriginal
from .document_frequency import DocumentFrequency
from .input_checks import check_pairs
from .ngrams import ORDERS
from .ptb_tokenizer import PTBTokenizer
from .rouge import rouge_l

TOKENIZERS = ("ptb", "none")


def compute_caption_metrics(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "rouge_l", "cider_d"),
    tokenizer: str = "ptb",
    document_frequency: DocumentFrequency | None = None,
) -> dict[str, Any]:
    """Score one caption a picture against its references.

    Args:
        predictions: one caption a picture.
        references: for each picture its reference captions, in the order of the predictions.
        metrics: any of `METRICS`. `cider` is CIDEr-D, as in every paper and in coco-caption.
        tokenizer: `"ptb"` for the tokenizer of the COCO evaluation (English); `"none"` if the captions are words
            separated by blanks already, or for other languages after a tokenizer of their own.
        document_frequency: for the CIDEr family; without it n-grams are counted in these references.

    Returns:
        Corpus figures in natural units (CIDEr-D 1.2 is what papers print as 120) under `bleu_1` .. `bleu_4`,
        `rouge_l`, `cider_d`, ...; under `per_picture` a mapping with a list of figures for each of them; under
        `variants` what each metric is exactly; under `tokenizer` and `document_frequency` what was used.

    Raises:
        TypeError: something is not a string, or a string stands where a list is expected.
        ValueError: lengths differ, something is empty, or a metric or tokenizer is unknown.
    """
    check_pairs(predictions, references)
    unknown = [name for name in metrics if name not in METRICS]
    if isinstance(metrics, str) or unknown:
        raise ValueError(f"`metrics` is {metrics!r}, expected a list of names among {', '.join(METRICS)}.")
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"`tokenizer` is {tokenizer!r}, expected one of {', '.join(map(repr, TOKENIZERS))}.")
    if len(predictions) < 2 and document_frequency is None and any(name.startswith("cider") for name in metrics):
        warnings.warn(
            "CIDEr over a single picture is always 0, because its n-grams are in all of the documents. Score more "
            "pictures together or pass `document_frequency`.",
            stacklevel=2,
        )
    result: dict[str, Any] = {"per_picture": {}, "variants": {}, "tokenizer": tokenizer}
    if tokenizer == "ptb":
        tokenize = PTBTokenizer()
        predictions, references = tokenize(predictions), [tokenize(captions) for captions in references]
    for name in metrics:
        METRICS[name](result, predictions, references, document_frequency)
    return result


def _store(result: dict[str, Any], name: str, figure: float, per_picture: NDArray[np.float64], variant: str) -> None:
    result[name] = float(figure)
    result["per_picture"][name] = per_picture.tolist()
    result["variants"][name] = variant


def _bleu(
    result: dict[str, Any],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    document_frequency: DocumentFrequency | None,
    brevity_penalty: bool = True,
) -> None:
    counts = bleu_counts(predictions, references)
    figures, per_picture = corpus_bleu(counts, brevity_penalty), bleu_from_counts(counts, brevity_penalty)
    suffix = "" if brevity_penalty else "_no_penalty"
    variant = "closest reference length" if brevity_penalty else "without brevity penalty"
    for order in range(ORDERS):
        _store(result, f"bleu_{order + 1}{suffix}", figures[order], per_picture[order], f"BLEU-{order + 1}, {variant}")


def _bleu_without_penalty(
    result: dict[str, Any],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    document_frequency: DocumentFrequency | None,
) -> None:
    _bleu(result, predictions, references, document_frequency, brevity_penalty=False)


def _rouge_l(
    result: dict[str, Any],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    document_frequency: DocumentFrequency | None,
) -> None:
    scores = rouge_l(predictions, references)
    _store(result, "rouge_l", scores.mean(), scores, "ROUGE-L, beta 1.2")


def _cider(name: str, kind: type[CiderD] | type[CiderOriginal], variant: str) -> Callable[..., None]:
    def run(
        result: dict[str, Any],
        predictions: Sequence[str],
        references: Sequence[Sequence[str]],
        document_frequency: DocumentFrequency | None,
    ) -> None:
        scorer = kind(references, document_frequency)
        scores = scorer.score(predictions)
        _store(result, name, scores.mean(), scores, variant)
        origin = "the references of this set" if document_frequency is None else "a given corpus"
        result["document_frequency"] = f"{origin}: {scorer.document_frequency.source}"

    return run


METRICS: dict[str, Callable[..., None]] = {
    "bleu": _bleu,
    "bleu_no_penalty": _bleu_without_penalty,
    "rouge_l": _rouge_l,
    "cider_d": _cider("cider_d", CiderD, "CIDEr-D (clipped, sigma 6)"),
    "cider": _cider("cider", CiderD, "CIDEr-D (clipped, sigma 6), which papers and coco-caption print as CIDEr"),
    "cider_original": _cider("cider_original", CiderOriginal, "original CIDEr (no clipping, no length penalty)"),
}
"""The metrics by name."""

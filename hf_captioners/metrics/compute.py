"""Computation of all caption metrics in one call."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from .bleu import bleu_counts, bleu_from_counts, corpus_bleu
from .cider import CiderD, CiderOriginal
from .document_frequency import DocumentFrequency
from .input_checks import check_pairs
from .meteor import STAGES, Meteor
from .meteor_tables import MeteorTables
from .ngrams import ORDERS
from .ptb_tokenizer import PTBTokenizer
from .rouge import rouge_l
from .shuffled_control import shuffled_cider_d
from .spice import OriginalSpice

TOKENIZERS = ("ptb", "none")
"""The names of the tokenizers."""
SHUFFLED_CONTROL = "cider_d_shuffled"
"""The metric of `shuffled_cider_d`."""


class _Job(NamedTuple):
    """Input of a metric: tokenised captions and the resources that the caller passed."""

    predictions: Sequence[str]
    references: Sequence[Sequence[str]]
    document_frequency: DocumentFrequency | None
    meteor: Meteor | None
    tables: MeteorTables | None
    spice: OriginalSpice | None


class _Figure(NamedTuple):
    """One score of the result."""

    name: str
    corpus: float
    variant: str
    per_image: NDArray[Any] | None = None
    document_frequency: str | None = None


def compute_caption_metrics(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = ("bleu", "rouge_l", "cider_d"),
    tokenizer: str = "ptb",
    document_frequency: DocumentFrequency | None = None,
    meteor: Meteor | None = None,
    tables: MeteorTables | None = None,
    spice: OriginalSpice | None = None,
) -> dict[str, Any]:
    """Score one caption per image against its references.

    Args:
        predictions: one caption per image.
        references: the reference captions of each image, in the order of the predictions.
        metrics: names of `METRICS`. `cider` is CIDEr-D, as in papers and in coco-caption.
        tokenizer: `"ptb"` for the tokenizer of the COCO evaluation (English); `"none"` if the captions are already
            words separated by blanks. For other languages, tokenise the captions first and pass `"none"`.
        document_frequency: the document frequencies of the CIDEr metrics. By default they are counted in
            `references`.
        meteor: the scorer of `meteor`, to select stages or tables.
        tables: the tables of `meteor`. By default they are read from the installed pycocoevalcap.
        spice: the original program, which `spice` requires.

    Returns:
        A dictionary with the corpus scores in natural units (papers print a CIDEr-D of 1.2 as 120) under `bleu_1` ..
        `bleu_4`, `rouge_l`, `cider_d`, ...; `per_image`, the list of image scores of each metric; `variants`, the
        exact variant of each metric; `tokenizer` and `document_frequency`, the ones that were used.

    Raises:
        TypeError: a caption is not a string, or a string was passed where a list is expected.
        ValueError: lengths differ, a list is empty, a metric or tokenizer is unknown, or `spice` is missing.
        FileNotFoundError: METEOR's tables are not installed.

    Example:
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
    check_choice(metrics, tokenizer)
    if len(predictions) < 2 and document_frequency is None and any(name.startswith("cider") for name in metrics):
        warnings.warn(
            "CIDEr of a single image is always 0, because every n-gram occurs in all documents. Score several images "
            "together or pass `document_frequency`.",
            stacklevel=2,
        )
    if tokenizer == "ptb":
        tokenize = PTBTokenizer()
        predictions, references = tokenize(predictions), [tokenize(captions) for captions in references]
    warn_of_wordless(references)
    job = _Job(predictions, references, document_frequency, meteor, tables, spice)
    result: dict[str, Any] = {"per_image": {}, "variants": {}, "tokenizer": tokenizer}
    for name in metrics:
        for figure in METRICS[name](job):
            result[figure.name] = float(figure.corpus)
            result["variants"][figure.name] = figure.variant
            if figure.per_image is not None:
                result["per_image"][figure.name] = figure.per_image.tolist()
            if figure.document_frequency is not None:
                result["document_frequency"] = figure.document_frequency
    return result


def warn_of_wordless(references: Sequence[Sequence[str]]) -> None:
    """Warn if tokenised references have no words, as those of punctuation or emoji only."""
    empty = [row for row, captions in enumerate(references) if not all(text.strip() for text in captions)]
    if empty:
        count = sum(not text.strip() for row in empty for text in references[row])
        total = sum(map(len, references))
        warnings.warn(
            f"{count:,} of {total:,} reference captions have no words, only punctuation or emoji, which the tokenizer "
            f"removes; the first is of image {empty[0]} (from 0). They are scored as empty texts: leave them out.",
            stacklevel=3,
        )


def with_control(metrics: Sequence[str], shuffled_control: bool) -> list[str]:
    """Return the names of metrics, with that of the shuffled control if it is asked for."""
    return [*metrics, *([SHUFFLED_CONTROL] if shuffled_control and SHUFFLED_CONTROL not in metrics else [])]


def check_choice(metrics: Sequence[str], tokenizer: str) -> None:
    """Check the names of the metrics and of the tokenizer.

    Raises:
        ValueError: a name is unknown.
    """
    if isinstance(metrics, str) or any(name not in METRICS for name in metrics):
        raise ValueError(f"`metrics` is {metrics!r}, expected a list of names among {', '.join(METRICS)}.")
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"`tokenizer` is {tokenizer!r}, expected one of {', '.join(map(repr, TOKENIZERS))}.")


def _bleu(job: _Job) -> Iterator[_Figure]:
    return _bleu_figures(job, True, "", "closest reference length")


def _bleu_without_penalty(job: _Job) -> Iterator[_Figure]:
    return _bleu_figures(job, False, "_no_penalty", "without brevity penalty")


def _bleu_figures(job: _Job, brevity_penalty: bool, suffix: str, variant: str) -> Iterator[_Figure]:
    counts = bleu_counts(job.predictions, job.references)
    corpus, per_image = corpus_bleu(counts, brevity_penalty), bleu_from_counts(counts, brevity_penalty)
    for order in range(ORDERS):
        name = f"bleu_{order + 1}{suffix}"
        yield _Figure(name, corpus[order], f"BLEU-{order + 1}, {variant}", per_image[order])


def _rouge_l(job: _Job) -> Iterator[_Figure]:
    scores = rouge_l(job.predictions, job.references)
    yield _Figure("rouge_l", scores.mean(), "ROUGE-L, beta 1.2", scores)


def _cider(name: str, kind: type[CiderD] | type[CiderOriginal], variant: str) -> Callable[[_Job], Iterator[_Figure]]:
    def run(job: _Job) -> Iterator[_Figure]:
        scores = kind(job.references, job.document_frequency).score(job.predictions)
        yield _Figure(name, scores.mean(), variant, scores, _source_of_frequencies(job))

    return run


def _cider_d_shuffled(job: _Job) -> Iterator[_Figure]:
    scores = shuffled_cider_d(job.predictions, job.references, job.document_frequency)
    variant = "CIDEr-D of the same captions against the references of the next image (shuffled control)"
    yield _Figure(SHUFFLED_CONTROL, scores.mean(), variant, scores, _source_of_frequencies(job))


def _source_of_frequencies(job: _Job) -> str:
    if job.document_frequency is None:
        return f"the references of this set: {len(job.references)} images"
    return f"a given corpus: {job.document_frequency.source}"


def _meteor(job: _Job) -> Iterator[_Figure]:
    scorer = job.meteor or Meteor(STAGES, job.tables)
    result = scorer.score(job.predictions, job.references)
    variant = f"METEOR 1.5, English, stages {', '.join(scorer.stages)}"
    yield _Figure("meteor", result.corpus, variant, result.per_image)


def _spice(job: _Job) -> Iterator[_Figure]:
    if job.spice is None:
        raise ValueError(
            "The metric `spice` needs the original Java program: pass spice=OriginalSpice('.../spice-1.0.jar')."
        )
    result, variant = job.spice.score(job.predictions, job.references), "SPICE 1.0, original program"
    yield _Figure("spice", result.corpus, variant, result.per_image)
    for category, figure in result.categories.items():
        if category != "All":
            yield _Figure(f"spice_{category.lower()}", figure, f"{variant}; {category} only, images that have any")


METRICS: dict[str, Callable[[_Job], Iterator[_Figure]]] = {
    "bleu": _bleu,
    "bleu_no_penalty": _bleu_without_penalty,
    "rouge_l": _rouge_l,
    "cider_d": _cider("cider_d", CiderD, "CIDEr-D (clipped, sigma 6)"),
    "cider": _cider("cider", CiderD, "CIDEr-D (clipped, sigma 6), reported as CIDEr by papers and coco-caption"),
    SHUFFLED_CONTROL: _cider_d_shuffled,
    "cider_original": _cider("cider_original", CiderOriginal, "original CIDEr (no clipping, no length penalty)"),
    "meteor": _meteor,
    "spice": _spice,
}
"""The metrics by name."""

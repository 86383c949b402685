"""Caption metrics without Java: exact, fast, and free of torch and transformers."""

from .bleu import BleuCounts, bleu_counts, bleu_from_counts, corpus_bleu
from .cider import CiderD, CiderOriginal
from .compute import METRICS, compute_caption_metrics
from .document_frequency import DocumentFrequency
from .ptb_tokenizer import PTBTokenizer
from .rouge import rouge_l

__all__ = [
    "METRICS",
    "BleuCounts",
    "CiderD",
    "CiderOriginal",
    "DocumentFrequency",
    "PTBTokenizer",
    "bleu_counts",
    "bleu_from_counts",
    "compute_caption_metrics",
    "corpus_bleu",
    "rouge_l",
]

"""Cleaning of radiology reports by the rule of R2Gen (Chen et al., EMNLP 2020).

Published scores use the cleaned strings split at spaces, full stops included, without a PTB tokenizer.
"""

from __future__ import annotations

import re

LIST_NUMBERS = range(2, 6)
QUOTES_AND_SLASHES = re.compile(r"[\"'/\\]")
# The range from ":" to "[" of ASCII includes < = > ? @ and A to Z; a hyphen is kept.
SIGNS = re.compile(r"[.,?;*!%^&_+():-\[\]{}]")
MARKS = re.compile(r"\s*\bX{2,}\b")


def clean_report(report: str) -> str:
    """Return a report as R2Gen's string of tokens.

    Repeated full stops become one, list numbers are removed, and all text becomes lower-case. Within sentences
    punctuation is removed, decimal points too ("3.7 cm" becomes "37 cm"). Sentences are joined by " . "; empty
    sentences are kept.

    Returns:
        The string whose words, split at spaces, are the tokens.
    """
    for _ in range(3):
        report = report.replace("..", ".")
    report = report.replace("1. ", "")
    for number in LIST_NUMBERS:
        report = report.replace(f". {number}. ", ". ")
    for number in LIST_NUMBERS:
        report = report.replace(f" {number}. ", ". ")
    sentences = report.strip().lower().split(". ")
    return " . ".join(SIGNS.sub("", QUOTES_AND_SLASHES.sub("", sentence).strip()) for sentence in sentences) + " ."


def without_marks(report: str) -> str:
    """Return a report without the marks XXXX, which replace words for anonymity.

    Published references contain them; scores of texts without them are not comparable.
    """
    return " ".join(MARKS.sub("", report).split())

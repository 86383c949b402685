"""Radiology reports as token strings by the rule of R2Gen (Chen et al., EMNLP 2020), and without their marks.

Scores of that field are those of the cleaned strings split at blanks, full stops included, without a PTB tokenizer.
"""

from __future__ import annotations

import re

LIST_NUMBERS = range(2, 6)
QUOTES_AND_SLASHES = re.compile(r"[\"'/\\]")
# Everything from ":" to "[" of ASCII goes, which takes < = > ? @ along; a hyphen stays.
SIGNS = re.compile(r"[.,?;*!%^&_+():-\[\]{}]")
MARKS = re.compile(r"\s*\bX{2,}\b")


def clean_report(report: str) -> str:
    """Turn a report into R2Gen's token string.

    Repeated full stops become one, numbers of lists go, everything becomes lower-case; within sentences punctuation
    goes, a decimal point too ("3.7 cm" becomes "37 cm"); sentences are joined by " . ". Empty sentences stay.

    Returns:
        The string whose words, split at blanks, are the tokens.
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
    """Remove the marks (XXXX) that stand for words taken out to protect patients.

    Everybody's references hold them; scores of texts without them are not comparable.
    """
    return " ".join(MARKS.sub("", report).split())

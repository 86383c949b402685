"""Model card section about confidence, with its figure."""

import re
from collections.abc import Mapping
from typing import Any

from .calibration import Calibration

FIGURE_FILE = "confidence.svg"
BEGIN, END = "<!-- hf-captioners: confidence -->", "<!-- hf-captioners: end of confidence -->"
MARKED = re.compile(rf"\n*{re.escape(BEGIN)}.*?{re.escape(END)}\n?", re.DOTALL)
EVIDENCE = {
    "tokens": "probabilities of tokens",
    "beams": "tokens and hypotheses of the beam search (`--confidence`)",
    "samples": "tokens and sampled captions",
    "beams_and_samples": "tokens, hypotheses and sampled captions (`--confidence samples`)",
}
TITLES = {
    "auroc_words": "AUROC of words",
    "auroc_captions": "AUROC of captions",
    "calibration_error_words": "calibration error of words",
    "surest_half": "support of the surest half over all",
}


def card_section(calibration: Calibration) -> str:
    """Return the section in Markdown: calibration data, cross-validated figures and their meaning."""
    data, report = calibration.data, calibration.report
    first: Mapping[str, Any] = next(iter(report.values()), {})
    lines = [
        "## Confidence",
        "",
        f"Confidence was calibrated on {int(data.get('images', 0)):,} images ({_plain(data.get('name'))}, "
        f"{_plain(data.get('split'))}{_rows(data)}) with {int(data.get('words', 0)):,} content words. It is the "
        "probability that people who describe the image use the word; of a caption, that they use all of its content "
        "words. People name other things too, so a doubtful word need not be wrong, and agreement is not truth.",
        "",
        f"Share of words that are right: {_figure(first.get('right_words'))}; of captions with right words only: "
        f"{_figure(first.get('right_captions'))}. By cross-validation over images, with 95 % intervals:",
        "",
        f"| evidence | {' | '.join(TITLES.values())} |",
        f"|---|{'---|' * len(TITLES)}",
        *(_row(EVIDENCE[kind], figures) for kind, figures in report.items() if kind in EVIDENCE),
        "",
        f"![Reliability of the confidence of words, and support of the surest captions]({FIGURE_FILE})",
    ]
    return "\n".join(lines) + "\n"


def with_section(card: str, section: str) -> str:
    """Return a card with the section, which replaces an earlier section or is appended."""
    marked = f"{BEGIN}\n{section}{END}\n"
    body = MARKED.sub("\n", card).rstrip("\n")
    return f"{body}\n\n{marked}" if body else marked


def _row(name: str, figures: Mapping[str, Any]) -> str:
    cells = [
        f"{_figure(figures[key]['value'])} ({_figure(figures[key]['interval'][0])} to "
        f"{_figure(figures[key]['interval'][1])})"
        for key in TITLES
    ]
    return f"| {name} | {' | '.join(cells)} |"


def _figure(value: Any) -> str:
    return "?" if not isinstance(value, (int, float)) else f"{value:.3f}"


def _plain(value: Any) -> str:
    """Return a name on one line, without characters of Markdown and HTML."""
    return re.sub(r"[^\w .,:()+/-]", " ", str(value or "no name")).strip()


def _rows(data: Mapping[str, Any]) -> str:
    return f", {_plain(data['rows'])} rows" if data.get("rows") not in (None, "all") else ""

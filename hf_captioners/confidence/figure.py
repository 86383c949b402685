"""Figure of a calibration as SVG: reliability diagram of words, risk-coverage curve of captions."""

from collections.abc import Mapping, Sequence
from typing import Any

SIDE, MARGIN, GAP, TOP = 240, 56, 84, 40
INK, GREY, LIGHT, BLUE, BACKGROUND = "#1b1f24", "#6e7781", "#d8dee4", "#0b63ce", "#ffffff"


def calibration_figure(figures: Mapping[str, Any], title: str = "") -> str:
    """Return the reliability plot of one confidence estimator as SVG.

    Args:
        figures: see `measured`.
        title: what was measured, one line.
    """
    width, height = 2 * (MARGIN + SIDE) + GAP - MARGIN + 20, SIDE + TOP + 64
    left, right = MARGIN, MARGIN + SIDE + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img">',
        f"<title>{_escaped(title) or 'Calibration'}</title>",
        f'<rect width="{width}" height="{height}" fill="{BACKGROUND}"/>',
        _text(MARGIN, 18, title, INK, size=13),
        *_axes(left, "confidence of a word", "share that people used", 0.0, 1.0),
        *_reliability(left, figures["reliability"]),
    ]
    curve = figures["risk_coverage"]
    values = [row["support"] for row in curve]
    low, high = max(0.0, min(values) - 0.1), min(1.0, max(values) + 0.1)
    low, high = round(low - low % 0.1, 1), round(high + (-high) % 0.1, 1)
    parts += _axes(right, "share of the surest captions", "support of their words", low, high)
    parts += _curve(right, [(row["coverage"], row["support"]) for row in curve], low, high)
    return "\n".join([*parts, "</svg>", ""])


def _axes(left: int, below: str, beside: str, low: float, high: float) -> list[str]:
    """Return frame, grid and labels of a panel with an x axis from 0 to 1, as SVG."""
    parts = [f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{GREY}"/>']
    for step in range(5):
        share = step / 4
        x, y = left + SIDE * share, TOP + SIDE * (1 - share)
        if 0 < step < 4:
            parts.append(f'<path d="M{x} {TOP}V{TOP + SIDE}M{left} {y}H{left + SIDE}" stroke="{LIGHT}"/>')
        parts.append(_text(x, TOP + SIDE + 16, f"{share:g}", GREY, "middle"))
        parts.append(_text(left - 6, y + 4, f"{low + (high - low) * share:.2f}", GREY, "end"))
    x, y = left + SIDE / 2, TOP + SIDE / 2
    parts.append(_text(x, TOP + SIDE + 36, below, INK, "middle"))
    place = left - 40
    turned = f'text-anchor="middle" transform="rotate(-90 {place} {y})"'
    parts.append(f'<text x="{place}" y="{y}" fill="{INK}" {turned}>{beside}</text>')
    return parts


def _reliability(left: int, bins: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the reliability diagram as SVG: a circle per bin, and the diagonal."""
    max_count = max((entry["count"] for entry in bins), default=1)
    parts = [f'<path d="M{left} {TOP + SIDE}L{left + SIDE} {TOP}" stroke="{GREY}" stroke-dasharray="4 4"/>']
    points = [(left + SIDE * entry["confidence"], TOP + SIDE * (1 - entry["right"])) for entry in bins]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts.append(f'<path d="M{path}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>')
    for (x, y), entry in zip(points, bins, strict=True):
        radius = 2.5 + 6 * (entry["count"] / max_count) ** 0.5
        count = f"{entry['count']:,} words, confidence {entry['confidence']:.2f}, right {entry['right']:.2f}"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{BLUE}" fill-opacity="0.75">'
            f"<title>{count}</title></circle>"
        )
    return parts


def _curve(left: int, points: Sequence[tuple[float, float]], low: float, high: float) -> list[str]:
    """Return the risk-coverage curve as SVG, and a horizontal line at the support of all captions."""
    places = [(left + SIDE * x, TOP + SIDE * (1 - (y - low) / (high - low))) for x, y in points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    level = places[-1][1]
    return [
        f'<path d="M{left} {level:.1f}H{left + SIDE}" stroke="{GREY}" stroke-dasharray="4 4"/>',
        f'<path d="M{path}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BLUE}"/>' for x, y in places),
    ]


def _text(x: float, y: float, text: str, color: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{color}" text-anchor="{anchor}" font-size="{size}">{_escaped(text)}</text>'
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

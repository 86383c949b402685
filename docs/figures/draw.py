"""Draw the figures of the architecture pages: python docs/figures/draw.py writes the SVG files beside it.

A figure has two rows: the image on its way to what the decoder reads, and the words on their way to the next word.
"""

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, STEP_X, ROWS = 112, 48, 140, (64, 190)  # of a box; distance of columns; y of the two rows
FILL = {
    "in": "#eceff1",
    "frozen": "#cfd8dc",
    "encode": "#cfe2ff",
    "decode": "#d6f0d6",
    "own": "#ffe0b2",
    "out": "#eceff1",
}
STROKE = {
    "in": "#78909c",
    "frozen": "#78909c",
    "encode": "#3d6fb6",
    "decode": "#3a8a3a",
    "own": "#c77700",
    "out": "#78909c",
}


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        title: text for those who do not see it.
        image: boxes of the upper row, each `"kind: text"`; `|` breaks a line.
        words: boxes of the lower row.
        reads: arrows from the upper to the lower row: column, column, text.
        layer: columns of the lower row that repeat, and the text of their frame.
        apart: columns of the upper row that do not follow from the one before.
        back: arrows within the lower row that go back to an earlier column (a recurrent state), with a text.
    """

    title: str
    image: tuple[str, ...]
    words: tuple[str, ...]
    reads: tuple[tuple[int, int, str], ...]
    layer: tuple[int, int, str] | None = None
    back: tuple[tuple[int, int, str], ...] = ()
    apart: tuple[int, ...] = ()


START = ("in: image", "frozen: vision model", "in: regions|[R, D]")
FIGURES = {
    "visualgpt": Figure(
        "VisualGPT: GPT-2 with gated cross-attention to all levels of a visual encoder",
        (*START, "encode: visual encoder|K layers", "encode: levels 1 ... K"),
        (
            "in: words",
            "decode: masked|self-attention",
            "decode: cross-attention|to each level",
            "own: SRAU gates|B_vis, B_lan",
            "decode: feed-forward",
            "out: next word",
        ),
        ((4, 2, ""),),
        (1, 4, "GPT-2 layer, pretrained but for the attention to the image"),
    ),
    "show_attend_tell": Figure(
        "Show, Attend and Tell: an LSTM that attends to regions before each word",
        (*START, "encode: keys of|the attention"),
        (
            "in: state h",
            "own: attention|weights alpha",
            "own: visual gate|beta",
            "decode: LSTM reads|previous word",
            "decode: deep output",
            "out: next word",
        ),
        ((3, 1, ""),),
        back=((3, 0, "state h, c"),),
    ),
    "transformer": Figure(
        "Transformer over regions",
        (*START, "encode: encoder|layers", "encode: last level"),
        (
            "in: words",
            "decode: masked|self-attention",
            "decode: cross-attention",
            "decode: feed-forward",
            "out: next word",
        ),
        ((4, 2, ""),),
        (1, 3, "decoder layer"),
    ),
    "m2_transformer": Figure(
        "M2: memory slots in the encoder, and a decoder that reads all its levels by gates",
        (*START, "own: self-attention|+ memory slots", "encode: levels 1 ... N"),
        (
            "in: words",
            "decode: masked|self-attention",
            "decode: cross-attention|to each level",
            "own: meshed gates|alpha",
            "decode: feed-forward",
            "out: next word",
        ),
        ((4, 2, ""),),
        (1, 4, "decoder layer"),
    ),
    "aoa_transformer": Figure(
        "AoA Transformer: GPT-2 layers whose feed-forward layer is attention on attention",
        (*START, "own: AoA encoder|layers", "encode: last level"),
        (
            "in: words",
            "decode: masked|self-attention",
            "decode: cross-attention",
            "own: attention on|attention",
            "out: next word",
        ),
        ((4, 2, ""),),
        (1, 3, "GPT-2 layer without feed-forward"),
    ),
    "aoanet": Figure(
        "AoANet: attention on attention in the refining encoder and in the decoder",
        (*START, "own: refining layers|(AoA)", "encode: regions|and their mean"),
        (
            "in: previous word",
            "decode: LSTM",
            "decode: multi-head|attention",
            "own: attention on|attention",
            "decode: context c",
            "out: next word",
        ),
        ((4, 1, "mean"), (4, 2, "regions")),
        back=((4, 1, "context c, state h"),),
    ),
    "image_transformer": Figure(
        "Image Transformer: attention along a graph of boxes",
        (
            *START,
            "own: parent, child,|neighbour",
            "own: sub-transformers|by relation",
            "encode: regions|and their mean",
        ),
        (
            "in: previous word",
            "decode: LSTM",
            "own: sub-transformers",
            "decode: their mean,|AoA",
            "decode: context",
            "out: next word",
        ),
        ((5, 2, "regions"), (5, 1, "mean")),
        back=((4, 1, "context, state h"),),
    ),
    "eta": Figure(
        "Entangled Transformer: regions and attributes guide each other's attention",
        (*START, "encode: region layers", "encode: attributes,|their layers"),
        (
            "in: words",
            "decode: masked|self-attention",
            "own: guidance by|the other side",
            "own: visual and|semantic target",
            "own: bilateral gate|c",
            "decode: feed-forward",
            "out: next word",
        ),
        ((3, 2, ""), (4, 3, "")),
        (1, 5, "decoder block"),
        apart=(4,),
    ),
    "zodiac": Figure(
        "ZoDIAC: attention whose intensity is pooled and gated",
        (*START, "own: intensity|self-attention", "encode: last level"),
        (
            "in: words",
            "own: intensity|self-attention",
            "own: intensity|cross-attention",
            "own: times|zeta + phi(rho)",
            "decode: feed-forward",
            "out: next word",
        ),
        ((4, 2, ""),),
        (1, 4, "decoder layer"),
    ),
    "zodiac_aoanet": Figure(
        "ZoDIAC in AoANet: intensity attention in the refining encoder and in the decoder",
        (*START, "own: refining layers,|intensities", "encode: regions|and their mean"),
        (
            "in: previous word",
            "decode: LSTM",
            "own: intensity|attention",
            "decode: attention on|attention",
            "decode: context c",
            "out: next word",
        ),
        ((4, 1, "mean"), (4, 2, "regions")),
        back=((4, 1, "context c, state h"),),
    ),
}


def centre(column: int) -> int:
    """Return the x of the middle of a column."""
    return 14 + WIDTH // 2 + column * STEP_X


def box(text: str, column: int, row: int) -> str:
    """Return a box with its lines of text."""
    kind, lines = text.split(": ", 1)[0], text.split(": ", 1)[1].split("|")
    x, y = centre(column), ROWS[row]
    shape = (
        f'<rect x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
        f'fill="{FILL[kind]}" stroke="{STROKE[kind]}"/>'
    )
    first = y + 4 - 7 * (len(lines) - 1)
    spans = [
        f'<text x="{x}" y="{first + 15 * i}" text-anchor="middle">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    return shape + "".join(spans)


def arrow(points: list[tuple[int, int]], text: str = "", at: tuple[int, int] = (0, 0)) -> str:
    """Return an arrow along points, and its text."""
    places = " ".join(f"{x},{y}" for x, y in points)
    line = f'<polyline points="{places}" fill="none" stroke="#455a64" marker-end="url(#head)"/>'
    return line + (
        f'<text x="{at[0]}" y="{at[1]}" font-size="11" fill="#455a64" text-anchor="middle">{escape(text)}</text>'
        if text
        else ""
    )


def draw(figure: Figure) -> str:
    """Return a figure as the text of an SVG file."""
    columns = max(len(figure.image), len(figure.words))
    width, half = columns * STEP_X - STEP_X + WIDTH + 28, WIDTH // 2
    height = 262 if figure.back else 252
    parts = []
    if figure.layer:
        first, last, text = figure.layer
        left, upper = centre(first) - half - 9, ROWS[1] - HEIGHT // 2 - 10
        parts.append(
            f'<rect x="{left}" y="{upper}" width="{centre(last) - centre(first) + WIDTH + 18}" height="{HEIGHT + 20}" '
            'rx="9" fill="none" stroke="#90a4ae" stroke-dasharray="5 4"/>'
        )
        parts.append(
            f'<text x="{left + 4}" y="{upper + HEIGHT + 34}" font-size="11" fill="#546e7a">{escape(text)}</text>'
        )
    for row, boxes in enumerate((figure.image, figure.words)):
        parts += [box(text, column, row) for column, text in enumerate(boxes)]
        ends = [(centre(column) + half, centre(column + 1) - half - 2) for column in range(len(boxes) - 1)]
        apart = figure.apart if row == 0 else ()
        parts += [
            arrow([(start, ROWS[row]), (end, ROWS[row])])
            for column, (start, end) in enumerate(ends, start=1)
            if column not in apart
        ]
    lower, upper = ROWS[0] + HEIGHT // 2, ROWS[1] - HEIGHT // 2 - 2
    for number, (source, target, text) in enumerate(figure.reads):
        level, x = lower + 14 + 16 * number, centre(source) + 14 * number
        points = [(x, lower), (x, level), (centre(target), level), (centre(target), upper)]
        parts.append(arrow(points, text, (centre(target) + 26, upper - 8)))
    for source, target, text in figure.back:
        level, bottom = ROWS[1] + HEIGHT // 2 + 22, ROWS[1] + HEIGHT // 2
        points = [
            (centre(source), bottom),
            (centre(source), level),
            (centre(target), level),
            (centre(target), bottom + 2),
        ]
        parts.append(arrow(points, text, ((centre(source) + centre(target)) // 2, level + 14)))
    key = [("own", "of this architecture"), ("encode", "encoder"), ("decode", "decoder"), ("frozen", "backbone")]
    for number, (kind, text) in enumerate(key):
        x = 14 + 150 * number
        parts.append(
            f'<rect x="{x}" y="10" width="14" height="14" rx="3" fill="{FILL[kind]}" stroke="{STROKE[kind]}"/>'
        )
        parts.append(f'<text x="{x + 20}" y="21" font-size="11" fill="#546e7a">{text}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, DejaVu Sans, sans-serif" font-size="12" fill="#1d2129">\n'
        f"<title>{escape(figure.title)}</title>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#455a64"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    for name, figure in FIGURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw(figure), encoding="utf-8")

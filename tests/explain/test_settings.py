"""Drawings keep their text as text, and leave the settings of Matplotlib alone."""

import io

import matplotlib
from matplotlib.figure import Figure

from hf_captioners.explain.drawing import Drawing


def saved(figure):
    """The SVG file of a figure with one word."""
    figure.text(0.5, 0.5, "giraffe")
    stream = io.StringIO()
    figure.savefig(stream, format="svg")
    return stream.getvalue()


def test_text_stays_text_in_drawings_alone():
    assert ">giraffe</text>" in saved(Drawing())
    assert ">giraffe</text>" not in saved(Figure()), "figures of the user keep Matplotlib's default"
    assert matplotlib.rcParams["svg.fonttype"] == matplotlib.rcParamsDefault["svg.fonttype"]

"""The caption above the figures of explanations."""

import pytest

from hf_captioners.explain.drawing import headed_figure


@pytest.mark.parametrize("caption", ["", "a dog", "a woman with a wide hat wades " * 6, "walking" * 30])
def test_a_caption_fits_the_width(caption):
    figure, head = headed_figure(caption, 6.5, 3.0)
    figure.savefig("/dev/null", format="png")  # what places texts
    (text,) = figure.texts
    box = text.get_window_extent()
    assert box.x1 <= 6.5 * figure.dpi
    assert box.y0 >= 3.0 * figure.dpi, "below the caption"
    assert figure.get_size_inches().tolist() == [6.5, pytest.approx(head + 3.0)]

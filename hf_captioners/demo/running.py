"""The demonstration from its first drawing to its page."""

import time
from pathlib import Path

import transformers

from .experiment import QUICK, Scale, fine_tune, judge, prepare, say
from .page import write_page


def run_demo(folder: Path, seed: int = 0, quick: bool = False) -> list[tuple[str, bool]]:
    """Pretrain, fine-tune, evaluate, and write the page `index.html`.

    Args:
        folder: for the page and the models; it exists.
        seed: base seed of images, weights and order.
        quick: a minute instead of five; the result proves nothing.

    Returns:
        What the demonstration claims, and whether it holds.
    """
    transformers.logging.set_verbosity_error()
    started, scale = time.time(), QUICK if quick else Scale()
    parts = prepare(scale, seed)
    runs = [
        fine_tune(parts, scale, pretrained, 10 * seed + which, folder)
        for pretrained in (True, False)
        for which in range(scale.runs)
    ]
    page = write_page(folder / "index.html", parts, runs, scale, time.time() - started)
    say(f"Wrote {page} after {time.time() - started:.0f} s.")
    return judge(runs)

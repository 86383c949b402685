"""The demonstration: pretraining, fine-tuning, evaluation and the page."""

import time
from pathlib import Path

import transformers

from .claims import check_claims
from .experiment import QUICK, Scale, fine_tune, prepare, say
from .page import write_page


def run_demo(folder: Path, seed: int = 0, quick: bool = False) -> list[tuple[str, bool]]:
    """Pretrain, fine-tune, evaluate, and write the page `index.html`.

    Args:
        folder: existing folder for the page and the models.
        seed: base seed of images, weights and order.
        quick: about a minute instead of five, too short for a meaningful result.

    Returns:
        The claims of the demonstration, and whether each holds.
    """
    transformers.logging.set_verbosity_error()
    started, scale = time.time(), QUICK if quick else Scale()
    parts = prepare(scale, seed)
    runs = [
        fine_tune(parts, scale, pretrained, 10 * seed + which, folder)
        for pretrained in (True, False)
        for which in range(scale.runs)
    ]
    claims = check_claims(runs, parts.unseen["scene"])
    page = write_page(folder / "index.html", parts, runs, claims, scale, time.time() - started)
    say(f"Wrote {page} after {time.time() - started:.0f} s.")
    return claims

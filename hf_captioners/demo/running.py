"""The demonstration: pretraining, fine-tuning, evaluation and the page."""

import multiprocessing
import os
import pickle
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import transformers

from .claims import check_claims
from .experiment import QUICK, Parts, Run, Scale, fine_tune, prepare, say
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
    plan = [(pretrained, 10 * seed + which) for pretrained in (True, False) for which in range(scale.runs)]
    runs = fine_tune_all(parts, scale, plan, folder, processes=1 if quick else min(2, os.cpu_count() or 1))
    claims = check_claims(runs, parts.unseen["scene"])
    page = write_page(folder / "index.html", parts, runs, claims, scale, time.time() - started)
    say(f"Wrote {page} after {time.time() - started:.0f} s.")
    return claims


def fine_tune_all(parts: Parts, scale: Scale, plan: list[tuple[bool, int]], folder: Path, processes: int) -> list[Run]:
    """Fine-tune captioners, several at a time: models as small as these hardly gain from a second thread.

    Args:
        parts: what all of them share.
        scale: sizes of data sets and lengths of training.
        plan: of each one, whether it starts from the language model, and its seed.
        folder: of the models.
        processes: fine-tunings at a time; 1: in this process.
    """
    if processes == 1:
        return [fine_tune(parts, scale, pretrained, seed, folder) for pretrained, seed in plan]
    stored = pickle.dumps(parts)  # by value: tensors in shared memory would end with their process
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, partial(_start_process, stored)) as pool:
        return [pickle.loads(run) for run in pool.map(partial(_fine_tune_stored, scale=scale, folder=folder), plan)]


_parts: Parts | None = None  # of a process that fine-tunes


def _start_process(stored: bytes) -> None:
    """Prepare a process: one thread, and the parts."""
    global _parts
    import torch

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    _parts = pickle.loads(stored)


def _fine_tune_stored(start: tuple[bool, int], scale: Scale, folder: Path) -> bytes:
    assert _parts is not None
    return pickle.dumps(fine_tune(_parts, scale, *start, folder))

"""Run of the demonstration: pretraining, fine-tuning, evaluation, page."""

import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import transformers

from .claims import check_claims
from .experiment import QUICK, Job, RunJobs, Scale, fine_tune, prepare, say
from .page import write_page


def run_demo(folder: Path, seed: int = 0, quick: bool = False) -> list[tuple[str, bool]]:
    """Pretrain, fine-tune and evaluate, then write the page `index.html`.

    Args:
        folder: existing folder for the page and the models.
        seed: base seed of images, weights and order.
        quick: about a minute instead of five, too short for a meaningful result.

    Returns:
        The claims of the demonstration, and whether each holds.
    """
    transformers.logging.set_verbosity_error()
    started, scale = time.time(), QUICK if quick else Scale()
    plan = [(pretrained, 10 * seed + which) for pretrained in (True, False) for which in range(scale.runs)]
    with jobs_in(1 if quick else min(2, os.cpu_count() or 1)) as run_jobs:
        parts = prepare(scale, seed, run_jobs)
        runs = run_jobs([partial(fine_tune, parts, scale, *start, folder) for start in plan])
    claims = check_claims(runs, parts.unseen["scene"])
    page = write_page(folder / "index.html", parts, runs, claims, scale, time.time() - started)
    say(f"Wrote {page} after {time.time() - started:.0f} s.")
    return claims


@contextmanager
def jobs_in(processes: int) -> Iterator[RunJobs]:
    """Context that yields a function which runs jobs in parallel processes of one thread each.

    Args:
        processes: jobs at a time; 1: in this process, with its threads.
    """
    if processes == 1:
        yield lambda jobs: [job() for job in jobs]
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_process) as pool:
        # By value: tensors in shared memory would end with their process.
        yield lambda jobs: [pickle.loads(result) for result in pool.map(_run_by_value, [*map(pickle.dumps, jobs)])]


def _start_process() -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


def _end_with_parent() -> None:
    """End this worker process when its parent is gone, which a killed parent cannot do."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_by_value(stored: bytes) -> bytes:
    job: Job = pickle.loads(stored)
    return pickle.dumps(job())

"""Preparation of the next batches in other processes while the model works, in order and with bounded memory."""

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

WAITING_BATCHES = 2  # batches that a process prepares before the model asks for them
MOST_WORKERS = 8
SECONDS_BETWEEN_LOOKS = 0.2


def workers_for(batches: int, workers: int | None = None) -> int:
    """Return the number of processes that prepare images.

    Args:
        batches: number of batches of the job.
        workers: the number that was asked for. None: one for each processor but one, from 1 to 8, and none for a
            single batch.

    Raises:
        ValueError: it is negative.
    """
    if workers is None:
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(max(processors - 1, 1), MOST_WORKERS, batches - 1)
    if workers < 0:
        raise ValueError(f"`workers` is {workers}, expected 0 (no other process) or more.")
    return min(workers, batches)


def read_ahead(prepare: Callable[[Any], Any], batches: Sequence[Any], workers: int = 0) -> Iterator[Any]:
    """Yield `prepare(batch)` for each batch, in order.

    Args:
        prepare: called in other processes; it and its results can be pickled.
        batches: the arguments.
        workers: number of processes, each of which prepares at most `WAITING_BATCHES` batches ahead. 0: this process
            prepares a batch when it is asked for.
    """
    if not workers:
        yield from map(prepare, batches)
        return
    loader = DataLoader(
        _Pickled(prepare, batches),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=WAITING_BATCHES,
        worker_init_fn=_end_with_parent,
    )
    for content in loader:
        yield pickle.loads(content)


class _Pickled(Dataset[bytes]):
    """Prepared batches as bytes: tensors would travel in shared memory, of which a container may have 64 MB."""

    def __init__(self, prepare: Callable[[Any], Any], batches: Sequence[Any]) -> None:
        self.prepare, self.batches = prepare, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> bytes:
        return pickle.dumps(self.prepare(self.batches[index]), protocol=pickle.HIGHEST_PROTOCOL)


def _end_with_parent(_worker: int) -> None:
    """End this process when its parent is killed: it holds the parent's locks of output files until it ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

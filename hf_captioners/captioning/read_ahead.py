"""Preparation of the next batches in other processes while the model works, in order and with bounded memory."""

import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any

WAITING_BATCHES = 2  # batches that a process prepares before the model asks for them
MAX_WORKERS = 8
SECONDS_BETWEEN_LOOKS = 0.2
_prepare: Callable[[Any], Any]  # of a process that prepares batches


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
        return min(max(processors - 1, 1), MAX_WORKERS, batches - 1)
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

    Raises:
        ChildProcessError: a process was killed, for example because memory is short.
    """
    if not workers:
        yield from map(prepare, batches)
        return
    pool = ProcessPoolExecutor(workers, initializer=_begin_worker, initargs=(prepare,))
    left = iter(batches)
    try:
        waiting: deque[Future[bytes]] = deque()
        waiting.extend(pool.submit(_prepared, batch) for batch in islice(left, workers * WAITING_BATCHES))
        while waiting:
            content = waiting.popleft().result()
            waiting.extend(pool.submit(_prepared, batch) for batch in islice(left, 1))
            yield pickle.loads(content)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A process that prepares images was killed, often because the memory is exhausted. Pass fewer `workers` "
            "or a smaller `batch_size`; a job with an output is continued by `resume`, and what is written is kept."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(prepare: Callable[[Any], Any]) -> None:
    """Set up a process that prepares batches."""
    global _prepare
    _prepare = prepare
    for name in ("SIGINT", "SIGHUP"):  # of the whole group of a terminal; the parent ends this process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # threads of the parent are not here, and one processor is
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is killed: it holds the parent's locks of output files until it ends.

    The parent is the process that forked this one, which may be a server of `multiprocessing`, and ends with its own.
    """
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _prepared(batch: Any) -> bytes:
    """Return a prepared batch as bytes: tensors would travel in shared memory, of which a container may have 64 MB."""
    return pickle.dumps(_prepare(batch), protocol=pickle.HIGHEST_PROTOCOL)

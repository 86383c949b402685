"""Image preparation in other processes while the model works, in order and with bounded memory."""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

WAITING_BATCHES = 2  # batches that a process prepares before the model asks for them
MAX_WORKERS = 8
SECONDS_BETWEEN_LOOKS = 0.2


def workers_for(batches: int, workers: int | None = None) -> int:
    """Return the number of processes for image preparation.

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
    remaining = iter(batches)
    processes: list[_Worker] = []
    waiting: deque[_Worker] = deque()  # in the order of the batches that they prepare
    try:
        processes += (_Worker(prepare) for _ in range(workers))
        for worker, batch in zip(processes * WAITING_BATCHES, remaining, strict=False):
            worker.submit(batch)
            waiting.append(worker)
        while waiting:
            worker = waiting.popleft()
            prepared = worker.result()
            for batch in islice(remaining, 1):
                worker.submit(batch)
                waiting.append(worker)
            yield prepared
    finally:
        for worker in processes:
            worker.end()


class _Worker:
    """Process that prepares batches in the order of submission.

    It alone holds the end of the pipe that it writes results to, so that reading ends when it is killed, even in the
    middle of a result; the pool of `concurrent.futures` waits forever then.
    """

    def __init__(self, prepare: Callable[[Any], Any]) -> None:
        batches, self._batches = Pipe(duplex=False)
        self._results, results = Pipe(duplex=False)
        self._process = Process(target=_work, args=(prepare, batches, results), daemon=True)
        self._process.start()
        batches.close()
        results.close()

    def submit(self, batch: Any) -> None:
        """Send a batch to the process."""
        with suppress(BrokenPipeError):  # it was killed, which its next result tells
            self._batches.send(batch)

    def result(self) -> Any:
        """Wait for the next prepared batch.

        Raises:
            ChildProcessError: the process was killed.
            Exception: what the preparation raised.
        """
        try:
            content = self._results.recv_bytes()
        except (EOFError, OSError) as error:
            raise ChildProcessError(
                "A process that prepares images was killed, often because the memory is exhausted. Pass fewer "
                "`workers` or a smaller `batch_size`; a job with an output is continued by `resume`, and what is "
                "written is kept."
            ) from error
        prepared, error_of_preparation = pickle.loads(content)
        if error_of_preparation is not None:
            raise error_of_preparation
        return prepared

    def end(self) -> None:
        """Kill the process; its results are not needed any more."""
        self._process.kill()
        self._process.join()
        self._batches.close()
        self._results.close()


def _work(prepare: Callable[[Any], Any], batches: Connection, results: Connection) -> None:
    """Main function of the process that prepares batches, see `_Worker`."""
    for name in ("SIGINT", "SIGHUP"):  # of the whole group of a terminal; the parent ends this process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # threads of the parent are not here, and one processor is
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    submitted: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(batches, submitted), daemon=True).start()
    while True:
        batch = submitted.get()
        try:
            # As bytes: tensors would travel in shared memory, of which a container may have 64 MB.
            outcome = pickle.dumps((prepare(batch), None), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            outcome = pickle.dumps((None, _portable(error)))
        results.send_bytes(outcome)


def _portable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with this process's traceback as a note."""
    note = f"In the process that prepares images:\n{traceback.format_exc()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickling calls code of its class
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error


def _receive(batches: Connection, submitted: "SimpleQueue[Any]") -> None:
    """Move submitted batches from the pipe to a queue at once; a full pipe would block the parent process."""
    with suppress(EOFError):
        while True:
            submitted.put(batches.recv())


def _end_with(parent: int) -> None:
    """Exit when the parent process dies: this process would keep its locks of output files.

    The parent is the process that forked this one, which may be a server of `multiprocessing`, and ends with its own.
    """
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)

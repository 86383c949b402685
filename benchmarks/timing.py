"""CPU time of a function, for the benchmarks in this folder."""

import statistics
import time
from collections.abc import Callable
from typing import Any


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def median_cpu_seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the median CPU seconds of `repeats` calls, after a warm-up call."""
    work()
    return statistics.median(cpu_seconds(work) for _ in range(repeats))

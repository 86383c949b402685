"""Memory settings of the command line: freed memory is kept for later allocations.

glibc maps large buffers anew for every operation and unmaps them afterwards, so the kernel clears the same pages again
and again: with batches of images this takes as much time as the model itself. `HF_CAPTIONERS_KEEP_MEMORY=0` keeps
glibc's own settings. Importing the library changes nothing: see docs/speed.md for one's own scripts.
"""

import ctypes
import os
import platform

VARIABLE = "HF_CAPTIONERS_KEEP_MEMORY"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_KEPT = 2**30  # bytes of a buffer; larger ones are mapped and unmapped
FREE_KEPT = 2**31 - 1  # bytes of free memory at the end of the heap; the largest value that `mallopt` takes


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for later allocations; return whether it does.

    Settings of the environment (`MALLOC_...`, `GLIBC_TUNABLES`) are left as they are. Other C libraries have no such
    settings, or need none.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or os.environ.get(VARIABLE) == "0" or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and library.mallopt(M_TRIM_THRESHOLD, FREE_KEPT))

"""The command line keeps freed memory; importing the library does not."""

import os
import platform
import subprocess
import sys

import pytest

from hf_captioners.cli.memory import VARIABLE

CHILD = """
import ctypes, resource, sys
import hf_captioners
from hf_captioners.cli import main
if sys.argv[1] == "command":
    try:
        main(["--version"])
    except SystemExit:
        pass
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for repeat in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffer = library.malloc(2**27)
    library.memset(buffer, 1, 2**27)
    library.free(buffer)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
@pytest.mark.parametrize(
    "what, settings, kept",
    [
        ("command", {}, True),
        ("import", {}, False),
        ("command", {VARIABLE: "0"}, False),
        ("command", {"MALLOC_ARENA_MAX": "2"}, False),
    ],
)
def test_freed_memory(what, settings, kept):
    """The last of eight equal buffers needs new pages, or none."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", CHILD, what]
    child = subprocess.run(command, check=True, capture_output=True, text=True, env=environment | settings)
    faults = int(child.stdout.splitlines()[-1])
    assert (faults < 10) == kept, faults

"""Silence third-party logging and progress bars, unless `--verbose` is set."""

import os
import warnings

# Read by the libraries when they are imported: reports of loaded weights, bars over shards and weights.
QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
WARNINGS = (".*pin_memory.*", ".*max_length.*", ".*lr_scheduler.step.*")


def silence_libraries() -> None:
    """Silence libraries by environment variables, unless the user has set them, and filter known warnings."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)

"""`hf-captioners env`: versions and devices, for bug reports."""

import argparse
import os
import platform
from importlib.metadata import PackageNotFoundError, version

NAME = "env"
HELP = "print versions and devices, for bug reports"
PACKAGES = (
    "hf-captioners",
    "torch",
    "torchvision",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "datasets",
    "accelerate",
    "evaluate",
    "timm",
    "numpy",
    "pillow",
    "peft",
    "pycocoevalcap",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print one line per package or device."""
    print(f"python: {platform.python_version()} ({platform.platform()})")
    for package in PACKAGES:
        print(f"{package}: {package_version(package)}")
    print(f"cpu cores: {os.cpu_count()}")
    print(f"accelerators: {accelerators()}")
    return 0


def package_version(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def accelerators() -> str:
    """Return the names of the accelerators that torch finds."""
    import torch

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    if torch.backends.mps.is_available():
        return "Apple MPS"
    return "none"

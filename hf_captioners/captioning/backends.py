"""Choice of the library that computes captions: torch, or onnxruntime, which starts in a tenth of the time."""

import ctypes
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_captioners.default_model import default_model, is_default
from hf_captioners.names import did_you_mean
from hf_captioners.onnx.onnx_facts import FACTS_FILE, OPTIONS, GenerationOptions

TORCH, ONNX = "torch", "onnx"
BACKENDS = (TORCH, ONNX)
NOT_DECODING = {"prompt"}  # options of a call beside those of decoding
CUDA_DRIVERS = ("libcuda.so.1", "nvcuda.dll")
AMD_DRIVER = Path("/dev/kfd")


def choose_backend(
    model: str | Sequence[str] | None,
    options: Mapping[str, Any],
    device: str | None = None,
    dtype: str = "auto",
    needs_torch: bool = False,
) -> str:
    """Return the default backend for a captioner and options: onnxruntime if it supports all of them, else torch.

    Args:
        model: name or directory of a captioner, or several ones. None: the one that an installed package offers.
        options: arguments of a call of the pipeline, which are not checked yet.
        device: the device that was asked for.
        dtype: the number format that was asked for.
        needs_torch: whether something else is asked for that only torch does.

    Returns:
        `"onnx"` if the captioner has graphs, onnxruntime is installed, a CPU is to compute in float32, and there is no
        GPU of NVIDIA or AMD, or the CPU is asked for; `"torch"` otherwise. A folder that has only graphs has no other
        library than `"onnx"`.
    """
    folder = graphs_folder(model)
    if folder is None:
        return TORCH
    if not (folder / "config.json").is_file():
        return ONNX
    installed = all(find_spec(name) is not None for name in ("onnxruntime", "tokenizers"))
    supported = device in (None, "cpu") and dtype in ("auto", "float32") and not needs_torch
    if not (installed and supported and decodes(folder, options)):
        return TORCH
    return ONNX if device == "cpu" or not has_gpu() else TORCH


def graphs_folder(model: str | Sequence[str] | None) -> Path | None:
    """Return the folder of a captioner with exported ONNX graphs; None without graphs, or for several captioners."""
    sources = [model] if model is None or isinstance(model, str) else list(model)
    if len(sources) != 1:
        return None
    folder = Path(str(sources[0]))
    if is_default(sources[0]):
        try:
            folder = default_model().folder
        except (FileNotFoundError, ValueError):  # loading it says why
            return None
    return folder if (folder / FACTS_FILE).is_file() else None


def decodes(folder: Path, options: Mapping[str, Any]) -> bool:
    """Return whether an exported captioner accepts all options of a call; False if its files are damaged."""
    decoding = {name: value for name, value in options.items() if name not in NOT_DECODING}
    with suppress(ValueError, KeyError, TypeError, OSError):
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        GenerationOptions(**{**facts["generation"], **decoding})
        return True
    return False


def check_exported_options(options: Mapping[str, Any]) -> None:
    """Check the names and values of the decoding options for an exported captioner.

    Raises:
        ValueError: a name is unknown (the message has the nearest one), or a value is wrong.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(
                f"`generate` has {name!r}, which is no option of an exported captioner.{did_you_mean(name, OPTIONS)} "
                "Leave it out, or pass `backend=torch`."
            )
        OPTIONS[name].check(name, value)


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA or AMD GPU, without importing torch."""
    for name in CUDA_DRIVERS:
        with suppress(OSError, AttributeError):
            driver, count = ctypes.CDLL(name), ctypes.c_int(0)
            if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0:
                return True
    return AMD_DRIVER.exists()

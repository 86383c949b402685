"""A device that tensors only pretend to be on, so that waiting for a GPU is counted where there is none.

Every tensor is computed on the CPU with its real values, and those "on the device" answer `.device` with `cuda:0`.
What a program would do differently on a GPU it does here too. A function that needs values of such a tensor in
Python, or whose result's shape depends on them, makes the processor wait; such calls are counted with their line.
"""

import collections
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda:0")
ROOT = Path(__file__).parents[2]
MARK = "_pretends"
VALUES = {  # functions that read values of a tensor
    *(getattr(Tensor, name) for name in ("item", "tolist", "numpy", "equal", "nonzero", "masked_select", "unique")),
    *(getattr(Tensor, f"__{name}__") for name in ("bool", "int", "float", "index", "contains", "format")),
    *(getattr(torch, name) for name in ("equal", "nonzero", "masked_select", "unique", "argwhere", "allclose")),
    *(torch.unique_consecutive, torch.bincount, Tensor.unique_consecutive, Tensor.bincount, Tensor.argwhere),
}
REPEATS = {torch.repeat_interleave, Tensor.repeat_interleave}
FROM_HOST = {torch.tensor, torch.as_tensor, torch.from_numpy}
PLACES = {Tensor.device.__get__: DEVICE, Tensor.is_cuda.__get__: True, Tensor.is_cpu.__get__: False}  # type: ignore[attr-defined]


def is_there(value: Any) -> bool:
    """Return whether a tensor pretends to be on the device."""
    return isinstance(value, Tensor) and value.__dict__.get(MARK, False)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def put(value: Any) -> Any:
    """Let all tensors of a model or of nested values pretend to be on the device; return the value."""
    if isinstance(value, torch.nn.Module):
        parts: Any = [*value.parameters(), *value.buffers()]
    else:
        parts = value
    for tensor in tensors_in(parts):
        setattr(tensor, MARK, True)
    return value


class PretendedDevice(TorchFunctionMode):
    """Counts waits and copies from the host inside.

    Attributes:
        waits, copies: number of calls by the line of this project, or of a library, that makes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: collections.Counter[str] = collections.Counter()
        self.copies: collections.Counter[str] = collections.Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in PLACES and is_there(args[0]):
            return PLACES[func]
        here = [tensor for tensor in tensors_in((args, kwargs)) if is_there(tensor)]
        target, args, kwargs = self._target(func, args, kwargs)
        if here and target != "host" and func not in VALUES:
            self._require_one_device(func, args, kwargs)
        if here and self._reads_values(func, args, kwargs):
            self.waits[line_of_caller(func)] += 1
        result = func(*args, **kwargs)
        if target == "host":
            self.waits[line_of_caller(func)] += bool(here)
            return result.detach().clone() if is_there(result) else result
        if target == "device" and not here and (func in FROM_HOST or next(tensors_in(args), None) is not None):
            self.copies[line_of_caller(func)] += 1
        if here or target == "device":
            put(result)
        return result

    @staticmethod
    def _target(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[str | None, Any, dict[str, Any]]:
        """Return where the result is asked to be ("host", "device" or None), and the arguments without that."""
        if func is Tensor.cpu:
            return "host", args, kwargs
        if func is Tensor.cuda:
            raise AssertionError("`.cuda()` names a device; pass the one of another tensor.")
        asked = kwargs.get("device")
        if asked is None and func is Tensor.to:
            asked = next((one for one in args[1:] if isinstance(one, (str, torch.device, Tensor))), None)
        if isinstance(asked, Tensor):
            asked = DEVICE if is_there(asked) else torch.device("cpu")
        if asked is None:
            return None, args, kwargs
        asked = torch.device(asked)
        if asked.type != "cuda":
            return "host", args, kwargs
        cpu = torch.device("cpu")
        if "device" in kwargs:
            return "device", args, kwargs | {"device": cpu}
        moved = tuple(cpu if isinstance(one, (str, torch.device)) else one for one in args[1:])
        return "device", (args[0], *moved), kwargs

    @staticmethod
    def _reads_values(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        if func in VALUES or func is torch.where and len(args) + len(kwargs) == 1:
            return True
        if func in REPEATS:
            counts = args[1] if len(args) > 1 else kwargs.get("repeats")
            return is_there(counts) and kwargs.get("output_size") is None
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            indices = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
            masks = any(isinstance(one, Tensor) and one.dtype is torch.bool and one.ndim for one in indices)
            one_value = func is Tensor.__setitem__ and (not isinstance(args[2], Tensor) or args[2].numel() == 1)
            scalars = any(is_there(one) and one.ndim == 0 and one.dtype is not torch.bool for one in indices)
            return masks and not one_value or scalars
        return False

    @staticmethod
    def _require_one_device(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Raise an error if tensors of both devices are mixed; numbers and indices may come from the host."""
        if func in (Tensor.__getitem__, Tensor.to, Tensor.copy_) or func in REPEATS:
            return
        others = [one for one in tensors_in((args, kwargs)) if not is_there(one) and one.ndim]
        assert not others, f"{func} reads tensors of two devices: {[tuple(one.shape) for one in others]}"


def line_of_caller(func: Any) -> str:
    """Return the function and the line of the code that calls it."""
    frames = traceback.extract_stack()[:-2]
    frame = next(frame for frame in reversed(frames) if "/torch/" not in frame.filename and __file__ != frame.filename)
    name = frame.filename.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
    return f"{name}:{frame.lineno} {getattr(func, '__name__', func)}"


@contextmanager
def pretended_device() -> Iterator[PretendedDevice]:
    """Count waits and copies inside."""
    with PretendedDevice() as device:
        yield device

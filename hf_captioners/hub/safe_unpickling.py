"""Unpickling of untrusted files without running code in them.

A pickle is a program: it names functions and calls them. This unpickler accepts only the exact (module, name) pairs of
the lists below, and resolves them to inert records instead of the real objects. Objects of other programs (network
modules, storages, numpy scalars) become records of their constructor arguments and attributes.
"""

import os
import pickle
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from .pickle_limits import MAX_DEPTH, MAX_STEPS, check_pickle


class UnsafePickleError(ValueError):
    """Error of a pickle that names an object outside the list of harmless ones."""


class _Fixed(type):
    """Metaclass of classes that a pickle cannot modify."""

    def __setattr__(cls, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{cls.__name__} cannot be changed")


class Record(metaclass=_Fixed):
    """Inert replacement of a pickled object: class name, constructor arguments and attributes.

    Attributes:
        source: `module.name` of the class.
        arguments: positional arguments of the constructor.
        state: stored attributes, usually a dictionary; None if there are none.
    """

    source = "object"
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **named: Any) -> "Record":
        """Store the arguments."""
        record = super().__new__(cls)
        record.arguments, record.state = arguments, None
        return record

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Do nothing; `__new__` stores the arguments."""

    def __setstate__(self, state: Any) -> None:
        """Store the attributes instead of setting them."""
        self.state = state

    def __hash__(self) -> int:
        """Hash by identity, so that a record can be a dictionary key."""
        return id(self)

    def __repr__(self) -> str:
        """Return the name of the original class."""
        return f"<{self.source}>"


class PlainDict(dict, metaclass=_Fixed):
    """Dictionary that replaces all dictionary classes in a pickle; further attributes are dropped."""

    def __init__(self, *arguments: Any) -> None:
        """Take items as a mapping or pairs; drop a default factory."""
        super().__init__(*(argument for argument in arguments if isinstance(argument, (dict, list, tuple))))

    def __setstate__(self, state: Any) -> None:
        """Ignore attributes."""


class _Function:
    """Wrapper of a function that a pickle may call but cannot modify."""

    __slots__ = ("_run",)
    _run: Any

    def __init__(self, run: Any) -> None:
        object.__setattr__(self, "_run", run)

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("cannot be changed")


def _reconstruct(cls: Any, base: Any, state: Any) -> Any:
    """Create an inert object as pickle protocols 0 and 1 do (`copyreg._reconstructor`)."""
    if not (isinstance(cls, type) and issubclass(cls, (Record, PlainDict))):
        raise UnsafePickleError(f"it creates an object of {reprlib.repr(cls)}")
    return cls()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Encode text to bytes as pickle protocol 2 stores them (`_codecs.encode`)."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise UnsafePickleError(f"it encodes {reprlib.repr(text):.40} as {reprlib.repr(encoding):.20}")
    return text.encode("latin1")


# Functions that pickles call, and their safe replacements.
FUNCTIONS = {
    ("copyreg", "_reconstructor"): _reconstruct,
    ("copy_reg", "_reconstructor"): _reconstruct,
    ("_codecs", "encode"): _encode,
}
DICTIONARIES = {
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("collections", "Counter"),
    ("builtins", "dict"),
    ("__builtin__", "dict"),
}
_TORCH_LAYERS = {
    "activation": "ReLU LeakyReLU Sigmoid Tanh Softmax LogSoftmax GELU CELU ELU GLU",
    "adaptive": "AdaptiveAvgPool2d",
    "batchnorm": "BatchNorm1d BatchNorm2d",
    "container": "Sequential ModuleList ModuleDict",
    "conv": "Conv1d Conv2d",
    "dropout": "Dropout Dropout2d",
    "linear": "Linear Identity",
    "loss": "CrossEntropyLoss NLLLoss",
    "normalization": "LayerNorm",
    "pooling": "AdaptiveAvgPool2d AvgPool2d MaxPool2d",
    "rnn": "LSTMCell LSTM GRUCell GRU",
    "sparse": "Embedding",
}
RECORDS = {
    *(
        (module, name)
        for module in ("builtins", "__builtin__")
        for name in ["object", "set", "frozenset", "list", "int", "float"]
    ),
    ("argparse", "Namespace"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *((f"torch.nn.modules.{file}", name) for file, names in _TORCH_LAYERS.items() for name in names.split()),
    ("torch.optim.adam", "Adam"),
    ("torch.optim.adamw", "AdamW"),
    ("torch.optim.sgd", "SGD"),
    ("torch.optim.rmsprop", "RMSprop"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._C", "_cudnn_rnn_flatten_weight"),
    ("torchvision.models.resnet", "Bottleneck"),
    ("torchvision.models.resnet", "BasicBlock"),
}


def record_of(module: str, name: str) -> type[Record]:
    """Create a subclass of `Record` with the name of the original class."""
    return _Fixed(name, (Record,), {"source": f"{module}.{name}"})  # type: ignore[return-value]


class SafeUnpickler(pickle.Unpickler):
    """Unpickler that resolves every name to an inert object.

    Args:
        file: the pickle.
        place: its location, for error messages.
        records: additional (module, name) pairs whose objects become records, e.g. classes of a program.
        functions: additional pairs with safe replacements.
        max_steps: the most instructions of a pickle; a checkpoint has some thousands.
    """

    def __init__(
        self,
        file: BinaryIO,
        place: str,
        records: frozenset[tuple[str, str]] = frozenset(),
        functions: Mapping[tuple[str, str], Any] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        super().__init__(file, encoding="latin1")  # as numpy requires for pickles of Python 2
        self.place, self.records, self.functions = place, RECORDS | records, FUNCTIONS | dict(functions or {})
        self.classes: dict[tuple[str, str], type[Record]] = {}
        self.file, self.max_steps = file, max_steps

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the inert counterpart of a class or function name.

        Raises:
            UnsafePickleError: the name is not on the list.
        """
        pair = (module, name)
        if pair in self.functions:
            return _Function(self.functions[pair])
        if pair in DICTIONARIES:
            return PlainDict
        if pair in self.records:
            return self.classes.setdefault(pair, record_of(module, name))
        raise UnsafePickleError(
            f"{self.place} names `{module}.{name}`, which is not on the list of names that a checkpoint may contain. "
            "No code was run. If you trust the source, load the file with the program that wrote it and save its "
            "`state_dict()`."
        )

    def read(self) -> Any:
        """Read the pickled object.

        Raises:
            UnsafePickleError: a name is not on the list.
            ValueError: the pickle is incomplete or invalid, or takes too much memory or time.
        """
        try:
            start = self.file.tell()
            check_pickle(self.file, self.max_steps)
            self.file.seek(start)
            return self.load()
        except UnsafePickleError as error:
            raise error if self.place in str(error) else UnsafePickleError(f"{self.place}: {error}.") from error
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{self.place} cannot be read as a pickle: {type(error).__name__}: {error}") from error
        except (IndexError, ImportError, MemoryError, OverflowError, RecursionError) as error:
            raise ValueError(f"{self.place} cannot be read as a pickle: {type(error).__name__}") from error


def read_pickle(
    path: str | os.PathLike[str], records: frozenset[tuple[str, str]] = frozenset(), max_steps: int = MAX_STEPS
) -> Any:
    """Read a file that contains one pickle. Scalars of numpy become numbers of Python.

    Args:
        path: the file.
        records: additional (module, name) pairs whose objects become records.
        max_steps: the most instructions of the pickle.

    Returns:
        Plain values, dictionaries, lists and records.

    Raises:
        UnsafePickleError: a name is not on the list.
        ValueError: the pickle is incomplete or invalid, contains itself, or takes too much memory or time.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        value = SafeUnpickler(file, str(path), records, max_steps=max_steps).read()
    try:
        return plain_value(value)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a pickle: {error}") from error


def plain_value(value: Any) -> Any:
    """Convert numpy scalars to Python numbers, inside dictionaries, lists and tuples too.

    What occurs several times is converted once.

    Raises:
        ValueError: a list or dictionary contains itself, or is nested too deeply.
    """
    converted: dict[int, Any] = {}
    open_now: set[int] = set()

    def convert(item: Any, depth: int) -> Any:
        if not isinstance(item, (dict, list, tuple)):
            return _plain_scalar(item)
        if id(item) in converted:
            return converted[id(item)]
        if id(item) in open_now:
            raise ValueError(f"a {type(item).__name__} contains itself")
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        open_now.add(id(item))
        if isinstance(item, dict):
            made: Any = {key: convert(entry, depth + 1) for key, entry in item.items()}
        else:
            made = type(item)([convert(entry, depth + 1) for entry in item])
        open_now.remove(id(item))
        converted[id(item)] = made
        return made

    return convert(value, 0)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, Record) and value.source.endswith("multiarray.scalar") and len(value.arguments) == 2:
        kind, content = value.arguments
        code = str(kind.arguments[0]) if isinstance(kind, Record) and _has_text(kind) else ""
        if re.fullmatch(r"[<>|]?[biuf][1248]", code) and isinstance(content, (bytes, str)):
            raw = content.encode("latin1") if isinstance(content, str) else content
            return np.frombuffer(raw, np.dtype(code), count=1)[0].item()
    return value


def _has_text(kind: Record) -> bool:
    return bool(kind.arguments) and isinstance(kind.arguments[0], (str, bytes))


def program_dictionary(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary that another program wrote.

    Raises:
        ValueError: the file contains a different type.
    """
    value = read_pickle(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} contains a {type(value).__name__}, expected a dictionary.")
    return value

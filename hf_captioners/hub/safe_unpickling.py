"""Reading pickles of strangers without running anything.

A pickle is a program: it names functions and has them called. Here it may name the exact (module, name) pairs of the
lists below and nothing else, and what it gets under those names are inert records, never the real thing. Objects of
other programs (modules of networks, storages, numpy's numbers) become records of what they were made from.
"""

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np


class UnsafePickleError(ValueError):
    """A pickle names something that is not on the list."""


class _Fixed(type):
    """Classes that a pickle cannot change."""

    def __setattr__(cls, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{cls.__name__} cannot be changed")


class Record(metaclass=_Fixed):
    """What was left of an object: the name of its class, what it was made with, and its attributes.

    Attributes:
        source: `module.name` of its class.
        arguments: what its class was called with.
        state: its attributes, usually a dictionary; None if none were stored.
    """

    source = "object"
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **named: Any) -> "Record":
        """Remember the arguments and do nothing with them."""
        record = super().__new__(cls)
        record.arguments, record.state = arguments, None
        return record

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Nothing is left to do."""

    def __setstate__(self, state: Any) -> None:
        """Remember the attributes."""
        self.state = state

    def __hash__(self) -> int:
        """By identity: a record may be a key."""
        return id(self)

    def __repr__(self) -> str:
        """Its class in the other program."""
        return f"<{self.source}>"


class PlainDict(dict, metaclass=_Fixed):
    """A dictionary in place of every special one; attributes that were stored with it are dropped."""

    def __init__(self, *arguments: Any) -> None:
        """Items as a mapping or pairs; a default factory is dropped."""
        super().__init__(*(argument for argument in arguments if isinstance(argument, (dict, list, tuple))))

    def __setstate__(self, state: Any) -> None:
        """Drop attributes."""


class _Function:
    """A function that a pickle may call and cannot change."""

    __slots__ = ("_run",)
    _run: Any

    def __init__(self, run: Any) -> None:
        object.__setattr__(self, "_run", run)

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("cannot be changed")


def _reconstruct(cls: Any, base: Any, state: Any) -> Any:
    """What protocols 0 and 1 make objects with."""
    if not (isinstance(cls, type) and issubclass(cls, (Record, PlainDict))):
        raise UnsafePickleError(f"an object of {cls!r} is to be made")
    return cls()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """What protocol 2 writes bytes with."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise UnsafePickleError(f"{text!r:.40} is to be encoded as {encoding!r:.20}")
    return text.encode("latin1")


# Names that are called while a pickle is read, and what is called instead.
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
    """A class of inert records with the name of another program's class."""
    return _Fixed(name, (Record,), {"source": f"{module}.{name}"})  # type: ignore[return-value]


class SafeUnpickler(pickle.Unpickler):
    """Reads a pickle with inert things in place of everything that it names.

    Args:
        file: the pickle.
        place: where it comes from, for errors.
        records: further (module, name) pairs whose objects become records, as a program's own classes.
        functions: further pairs, and what is called instead.
    """

    def __init__(
        self,
        file: BinaryIO,
        place: str,
        records: frozenset[tuple[str, str]] = frozenset(),
        functions: Mapping[tuple[str, str], Any] | None = None,
    ) -> None:
        super().__init__(file, encoding="latin1")  # texts of Python 2, as numpy wants them
        self.place, self.records, self.functions = place, RECORDS | records, FUNCTIONS | dict(functions or {})
        self.classes: dict[tuple[str, str], type[Record]] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        """The inert counterpart of what is named.

        Raises:
            UnsafePickleError: it is not on the list.
        """
        pair = (module, name)
        if pair in self.functions:
            return _Function(self.functions[pair])
        if pair in DICTIONARIES:
            return PlainDict
        if pair in self.records:
            return self.classes.setdefault(pair, record_of(module, name))
        raise UnsafePickleError(
            f"{self.place} names `{module}.{name}`, which is not on the list of what a checkpoint may hold. Nothing "
            "of it was run. If you trust where it comes from, load it with the program that wrote it and save its "
            "`state_dict()`."
        )

    def read(self) -> Any:
        """The object.

        Raises:
            UnsafePickleError: something named is not on the list.
            ValueError: this is no whole pickle.
        """
        try:
            return self.load()
        except UnsafePickleError as error:
            raise error if self.place in str(error) else UnsafePickleError(f"{self.place}: {error}.") from error
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{self.place} cannot be read as a pickle: {type(error).__name__}: {error}") from error
        except (IndexError, ImportError, MemoryError, OverflowError, RecursionError) as error:
            raise ValueError(f"{self.place} cannot be read as a pickle: {type(error).__name__}") from error


def read_pickle(path: str | os.PathLike[str], records: frozenset[tuple[str, str]] = frozenset()) -> Any:
    """Read a file with one pickle: plain values, dictionaries, lists, records; numpy's numbers become Python's.

    Args:
        path: the file; records: further (module, name) pairs that become records.

    Raises:
        UnsafePickleError: it names what is not on the list.
        ValueError: it is no whole pickle.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return plain_value(SafeUnpickler(file, str(path), records).read())


def plain_value(value: Any) -> Any:
    """Numbers of numpy as numbers of Python, at any depth of dictionaries, lists and tuples."""
    if isinstance(value, dict):
        return {key: plain_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain_value(entry) for entry in value)
    if isinstance(value, Record) and value.source.endswith("multiarray.scalar") and len(value.arguments) == 2:
        kind, content = value.arguments
        code = str(kind.arguments[0]) if isinstance(kind, Record) and kind.arguments else ""
        if re.fullmatch(r"[<>|]?[biuf][1248]", code) and isinstance(content, (bytes, str)):
            raw = content.encode("latin1") if isinstance(content, str) else content
            return np.frombuffer(raw, np.dtype(code), count=1)[0].item()
    return value


def program_dictionary(path: Path) -> dict[str, Any]:
    """A pickled dictionary.

    Raises:
        ValueError: it holds something else.
    """
    value = read_pickle(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, expected a dictionary.")
    return value

"""Checkpoints of other programs as captioners of this library.

An architecture joins with a file `{name}.py` of this folder that has `convert(checkpoint, settings) -> Released`.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoModelForImageTextToText

from hf_captioners.architectures import ARCHITECTURES, get_architecture
from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.hub.cards import write_card

SHOWN_KEYS = 12


@dataclass(kw_only=True)
class Released:
    """What a converter made of a checkpoint.

    Attributes:
        config: of the captioner.
        weights: under our names.
        vocabulary: how its ids are laid out: `"gpt2"`, or a layout of `hf_captioners.processing.word_tokenizer`.
        unused: keys that no forward pass reads. unknown: keys that the program's own checkpoints do not have.
        may_lack: our names that its checkpoints never have, and that stay as a new captioner has them.
        processor: settings of the processor.
        generation: settings of the search.
    """

    config: Any
    weights: dict[str, Tensor]
    vocabulary: str
    unused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    may_lack: frozenset[str] = frozenset()
    processor: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)


def list_converters() -> list[str]:
    """Names of the architectures whose older checkpoints can be read."""
    return sorted(name for name in ARCHITECTURES if find_spec(f"{__package__}.{name}") is not None)


def read_released(architecture: str, checkpoint: str | os.PathLike[str], settings: Mapping[str, Any]) -> Released:
    """Read a checkpoint of another program; nothing in it is run.

    Args:
        architecture: one of `list_converters()`.
        checkpoint: the file.
        settings: what the file does not say, as `n_head`.

    Raises:
        ValueError: there is no such converter, the file is of another program or unsafe, or a setting is missing.
        OSError: it cannot be read.
    """
    name = get_architecture(architecture).name
    if name not in list_converters():
        raise ValueError(f"{name} has no older checkpoints to read; choose one of {', '.join(list_converters())}.")
    path = Path(checkpoint)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    return import_module(f"{__package__}.{name}").convert(path, dict(settings))


def build_captioner(released: Released, checkpoint: str | os.PathLike[str]) -> Any:
    """The captioner with the converted weights.

    Raises:
        ValueError: weights are unknown, missing or of another size; all of them are listed.
    """
    model = AutoModelForImageTextToText.from_config(released.config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()
    missing = sorted(set(shapes) - set(released.weights) - tied - released.may_lack)
    other = [
        f"{name} is {list(tensor.shape)}, expected {list(shapes[name])}"
        for name, tensor in released.weights.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    ]
    unknown = released.unknown + sorted(set(released.weights) - set(shapes))
    problems = {"Unknown keys": unknown, "Missing weights": missing, "Weights of other sizes": other}
    if any(problems.values()):
        told = [f"{what} ({len(keys)}): {_listed(keys)}." for what, keys in problems.items() if keys]
        raise ValueError(f"{checkpoint} does not fit a {type(model).__name__}. {' '.join(told)}")
    model.load_state_dict(released.weights, strict=False)
    model.tie_weights()
    model.generation_config.update(**released.generation)
    return model.eval()


def save_captioner(
    model: Any, processor: Any, checkpoint: str | os.PathLike[str], output: str | os.PathLike[str]
) -> None:
    """Write model, processor and card into a new directory, which appears only when it is complete.

    Args:
        model: the captioner. processor: its processor, or None.
        checkpoint: where it comes from; the card tells its name and SHA-256.
        output: the directory.

    Raises:
        FileExistsError: the directory has something in it.
    """
    target = Path(output)
    require_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        model.save_pretrained(making)
        if processor is not None:
            processor.save_pretrained(making)
        TrainingFacts(converted_from=f"{Path(checkpoint).name} (SHA-256 {sha256_of(checkpoint)})").save(making)
        write_card(making, target.resolve().name)
        making.chmod(0o755)
        if target.is_dir():
            target.rmdir()
        making.replace(target)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def require_new(target: Path) -> None:
    """See that nothing would be overwritten.

    Raises:
        FileExistsError: something is there.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{target} has something in it already. Choose another output directory.")


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else ""
    return ", ".join(keys[:SHOWN_KEYS]) + more

"""Configuration, weights and settings that a conversion reads from an authors' checkpoint."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_captioners.names import did_you_mean


@dataclass(kw_only=True)
class Released:
    """Configuration, weights and settings read from an authors' checkpoint.

    Attributes:
        config: configuration of the captioner.
        weights: weights under the names of this library.
        vocabulary: layout of the token ids: `"gpt2"`, or a layout of `hf_captioners.processing.word_tokenizer`.
        words: the words by id, where the checkpoint has them; None: they are in a file of their own.
        unused: keys of the checkpoint that no forward pass reads.
        unknown: keys that checkpoints of this program do not have.
        may_lack: weights of this library that checkpoints of this program never have; they keep their initial value.
        processor: settings of the processor.
        generation: settings of `generate()`.
    """

    config: Any
    weights: dict[str, Tensor]
    vocabulary: str
    words: dict[int, str] | None = None
    unused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    may_lack: frozenset[str] = frozenset()
    processor: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)


def require_known_settings(program: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise a `ValueError` if a setting of a conversion is unknown."""
    if unknown := sorted(set(settings) - set(known)):
        raise ValueError(
            f"{program} has no setting {', '.join(unknown)}; expected any of {', '.join(known)}."
            f"{did_you_mean(unknown[0], known)}"
        )


def require_weights(program: str, checkpoint: Path, released: Mapping[str, Tensor], needed: Iterable[str]) -> None:
    """Raise a `ValueError` if a checkpoint lacks a weight that all checkpoints of its program have."""
    if missing := [key for key in needed if key not in released]:
        raise ValueError(f"{checkpoint} has no {', '.join(f'`{key}`' for key in missing)}, so it is not of {program}.")

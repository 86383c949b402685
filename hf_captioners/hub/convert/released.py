"""The result of reading an authors' checkpoint."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


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

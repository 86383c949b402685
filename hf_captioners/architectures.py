"""The table of architectures: model types, classes, kinds of tokenizer, and papers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True)
class Architecture:
    """One captioner.

    Args:
        name: what the command line calls it.
        model_type: key of its configuration in transformers.
        prefix: class names are `{prefix}Config`, `{prefix}Model`, `{prefix}ForConditionalGeneration` and
            `{prefix}Processor`, in `modeling/configuration_{name}.py`, `modeling/modeling_{name}.py` and
            `processing/processing_{name}.py`.
        tokenizer: `"gpt2"`: the byte-level BPE of the GPT-2 that it starts from; `"words"`: a vocabulary of the words
            of its training captions.
        paper: where it comes from.
        generation: defaults of `generate()`, as the paper's evaluation has them.
    """

    name: str
    model_type: str
    prefix: str
    tokenizer: Literal["gpt2", "words"]
    paper: str
    generation: Mapping[str, Any] = field(default_factory=lambda: {"max_new_tokens": 20, "num_beams": 5})

    @property
    def tokenizer_class(self) -> str:
        """Class of transformers that the tokenizer is saved as."""
        return {"gpt2": "GPT2Tokenizer", "words": "PreTrainedTokenizerFast"}[self.tokenizer]

    def load(self, kind: str) -> Any:
        """A class of this architecture; kind is "Config", "Model", "ForConditionalGeneration" or "Processor"."""
        return getattr(import_module(self.module(kind)), self.prefix + kind)

    def module(self, kind: str) -> str:
        """The module that defines a class of this architecture."""
        folder, file = {
            "Config": ("modeling", "configuration"),
            "Processor": ("processing", "processing"),
        }.get(kind, ("modeling", "modeling"))
        return f"hf_captioners.{folder}.{file}_{self.name}"


KINDS = ("Config", "Model", "ForConditionalGeneration", "Processor")

ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            name="visualgpt",
            model_type="captioning_visualgpt",
            prefix="VisualGPT",
            tokenizer="gpt2",
            paper="Chen et al., VisualGPT: Data-efficient Adaptation of Pretrained Language Models for Image "
            "Captioning, CVPR 2022",
        ),
        Architecture(
            name="show_attend_tell",
            model_type="captioning_show_attend_tell",
            prefix="ShowAttendTell",
            tokenizer="words",
            paper="Xu et al., Show, Attend and Tell: Neural Image Caption Generation with Visual Attention, ICML 2015",
        ),
    )
}


def list_architectures() -> list[str]:
    """Names of the captioners that this library has, as the command line takes them."""
    return sorted(ARCHITECTURES)


def get_architecture(name: str) -> Architecture:
    """The table's row of a name or model type.

    Raises:
        ValueError: there is no such captioner.
    """
    for architecture in ARCHITECTURES.values():
        if name in (architecture.name, architecture.model_type):
            return architecture
    raise ValueError(f"There is no architecture {name!r}; choose one of {', '.join(list_architectures())}.")

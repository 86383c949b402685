"""Table of architectures: model types, classes, tokenizers and papers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, Literal

from .names import did_you_mean

KINDS = ("Config", "Model", "ForConditionalGeneration", "Processor")


@dataclass(frozen=True)
class Architecture:
    """An architecture: names, classes and defaults.

    Args:
        name: name on the command line.
        model_type: `model_type` of its configuration in transformers.
        prefix: prefix of its class names: `{prefix}Config`, `{prefix}Model`, `{prefix}ForConditionalGeneration` and
            `{prefix}Processor`, in `modeling/configuration_{name}.py`, `modeling/modeling_{name}.py` and
            `processing/processing_{name}.py`.
        tokenizer: `"gpt2"`: the byte-level BPE of the GPT-2 that the decoder is initialised from; `"words"`: a
            word-level vocabulary of the training captions.
        paper: citation of the paper.
        generation: defaults of `generate()`, those of the paper's evaluation.
        package: package with the files `configuration_{name}.py`, `modeling_{name}.py` and `processing_{name}.py` of
            an architecture that another package adds, see `register_architecture`; None: this library's folders.
        kinds: the classes that it has: all of `KINDS` for a captioner, the first two for an auxiliary model.
    """

    name: str
    model_type: str
    prefix: str
    tokenizer: Literal["gpt2", "words"]
    paper: str
    generation: Mapping[str, Any] = field(default_factory=lambda: {"max_new_tokens": 20, "num_beams": 5})
    package: str | None = None
    kinds: tuple[str, ...] = KINDS

    @property
    def tokenizer_class(self) -> str:
        """Name of the tokenizer class in transformers."""
        return {"gpt2": "GPT2Tokenizer", "words": "PreTrainedTokenizerFast"}[self.tokenizer]

    def load(self, kind: str) -> Any:
        """Import and return a class of this architecture.

        Args:
            kind: one of `KINDS`.
        """
        return getattr(import_module(self.module(kind)), self.prefix + kind)

    def module(self, kind: str) -> str:
        """Return the name of the module that defines a class of this architecture.

        Args:
            kind: one of `KINDS`.
        """
        folder, file = {
            "Config": ("modeling", "configuration"),
            "Processor": ("processing", "processing"),
        }.get(kind, ("modeling", "modeling"))
        return f"{self.package or f'hf_captioners.{folder}'}.{file}_{self.name}"


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
        Architecture(
            name="zodiac",
            model_type="captioning_zodiac",
            prefix="Zodiac",
            tokenizer="words",
            paper="Zohourianshahzadi and Kalita, ZoDIAC: Zoneout Dropout Injection Attention Calculation, 2022",
            generation={"max_new_tokens": 20, "num_beams": 3},
        ),
        Architecture(
            name="zodiac_aoanet",
            model_type="captioning_zodiac_aoanet",
            prefix="ZodiacAoANet",
            tokenizer="words",
            paper="Zohourianshahzadi and Kalita, ZoDIAC: Zoneout Dropout Injection Attention Calculation, 2022",
            generation={"max_new_tokens": 20, "num_beams": 2},
        ),
        Architecture(
            name="transformer",
            model_type="captioning_transformer",
            prefix="CaptioningTransformer",
            tokenizer="words",
            paper="Vaswani et al., Attention Is All You Need, NeurIPS 2017",
        ),
        Architecture(
            name="eta",
            model_type="captioning_eta",
            prefix="ETA",
            tokenizer="words",
            paper="Li et al., Entangled Transformer for Image Captioning, ICCV 2019",
            generation={"max_new_tokens": 20, "num_beams": 3},
        ),
        Architecture(
            name="aoanet",
            model_type="captioning_aoanet",
            prefix="AoANet",
            tokenizer="words",
            paper="Huang et al., Attention on Attention for Image Captioning, ICCV 2019",
        ),
        Architecture(
            name="image_transformer",
            model_type="captioning_image_transformer",
            prefix="ImageTransformer",
            tokenizer="words",
            paper="He et al., Image Captioning through Image Transformer, ACCV 2020",
            generation={"max_new_tokens": 20, "num_beams": 3},
        ),
        Architecture(
            name="m2_transformer",
            model_type="captioning_m2_transformer",
            prefix="M2Transformer",
            tokenizer="words",
            paper="Cornia et al., Meshed-Memory Transformer for Image Captioning, CVPR 2020",
        ),
        Architecture(
            name="aoa_transformer",
            model_type="captioning_aoa_transformer",
            prefix="AoATransformer",
            tokenizer="gpt2",
            paper="Chen et al., VisualGPT, CVPR 2022 (baseline); Huang et al., Attention on Attention for Image "
            "Captioning, ICCV 2019",
        ),
    )
}

# Models that are no captioners, but prepare inputs of some; by name.
AUXILIARY_MODELS = {
    "attribute_detector": Architecture(
        name="attribute_detector",
        model_type="captioning_attribute_detector",
        prefix="AttributeDetector",
        tokenizer="words",
        paper="Fang et al., From Captions to Visual Concepts and Back, CVPR 2015",
        kinds=KINDS[:2],
    ),
}


class Purpose(StrEnum):
    """Purposes for which a captioner can be supported, such as training; the values are words of messages."""

    CAPTIONING = "captioning"  # evaluation included
    TRAINING = "training"
    REWARDS = "training on rewards"
    EXPLANATION = "the explanation of captions"
    EXPORT = "the export"


# Captioners of transformers by model type, and what they are supported for: their inputs, the labels of their loss and
# the tokens that they sample differ between families, and a wrong one gives plausible numbers. Captioners of this
# library are supported for every purpose. The first three caption an image alone, the others follow an instruction.
TRANSFORMERS_CAPTIONERS: dict[str, frozenset[Purpose]] = dict.fromkeys(
    ("blip", "git", "vision-encoder-decoder")
    + ("blip-2", "florence2", "gemma3", "idefics3", "instructblip", "internvl", "kosmos-2", "llava", "llava_next")
    + ("paligemma", "pix2struct", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm"),
    frozenset((Purpose.CAPTIONING, Purpose.TRAINING, Purpose.REWARDS)),
)


def supported_captioners(purpose: Purpose) -> str:
    """Return the names of the captioners supported for a purpose, as text."""
    families = "captioners of this library (`hf-captioners train` and `convert` write them)"
    model_types = sorted(model_type for model_type, purposes in TRANSFORMERS_CAPTIONERS.items() if purpose in purposes)
    more = ", and after a check those with a chat template" if purpose is Purpose.CAPTIONING else ""
    return f"{families}, and of transformers {', '.join(model_types)}{more}" if model_types else families


def is_supported(model_type: str, purpose: Purpose) -> bool:
    """Return whether a model type is supported for a purpose."""
    is_own = any(model_type == architecture.model_type for architecture in ARCHITECTURES.values())
    return is_own or purpose in TRANSFORMERS_CAPTIONERS.get(model_type, ())


def list_architectures() -> list[str]:
    """Return the names of the architectures, as on the command line."""
    return sorted(ARCHITECTURES)


def get_architecture(name: str) -> Architecture:
    """Return an architecture by its name or model type.

    Raises:
        ValueError: no architecture has this name.
    """
    for architecture in ARCHITECTURES.values():
        if name in (architecture.name, architecture.model_type):
            return architecture
    raise ValueError(
        f"There is no architecture {name!r}; choose one of {', '.join(list_architectures())}."
        f"{did_you_mean(name, ARCHITECTURES)}"
    )

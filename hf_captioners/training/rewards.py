"""What a caption earns in self-critical training.

A reward is a function `(completions, references, **columns) -> list[float]`, as in TRL. The columns are those of the
data set, one entry a completion, and two more: `row`, the position of the image in the training set, and `ended`,
whether the caption has an end token.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from hf_captioners.metrics import (
    CiderD,
    DocumentFrequency,
    Meteor,
    PTBTokenizer,
    bleu_counts,
    bleu_from_counts,
    rouge_l,
)

END_WORD = "<end>"
"""Stands for the end token; the tokenizer of the metrics makes no such word."""
FREQUENCIES = ("per_image", "per_caption")
REWARDS = ("cider_d", "bleu_4", "meteor", "rouge_l")
LEAST_KNOWN_SHARE = 0.5
"""Share of the words of the training captions that a file of document frequencies has to know."""

Reward = Callable[..., Sequence[float]]


class TrainingReferences:
    """The captions of all training images, tokenised once as the COCO evaluation does.

    Args:
        captions: for each image its captions.
        count_end: whether n-grams go on over the end of a caption: `<end>` is appended to every reference, and to
            every completion that has an end token.

    Raises:
        ValueError: an image has no caption.
    """

    def __init__(self, captions: Sequence[Sequence[str]], count_end: bool) -> None:
        empty = [row for row, texts in enumerate(captions) if not texts]
        if empty:
            raise ValueError(
                f"{len(empty)} training images have no caption to be compared with, among them row {empty[0]}. "
                f"Leave them out: rows.filter(lambda row: len(row['captions']) > 0)."
            )
        self.count_end = count_end
        self._tokenize = PTBTokenizer()
        self.words = [self._tokenize(texts) for texts in captions]
        self.with_end = [[f"{text} {END_WORD}" for text in texts] for texts in self.words] if count_end else self.words

    def tokenize(self, completions: Sequence[str], ended: Sequence[bool] | None = None) -> list[str]:
        """Completions in words; where ends count and `ended` is given, with `<end>` where there is an end token."""
        words = self._tokenize(completions)
        if not self.count_end or ended is None:
            return words
        return [f"{text} {END_WORD}" if has_end else text for text, has_end in zip(words, ended, strict=True)]


class CiderDReward:
    """CIDEr-D of each completion against the references of its image, 0 to 10.

    Args:
        references: the training captions.
        document_frequency: a name of `FREQUENCIES`, counted in the training captions, or a file of
            `DocumentFrequency.save`.

    Raises:
        ValueError: the file was counted in other words than those of the training captions, or without end tokens
            although they count.
        FileNotFoundError: there is no such file.
    """

    def __init__(self, references: TrainingReferences, document_frequency: str) -> None:
        self.references = references
        if document_frequency == "per_image":
            frequency = DocumentFrequency.per_image(references.with_end)
        elif document_frequency == "per_caption":
            frequency = DocumentFrequency.per_caption([text for texts in references.with_end for text in texts])
        else:
            frequency = load_frequency(document_frequency, references)
        self.scorer = CiderD(references.with_end, frequency)

    def __call__(
        self, completions: Sequence[str], references: Any, row: Sequence[int], ended: Sequence[bool], **columns: Any
    ) -> list[float]:
        """Score completions; `row` says whose they are, and their references were prepared beforehand."""
        return self.scorer.score(self.references.tokenize(completions, ended), row).tolist()


class Bleu4Reward:
    """BLEU-4 of each completion, as in ImageCaptioning.pytorch."""

    def __init__(self, references: TrainingReferences) -> None:
        self.references = references

    def __call__(
        self, completions: Sequence[str], references: Any, row: Sequence[int], ended: Sequence[bool], **columns: Any
    ) -> list[float]:
        """Score completions."""
        theirs = [self.references.with_end[number] for number in row]
        return bleu_from_counts(bleu_counts(self.references.tokenize(completions, ended), theirs))[3].tolist()


class MeteorReward:
    """METEOR of each completion; end tokens are not counted.

    Raises:
        FileNotFoundError: METEOR's tables are not installed.
    """

    def __init__(self, references: TrainingReferences) -> None:
        self.references, self.meteor = references, Meteor()

    def __call__(self, completions: Sequence[str], references: Any, row: Sequence[int], **columns: Any) -> list[float]:
        """Score completions."""
        theirs = [self.references.words[number] for number in row]
        return self.meteor.score(self.references.tokenize(completions), theirs).per_image.tolist()


class RougeLReward:
    """ROUGE-L of each completion; end tokens are not counted."""

    def __init__(self, references: TrainingReferences) -> None:
        self.references = references

    def __call__(self, completions: Sequence[str], references: Any, row: Sequence[int], **columns: Any) -> list[float]:
        """Score completions."""
        theirs = [self.references.words[number] for number in row]
        return rouge_l(self.references.tokenize(completions), theirs).tolist()


def load_frequency(path: str, references: TrainingReferences) -> DocumentFrequency:
    """Document frequencies from a file, checked against the captions that they are to weigh.

    Raises:
        ValueError: see `CiderDReward`. FileNotFoundError: there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"`document_frequency` is {path!r}, which is neither a file nor one of {', '.join(FREQUENCIES)}."
        )
    frequency = DocumentFrequency.load(path)
    tokens: list[Any] = [word for texts in references.words for text in texts for word in text.split()]
    known = float(np.mean(frequency.table.find_words(tokens) >= 0)) if tokens else 0.0
    if known < LEAST_KNOWN_SHARE:
        raise ValueError(
            f"The document frequencies in {path} ({frequency.source}) know {known:.0%} of the words of the training "
            "captions: they were counted in another vocabulary (token ids, another language, or untokenised text). "
            "Count them in PTB-tokenised captions, or pass `document_frequency='per_image'`."
        )
    if references.count_end != (frequency.end_token is not None):
        raise ValueError(
            f"The document frequencies in {path} were counted {'with' if frequency.end_token else 'without'} end "
            f"tokens, and `end_token_in_reward` is {references.count_end}. Set it to {not references.count_end}, or "
            "count them again."
        )
    if references.count_end and frequency.end_token != END_WORD:
        raise ValueError(
            f"The end token of the document frequencies in {path} is {frequency.end_token!r}, expected {END_WORD!r}. "
            f"Count them with `DocumentFrequency.per_image(references, end_token={END_WORD!r})`."
        )
    frequency = copy.copy(frequency)
    frequency.end_token = None  # it is appended here, and only to captions that end
    return frequency


def named_reward(name: str, references: TrainingReferences, document_frequency: str) -> Reward:
    """The reward of a name.

    Raises:
        ValueError: there is none; or see `CiderDReward` and `MeteorReward`.
    """
    if name == "cider_d":
        return CiderDReward(references, document_frequency)
    simple: dict[str, Callable[[TrainingReferences], Reward]] = {
        "bleu_4": Bleu4Reward,
        "meteor": MeteorReward,
        "rouge_l": RougeLReward,
    }
    if name not in simple:
        raise ValueError(f"There is no reward {name!r}, expected one of {', '.join(REWARDS)} or a function.")
    return simple[name](references)


class ImageColumns(Protocol):
    """What is known of training images beside themselves."""

    def __getitem__(self, rows: list[int]) -> dict[str, list[Any]]:
        """Columns of rows."""
        ...


class RewardSum:
    """Several rewards, weighted.

    Args:
        functions: by name.
        weights: one each; None counts all once.
        captions: for each training image its captions.
        columns: further columns of the training set, without images; None if there are none.

    Raises:
        ValueError: there is no function, or the weights are not one each.
        TypeError: a function does not take what rewards are given.
    """

    def __init__(
        self,
        functions: dict[str, Reward],
        weights: Sequence[float] | None,
        captions: Sequence[Sequence[str]],
        columns: Dataset | None,
    ) -> None:
        if not functions or (weights is not None and len(weights) != len(functions)):
            raise ValueError(
                f"There are {len(functions)} reward functions and {0 if weights is None else len(weights)} "
                "`reward_weights`, expected at least one function, and one weight each or none."
            )
        for name, function in functions.items():
            if not any(part.kind is part.VAR_KEYWORD for part in inspect.signature(function).parameters.values()):
                raise TypeError(
                    f"The reward {name!r} does not take all columns; write it as "
                    "def reward(completions, references, **columns)."
                )
        self.functions, self.captions, self.columns = functions, captions, columns
        self.weights = torch.tensor([1.0] * len(functions) if weights is None else list(weights))

    def __call__(self, completions: list[str], row: list[int], ended: list[bool]) -> Tensor:
        """Every reward of every completion, unweighted.

        Args:
            completions: N captions. row: the training image of each. ended: whether each has an end token.

        Returns:
            `[N, functions]` float32.

        Raises:
            ValueError: a function returned another number of figures, or one that is no finite number.
        """
        columns = {} if self.columns is None else dict(self.columns[row])
        columns |= {"row": row, "ended": ended}
        references = [self.captions[number] for number in row]
        figures = [
            checked(name, function(completions, references, **columns), completions)
            for name, function in self.functions.items()
        ]
        return torch.stack(figures, 1)

    def total(self, figures: Tensor) -> Tensor:
        """The weighted sum `[N]` of `figures` `[N, functions]`."""
        return figures @ self.weights.to(figures.device)


def checked(name: str, figures: Sequence[float], completions: Sequence[str]) -> Tensor:
    """What a reward returned, as `[N]` float32.

    Raises:
        ValueError: there are not as many figures as completions, or one is no finite number.
    """
    if len(figures) != len(completions):
        raise ValueError(
            f"The reward {name!r} returned {len(figures)} figures for {len(completions)} completions, expected one "
            "each."
        )
    values = torch.tensor([float("nan") if figure is None else float(figure) for figure in figures])
    wrong = (~values.isfinite()).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(
            f"The reward {name!r} returned {figures[wrong[0]]} for completion {wrong[0]} "
            f"({completions[wrong[0]]!r}), expected a finite number. Return 0.0 for what cannot be judged."
        )
    return values

"""Reward functions of self-critical training.

A reward is a function `(completions, references, **columns) -> list[float]`. The columns are those of the data set,
one entry per completion, and three more: `row`, the position of the image in the training set; `ended`, whether the
caption has an end token; `words`, the completion as the PTB tokenizer splits it.
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
"""Word for the end token; the PTB tokenizer never produces it."""
FREQUENCIES = ("per_image", "per_caption")
REWARDS = ("cider_d", "bleu_4", "meteor", "rouge_l")
LEAST_KNOWN_SHARE = 0.5
"""Smallest share of the words of the training captions that a file of document frequencies must contain."""

Reward = Callable[..., Sequence[float]]


class TrainingReferences:
    """Captions of all training images, tokenised once as in the COCO evaluation.

    Args:
        captions: for each image its captions.
        count_end: whether n-grams include the end of a caption: `<end>` is appended to every reference, and to every
            completion that has an end token.
        tokenizer: a PTB tokenizer to reuse; default: a new one.

    Attributes:
        tokenizer: the PTB tokenizer; it remembers the words that it has split.
        words: the tokenised captions of each image.
        with_end: the same, with `<end>` where ends count.

    Raises:
        ValueError: an image has no caption.

    Example:

    ```python
    from hf_captioners.training.rewards import TrainingReferences

    references = TrainingReferences([["A red circle.", "One circle."], ["Two stars."]], count_end=True)
    assert references.words[0] == ["a red circle", "one circle"]
    assert references.tokenize(["Two stars.", "A"], ended=[True, False]) == ["two stars <end>", "a"]
    ```
    """

    def __init__(
        self, captions: Sequence[Sequence[str]], count_end: bool, tokenizer: PTBTokenizer | None = None
    ) -> None:
        empty = [row for row, texts in enumerate(captions) if not texts]
        if empty:
            raise ValueError(
                f"{len(empty)} training images have no caption to be compared with, among them row {empty[0]}. "
                f"Leave them out: rows.filter(lambda row: len(row['captions']) > 0)."
            )
        self.count_end = count_end
        self.tokenizer = PTBTokenizer() if tokenizer is None else tokenizer
        self.words = [self.tokenizer(texts) for texts in captions]
        self.with_end = [[f"{text} {END_WORD}" for text in texts] for texts in self.words] if count_end else self.words

    def tokenize(
        self,
        completions: Sequence[str],
        ended: Sequence[bool] | None = None,
        words: Sequence[str] | None = None,
    ) -> list[str]:
        """Return the words of completions, joined by blanks.

        Args:
            completions: N captions.
            ended: whether each has an end token; where ends count, `<end>` is appended to those. None appends nothing.
            words: the completions as they were tokenised before; None tokenises them here.
        """
        split = self.tokenizer(completions) if words is None else list(words)
        if not self.count_end or ended is None:
            return split
        return [f"{text} {END_WORD}" if has_end else text for text, has_end in zip(split, ended, strict=True)]


class CiderDReward:
    """CIDEr-D of each completion against the references of its image, 0 to 10.

    Args:
        references: the training captions.
        document_frequency: `"per_image"` or `"per_caption"`, counted in the training captions, or a file of
            `DocumentFrequency.save`.

    Raises:
        ValueError: the file was counted with other words than those of the training captions, or without end tokens
            although they count.
        FileNotFoundError: there is no such file.

    Example:

    ```python
    from hf_captioners.training.rewards import CiderDReward, TrainingReferences

    captions = [["a red circle on the left"], ["two blue stars above a square"]]
    reward = CiderDReward(TrainingReferences(captions, count_end=False), "per_image")
    exact, wrong = reward(["a red circle on the left", "a green dog"], None, row=[0, 0], ended=[True, True])
    assert exact > 9.9 and wrong < 1
    ```
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
        self,
        completions: Sequence[str],
        references: Any,
        row: Sequence[int],
        ended: Sequence[bool],
        words: Sequence[str] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Score completions; `row` selects the references, which were tokenised when the reward was made."""
        return self.scorer.score(self.references.tokenize(completions, ended, words), row).tolist()


class Bleu4Reward:
    """BLEU-4 of each completion, 0 to 1, as in ImageCaptioning.pytorch.

    Args:
        references: the training captions.

    Example:

    ```python
    from hf_captioners.training.rewards import Bleu4Reward, TrainingReferences

    reward = Bleu4Reward(TrainingReferences([["a red circle on the left"]], count_end=False))
    exact, wrong = reward(["a red circle on the left", "a green dog"], None, row=[0, 0], ended=[True, True])
    assert exact > 0.99 and wrong < 0.1
    ```
    """

    def __init__(self, references: TrainingReferences) -> None:
        self.references = references

    def __call__(
        self,
        completions: Sequence[str],
        references: Any,
        row: Sequence[int],
        ended: Sequence[bool],
        words: Sequence[str] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Score completions; `row` selects the references."""
        selected = [self.references.with_end[number] for number in row]
        return bleu_from_counts(bleu_counts(self.references.tokenize(completions, ended, words), selected))[3].tolist()


class MeteorReward:
    """METEOR of each completion, 0 to 1; end tokens do not count.

    Args:
        references: the training captions.

    Raises:
        FileNotFoundError: METEOR's tables are not installed.

    Example:

    ```python
    from hf_captioners.training.rewards import MeteorReward, TrainingReferences

    try:
        reward = MeteorReward(TrainingReferences([["a red circle"]], count_end=False))
    except FileNotFoundError:
        print("METEOR's tables are missing: pip install 'hf-captioners[metrics-data]'")
    else:
        exact, wrong = reward(["a red circle", "two dogs"], None, row=[0, 0])
        assert exact > wrong
    ```
    """

    def __init__(self, references: TrainingReferences) -> None:
        self.references, self.meteor = references, Meteor()

    def __call__(
        self,
        completions: Sequence[str],
        references: Any,
        row: Sequence[int],
        words: Sequence[str] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Score completions; `row` selects the references."""
        selected = [self.references.words[number] for number in row]
        return self.meteor.score(self.references.tokenize(completions, words=words), selected).per_image.tolist()


class RougeLReward:
    """ROUGE-L of each completion, 0 to 1; end tokens do not count.

    Args:
        references: the training captions.

    Example:

    ```python
    from hf_captioners.training.rewards import RougeLReward, TrainingReferences

    reward = RougeLReward(TrainingReferences([["a red circle on the left"]], count_end=False))
    exact, wrong = reward(["a red circle on the left", "two dogs"], None, row=[0, 0])
    assert (exact, wrong) == (1.0, 0.0)
    ```
    """

    def __init__(self, references: TrainingReferences) -> None:
        self.references = references

    def __call__(
        self,
        completions: Sequence[str],
        references: Any,
        row: Sequence[int],
        words: Sequence[str] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Score completions; `row` selects the references."""
        selected = [self.references.words[number] for number in row]
        return rouge_l(self.references.tokenize(completions, words=words), selected).tolist()


def load_frequency(path: str, references: TrainingReferences) -> DocumentFrequency:
    """Load document frequencies from a file and check them against the training captions.

    Args:
        path: a file of `DocumentFrequency.save`.
        references: the training captions.

    Raises:
        ValueError: see `CiderDReward`.
        FileNotFoundError: there is no such file.

    Example:

    ```python
    from hf_captioners.metrics import DocumentFrequency
    from hf_captioners.training.rewards import TrainingReferences, load_frequency

    references = TrainingReferences([["a red circle"], ["two blue stars"]], count_end=False)
    DocumentFrequency.per_image(references.words).save("frequencies.npz")
    frequency = load_frequency("frequencies.npz", references)
    ```
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
            f"The document frequencies in {path} ({frequency.source}) contain {known:.0%} of the words of the "
            "training captions: they were counted in a different vocabulary (token ids, a different language, or "
            "untokenised text). Count them in PTB-tokenised captions, or pass `document_frequency='per_image'`."
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
    frequency.end_token = None  # `TrainingReferences` appends it, and only to captions that end
    return frequency


def named_reward(name: str, references: TrainingReferences, document_frequency: str) -> Reward:
    """Return the reward with a name.

    Args:
        name: one of `REWARDS`.
        references: the training captions.
        document_frequency: of CIDEr-D, see `CiderDReward`.

    Raises:
        ValueError: the name is unknown, or see `CiderDReward`.
        FileNotFoundError: see `CiderDReward` and `MeteorReward`.

    Example:

    ```python
    from hf_captioners.training.rewards import TrainingReferences, named_reward

    references = TrainingReferences([["a red circle"]], count_end=False)
    reward = named_reward("rouge_l", references, document_frequency="per_image")
    assert reward(["a red circle"], None, row=[0]) == [1.0]
    ```
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
    """Columns of the training set other than images and captions."""

    def __getitem__(self, rows: list[int]) -> dict[str, list[Any]]:
        """Return the columns of these rows."""
        ...


class RewardSum:
    """Weighted sum of several rewards.

    Args:
        functions: reward functions by name.
        weights: one per function; None gives each the weight 1.
        captions: for each training image its captions.
        columns: further columns of the training set, without images; None if there are none.

    Raises:
        ValueError: there is no function, or the number of weights differs from the number of functions.
        TypeError: a function does not accept all columns as keywords.

    Example:

    ```python
    from hf_captioners.training.rewards import RewardSum, TrainingReferences, named_reward


    def brevity(completions, references, **columns):
        return [1 / len(text.split()) for text in completions]


    captions = [["a red circle"], ["two blue stars"]]
    rouge_l = named_reward("rouge_l", TrainingReferences(captions, count_end=False), "per_image")
    rewards = RewardSum({"rouge_l": rouge_l, "brevity": brevity}, [1.0, 0.5], captions, columns=None)
    values = rewards(["two blue stars", "a"], row=[1, 0], ended=[True, True])  # [N, functions]
    assert values.shape == (2, 2) and rewards.total(values).shape == (2,)
    ```
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

    def __call__(
        self, completions: list[str], row: list[int], ended: list[bool], words: list[str] | None = None
    ) -> Tensor:
        """Compute every reward of every completion, unweighted.

        Args:
            completions: N captions.
            row: the training image of each.
            ended: whether each has an end token.
            words: the completions, tokenised; rewards get them as a column. None: rewards tokenise them.

        Returns:
            `[N, functions]` float32.

        Raises:
            ValueError: a function returned a different number of values, or a value that is not finite.
        """
        columns = {} if self.columns is None else dict(self.columns[row])
        columns |= {"row": row, "ended": ended}
        if words is not None:
            columns["words"] = words
        references = [self.captions[number] for number in row]
        figures = [
            checked(name, function(completions, references, **columns), completions)
            for name, function in self.functions.items()
        ]
        return torch.stack(figures, 1)

    def total(self, figures: Tensor) -> Tensor:
        """Return the weighted sum `[N]` of `figures` `[N, functions]`."""
        return figures @ self.weights.to(figures.device)


def checked(name: str, figures: Sequence[float], completions: Sequence[str]) -> Tensor:
    """Return the values of a reward as `[N]` float32.

    Args:
        name: of the reward, for errors.
        figures: what the function returned.
        completions: the N captions.

    Raises:
        ValueError: there are not as many values as completions, or one is not finite.

    Example:

    ```python
    from hf_captioners.training.rewards import checked

    assert checked("length", [2, 1], ["two dogs", "dogs"]).tolist() == [2.0, 1.0]
    ```
    """
    if len(figures) != len(completions):
        raise ValueError(
            f"The reward {name!r} returned {len(figures)} values for {len(completions)} completions, expected one "
            "per completion."
        )
    values = torch.tensor([float("nan") if figure is None else float(figure) for figure in figures])
    wrong = (~values.isfinite()).nonzero().flatten().tolist()
    if wrong:
        raise ValueError(
            f"The reward {name!r} returned {figures[wrong[0]]} for completion {wrong[0]} "
            f"({completions[wrong[0]]!r}), expected a finite number. Return 0.0 for what cannot be scored."
        )
    return values

"""Weighted sum of several rewards, and checks of reward functions' parameters and results."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset, Features
from torch import Tensor

from hf_captioners.data.image_feature import allowed_feature
from hf_captioners.data.schema import IMAGE, IMAGE_COLUMNS, IMAGES
from hf_captioners.names import did_you_mean
from hf_captioners.processing.image_reading import read_image
from hf_captioners.training.streams import decoded

from .functions import Reward

ALWAYS_PASSED = ("completions", "references", "captions", "prompts", "row", "ended", "words")
"""Keywords that every reward gets besides the columns of the data set."""


class RewardTypeError(TypeError, ValueError):
    """A reward function has unsupported parameters or returns an invalid result."""


class RewardRows:
    """Data set rows as reward functions read them: columns by name, images decoded on request.

    Args:
        rows: a data set with `captions`, and with `image` or `images` where a reward asks for images.

    Attributes:
        columns: names of the columns that rewards get.

    Example:

    ```python
    from datasets import Dataset

    from hf_captioners.training.rewards.weighted_sum import RewardRows

    rows = RewardRows(Dataset.from_dict({"captions": [["a dog"], ["a cat"]], "topic": ["x", "y"]}))
    assert rows.read([1, 1])["topic"] == ["y", "y"] and rows.read([1])["references"] == [["a cat"]]
    ```
    """

    def __init__(self, rows: Dataset, captions: Sequence[Sequence[str]] | None = None) -> None:
        self.captions = list(rows["captions"]) if captions is None else captions
        names = rows.column_names
        self.columns = [name for name in names if name not in (*IMAGE_COLUMNS, "captions")]
        self._others = rows.select_columns(self.columns) if self.columns else None
        self._image_column = next((name for name in (IMAGE, IMAGES) if name in names), None)
        self._images = None if self._image_column is None else rows.select_columns([self._image_column])

    def read(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the columns of N rows, possibly repeated; `references` is a copy of `captions`."""
        columns = {} if self._others is None else dict(self._others[list(rows)])
        captions = [self.captions[row] for row in rows]
        return {**columns, "captions": captions, "references": captions}

    @property
    def has_images(self) -> bool:
        """True if the rows have images to decode."""
        return self._images is not None

    def images(self, rows: Sequence[int]) -> list[Any]:
        """Decode the images of N rows, each once: `PIL.Image`s, or lists of these for several views."""
        decoded = {}
        for row in dict.fromkeys(rows):
            value = self._image(row)
            decoded[row] = [read_image(view) for view in value] if isinstance(value, list) else read_image(value)
        return [decoded[row] for row in rows]

    def _image(self, row: int) -> Any:
        assert self._images is not None and self._image_column is not None
        return self._images[row][self._image_column]


class StreamedRewardRows(RewardRows):
    """Rows of the current batch of a stream, as reward functions read them.

    Args:
        features: the columns of the stream, with `captions`, and `image` or `images`.

    Attributes:
        columns: names of the columns that rewards get.

    Example:

    ```python
    from datasets import Features, List, Value

    from hf_captioners.training.rewards.weighted_sum import StreamedRewardRows

    rows = StreamedRewardRows(Features({"captions": List(Value("string")), "topic": Value("string")}))
    rows.present = {70: {"captions": ["a dog"], "topic": "x"}}
    assert rows.read([70, 70])["topic"] == ["x", "x"] and rows.read([70])["references"] == [["a dog"]]
    ```
    """

    def __init__(self, features: Features) -> None:
        self.columns = [name for name in features if name not in (*IMAGE_COLUMNS, "captions")]
        self._image_column = next((name for name in (IMAGE, IMAGES) if name in features), None)
        self._image_feature = self._image_column and allowed_feature(features[self._image_column])
        self.present: dict[int, dict[str, Any]] = {}
        """Rows by their number, with undecoded images; set it for every batch."""

    def read(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the columns of N rows, possibly repeated; `references` is a copy of `captions`."""
        examples = [self.present[row] for row in rows]
        columns = {name: [example[name] for example in examples] for name in (*self.columns, "captions")}
        return {**columns, "references": columns["captions"]}

    @property
    def has_images(self) -> bool:
        """True if the rows have images to decode."""
        return self._image_column is not None

    def _image(self, row: int) -> Any:
        return decoded(self.present[row][str(self._image_column)], self._image_feature)


class RewardSum:
    """Weighted sum of several rewards.

    Args:
        functions: reward functions by name.
        weights: one per function; None gives each the weight 1.
        rows: the training set.

    Raises:
        ValueError: there is no function, the number of weights differs from the number of functions, or a function
            needs a column or images that the data set does not have.
        TypeError: a function does not accept all columns as keywords.

    Example:

    ```python
    from datasets import Dataset

    from hf_captioners.training.rewards.weighted_sum import RewardRows, RewardSum
    from hf_captioners.training.rewards import named_reward


    def brevity(completions, references, **columns):
        return [1 / len(text.split()) for text in completions]


    rows = RewardRows(Dataset.from_dict({"captions": [["a red circle"], ["two blue stars"]]}))
    rewards = RewardSum({"rouge_l": named_reward("rouge_l"), "brevity": brevity}, [1.0, 0.5], rows)
    values = rewards(["two blue stars", "a"], row=[1, 0], ended=[True, True])  # [N, functions]
    assert values.shape == (2, 2) and rewards.total(values).shape == (2,)
    ```
    """

    def __init__(self, functions: Mapping[str, Reward], weights: Sequence[float] | None, rows: RewardRows) -> None:
        if not functions or (weights is not None and len(weights) != len(functions)):
            raise ValueError(
                f"There are {len(functions)} reward functions and {0 if weights is None else len(weights)} "
                "`reward_weights`, expected at least one function, and one weight each or none."
            )
        for name, function in functions.items():
            _check_parameters(name, function, rows)
        self.functions, self.rows = dict(functions), rows
        self.weights = torch.tensor([1.0] * len(functions) if weights is None else list(weights))
        self._ask_for_images = {name for name, function in functions.items() if asks_for_images(function)}

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
            `[N, functions]` float32, nan where a function skipped a completion.

        Raises:
            TypeError: a function returned something else than a list of numbers.
            ValueError: a function returned a different number of values, or a value that is not finite.
        """
        columns = self.rows.read(row) | {"row": row, "ended": ended, "prompts": [""] * len(completions)}
        if words is not None:
            columns["words"] = words
        images = {"images": self.rows.images(row)} if self._ask_for_images else {}
        figures = [
            checked(
                name,
                function(completions=completions, **columns, **(images if name in self._ask_for_images else {})),
                completions,
            )
            for name, function in self.functions.items()
        ]
        return torch.stack(figures, 1)

    def total(self, figures: Tensor) -> Tensor:
        """Return the weighted sum `[N]` of rewards `[N, functions]`, ignoring NaN; NaN if all are NaN."""
        sums = figures.nan_to_num(0.0) @ self.weights.to(figures.device)
        return sums.masked_fill(figures.isnan().all(1), float("nan"))


def asks_for_images(function: Callable[..., Any]) -> bool:
    """Return whether a reward function has a parameter `images`.

    Example:

    ```python
    from hf_captioners.training.rewards.weighted_sum import asks_for_images

    assert asks_for_images(lambda completions, images, **columns: [0.0]) and not asks_for_images(len)
    ```
    """
    return "images" in inspect.signature(function).parameters


def _check_parameters(name: str, function: Callable[..., Any], rows: RewardRows) -> None:
    parameters = inspect.signature(function).parameters.values()
    if not any(part.kind is part.VAR_KEYWORD for part in parameters):
        raise RewardTypeError(
            f"The reward {name!r} does not take all columns; write it as "
            "def reward(completions, references, **columns)."
        )
    if asks_for_images(function) and not rows.has_images:
        raise ValueError(
            f"The reward {name!r} asks for `images`, and the training set has none, only {', '.join(rows.columns)}: "
            "train on images instead of stored features."
        )
    available = (*ALWAYS_PASSED, "images", *rows.columns)
    for part in parameters:
        is_needed = part.default is part.empty and part.kind not in (part.VAR_KEYWORD, part.VAR_POSITIONAL)
        if part.kind is part.POSITIONAL_ONLY or (is_needed and part.name not in available):
            raise ValueError(
                f"The reward {name!r} needs `{part.name}`, which is no column of the training set: "
                f"{', '.join(available)}.{did_you_mean(part.name, available)}"
            )


def checked(name: str, figures: Sequence[float | None], completions: Sequence[str]) -> Tensor:
    """Check a reward function's result and return it as `[N]` float32, NaN for None.

    Args:
        name: of the reward, for errors.
        figures: what the function returned.
        completions: the N captions.

    Raises:
        TypeError: it is no list of numbers.
        ValueError: there are not as many values as completions, or one is not finite.

    Example:

    ```python
    from hf_captioners.training.rewards.weighted_sum import checked

    assert checked("length", [2, 1], ["two dogs", "dogs"]).tolist() == [2.0, 1.0]
    assert checked("length", [2, None], ["two dogs", ""]).isnan().tolist() == [False, True]
    ```
    """
    if isinstance(figures, (str, Mapping)) or not hasattr(figures, "__len__"):
        raise RewardTypeError(
            f"The reward {name!r} returned {figures!r}, expected a list with a number per completion."
        )
    if len(figures) != len(completions):
        raise ValueError(
            f"The reward {name!r} returned {len(figures)} values for {len(completions)} completions, expected one "
            "per completion."
        )
    values = []
    for place, figure in enumerate(figures):
        try:
            value = float("nan") if figure is None else float(figure)
        except (TypeError, ValueError):
            raise RewardTypeError(
                f"The reward {name!r} returned {figure!r} for completion {place} ({completions[place]!r}), expected a "
                "number, or None to skip it."
            ) from None
        if figure is not None and not math.isfinite(value):
            raise ValueError(
                f"The reward {name!r} returned {value} for completion {place} ({completions[place]!r}), expected a "
                "finite number, or None to skip it."
            )
        values.append(value)
    return torch.tensor(values)

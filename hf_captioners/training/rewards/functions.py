"""Reward functions of self-critical training, for `SCSTTrainer` and TRL's trainers.

A reward is a function `(completions, references, images=None, **columns) -> list[float | None]`, called by keywords.
None skips a completion. It gets the columns of the data set, one entry per completion, and images only if it has a
parameter `images`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hf_captioners.metrics import METRICS, CiderD, Meteor
from hf_captioners.metrics.compute import compute_scores
from hf_captioners.names import did_you_mean, load_function

from .references import TrainingReferences

Reward = Callable[..., Sequence[float | None]]
SELF_RETRIEVAL = "self_retrieval"
"""Name of `SelfRetrieval`, which the trainer makes with a frozen copy of its captioner."""


def reward_metrics() -> dict[str, str]:
    """Return the metric of each reward name that stands for a metric.

    Example:

    ```python
    from hf_captioners.training.rewards import reward_metrics

    assert reward_metrics()["bleu"] == reward_metrics()["bleu_4"] == "bleu"
    ```
    """
    names = {name: metric.reward for name, metric in METRICS.items() if metric.reward is not None}
    return {score: name for name, score in names.items()} | {name: name for name in names}


def reward_names() -> list[str]:
    """Return the names of all rewards.

    Example:

    ```python
    from hf_captioners.training.rewards import reward_names

    assert {"cider_d", "bleu_4", "rouge_l", "meteor", "self_retrieval"} <= set(reward_names())
    ```
    """
    return [*reward_metrics(), SELF_RETRIEVAL]


def check_rewards(rewards: Sequence[str]) -> None:
    """Check reward names, and import functions given as `module:function`.

    Raises:
        ValueError: a name is unknown; the message has the nearest one.

    Example:

    ```python
    from hf_captioners.training.rewards import check_rewards

    check_rewards(["cider_d", "meteor"])
    ```
    """
    for name in rewards:
        if ":" in name:
            load_function(name, "reward")
        elif name not in reward_names():
            raise ValueError(
                f"There is no reward {name!r}, expected one of {', '.join(reward_names())}, or module:function."
                f"{did_you_mean(name, reward_names())}"
            )


def caption_texts(completions: Sequence[Any]) -> list[str]:
    """Return completions as texts; TRL's conversations are lists of messages.

    Raises:
        TypeError: a completion is neither a text nor a list of messages.

    Example:

    ```python
    from hf_captioners.training.rewards import caption_texts

    assert caption_texts([[{"role": "assistant", "content": "two dogs"}], "a cat"]) == ["two dogs", "a cat"]
    ```
    """
    return [_text_of(completion) for completion in completions]


def _text_of(completion: Any) -> str:
    if isinstance(completion, str):
        return completion
    try:
        content = completion[-1]["content"]
        if isinstance(content, str):
            return content
        return "".join(part["text"] for part in content if part.get("type", "text") == "text")
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise TypeError(
            f"A completion is {completion!r}, expected a text or a list of messages "
            '[{"role": "assistant", "content": TEXT}].'
        ) from error


class MetricReward:
    """Reward function: the score of a metric for each completion, against the references of its image.

    Args:
        name: metric of `reward_metrics`, or its score.
        prepared: the training captions. Default: references are tokenised when they come.
        document_frequency: of CIDEr-D, see `TrainingReferences.frequency`.
        references_column: column of the data set with the references, a list of texts (or one text) per completion.
            Completions without references are skipped.

    Raises:
        ValueError: the name is unknown, or see `TrainingReferences.frequency`.
        FileNotFoundError: there is no file of document frequencies, or METEOR's tables are not installed.

    Example:

    ```python
    from hf_captioners.training.rewards.references import TrainingReferences
    from hf_captioners.training.rewards import MetricReward

    captions = [["a red circle on the left"], ["two blue stars above a square"]]
    reward = MetricReward("cider_d", TrainingReferences(captions))
    exact, wrong = reward(["a red circle on the left", "a green dog"], references=[captions[0], captions[0]])
    assert exact > 9.9 and wrong < 1
    ```
    """

    def __init__(
        self,
        name: str,
        prepared: TrainingReferences | None = None,
        document_frequency: str = "per_image",
        references_column: str = "references",
    ) -> None:
        if name not in reward_metrics():
            check_rewards([name])
        self.__name__, self.references_column = name, references_column
        self.prepared = TrainingReferences() if prepared is None else prepared
        self._metric_name = reward_metrics()[name]
        self._metric = METRICS[self._metric_name]
        self._resources: dict[str, Any] = {"meteor": Meteor()} if "meteor" in self._metric.resources else {}
        self._scorer: CiderD | None = None
        if self._metric_name == "cider_d":
            self._frequency = self.prepared.frequency(document_frequency)
            self._scorer = CiderD(self.prepared.with_end, self._frequency) if self.prepared.words else None

    def __call__(
        self,
        completions: Sequence[Any],
        ended: Sequence[bool] | None = None,
        words: Sequence[str] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Score completions.

        Args:
            completions: N captions, as texts or as messages.
            ended: whether each has an end token, see `TrainingReferences`.
            words: the completions, if they are tokenised already.
            **columns: the column of the references, and others that do not matter.

        Raises:
            TypeError: there is no column of references.
        """
        if self.references_column not in columns:
            raise TypeError(
                f"The reward {self.__name__!r} reads references from the column {self.references_column!r}, and the "
                f"columns are {', '.join(columns)}. Choose one: references_column=NAME."
                f"{did_you_mean(self.references_column, columns)}"
            )
        reference_sets = [[texts] if isinstance(texts, str) else texts for texts in columns[self.references_column]]
        texts = self.prepared.tokenize(caption_texts(completions), ended if self._metric.counts_end else None, words)
        known = [place for place, references in enumerate(reference_sets) if references]
        values: list[float | None] = [None] * len(texts)
        scores = (
            self._score([texts[place] for place in known], [reference_sets[place] for place in known]) if known else []
        )
        for place, score in zip(known, scores, strict=True):
            values[place] = float(score)
        return values

    def _score(self, texts: list[str], references: list[Sequence[str]]) -> Sequence[float]:
        if self._metric_name == "cider_d":
            return self._cider_d(texts, references)
        tokenised = [self.prepared.words_of(words, self._metric.counts_end) for words in references]
        scores = compute_scores(self._metric_name, self._metric, texts, tokenised, self._resources)
        return next(score.per_image or [] for score in scores if score.name == self._metric.reward)

    def _cider_d(self, texts: list[str], references: list[Sequence[str]]) -> Sequence[float]:
        """Compute CIDEr-D rewards; prepared references are used for training images."""
        rows = [self.prepared.row_of(texts_of_image) for texts_of_image in references]
        if self._scorer is not None and None not in rows:
            return self._scorer.score(texts, [row for row in rows if row is not None]).tolist()
        tokenised = [self.prepared.words_of(texts_of_image, with_end=True) for texts_of_image in references]
        return CiderD(tokenised, self._frequency).score(texts).tolist()


def caption_reward(
    name: str,
    captions: Sequence[Sequence[str]] | None = None,
    references_column: str = "references",
    document_frequency: str = "per_image",
) -> MetricReward:
    """Make a reward function for a TRL trainer, such as `GRPOTrainer`.

    Args:
        name: cider_d, bleu, rouge_l, meteor, or another one of `reward_metrics`.
        captions: the references of all training images, for the document frequencies of CIDEr-D.
        references_column: column of the data set with the references of each row.
        document_frequency: of CIDEr-D, see `TrainingReferences.frequency`.

    Raises:
        ValueError, FileNotFoundError: see `MetricReward`.

    Example:

    ```python
    from hf_captioners.training.rewards import caption_reward

    captions = [["a red circle", "one circle"], ["two blue stars"]]
    reward = caption_reward("cider_d", captions, references_column="captions")
    answers = [[{"role": "assistant", "content": "Two blue stars."}], [{"role": "assistant", "content": "A dog."}]]
    exact, wrong = reward(prompts=["", ""], completions=answers, captions=[captions[1], captions[0]])
    assert exact > 5 > wrong
    ```
    """
    return MetricReward(name, TrainingReferences(captions), document_frequency, references_column)


def named_reward(
    name: str, prepared: TrainingReferences | None = None, document_frequency: str = "per_image"
) -> Reward:
    """Return the reward function for a name or `module:function`.

    Args:
        name: of `reward_metrics`, or `module:function`.
        prepared: the training captions.
        document_frequency: of CIDEr-D, see `TrainingReferences.frequency`.

    Raises:
        ValueError: the name is unknown, or see `MetricReward`.
        FileNotFoundError: see `MetricReward`.

    Example:

    ```python
    from hf_captioners.training.rewards import named_reward

    assert named_reward("rouge_l")(["a red circle"], references=[["a red circle"]]) == [1.0]
    ```
    """
    return load_function(name, "reward") if ":" in name else MetricReward(name, prepared, document_frequency)

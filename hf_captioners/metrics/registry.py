"""The table of metrics. Exports, commands, cards, rewards, `evaluate` modules and trainers read it."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hf_captioners.names import did_you_mean, load_function

MetricFunction = Callable[..., Any]
"""A function of tokenised captions and their references, see `Metric`."""


class Score(NamedTuple):
    """Name, corpus value, exact definition and values per image of a score.

    Attributes:
        name: of the score, such as `bleu_4`.
        corpus: value over all images.
        variant: exact definition, for the result and the card.
        per_image: one value per image; None if the metric has none.
    """

    name: str
    corpus: float
    variant: str
    per_image: Sequence[float] | None = None


@dataclass(frozen=True)
class Metric:
    """Entry of the table of metrics: the function that computes it, its scores and their titles.

    Args:
        function: `module:function`, or the function itself. It is called with `predictions` (one tokenised caption per
            image, words separated by blanks) and `references` (for each image its tokenised captions). It returns one
            number per image, whose mean is the score of the data set, or several `Score`. It also gets those of
            `RESOURCES` that it has a parameter for.
        about: exact definition, one line.
        titles: titles of its scores in cards, by their names. Default: one score with the name of the metric.
        reward: score that it gives as a reward of training, see `hf_captioners.training.rewards`. None: it is none.
        counts_end: whether a reward by it can count the end token as a word.
        hub_name: name of the metric on the Hub, for the structured results of cards. None: they lack it.
        bibtex: citation.

    Examples:
        >>> from hf_captioners.metrics import METRICS
        >>> METRICS["bleu"].load()(predictions=["a cat"], references=[["a cat"]])  # doctest: +ELLIPSIS
        <generator object ...>
        >>> METRICS["rouge_l"].load()(predictions=["a cat"], references=[["a cat"]]).tolist()
        [1.0]
    """

    function: str | MetricFunction
    about: str
    titles: Mapping[str, str] = field(default_factory=dict)
    reward: str | None = None
    counts_end: bool = False
    hub_name: str | None = None
    bibtex: str = ""

    def load(self) -> MetricFunction:
        """Import and return the function that computes the metric."""
        if callable(self.function):
            return self.function
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module, __package__), name)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of `RESOURCES`, such as `meteor` or `spice`, that the metric's function takes."""
        parameters = inspect.signature(self.load()).parameters
        return tuple(name for name in RESOURCES if name in parameters)


RESOURCES = ("document_frequency", "meteor", "tables", "spice", "chair")
"""What a metric may need besides captions: arguments of `compute_caption_metrics`."""
DEFAULT_METRICS = ("bleu", "rouge_l", "cider_d")
"""The metrics that are computed if none are named."""
SHUFFLED_CONTROL = "cider_d_shuffled"
"""The metric of `shuffled_cider_d`."""
RESERVED = {"baseline", "comparison", "document_frequency", "extra", "images", "loss", "missing", "per_image"}
RESERVED |= {"split", "tokenizer", "variants"}
"""Names of a result that are no metrics."""
ORDERS = range(1, 5)

METRICS: dict[str, Metric] = {
    "bleu": Metric(
        ".bleu:score_bleu",
        "BLEU-1 to BLEU-4, closest reference length",
        titles={f"bleu_{order}": f"BLEU-{order}" for order in ORDERS},
        reward="bleu_4",
        counts_end=True,
        hub_name="bleu",
    ),
    "bleu_no_penalty": Metric(
        ".bleu:score_bleu_without_penalty",
        "BLEU-1 to BLEU-4, without brevity penalty",
        titles={f"bleu_{order}_no_penalty": f"BLEU-{order} without brevity penalty" for order in ORDERS},
    ),
    "rouge_l": Metric(
        ".rouge:rouge_l", "ROUGE-L, beta 1.2", titles={"rouge_l": "ROUGE-L"}, reward="rouge_l", hub_name="rouge"
    ),
    "cider_d": Metric(
        ".cider:cider_d",
        "CIDEr-D (clipped, sigma 6)",
        titles={"cider_d": "CIDEr-D"},
        reward="cider_d",
        counts_end=True,
        hub_name="cider",
    ),
    "cider": Metric(".cider:cider_d", "CIDEr-D (clipped, sigma 6), reported as CIDEr by papers and coco-caption"),
    SHUFFLED_CONTROL: Metric(
        ".shuffled_control:shuffled_cider_d",
        "CIDEr-D of the same captions against the references of the next image (shuffled control)",
        titles={SHUFFLED_CONTROL: "CIDEr-D, shuffled control"},
    ),
    "cider_original": Metric(".cider:cider_original", "original CIDEr (no clipping, no length penalty)"),
    "meteor": Metric(".meteor:score_meteor", "METEOR 1.5, English", titles={"meteor": "METEOR"}, reward="meteor"),
    "chair": Metric(
        ".chair:score_chair",
        "CHAIR: objects in captions that are not in the image; lower is better",
        titles={"chair_i": "CHAIRi (hallucinated objects)", "chair_s": "CHAIRs (captions with hallucinated objects)"},
    ),
    "support": Metric(
        ".support:score_support",
        "share of the content words of captions that a reference of the image has, English",
        titles={"support": "support", "support_people": "support of people's captions by each other"},
    ),
    "support_synonyms": Metric(
        ".support:score_support_synonyms",
        "support, with the synonyms of METEOR",
        titles={
            "support_synonyms": "support with synonyms",
            "support_synonyms_people": "support with synonyms of people's captions by each other",
        },
    ),
    "spice": Metric(".spice:score_spice", "SPICE 1.0, English, original program", titles={"spice": "SPICE"}),
}
"""The metrics by name."""


def score_titles() -> dict[str, str]:
    """Map names of all scores to their titles in model cards."""
    return {name: title for metric in METRICS.values() for name, title in metric.titles.items()}


def metric_of(score: str) -> str | None:
    """Return the name of the metric in `METRICS` that computes a score; None for a score of a user's function."""
    return next((name for name, metric in METRICS.items() if score in (metric.titles or [name])), None)


def hub_names() -> dict[str, str]:
    """Map names of scores, such as `bleu_4`, to the names of their metrics on the Hub."""
    hub_metrics = (metric for metric in METRICS.values() if metric.hub_name is not None)
    return {name: str(metric.hub_name) for metric in hub_metrics for name in metric.titles}


def find_metrics(metrics: Sequence[str | MetricFunction]) -> dict[str, Metric]:
    """Resolve metrics given as names, as `module:function`, or as functions.

    Returns:
        The metrics by name; those of one's own have the name of their function.

    Raises:
        ValueError: a name is unknown; the message has the nearest one. Or two metrics have the same name.

    Examples:
        >>> from hf_captioners.metrics.registry import find_metrics
        >>> find_metrics(["rouge_l"])["rouge_l"].about
        'ROUGE-L, beta 1.2'
    """
    if isinstance(metrics, str):
        raise ValueError(f"`metrics` is {metrics!r}, expected a list of names among {', '.join(METRICS)}.")
    resolved: dict[str, Metric] = {}
    for item in metrics:
        name, metric = _find(item, metrics)
        is_taken = name in (*METRICS, *score_titles(), *RESERVED) and METRICS.get(name) != metric
        if is_taken or resolved.get(name, metric) != metric:
            raise ValueError(f"The name {name!r} of a metric of your own is taken: rename the function.")
        resolved[name] = metric
    return resolved


def _find(metric: str | MetricFunction, metrics: Sequence[str | MetricFunction]) -> tuple[str, Metric]:
    if isinstance(metric, str) and metric in METRICS:
        return metric, METRICS[metric]
    if isinstance(metric, str) and ":" in metric:
        metric = load_function(metric, "metric")
    if not callable(metric):
        raise ValueError(
            f"`metrics` is {metrics!r}, expected a list of names among {', '.join(METRICS)}, or module:function."
            f"{did_you_mean(str(metric), METRICS)}"
        )
    name = getattr(metric, "__name__", type(metric).__name__)
    lines = (inspect.getdoc(metric) or name).splitlines()
    return name, Metric(metric, lines[0])

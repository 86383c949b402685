"""Claims of the demonstration about its results, each with figures and whether it holds; shown on its page."""

from collections.abc import Sequence

from .experiment import Run, mean
from .facts import FACTS, interval, right_facts

RIGHT_LIMIT = 0.6  # share of the best run's captions that are to be entirely right
SHUFFLED_LIMIT = 0.5  # the shuffled control must score below this share of the CIDEr-D of the captions


def check_claims(runs: Sequence[Run], scenes: Sequence[str]) -> list[tuple[str, bool]]:
    """Return every claim of the demonstration, and True if it holds.

    Args:
        runs: the fine-tunings.
        scenes: descriptions of the evaluation images, see `Scene.describe`.
    """
    pretrained = mean([run.cider_d for run in runs if run.pretrained])
    random = mean([run.cider_d for run in runs if not run.pretrained])
    right, right_of_random = (
        sum(count_right(facts_of_run(run, scenes)) for run in runs if run.pretrained == start)
        for start in (True, False)
    )
    captions = sum(len(run.captions) for run in runs if run.pretrained)
    shuffled = mean([run.shuffled for run in runs if run.pretrained])
    return [
        right_claim(best_run(runs), scenes),
        (
            f"starting from the language model helps: {right} of {captions} captions are entirely right, "
            f"{right_of_random} from random weights; CIDEr-D {pretrained:.3f} against {random:.3f}",
            right > right_of_random,
        ),
        (
            f"the captions describe their own images: CIDEr-D {pretrained:.3f}, and less than half of it for the "
            f"shuffled control, {shuffled:.3f}",
            shuffled < SHUFFLED_LIMIT * pretrained,
        ),
    ]


def right_claim(run: Run, scenes: Sequence[str]) -> tuple[str, bool]:
    """Return the claim that most captions of a run are entirely right, and True if it holds."""
    right, count = count_right(facts_of_run(run, scenes)), len(run.captions)
    low, high = interval(right, count)
    return (
        f"at least {RIGHT_LIMIT:.0%} of the captions of the best run are entirely right: {right} of {count} "
        f"({right / count:.0%}, 95 % interval {low:.0%} to {high:.0%})",
        right >= RIGHT_LIMIT * count,
    )


def best_run(runs: Sequence[Run]) -> Run:
    """Return the run with the highest CIDEr-D among those that start from the language model."""
    return max((run for run in runs if run.pretrained), key=lambda run: run.cider_d)


def facts_of_run(run: Run, scenes: Sequence[str]) -> list[set[str]]:
    """Return, for each caption of a run, the facts that it states correctly."""
    return [right_facts(caption, scene) for caption, scene in zip(run.captions, scenes, strict=True)]


def count_right(facts: Sequence[set[str]]) -> int:
    """Return the number of captions with all facts right."""
    return sum(len(right) == len(FACTS) for right in facts)

"""Published metrics in the model cards of finished runs."""

from collections.abc import Sequence

from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.hub.cards import write_card

from .runs import DONE, Run


def write_published_row(runs: Sequence[Run]) -> None:
    """Write published metrics beside the mean of the measured ones into the cards of all finished runs.

    Cards of an unpublished study stay as they are.

    Args:
        runs: all runs of one row and regime.
    """
    published = runs[0].recipe.published
    assert published is not None
    results = [(run, result) for run in runs if (result := run.result()) and result["status"] == DONE]
    facts_by_folder = [
        (run.folder, facts) for run, _ in results if (facts := TrainingFacts.load(run.folder)) is not None
    ]
    if not facts_by_folder or not published.regimes[runs[0].regime].published:
        return
    row = published.beside(runs[0].regime, {run.seed: result["figures"] for run, result in results})
    for folder, facts in facts_by_folder:
        facts.reproduces = row
        facts.save(folder)
        write_card(folder)

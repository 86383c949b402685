"""METEOR 1.5 as a module of `evaluate`."""

from collections.abc import Sequence

from hf_captioners.metrics import Meteor, evaluate_module
from hf_captioners.metrics.meteor import STAGES


class CaptionMeteor(evaluate_module.CaptionMetric):
    """METEOR 1.5 for English as the COCO caption evaluation runs it, in Python. Synonyms and paraphrases are read from
    an installed pycocoevalcap (`pip install 'hf-captioners[metrics-data]'`, no Java is started).
    `stages=("exact", "stem")` needs no tables and gives other scores.
    """

    metric = "meteor"
    bibtex = """\
@inproceedings{denkowski2014meteor,
  title = {Meteor Universal: Language Specific Translation Evaluation for Any Target Language},
  author = {Denkowski, Michael and Lavie, Alon},
  booktitle = {WMT},
  year = {2014}
}
"""
    options = "stages: the matching stages exact, stem, synonym, paraphrase, or a prefix of them."
    returns = "meteor."
    example_options = ', stages=("exact", "stem")'
    example_figure = ("meteor", 0.3816)

    def _compute(
        self,
        predictions: list[str],
        references: list[list[str]],
        tokenizer: str = "ptb",
        stages: Sequence[str] = STAGES,
    ) -> dict[str, float]:
        return self.figures(predictions, references, tokenizer, meteor=Meteor(stages))

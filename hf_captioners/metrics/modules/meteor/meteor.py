"""METEOR 1.5 as a module of `evaluate`."""

from collections.abc import Sequence

import datasets
import evaluate

from hf_captioners.metrics import Meteor, compute_caption_metrics
from hf_captioners.metrics.meteor import STAGES

_CITATION = """\
@inproceedings{denkowski2014meteor,
  title = {Meteor Universal: Language Specific Translation Evaluation for Any Target Language},
  author = {Denkowski, Michael and Lavie, Alon},
  booktitle = {WMT},
  year = {2014}
}
"""

_DESCRIPTION = """\
METEOR 1.5 for English as the COCO caption evaluation runs it, in Python. Synonyms and paraphrases are read from an
installed pycocoevalcap (`pip install 'hf-captioners[metrics-data]'`, no Java is started); `stages=("exact",
"stem")` does without and gives other figures.
"""

_INPUTS = """
Args:
    predictions: one caption a picture.
    references: for each picture its reference captions.
    tokenizer: "ptb" for the tokenizer of the COCO evaluation, "none" for captions that are split by blanks already.
    stages: the ways to match words: exact, stem, synonym, paraphrase, or a beginning of these.

Returns:
    meteor.

Examples:
    >>> import evaluate
    >>> from hf_captioners.metrics import module_path
    >>> metric = evaluate.load(module_path("meteor"))
    >>> predictions = ["a man riding a horse", "two dogs run on grass"]
    >>> references = [
    ...     ["a man rides a horse on a beach", "a person riding a brown horse"],
    ...     ["two dogs run on green grass", "dogs playing outside"],
    ... ]
    >>> results = metric.compute(predictions=predictions, references=references, stages=("exact", "stem"))
    >>> round(results["meteor"], 4)
    0.3816
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class CaptionMeteor(evaluate.Metric):
    """METEOR 1.5."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(
                {
                    "predictions": datasets.Value("string"),
                    "references": datasets.Sequence(datasets.Value("string")),
                }
            ),
        )

    def _compute(
        self,
        predictions: list[str],
        references: list[list[str]],
        tokenizer: str = "ptb",
        stages: Sequence[str] = STAGES,
    ) -> dict[str, float]:
        result = compute_caption_metrics(predictions, references, ["meteor"], tokenizer, meteor=Meteor(stages))
        return {name: result[name] for name in result["variants"]}

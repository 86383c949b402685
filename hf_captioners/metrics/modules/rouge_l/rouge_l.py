"""ROUGE-L for captions as a module of `evaluate`."""

import datasets
import evaluate

from hf_captioners.metrics import compute_caption_metrics

_CITATION = """\
@inproceedings{lin2004rouge,
  title = {ROUGE: A Package for Automatic Evaluation of Summaries},
  author = {Lin, Chin-Yew},
  booktitle = {Text Summarization Branches Out},
  year = {2004}
}
"""

_DESCRIPTION = """\
ROUGE-L as the COCO caption evaluation computes it: longest common subsequence, beta 1.2, best recall and best
precision over the references.
"""

_INPUTS = """
Args:
    predictions: one caption a picture.
    references: for each picture its reference captions.
    tokenizer: "ptb" for the tokenizer of the COCO evaluation, "none" for captions that are split by blanks already.

Returns:
    rouge_l.

Examples:
    >>> import evaluate
    >>> from hf_captioners.metrics import module_path
    >>> metric = evaluate.load(module_path("rouge_l"))
    >>> predictions = ["a man riding a horse", "two dogs run on grass"]
    >>> references = [
    ...     ["a man rides a horse on a beach", "a person riding a brown horse"],
    ...     ["two dogs run on green grass", "dogs playing outside"],
    ... ]
    >>> results = metric.compute(predictions=predictions, references=references)
    >>> round(results["rouge_l"], 4)
    0.805
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class CaptionRougeL(evaluate.Metric):
    """ROUGE-L for captions."""

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
        self, predictions: list[str], references: list[list[str]], tokenizer: str = "ptb"
    ) -> dict[str, float]:
        result = compute_caption_metrics(predictions, references, ["rouge_l"], tokenizer)
        return {name: result[name] for name in result["variants"]}

"""BLEU for captions as a module of `evaluate`."""

import datasets
import evaluate

from hf_captioners.metrics import compute_caption_metrics

_CITATION = """\
@inproceedings{papineni2002bleu,
  title = {BLEU: a Method for Automatic Evaluation of Machine Translation},
  author = {Papineni, Kishore and Roukos, Salim and Ward, Todd and Zhu, Wei-Jing},
  booktitle = {ACL},
  year = {2002}
}
"""

_DESCRIPTION = """\
BLEU-1 to BLEU-4 as the COCO caption evaluation computes them: closest reference length, the tokenizer of the COCO
evaluation. With `brevity_penalty=False` as Show, Attend and Tell reports it.
"""

_INPUTS = """
Args:
    predictions: one caption a picture.
    references: for each picture its reference captions.
    tokenizer: "ptb" for the tokenizer of the COCO evaluation, "none" for captions that are split by blanks already.
    brevity_penalty: whether captions shorter than the closest reference lose.

Returns:
    bleu_1 .. bleu_4.

Examples:
    >>> import evaluate
    >>> from hf_captioners.metrics import module_path
    >>> metric = evaluate.load(module_path("bleu"))
    >>> predictions = ["a man riding a horse", "two dogs run on grass"]
    >>> references = [
    ...     ["a man rides a horse on a beach", "a person riding a brown horse"],
    ...     ["two dogs run on green grass", "dogs playing outside"],
    ... ]
    >>> results = metric.compute(predictions=predictions, references=references)
    >>> round(results["bleu_1"], 4)
    0.8187
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class CaptionBleu(evaluate.Metric):
    """BLEU for captions."""

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
        self, predictions: list[str], references: list[list[str]], tokenizer: str = "ptb", brevity_penalty: bool = True
    ) -> dict[str, float]:
        names = ["bleu" if brevity_penalty else "bleu_no_penalty"]
        result = compute_caption_metrics(predictions, references, names, tokenizer)
        return {name: result[name] for name in result["variants"]}

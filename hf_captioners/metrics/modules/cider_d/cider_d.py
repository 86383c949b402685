"""CIDEr-D as a module of `evaluate`."""

import datasets
import evaluate

from hf_captioners.metrics import compute_caption_metrics

_CITATION = """\
@inproceedings{vedantam2015cider,
  title = {CIDEr: Consensus-based Image Description Evaluation},
  author = {Vedantam, Ramakrishna and Zitnick, C. Lawrence and Parikh, Devi},
  booktitle = {CVPR},
  year = {2015}
}
"""

_DESCRIPTION = """\
CIDEr-D, which papers and coco-caption print as CIDEr. Document frequencies are counted in the references of the
call, so score all pictures of a set together, two at the least.
"""

_INPUTS = """
Args:
    predictions: one caption a picture.
    references: for each picture its reference captions.
    tokenizer: "ptb" for the tokenizer of the COCO evaluation, "none" for captions that are split by blanks already.

Returns:
    cider_d.

Examples:
    >>> import evaluate
    >>> from hf_captioners.metrics import module_path
    >>> metric = evaluate.load(module_path("cider_d"))
    >>> predictions = ["a man riding a horse", "two dogs run on grass"]
    >>> references = [
    ...     ["a man rides a horse on a beach", "a person riding a brown horse"],
    ...     ["two dogs run on green grass", "dogs playing outside"],
    ... ]
    >>> results = metric.compute(predictions=predictions, references=references)
    >>> round(results["cider_d"], 4)
    3.046
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class CiderD(evaluate.Metric):
    """CIDEr-D."""

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
        result = compute_caption_metrics(predictions, references, ["cider_d"], tokenizer)
        return {name: result[name] for name in result["variants"]}

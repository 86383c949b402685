"""Scene comparison with a rule parser as a module of `evaluate`."""

import datasets
import evaluate

from hf_captioners.metrics import compute_caption_metrics

_CITATION = """\
@inproceedings{anderson2016spice,
  title = {SPICE: Semantic Propositional Image Caption Evaluation},
  author = {Anderson, Peter and Fernando, Basura and Johnson, Mark and Gould, Stephen},
  booktitle = {ECCV},
  year = {2016}
}
"""

_DESCRIPTION = """\
The comparison of scene graphs of SPICE, on captions parsed by built-in rules. Not comparable with SPICE. Synonyms
are read from an installed pycocoevalcap (no Java is started).
"""

_INPUTS = """
Args:
    predictions: one caption a picture.
    references: for each picture its reference captions.
    tokenizer: "ptb" for the tokenizer of the COCO evaluation, "none" for captions that are split by blanks already.

Returns:
    spice_rules and spice_rules_object, spice_rules_attribute, spice_rules_relation, spice_rules_color,
    spice_rules_cardinality, spice_rules_size.

Examples:
    >>> import evaluate
    >>> from hf_captioners.metrics import module_path
    >>> metric = evaluate.load(module_path("spice_rules"))
    >>> predictions = ["a man riding a horse", "two dogs run on grass"]
    >>> references = [
    ...     ["a man rides a horse on a beach", "a person riding a brown horse"],
    ...     ["two dogs run on green grass", "dogs playing outside"],
    ... ]
    >>> results = metric.compute(predictions=predictions, references=references)  # doctest: +SKIP
    >>> round(results["spice_rules"], 4)  # doctest: +SKIP
    0.4755
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class CaptionSpiceRules(evaluate.Metric):
    """Scene comparison with a rule parser."""

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
        result = compute_caption_metrics(predictions, references, ["spice_rules"], tokenizer)
        return {name: result[name] for name in result["variants"]}

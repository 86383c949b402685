"""SPICE (original program) as a module of `evaluate`."""

import datasets
import evaluate

from hf_captioners.metrics import OriginalSpice, compute_caption_metrics

_CITATION = """\
@inproceedings{anderson2016spice,
  title = {SPICE: Semantic Propositional Image Caption Evaluation},
  author = {Anderson, Peter and Fernando, Basura and Johnson, Mark and Gould, Stephen},
  booktitle = {ECCV},
  year = {2016}
}
"""

_DESCRIPTION = """\
SPICE by its original Java program, for those who have it working: pass `jar`, the path of `spice-1.0.jar`. It
needs Java 8 to 13 and the models of CoreNLP 3.6.0.
"""

_INPUTS = """
Args:
    predictions: one caption a picture.
    references: for each picture its reference captions.
    tokenizer: "ptb" for the tokenizer of the COCO evaluation, "none" for captions that are split by blanks already.
    jar: path of the original program.
    java: the Java program to start.

Returns:
    spice and spice_object, spice_attribute, spice_relation, spice_color, spice_cardinality, spice_size.

Examples:
    >>> import evaluate
    >>> from hf_captioners.metrics import module_path
    >>> metric = evaluate.load(module_path("spice"))
    >>> predictions = ["a man riding a horse", "two dogs run on grass"]
    >>> references = [
    ...     ["a man rides a horse on a beach", "a person riding a brown horse"],
    ...     ["two dogs run on green grass", "dogs playing outside"],
    ... ]
    >>> results = metric.compute(predictions=predictions, references=references, jar="spice-1.0.jar")  # doctest: +SKIP
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class CaptionSpice(evaluate.Metric):
    """SPICE (original program)."""

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
        jar: str = "spice-1.0.jar",
        java: str = "java",
    ) -> dict[str, float]:
        program = OriginalSpice(jar, java)
        result = compute_caption_metrics(predictions, references, ["spice"], tokenizer, spice=program)
        return {name: result[name] for name in result["variants"]}

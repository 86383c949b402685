"""Base class of the caption metrics as modules of `evaluate`: inputs, documentation with an example, computation.

The file of a module imports this file as a whole (`from hf_captioners.metrics import evaluate_module`), because
`evaluate` loads the first metric class that it finds among the names of a file.
"""

from typing import Any, ClassVar

import datasets
import evaluate

from .compute import compute_caption_metrics

CIDER_BIBTEX = """\
@inproceedings{vedantam2015cider,
  title = {CIDEr: Consensus-based Image Description Evaluation},
  author = {Vedantam, Ramakrishna and Zitnick, C. Lawrence and Parikh, Devi},
  booktitle = {CVPR},
  year = {2015}
}
"""

SPICE_BIBTEX = """\
@inproceedings{anderson2016spice,
  title = {SPICE: Semantic Propositional Image Caption Evaluation},
  author = {Anderson, Peter and Fernando, Basura and Johnson, Mark and Gould, Stephen},
  booktitle = {ECCV},
  year = {2016}
}
"""

_ARGUMENTS = """
Args:
    predictions: one caption per image.
    references: the reference captions of each image.
    tokenizer: "ptb" for the tokenizer of the COCO evaluation, "none" for captions whose words are separated by blanks,
        "characters" for languages without blanks, "unicode" for words by the rules of Unicode.
"""

_EXAMPLE = """
Examples:
    >>> import evaluate
    >>> from hf_captioners.metrics import module_path
    >>> metric = evaluate.load(module_path("{metric}"))
    >>> predictions = ["a man riding a horse", "two dogs run on grass"]
    >>> references = [
    ...     ["a man rides a horse on a beach", "a person riding a brown horse"],
    ...     ["two dogs run on green grass", "dogs playing outside"],
    ... ]
    >>> results = metric.compute(predictions=predictions, references=references{options}){mark}
"""

_EXAMPLE_FIGURE = """\
    >>> round(results["{figure}"], 4){mark}
    {value}
"""


class CaptionMetric(evaluate.Metric):
    """A caption metric as a module of `evaluate`. The docstring of a subclass describes the metric.

    Attributes:
        metric: the name of the metric in `METRICS` and of the module.
        bibtex: the citation.
        returns: the names of the scores.
        options: documentation of further arguments of `compute`, one line each.
        example_options: further arguments in the example, such as `, stages=("exact",)`.
        example_figure: name and value of a score of the example; None if it is not computed.
        example_runs: False if the example needs files that are not part of the package.
        about, inputs: the two parts of the documentation, built from the attributes and the subclass's docstring.
    """

    metric: ClassVar[str]
    bibtex: ClassVar[str]
    returns: ClassVar[str]
    options: ClassVar[str] = ""
    example_options: ClassVar[str] = ""
    example_figure: ClassVar[tuple[str, float] | None]
    example_runs: ClassVar[bool] = True
    about: ClassVar[str]
    inputs: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Complete the docstring of a subclass with arguments, scores and an example that can be run."""
        super().__init_subclass__(**kwargs)
        cls.about = (cls.__doc__ or "").strip() + "\n"
        mark = "" if cls.example_runs else "  # doctest: +SKIP"
        options = "".join(f"    {line}\n" for line in cls.options.splitlines())
        cls.inputs = f"{_ARGUMENTS}{options}\nReturns:\n    {cls.returns}\n"
        cls.inputs += _EXAMPLE.format(metric=cls.metric, options=cls.example_options, mark=mark)
        if cls.example_figure is not None:
            figure, value = cls.example_figure
            cls.inputs += _EXAMPLE_FIGURE.format(figure=figure, value=value, mark=mark)
        cls.__doc__ = f"{cls.about}{cls.inputs}"

    def _info(self) -> evaluate.MetricInfo:
        captions = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.about,
            citation=self.bibtex,
            inputs_description=self.inputs,
            features=datasets.Features({"predictions": captions, "references": datasets.Sequence(captions)}),
        )

    def _compute(
        self, predictions: list[str], references: list[list[str]], tokenizer: str = "ptb"
    ) -> dict[str, float]:
        return self.figures(predictions, references, tokenizer)

    def figures(
        self,
        predictions: list[str],
        references: list[list[str]],
        tokenizer: str,
        metric: str | None = None,
        **scorers: Any,
    ) -> dict[str, float]:
        """Compute the metric and return its corpus scores by name.

        Args:
            predictions, references, tokenizer: see `compute_caption_metrics`.
            metric: a variant to compute instead of the class attribute `metric`.
            **scorers: `meteor` or `spice` of `compute_caption_metrics`.
        """
        result = compute_caption_metrics(predictions, references, [metric or self.metric], tokenizer, **scorers)
        return {name: result[name] for name in result["variants"]}

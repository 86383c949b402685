"""SPICE (original program) as a module of `evaluate`."""

from hf_captioners.metrics import OriginalSpice, evaluate_module


class CaptionSpice(evaluate_module.CaptionMetric):
    """SPICE by its original Java program. Pass the path of `spice-1.0.jar` as `jar`. The program needs Java 8 to 13
    and the models of CoreNLP 3.6.0.
    """

    metric = "spice"
    bibtex = evaluate_module.SPICE_BIBTEX
    options = "jar: path of the original program.\njava: the Java executable."
    returns = "spice and spice_object, spice_attribute, spice_relation, spice_color, spice_cardinality, spice_size."
    example_options = ', jar="spice-1.0.jar"'
    example_figure = None
    example_runs = False

    def _compute(
        self,
        predictions: list[str],
        references: list[list[str]],
        tokenizer: str = "ptb",
        jar: str = "spice-1.0.jar",
        java: str = "java",
    ) -> dict[str, float]:
        return self.figures(predictions, references, tokenizer, spice=OriginalSpice(jar, java))

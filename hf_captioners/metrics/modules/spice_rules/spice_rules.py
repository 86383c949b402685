"""Scene comparison with a rule parser as a module of `evaluate`."""

from hf_captioners.metrics import evaluate_module


class CaptionSpiceRules(evaluate_module.CaptionMetric):
    """The comparison of scene graphs of SPICE, on captions parsed by built-in rules. Not comparable with SPICE.
    Synonyms are read from an installed pycocoevalcap (no Java is started).
    """

    metric = "spice_rules"
    bibtex = evaluate_module.SPICE_BIBTEX
    returns = (
        "spice_rules and spice_rules_object, spice_rules_attribute, spice_rules_relation, spice_rules_color,\n"
        "    spice_rules_cardinality, spice_rules_size."
    )
    example_figure = ("spice_rules", 0.4755)
    example_runs = False

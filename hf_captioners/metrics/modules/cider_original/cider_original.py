"""CIDEr without clipping as a module of `evaluate`."""

from hf_captioners.metrics import evaluate_module


class CiderOriginal(evaluate_module.CaptionMetric):
    """The original CIDEr: no clipping, no penalty on length. Papers report CIDEr-D as CIDEr."""

    metric = "cider_original"
    bibtex = evaluate_module.CIDER_BIBTEX
    returns = "cider_original."
    example_figure = ("cider_original", 3.1759)

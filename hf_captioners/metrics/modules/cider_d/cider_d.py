"""CIDEr-D as a module of `evaluate`."""

from hf_captioners.metrics import evaluate_module


class CiderD(evaluate_module.CaptionMetric):
    """CIDEr-D, which papers and coco-caption print as CIDEr. Document frequencies are counted in the references of the
    call, so score all images of a set together, two at the least.
    """

    metric = "cider_d"
    bibtex = evaluate_module.CIDER_BIBTEX
    returns = "cider_d."
    example_figure = ("cider_d", 3.046)

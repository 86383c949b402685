"""CIDEr-D as a module of `evaluate`."""

from hf_captioners.metrics import evaluate_module


class CiderD(evaluate_module.CaptionMetric):
    """CIDEr-D, which papers and coco-caption report as CIDEr. Document frequencies are counted in the references of
    the call: score all images of a set together. At least two images are needed.
    """

    metric = "cider_d"
    bibtex = evaluate_module.CIDER_BIBTEX
    returns = "cider_d."
    example_figure = ("cider_d", 3.046)

"""ROUGE-L for captions as a module of `evaluate`."""

from hf_captioners.metrics import evaluate_module


class CaptionRougeL(evaluate_module.CaptionMetric):
    """ROUGE-L as the COCO caption evaluation computes it: longest common subsequence, beta 1.2, best recall and best
    precision over the references.
    """

    metric = "rouge_l"
    bibtex = """\
@inproceedings{lin2004rouge,
  title = {ROUGE: A Package for Automatic Evaluation of Summaries},
  author = {Lin, Chin-Yew},
  booktitle = {Text Summarization Branches Out},
  year = {2004}
}
"""
    returns = "rouge_l."
    example_figure = ("rouge_l", 0.805)

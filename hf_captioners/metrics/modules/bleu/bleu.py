"""BLEU for captions as a module of `evaluate`."""

from hf_captioners.metrics import evaluate_module


class CaptionBleu(evaluate_module.CaptionMetric):
    """BLEU-1 to BLEU-4 as the COCO caption evaluation computes them: closest reference length, the tokenizer of the
    COCO evaluation. `brevity_penalty=False` computes BLEU without brevity penalty, as Show, Attend and Tell reports
    it.
    """

    metric = "bleu"
    bibtex = """\
@inproceedings{papineni2002bleu,
  title = {BLEU: a Method for Automatic Evaluation of Machine Translation},
  author = {Papineni, Kishore and Roukos, Salim and Ward, Todd and Zhu, Wei-Jing},
  booktitle = {ACL},
  year = {2002}
}
"""
    options = "brevity_penalty: whether to penalise captions that are shorter than the closest reference."
    returns = "bleu_1 .. bleu_4."
    example_figure = ("bleu_1", 0.8187)

    def _compute(
        self, predictions: list[str], references: list[list[str]], tokenizer: str = "ptb", brevity_penalty: bool = True
    ) -> dict[str, float]:
        metric = "bleu" if brevity_penalty else "bleu_no_penalty"
        return self.figures(predictions, references, tokenizer, metric)

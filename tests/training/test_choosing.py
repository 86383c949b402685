import pytest

from hf_captioners.training import evaluation_loop
from hf_captioners.training import trainer as trainer_module
from hf_captioners.training.choosing import best_evaluation, equal_metric
from hf_captioners.training.evaluation import MetricResult


def log_of(metrics, losses):
    return [{"eval_cider_d": m, "eval_loss": loss} for m, loss in zip(metrics, losses, strict=True)]


@pytest.mark.parametrize(
    ("metrics", "losses", "best"),
    [
        ([0.0, 0.0, 0.0], [6.7, 4.9, 5.1], 1),  # zero everywhere: the loss
        ([0.3, 0.3, 0.3], [6.7, 5.1, 4.9], 2),  # equal everywhere: the loss
        ([0.1, 0.5, 0.4, 0.5], [4, 3, 2, 1], 1),  # one metric that differs decides alone
        ([0.0, 0.0, 0.1, 0.05], [3, 1, 5, 1], 2),
        ([0.3, 0.3, 0.2], [3, 1, 0.5], 1),  # what was saved while all were equal stays the best
    ],
)
def test_the_loss_decides_while_the_metric_is_equal(metrics, losses, best):
    log = log_of(metrics, losses)
    assert best_evaluation(log, "eval_cider_d", True) == (len(log) - 1 - best, log[best])


def test_a_metric_that_chose_nothing_is_named():
    assert "0.0000 in all 2 evaluations: the loss chose" in equal_metric(log_of([0, 0], [2, 1]), "eval_cider_d")
    assert "Pass `evaluate_loss=true`" in equal_metric([{"eval_cider_d": 0}] * 2, "eval_cider_d")
    assert equal_metric(log_of([0, 0.1], [2, 1]), "eval_cider_d") is None
    assert equal_metric(log_of([0], [2]), "eval_cider_d") is None


def test_a_run_whose_metric_is_zero_keeps_the_lowest_loss(make_trainer, monkeypatch, caplog):
    def score(*_):
        figures = MetricResult({"cider_d": 0.0})
        figures.conditions = {}
        return figures

    losses = iter([5.0, 4.0, 3.0, 3.5, 3.6])
    monkeypatch.setattr(evaluation_loop, "score_captions", score)
    monkeypatch.setattr(trainer_module.CaptioningTrainer, "caption_loss", lambda self, images: next(losses))
    trainer = make_trainer(num_train_epochs=20, early_stopping_patience=2)
    trainer.train()
    assert trainer.state.epoch == 5, "the loss had improved for three epochs"
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-6"), "two steps an epoch, the third is best"
    assert "0.0000 in all 5 evaluations: the loss chose the best one" in caplog.text

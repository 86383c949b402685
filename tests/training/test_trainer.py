"""`CaptioningTrainer`: loss, evaluation and checkpoints."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoProcessor, TrainerCallback

from hf_captioners.metrics import PTBTokenizer
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.training import evaluation_loop
from hf_captioners.training import trainer as trainer_module
from hf_captioners.training.trainer import keep_boxes_exact


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


@pytest.fixture
def scores(monkeypatch):
    """Replace the metrics by values of the test, and record the scored captions."""
    calls, figures = [], iter(())

    def score(captions, references, *_):
        calls.append((captions, references))
        return {"bleu_4": 0.0, "cider_d": next(score.figures, 0.0)}

    score.figures, score.calls = figures, calls
    monkeypatch.setattr(evaluation_loop, "score_captions", score)
    return score


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(("batch_size", "accumulation"), [(1, 6), pytest.param(2, 3, marks=pytest.mark.slow), (4, 2)])
def test_accumulated_batches_equal_one_batch(make_trainer, make_captioner, tmp_path, batch_size, accumulation):
    """8 or 6 captions of different lengths, one SGD step, against all of them in one batch."""
    steps = []
    for size, count in ((batch_size * accumulation, 1), (batch_size, accumulation)):
        trainer = make_trainer(
            without_dropout(make_captioner()),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=count,
            max_steps=1,
            optim="sgd",
            learning_rate=1.0,
            max_grad_norm=0.0,
            eval_strategy="no",
            save_strategy="no",
        )
        before = copy.deepcopy(trainer.model.state_dict())
        trainer.train()
        moved = {name: weight - before[name] for name, weight in trainer.model.state_dict().items()}
        steps.append((moved, losses(trainer)[0]))
    (whole, whole_loss), (parts, parts_loss) = steps
    assert whole_loss == pytest.approx(parts_loss, abs=2e-4)  # the log rounds
    assert max(step.abs().max() for step in whole.values()) > 1e-3
    for name, step in whole.items():
        torch.testing.assert_close(parts[name], step, atol=1e-6, rtol=1e-4, msg=name)


def test_label_smoothing_happens_inside_the_model(make_trainer, make_captioner):
    fields = {"max_steps": 1, "eval_strategy": "no", "save_strategy": "no"}
    plain, smooth = (
        make_trainer(without_dropout(make_captioner()), label_smoothing_factor=factor, **fields)
        for factor in (0.0, 0.4)
    )
    plain.train(), smooth.train()
    assert smooth.model.config.label_smoothing == 0.4
    assert smooth.label_smoother is None
    assert losses(plain)[0] != losses(smooth)[0]


def test_evaluation_captions_every_image_once_with_all_its_references(make_trainer, scores, scenes):
    metrics = make_trainer(per_device_eval_batch_size=4).evaluate()
    ((captions, references),) = scores.calls
    assert len(captions) == len(scenes["validation"]) == 6
    assert references == list(scenes["validation"]["captions"])
    assert {"eval_cider_d", "eval_bleu_4", "eval_loss"} <= metrics.keys()


def test_several_evaluation_sets_are_named(make_trainer, scores, scenes):
    rows = {"all": scenes["validation"], "few": scenes["validation"].select(range(2))}
    metrics = make_trainer(eval_rows=rows).evaluate()
    assert {"eval_all_cider_d", "eval_few_cider_d"} <= metrics.keys()
    assert [len(captions) for captions, _ in scores.calls] == [6, 2]


def test_the_evaluated_loss_is_that_of_all_tokens(make_trainer, scores, scenes, processor):
    trainer = make_trainer(per_device_eval_batch_size=4, feature_cache_dtype="float32")
    rows = scenes["validation"]
    texts = [caption for captions in rows["captions"] for caption in captions]
    images = [row["image"] for row in rows for _ in row["captions"]]
    inputs = processor(images=images, text_target=texts, return_tensors="pt")
    with torch.no_grad():
        expected = trainer.model.eval()(**inputs).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("changed", [{"label_smoothing": 0.3}, {"loss_reduction": "caption_mean"}])
def test_the_evaluated_loss_is_a_likelihood_whatever_is_trained(make_trainer, make_captioner, scores, changed):
    """Smoothing and reduction change the training loss, not the reported loss."""
    smoothing = changed.get("label_smoothing", 0)
    reported = []
    for fields in ({}, changed):
        trainer = make_trainer(make_captioner(**fields), label_smoothing_factor=smoothing if fields else 0)
        assert trainer.model.config.label_smoothing == (smoothing if fields else 0)
        reported.append(trainer.evaluate()["eval_loss"])
    assert reported[0] == pytest.approx(reported[1], abs=1e-6)


def test_smoothing_of_an_earlier_run_ends_with_it(make_trainer, make_captioner, caplog):
    model = make_captioner(label_smoothing=0.1)
    assert make_trainer(model).model.config.label_smoothing == 0
    assert "`label_smoothing_factor` is 0.0 and takes the place of 0.1" in caplog.text
    model.config.probability_floor = 1e-8
    with pytest.raises(ValueError, match="no meaning for a captioner with `probability_floor` 1e-08"):
        make_trainer(model, label_smoothing_factor=0.1)


def test_images_without_references_are_not_scored(make_trainer, scenes):
    rows = scenes["validation"].map(
        lambda row, index: {"captions": row["captions"] if index else []}, with_indices=True
    )
    scored, whole = (
        make_trainer(eval_rows=rows).evaluate(),
        make_trainer(eval_rows=rows.select(range(1, 6))).evaluate(),
    )
    for name in ("eval_loss", "eval_cider_d", "eval_bleu_1"):
        assert scored[name] == pytest.approx(whole[name], abs=1e-4)


def test_evaluation_does_not_change_how_the_model_generates(make_trainer, scores):
    trainer = make_trainer(num_train_epochs=1)
    trainer.model.generation_config.update(max_new_tokens=11, num_beams=3)
    before = trainer.model.generation_config.to_dict()
    trainer.train()
    trainer.evaluate(num_beams=2, max_new_tokens=4)
    assert trainer.model.generation_config.to_dict() == before
    saved = json.loads(next((trainer_output(trainer)).glob("checkpoint-*/generation_config.json")).read_text())
    assert (saved["max_new_tokens"], saved["num_beams"]) == (11, 3)
    assert "top_k" not in saved


def test_evaluation_logs_nothing_about_the_model_s_own_settings(make_trainer, scores, caplog):
    """transformers would warn in every batch if `max_length`, as in older captioners, met `max_new_tokens`."""
    trainer = make_trainer()
    trainer.model.generation_config.max_length = 7
    caplog.clear()
    with caplog.at_level("WARNING"):
        trainer.evaluate()
    assert not [entry for entry in caplog.records if entry.name.startswith("transformers.generation")]


def trainer_output(trainer):
    from pathlib import Path

    return Path(trainer.args.output_dir)


def test_an_unknown_generation_setting_is_refused(make_trainer, scores):
    with pytest.raises(ValueError, match="numbeams"):
        make_trainer().evaluate(numbeams=2)


def test_checkpoints_hold_the_processor_and_load_alone(make_trainer, scores, scenes):
    trainer = make_trainer(num_train_epochs=1)
    trainer.train()
    (checkpoint,) = trainer_output(trainer).glob("checkpoint-*")
    model = VisualGPTForConditionalGeneration.from_pretrained(checkpoint).eval()
    processor = AutoProcessor.from_pretrained(checkpoint)
    assert model.config.use_cache is True
    images = scenes["validation"][:2]["image"]
    tokens = model.generate(**processor(images=images, return_tensors="pt"), num_beams=1, max_new_tokens=5)
    assert processor.decode(tokens) == trainer.caption(scenes["validation"].select(range(2)))


def test_captions_of_every_evaluation_are_kept(make_trainer, scores, scenes):
    trainer = make_trainer(num_train_epochs=1)
    trainer.train()
    (file,) = trainer_output(trainer).glob("captions/eval-*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["image_id"] for line in lines] == list(scenes["validation"]["image_id"])
    assert [line["caption"] for line in lines] == scores.calls[0][0]


def test_the_best_model_by_cider_d_comes_back_with_its_vision_part(make_trainer, make_captioner, scores):
    """Four epochs, the second is best; a ViT's names in the file differ from those in memory."""
    scores.figures = iter([0.1, 0.9, 0.3, 0.2])
    trainer = make_trainer(make_captioner(freeze_vision=False), num_train_epochs=4, save_total_limit=None)
    kept = {}

    class Keep(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            kept[state.global_step] = copy.deepcopy(trainer.model.state_dict())

    trainer.add_callback(Keep())
    trainer.train()
    assert trainer.state.best_metric == 0.9
    best, last = kept[trainer.state.best_global_step], kept[max(kept)]
    vision = [name for name in best if ".vision." in name and "weight" in name]
    assert any(not torch.equal(best[name], last[name]) for name in vision)  # it was trained
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(weight, best[name], atol=0, rtol=0, msg=name)


def test_stops_when_nothing_improves(make_trainer, scores):
    scores.figures = iter([0.1, 0.5, 0.4, 0.5, 0.3, 0.6])
    trainer = make_trainer(num_train_epochs=20, early_stopping_patience=3)
    trainer.train()
    assert trainer.state.epoch == 5
    assert trainer.state.best_metric == 0.5


@pytest.mark.parametrize("frozen", [pytest.param(True, marks=pytest.mark.slow), False])
def test_bf16_learns(make_trainer, make_captioner, scores, frozen):
    trainer = make_trainer(make_captioner(freeze_vision=not frozen), bf16=True, num_train_epochs=8, learning_rate=5e-3)
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0] - 0.5
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}


def test_stored_features_change_nothing(make_trainer, make_captioner, scores):
    curves = []
    for cached in (True, False):
        trainer = make_trainer(make_captioner(), cache_features=cached, feature_cache_dtype="float32")
        trainer.train()
        assert (trainer.train_dataset.images.features is not None) == cached
        curves.append(losses(trainer))
    assert curves[0] == pytest.approx(curves[1], abs=1e-3)


@pytest.mark.parametrize(
    "batch_size", [pytest.param(6, marks=pytest.mark.slow), 5], ids=["whole images", "divided images"]
)
def test_captions_of_an_image_together_change_only_the_work(make_trainer, make_captioner, batch_size):
    """The same pairs, once with each image encoded for its captions together, once for each of them."""
    fields = {"eval_strategy": "no", "save_strategy": "no", "per_device_train_batch_size": batch_size}
    curves, images = [], []
    for shared in (True, False):
        trainer = make_trainer(
            without_dropout(make_captioner()), group_captions=True, captions_per_image=3, max_steps=6, **fields
        )
        trainer.data_collator.share_images = shared
        images.append([len(batch["region_features"]) for batch in trainer.get_train_dataloader()])
        trainer.train()
        curves.append(losses(trainer))
    assert curves[0] == pytest.approx(curves[1], abs=1e-3)
    assert set(images[1][:-1]) == {batch_size}
    assert (set(images[0]) == {2}) == (batch_size == 6)


def test_needs_a_processor_and_refuses_other_orders(make_trainer, make_captioner, scenes):
    with pytest.raises(ValueError, match="processing_class"):
        trainer_module.CaptioningTrainer(make_captioner(), make_trainer().args, scenes["train"])
    with pytest.raises(ValueError, match="'sequential'"):
        make_trainer(train_sampling_strategy="sequential")


def test_evaluate_and_test_report_the_same(make_trainer, scenes):
    """Both have the same names, and equal values for the same images and settings."""
    trainer = make_trainer()
    rows = scenes["validation"]
    evaluated = {
        name.removeprefix("eval_"): value
        for name, value in trainer.evaluate(rows, num_beams=2).items()
        if name.startswith("eval_") and not name.endswith(("_runtime", "_per_second"))
    }
    tested = trainer.test(rows, num_beams=2)
    assert evaluated.keys() == tested.keys()
    assert evaluated == pytest.approx(dict(tested), abs=1e-6)
    assert {"bleu_4", "cider_d", "loss", "distinct", "length", "length_ratio", "bad_endings"} <= tested.keys()
    assert tested.conditions["tokenizer"] == "ptb" and "cider_d" in tested.conditions["variants"]


def test_an_evaluation_tokenises_every_text_once(make_trainer, scenes, monkeypatch):
    texts = []
    tokenize = PTBTokenizer.__call__

    def count(self, captions):
        texts.extend(captions)
        return tokenize(self, captions)

    monkeypatch.setattr(PTBTokenizer, "__call__", count)
    make_trainer().evaluate()
    references = [text for captions in scenes["validation"]["captions"] for text in captions]
    assert len(texts) == len(scenes["validation"]) + len(references)


def test_predict_is_refused_with_what_to_call(make_trainer, scenes):
    with pytest.raises(NotImplementedError, match=r"trainer\.caption\(rows\).*trainer\.test\(rows\)"):
        make_trainer().predict(scenes["validation"])


def test_real_metrics(make_trainer):
    metrics = make_trainer().evaluate()
    assert 0 <= metrics["eval_cider_d"] < 1 and 0 <= metrics["eval_bleu_4"] < 1


def test_fsdp_leaves_boxes_in_float32():
    """Modules get inputs in their own type from FSDP2; parameters are still cast."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    plugin = SimpleNamespace(mixed_precision_policy=policy)
    keep_boxes_exact(plugin)
    assert not plugin.mixed_precision_policy.cast_forward_inputs
    assert plugin.mixed_precision_policy.param_dtype == torch.bfloat16
    keep_boxes_exact(None)
    keep_boxes_exact(SimpleNamespace(mixed_precision_policy=None))


def test_evaluations_search_although_the_captioner_samples(make_trainer, make_captioner, scenes, caplog):
    """They sample if they are asked to, by a seed that the card shows."""
    rows, model = scenes["validation"], make_captioner()
    searched = make_trainer(model).caption(rows)
    model.generation_config.update(do_sample=True, temperature=1.5, top_p=0.9, num_return_sequences=2)
    trainer = make_trainer(model)
    caplog.clear()
    assert trainer.caption(rows) == searched
    assert not [record for record in caplog.records if record.name.startswith("transformers")]
    samples = [trainer.caption(rows, do_sample=True, **given) for given in ({}, {"seed": 7}, {"seed": 8})]
    assert samples[0] == samples[1] != searched and samples[2] != samples[0]
    assert trainer.caption(rows) == searched and model.generation_config.do_sample
    trainer.evaluate(do_sample=True)
    assert trainer.card.evaluations[0]["eval"].generation["seed"] == 7
    trainer.evaluate()
    assert "seed" not in trainer.card.evaluations[0]["eval"].generation

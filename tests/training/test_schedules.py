"""Published learning rates, update rules, clipping and scheduled sampling."""

import pytest
import torch

from hf_captioners.training import CaptioningTrainingArguments
from hf_captioners.training.optimization import ArcticRMSprop, RunLength, noam, sampling_probability, step_decay
from hf_captioners.training.scheduled_sampling import mix_in_samples

RUN = RunLength(steps_per_epoch=10, warmup_steps=0, hidden_size=None)


def rates(trainer):
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


def test_noam_rises_to_the_end_of_the_warm_up():
    factor = noam(RunLength(10, 4, 16))
    assert [factor(step) for step in range(4)] == pytest.approx([0.25 * s * 4**-1.5 for s in (1, 2, 3, 4)])
    assert factor(15) == pytest.approx(0.25 * 16**-0.5)


def test_the_released_m2_advances_at_every_epoch():
    plain, released = noam(RunLength(10, 100, 16)), noam(RunLength(10, 100, 16), step_at_epoch_start=True)
    assert [released(step) / plain(0) for step in (0, 9, 10)] == pytest.approx([2, 11, 13])


def test_step_decay_falls_between_epochs_after_a_warm_up():
    multiple = step_decay(RunLength(10, 4, None), factor=0.5, every_epochs=2)
    assert [multiple(step) for step in (0, 3, 19, 20, 39, 40)] == [0.25, 1, 1, 0.5, 0.5, 0.25]
    assert step_decay(RUN, factor=0.5, every_epochs=1, start_epoch=2)(35) == 0.5


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: noam(RunLength(10, 0, 16)), "warmup_steps"),
        (lambda: noam(RunLength(10, 5, None)), "model_dim"),
        (lambda: step_decay(RUN, factor=1.5), "factor"),
        (lambda: step_decay(RUN, every_epochs=0), "epochs"),
    ],
)
def test_missing_options_of_schedules_are_refused(make, expected):
    with pytest.raises(ValueError, match=expected):
        make()


def test_share_of_drawn_words():
    assert [sampling_probability(epoch, 0.05, 5, 0.5) for epoch in (0, 4.9, 5, 12.3, 80)] == [0, 0, 0.05, 0.1, 0.5]


def test_a_run_follows_its_published_schedule(make_trainer):
    fields = {"lr_scheduler_type": "step_decay", "lr_scheduler_kwargs": {"factor": 0.5, "every_epochs": 1}}
    trainer = make_trainer(learning_rate=0.01, num_train_epochs=3, eval_strategy="no", save_strategy="no", **fields)
    trainer.train()
    assert rates(trainer) == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025])


def test_a_plateau_is_one_of_the_metric_for_best_model(make_trainer):
    """The rate is cut when CIDEr-D does not rise, or a loss does not fall."""
    for metric, figures, expected in (
        ("cider_d", [0.1, 0.2, 0.3, 0.4], 0.01),
        ("cider_d", [0.4, 0.3, 0.2, 0.1], 0.00125),
        ("loss", [0.1, 0.2, 0.3, 0.4], 0.00125),
    ):
        options = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"factor": 0.5, "patience": 0}}
        trainer = make_trainer(learning_rate=0.01, metric_for_best_model=metric, **options)
        schedule = trainer.create_scheduler(10, trainer.create_optimizer())
        for figure in figures:
            schedule.step(figure)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_noam_takes_the_width_of_the_captioner(make_trainer):
    fields = {"lr_scheduler_type": "noam", "learning_rate": 1.0, "warmup_steps": 10, "max_steps": 2}
    trainer = make_trainer(eval_strategy="no", save_strategy="no", **fields)
    trainer.train()
    assert rates(trainer) == pytest.approx([32**-0.5 * step * 10**-1.5 for step in (1, 2)])


def test_an_unknown_option_of_a_schedule_is_named(make_trainer):
    fields = {"lr_scheduler_type": "step_decay", "lr_scheduler_kwargs": {"gamma": 0.5}}
    with pytest.raises(ValueError, match="'gamma'.*factor, every_epochs"):
        make_trainer(eval_strategy="no", **fields).train()


def test_a_run_takes_the_update_rule_of_the_program(make_trainer, tmp_path):
    fields = {"optim": "arctic_rmsprop", "max_steps": 2, "eval_strategy": "no"}
    trainer = make_trainer(save_strategy="steps", save_steps=1, **fields)
    trainer.train()
    assert type(getattr(trainer.optimizer, "optimizer", trainer.optimizer)) is ArcticRMSprop
    resumed = make_trainer(save_strategy="no", **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], weight, msg=name)


def test_every_element_of_a_gradient_is_clipped(make_trainer, make_captioner):
    """A plain step of rate 1 moves no weight further than the clip, and at least one exactly that far."""
    trainer = make_trainer(
        make_captioner(), max_grad_value=1e-3, learning_rate=1.0, optim="sgd", max_steps=1, eval_strategy="no"
    )
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    moved = max((weight - before[name]).abs().max().item() for name, weight in trainer.model.named_parameters())
    assert moved == pytest.approx(1e-3, rel=1e-3)
    assert trainer.args.max_grad_norm == 0


def test_the_vision_model_has_its_own_rate(make_trainer, make_captioner):
    def moved(rate):
        fields = {"learning_rate": 1e-2, "optim": "sgd", "max_steps": 1, "eval_strategy": "no", "save_strategy": "no"}
        trainer = make_trainer(make_captioner(freeze_vision=False), vision_learning_rate=rate, **fields)
        before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        trainer.train()
        return {name: weight.detach() - before[name] for name, weight in trainer.model.named_parameters()}

    fast, slow = moved(None), moved(1e-3)
    in_vision = [name for name in fast if ".vision." in name and fast[name].abs().max() > 1e-6]
    assert in_vision
    for name, step in fast.items():
        expected = step / 10 if ".vision." in name else step
        torch.testing.assert_close(slow[name], expected, atol=1e-6, rtol=1e-2, msg=name)


def test_a_frozen_vision_model_has_no_rate(make_trainer):
    with pytest.raises(ValueError, match="freeze_vision"):
        make_trainer(vision_learning_rate=1e-4)


def test_fsdp_on_a_cpu_is_refused(make_trainer, monkeypatch):
    """Accelerate ignores it there silently."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="FSDP does nothing on CPUs"):
        make_trainer(eval_strategy="no")


class TestScheduledSampling:
    @pytest.fixture
    def model(self, make_captioner):
        return make_captioner().train()

    @pytest.fixture
    def inputs(self, processor, scenes):
        captions = [text for captions in scenes["train"]["captions"][:2] for text in captions[:3]]
        images = processor(images=scenes["train"][:2]["image"], return_tensors="pt")
        return {**images, **processor(text_target=captions, return_tensors="pt")}

    def test_nothing_is_drawn_without_coins(self, model, inputs):
        words = model.prepare_decoder_input_ids_from_labels(inputs["labels"])
        assert torch.equal(mix_in_samples(model, inputs, 0.0), words)
        assert model.training

    def test_only_words_are_replaced(self, model, inputs):
        words = model.prepare_decoder_input_ids_from_labels(inputs["labels"])
        torch.manual_seed(0)
        mixed = mix_in_samples(model, inputs, 1.0)
        assert torch.equal(mixed[:, 0], words[:, 0])
        is_word = torch.zeros_like(words, dtype=torch.bool)
        is_word[:, 1:] = inputs["labels"][:, :-1] != -100
        assert torch.equal(mixed[~is_word], words[~is_word])
        assert (mixed[is_word] != words[is_word]).float().mean() > 0.9  # an untrained model draws any of 300 types

    def test_a_sample_depends_on_the_samples_before_it(self, model, inputs, monkeypatch):
        """Where the most probable word is taken each time, that is what greedy search writes."""
        monkeypatch.setattr(torch, "multinomial", lambda shares, number: shares.argmax(-1, keepdim=True))
        mixed = mix_in_samples(model, inputs, 1.0)
        length = int((inputs["labels"] != -100).sum(1).min())
        greedy = model.eval().generate(
            pixel_values=inputs["pixel_values"], num_beams=1, max_new_tokens=length - 1, min_new_tokens=length - 1
        )
        assert torch.equal(mixed[:, :length], greedy.repeat_interleave(3, 0)[:, :length])

    def test_a_share_of_words_is_replaced(self, model, inputs):
        words = model.prepare_decoder_input_ids_from_labels(inputs["labels"])
        torch.manual_seed(0)
        changed = torch.stack([mix_in_samples(model, inputs, 0.3) != words for _ in range(8)])
        is_word = inputs["labels"][:, :-1] != -100
        assert 0.2 < changed[:, :, 1:][:, is_word].float().mean() < 0.4

    def test_a_run_uses_it(self, make_trainer, monkeypatch):
        shares = []

        def note(model, inputs, probability):
            shares.append(probability)
            return model.prepare_decoder_input_ids_from_labels(inputs["labels"])

        monkeypatch.setattr("hf_captioners.training.trainer.mix_in_samples", note)
        fields = {"scheduled_sampling_increase": 0.25, "scheduled_sampling_every": 1, "num_train_epochs": 4}
        make_trainer(eval_strategy="no", save_strategy="no", **fields).train()
        assert shares == [0.25, 0.25, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", ["max_grad_value", "vision_learning_rate"])
def test_sizes_are_positive(tmp_path, name):
    with pytest.raises(ValueError, match=name):
        CaptioningTrainingArguments(str(tmp_path), **{name: 0.0})

"""The mean of the weights before and after training."""

import pytest
import torch

from hf_captioners.loading import load_captioner
from hf_captioners.training.arguments import CaptioningTrainingArguments
from hf_captioners.training.scst.arguments import SCSTArguments
from hf_captioners.training.scst.trainer import SCSTTrainer
from hf_captioners.training.trainer import CaptioningTrainer

STEPS = {"max_steps": 2, "use_cpu": True, "disable_tqdm": True, "eval_strategy": "no", "learning_rate": 1e-2}


def trained(trainer_type, arguments, make_captioner, processor, scenes):
    trainer = trainer_type(make_captioner(), arguments, train_dataset=scenes["train"], processing_class=processor)
    trainer.train()
    trainer.save_model()
    return dict(load_captioner(arguments.output_dir)[0].named_parameters())


def test_the_saved_weights_are_the_mean(make_captioner, processor, scenes, tmp_path):
    saved = {}
    for share in (0.0, 0.25):
        arguments = CaptioningTrainingArguments(
            str(tmp_path / str(share)), start_weight=share, save_strategy="no", **STEPS
        )
        saved[share] = trained(CaptioningTrainer, arguments, make_captioner, processor, scenes)
    moved = 0
    for name, weight in make_captioner().named_parameters():
        expected = 0.25 * weight + 0.75 * saved[0.0][name]
        torch.testing.assert_close(saved[0.25][name], expected, rtol=1e-5, atol=1e-7)
        moved += not torch.equal(saved[0.0][name], weight)
    assert moved > 10


def test_each_part_of_self_critical_training_ends_with_the_mean(make_captioner, processor, scenes, tmp_path):
    more = {"scst_after_epochs": 0.1, "num_samples": 2, "generation_max_new_tokens": 4, "save_strategy": "no"}
    arguments = SCSTArguments(str(tmp_path), start_weight=1.0, **STEPS, **more)
    saved = trained(SCSTTrainer, arguments, make_captioner, processor, scenes)
    middle = dict(load_captioner(tmp_path / "start")[0].named_parameters())
    for name, weight in make_captioner().named_parameters():
        assert torch.equal(saved[name], weight) and torch.equal(middle[name], weight), name


def test_a_run_that_ended_at_its_checkpoint_has_the_mean_too(make_captioner, processor, scenes, tmp_path):
    """As after a kill between the last checkpoint and the last save."""
    arguments = CaptioningTrainingArguments(
        str(tmp_path), start_weight=0.5, save_strategy="steps", save_steps=2, **STEPS
    )
    saved = trained(CaptioningTrainer, arguments, make_captioner, processor, scenes)
    resumed = CaptioningTrainer(make_captioner(), arguments, train_dataset=scenes["train"], processing_class=processor)
    resumed.train(resume_from_checkpoint=True)
    for name, weight in resumed.model.named_parameters():
        assert torch.equal(weight, saved[name]), name


def test_evaluations_of_other_weights_and_adapters_are_refused(make_captioner, processor, scenes, tmp_path):
    evaluated = CaptioningTrainingArguments(str(tmp_path), start_weight=0.5, use_cpu=True)
    with pytest.raises(ValueError, match=r"`start_weight=0.5`.*Set `eval_strategy` to 'no'"):
        CaptioningTrainer(
            make_captioner(),
            evaluated,
            train_dataset=scenes["train"],
            eval_dataset=scenes["train"],
            processing_class=processor,
        )
    with pytest.raises(ValueError, match="`start_weight` is 1.5, expected 0 to 1"):
        CaptioningTrainingArguments(str(tmp_path), start_weight=1.5, eval_strategy="no")
    peft = pytest.importorskip("peft", reason="the extra `peft` is not installed")
    adapted = peft.get_peft_model(make_captioner(), peft.LoraConfig(target_modules=["q_proj"]))
    arguments = CaptioningTrainingArguments(str(tmp_path), start_weight=0.5, **STEPS)
    with pytest.raises(ValueError, match="`start_weight` averages the weights of a whole model"):
        CaptioningTrainer(adapted, arguments, train_dataset=scenes["train"], processing_class=processor)

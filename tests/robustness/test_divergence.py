"""Training that diverges stops with an error and keeps its last good weights; such weights are not used."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_captioners.cli import main
from hf_captioners.loading import load_captioner, weight_that_is_not_finite
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --captions_per_image 1"


def test_a_loss_that_is_not_finite_ends_training_and_keeps_earlier_weights(images, captioner, tmp_path, capsys):
    """The rate rises so fast that the second step spoils the weights; a checkpoint is saved after every step."""
    output = tmp_path / "run"
    arguments = [
        "train",
        "--train_dir",
        str(images),
        "--validation_dir",
        str(images),
        "--model",
        captioner,
        "--recipe",
        "none",
    ]
    arguments += ["--output_dir", str(output), "--learning_rate", "1e30", "--max_grad_norm", "0", "--max_steps", "6"]
    arguments += ["--lr_scheduler_type", "linear", "--warmup_steps", "1", "--per_device_train_batch_size", "4"]
    arguments += [*QUICK.split(), "--save_strategy", "steps", "--save_steps", "1", "--eval_strategy", "no"]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert "Saved the captioner" not in printed.out and not (output / "model.safetensors").exists()
    good = output / "checkpoint-1"
    for said in (
        "The loss at step 3 is nan",
        f"--model {good}`",
        "`--learning_rate` (now 1e+30)",
        "--max_grad_norm 1",
    ):
        assert said in printed.err
    assert good.is_dir() and weight_that_is_not_finite(load_captioner(str(good))[0]) is None


@pytest.fixture
def make_trainer(scenes, captioner, tmp_path):
    def make(**fields):
        model, processor = load_captioner(captioner)
        arguments = {"max_steps": 1, "use_cpu": True, "disable_tqdm": True, "generation_max_new_tokens": 3} | fields
        settings = CaptioningTrainingArguments(str(tmp_path / "run"), per_device_train_batch_size=4, **arguments)
        return CaptioningTrainer(model, settings, scenes, scenes.select(range(2)), processor)

    return make


def test_weights_that_are_not_finite_are_not_saved_nor_evaluated(make_trainer):
    trainer = make_trainer()
    with torch.no_grad():
        trainer.model.lm_head.weight[0] = float("inf")
    with pytest.raises(FloatingPointError, match="is not finite at step 0, so it is not saved.*`learning_rate`"):
        trainer.save_model()
    assert not Path(trainer.args.output_dir, "model.safetensors").exists()
    with pytest.raises(FloatingPointError, match="The evaluation loss at step 0 is nan"):
        trainer.evaluate()


def test_a_batch_without_any_target_is_an_error(make_trainer):
    trainer = make_trainer(eval_strategy="no")
    collate = trainer.data_collator

    def without_targets(items):
        batch = collate(items)
        return {**batch, "labels": torch.full_like(batch["labels"], -100)}

    trainer.data_collator = without_targets
    with pytest.raises(ValueError, match=r"All labels of a batch \[4, \d+\] at step 1 are -100.*data collator"):
        trainer.train()


def test_weights_that_are_not_finite_are_refused_for_captioning(images, captioner, tmp_path, capsys):
    model, processor = load_captioner(captioner)
    processor.save_pretrained(tmp_path / "broken")
    model.save_pretrained(tmp_path / "broken")
    path = tmp_path / "broken" / "model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[3]
    weights[name].view(-1)[-1] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    assert main(["caption", str(images / "scene_000.png"), "--model", str(tmp_path / "broken")]) == 2
    assert f"not finite, first in {name}" in capsys.readouterr().err

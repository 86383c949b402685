"""`hf-captioners train --folds`: each image is captioned by a captioner that was not trained on it."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from hf_captioners.cli import interruption, main
from hf_captioners.data.training_images import TrainingImages
from hf_captioners.training import running
from hf_captioners.training.trainer import CaptioningTrainer

QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --recipe none"
QUICK += " --eval_strategy no --save_strategy no --max_steps 1 --folds 3"


@pytest.fixture
def train(images, captioner, tmp_path, capsys):
    """Run a cross-validation of ten images; return the exit status, output and errors."""

    def run(*typed, model=("--model", captioner)):
        arguments = ["train", *model, "--train_dir", str(images), "--output_dir", str(tmp_path / "run")]
        status = main([*arguments, *QUICK.split(), *map(str, typed)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def trainings(monkeypatch):
    """The names of the training images of each training, in their order."""
    found, save = [], running._save_image_lists
    monkeypatch.setattr(
        running,
        "_save_image_lists",
        lambda data, rows, *others: found.append(set(rows["image_id"])) or save(data, rows, *others),
    )
    return found


def parts_of(folder):
    return [set(part) for part in json.loads((folder / "cross_validation" / "plan.json").read_text())["parts"]]


def test_each_image_is_captioned_by_a_captioner_that_has_not_seen_it(images, train, trainings, captioner, tmp_path):
    output = tmp_path / "run"
    status, said, errors = train()
    assert status == 0, errors
    every = {path.name for path in images.glob("*.png")}
    parts = parts_of(output)
    assert sorted(map(len, parts)) == [3, 3, 4] and set().union(*parts) == every
    assert trainings == [*(every - part for part in parts), every]
    for number, part in enumerate(parts, 1):
        captions = json.loads((output / "cross_validation" / f"captions_{number}.json").read_text())
        assert set(captions) == part and all(isinstance(text, str) for text in captions.values())
    figures = json.loads((output / "cross_validation" / "cross_validation.json").read_text())
    assert figures["images"] == 10 and [system["name"] for system in figures["systems"]] == [str(output), captioner]
    assert figures["systems"][0]["interval"]["low"] <= figures["systems"][0]["cider_d"] + 1e-9
    lines = said.splitlines()
    assert lines[0].startswith("Cross-validation: 3 trainings on 6 or more of 10 images")
    assert any(line.startswith("Part 1 of 3 is captioned. 2 more parts and the training on all") for line in lines)
    assert "It was trained on all 10 images; the figures are those of the parts." in lines
    assert "Cross-validation with 3 parts:" in lines and "10 images, tokenizer ptb" in lines
    assert f"{output}: each image was captioned by one of 3 captioners that were not trained on it" in lines
    assert said.count("too few for a verdict") == 1
    assert lines[-1] == f"Caption with it: hf-captioners caption IMAGES --model {output}"
    assert (output / "cross_validation" / "comparison.html").read_text().count("<h2>") == 10
    assert not list((output / "cross_validation").glob("part_*")) and not (output / "held_out.json").exists()
    assert {name for name, _ in TrainingImages.load(output).images} == every
    assert main(["caption", str(images / "scene_000.png"), "--model", str(output)]) == 0


def test_an_interrupted_cross_validation_goes_on(train, trainings, tmp_path, monkeypatch):
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interruption.raise_at_signals()
    compute_loss = CaptioningTrainer.compute_loss

    def interrupted(self, *arguments, **options):
        if len(trainings) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return compute_loss(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(CaptioningTrainer, "compute_loss", interrupted)
        status, said, errors = train()
    for number, handler in signals.items():
        signal.signal(number, handler)
    assert status == 143 and "hf-captioners: interrupted. 1 of 3 parts are captioned." in errors
    assert errors.rstrip().endswith("--resume")
    first = (tmp_path / "run" / "cross_validation" / "captions_1.json").stat().st_mtime_ns
    assert train()[0] == 2
    assert "was begun with other arguments. Repeat" in train("--resume", "--seed", 3)[2]
    assert "was begun with other numbers of parts. Repeat" in train("--resume", "--folds", 2)[2]
    status, said, errors = train("--resume")
    assert status == 0, errors
    assert "Part 1 of 3 is captioned already." in said and "Cross-validation with 3 parts:" in said
    assert (tmp_path / "run" / "cross_validation" / "captions_1.json").stat().st_mtime_ns == first
    status, said, errors = train("--resume")
    assert status == 0, errors  # it has no checkpoint, so that the last training is made again
    assert "Part 3 of 3 is captioned already." in said


def test_images_of_an_earlier_training_are_not_scored(images, train, captioner, tmp_path):
    """They were seen by the captioner that each part starts from."""
    start = Path(shutil.copytree(captioner, tmp_path / "start"))
    rows = sorted(path.name for path in images.glob("*.png"))
    TrainingImages(tuple((name, None) for name in rows[:4])).save(start)
    status, said, errors = train(model=("--model", str(start)))
    assert status == 0, errors
    assert "6 images, tokenizer ptb" in said
    assert f"{start}: trained on 4 more images, which are left out" in said
    TrainingImages(tuple((name, None) for name in rows)).save(start)
    status, said, errors = train("--output_dir", tmp_path / "other", model=("--model", str(start)))
    assert status == 2 and "Each image is one that a captioner was trained on" in errors
    assert not (tmp_path / "other" / "cross_validation").exists()


def test_new_parts_have_figures_without_a_comparison(train, language_model, vision_model, tmp_path):
    status, said, errors = train(model=("--language_model", language_model, "--vision_model", vision_model))
    assert status == 0, errors
    assert "Cross-validation with 3 parts:" in said and "cider_d, 95 % interval: " in said and "against" not in said


def test_what_does_not_go_together_is_refused_before_the_first_training(train, trainings, images, tmp_path):
    for typed, message in (
        (["--validation_share", "0.2"], "`--folds` and `--validation_share` exclude each other"),
        (["--validation_dir", images], "`--folds` and `--validation_dir` exclude each other"),
        (["--folds", "1"], "`--folds` is 1, and there are 10 images"),
        (["--folds", "11"], "`--folds` is 11"),
        (
            ["--eval_strategy", "epoch", "--save_strategy", "epoch"],
            "`--eval_strategy` is 'epoch', and no images are held out",
        ),
    ):
        status, _, errors = train(*typed)
        assert status == 2 and message in errors, errors
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert not trainings


def test_few_images_are_offered_a_cross_validation(images, captioner, tmp_path, capsys, monkeypatch):
    output = tmp_path / "run"
    arguments = ["train", "--model", captioner, "--train_dir", str(images), *QUICK.split()[:-2]]
    arguments += ["--validation_share", "0.3", "--output_dir", str(output)]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    typed = f"repeat the command with --folds 5 --output_dir {output}_folds (5-fold cross-validation: 6 trainings"
    assert lines[-2].startswith(f"For figures on all 10 images, {typed}, about ")
    assert re.search(r"; this one took [\d.]+ (s|min)\)\.$", lines[-2])
    assert lines[-1].startswith("Caption with it: ")
    evaluated = [*arguments[:-1], str(tmp_path / "other"), "--eval_strategy", "steps", "--eval_steps", "1"]
    assert main([*evaluated, "--load_best_model_at_end", "false", "--no_comparison"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "_folds --eval_strategy no (5-fold" in lines[-2]
    assert [line for line in lines if "too few" in line] == [
        "3 images are too few for a verdict, expected 30 or more."
    ]
    monkeypatch.setattr("hf_captioners.cli.cross_validation.OFFERED_BELOW", 10)
    assert main([*arguments[:-1], str(tmp_path / "many")]) == 0
    assert "--folds" not in capsys.readouterr().out

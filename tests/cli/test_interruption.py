"""Interrupted commands: Ctrl-C, SIGTERM and SIGHUP; what they write and print, and the command that goes on."""

import itertools
import os
import shlex
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from hf_captioners import work_progress
from hf_captioners.captioning import batches
from hf_captioners.cli import interruption, main
from hf_captioners.training.trainer import CaptioningTrainer

STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --recipe none"


@pytest.fixture(autouse=True)
def signals():
    """The handlers of a program, without those of this process afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    interruption.raise_at_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def train(images, captioner, tmp_path, capsys):
    """Train three epochs of two steps; return the exit status and what the command said."""

    def run(output, *typed):
        options = ["--save_strategy", "epoch", "--num_train_epochs", "3", "--captions_per_image", "1"]
        options += ["--per_device_train_batch_size", "4", "--validation_share", "0.3", "--seed", "3"]
        arguments = ["train", "--model", captioner, "--train_dir", str(images), "--output_dir", str(tmp_path / output)]
        return main([*arguments, *options, *QUICK.split(), *typed]), capsys.readouterr().err

    return run


def interrupt_at(monkeypatch, step, *numbers):
    """Send signals in the computation of the loss of a step."""
    compute_loss = CaptioningTrainer.compute_loss

    def interrupted(self, *arguments, **options):
        if self.model.training and self.state.global_step == step - 1:
            for number in numbers:
                os.kill(os.getpid(), number)
        return compute_loss(self, *arguments, **options)

    monkeypatch.setattr(CaptioningTrainer, "compute_loss", interrupted)


def go_on(said):
    """Run the command that was printed."""
    (line,) = (line for line in said.splitlines() if line.startswith("Go on: "))
    words = shlex.split(line.removeprefix("Go on: "))
    assert words[0] == "hf-captioners" and words[-1] == "--resume"
    return main(words[1:])


@pytest.mark.parametrize(
    ("name", "step"), [("SIGINT", 3), ("SIGTERM", 4), ("SIGHUP", 1)], ids=["mid-epoch", "at an epoch's end", "at once"]
)
def test_an_interrupted_training_writes_a_checkpoint_and_goes_on_from_it(train, tmp_path, monkeypatch, name, step):
    """The weights are those of an undisturbed run, and the evaluation of no epoch is missing."""
    assert train("whole")[0] == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, step, getattr(signal, name))
        status, said = train("cut")
    checkpoint = tmp_path / "cut" / f"checkpoint-{step}"
    assert status == STATUS[name] and f"hf-captioners: interrupted. The last checkpoint is {checkpoint}." in said
    assert (checkpoint / "trainer_state.json").exists() and not (tmp_path / "cut" / "model.safetensors").exists()
    assert go_on(said) == 0
    whole, cut = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "cut"))
    assert whole.keys() == cut.keys() and all(bool((whole[key] == cut[key]).all()) for key in whole)
    evaluations = [
        Path(tmp_path, run, "trainer_state.json").read_text().count('"eval_loss"') for run in ("whole", "cut")
    ]
    assert evaluations == [3, 3]


def test_a_second_interruption_ends_training_without_a_checkpoint(train, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 1, signal.SIGINT, signal.SIGINT)
    status, said = train("run", "--resume_from_checkpoint", "")
    assert status == 130 and "interrupted. There is no checkpoint yet." in said
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert "--resume_from_checkpoint" not in said.rpartition("Go on: ")[2]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("beside", [False, True], ids=["output", "sidecar"])
def test_an_interrupted_captioning_says_what_is_written(
    images, captioner, tmp_path, capsys, monkeypatch, name, beside
):
    """Text files are written as they come; the command that is printed writes the others."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for image in sorted(images.glob("*.png"))[:5]:
        (folder / image.name).write_bytes(image.read_bytes())
    output = tmp_path / "a b.jsonl"
    options = ["--sidecar"] if beside else ["--output", str(output)]
    caption_batches = batches.caption_batches

    def interrupted(*arguments, **settings):
        for number, batch in enumerate(caption_batches(*arguments, **settings)):
            if number == 2:
                os.kill(os.getpid(), getattr(signal, name))
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(batches, "caption_batches", interrupted)
        quick = ["--model", captioner, "--batch_size", "2", "--num_beams", "1", "--workers", "0"]
        status = main(["caption", str(folder), *quick, *options])
    said = capsys.readouterr().err
    assert status == STATUS[name]
    assert len(list(folder.glob("*.txt"))) == (4 if beside else 0)
    assert f"hf-captioners: interrupted. 4 of 5 images are done{'; their text files are' if beside else ''}" in said
    assert go_on(said) == 0
    assert (len(list(folder.glob("*.txt"))) if beside else len(output.read_text().splitlines())) == 5
    assert not list(tmp_path.rglob("*.partial"))


def test_captioning_says_a_line_a_minute_where_there_is_no_terminal(images, captioner, tmp_path, capsys, monkeypatch):
    seconds = itertools.count(0, 25)
    monkeypatch.setattr(work_progress, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    quick = ["--model", captioner, "--batch_size", "1", "--num_beams", "1", "--workers", "0"]
    assert main(["caption", str(images), "--output", str(tmp_path / "a.jsonl"), *quick]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("captions: ")]
    assert said[0] == "captions: 3 of 10 images after 75 s, about 2.9 min left" and len(said) == 3


def test_signals_that_are_ignored_stay_ignored():
    """As those of `nohup` are."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interruption.raise_at_signals()
    with interruption.deferred(pytest.fail):
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_the_command_that_goes_on():
    typed = ["train", "--output_dir", "my run", "--resume-from-checkpoint", "a/checkpoint-3"]
    assert interruption.resume_command(typed) == "hf-captioners train --output_dir 'my run' --resume"
    assert interruption.resume_command(["caption", "a", "--resume"]) == "hf-captioners caption a --resume"

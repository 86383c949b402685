"""A finished run that is resumed changes nothing; one that was killed before its final save ends as if it was not."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from hf_captioners.cli import main
from hf_captioners.training import running
from hf_captioners.training.resume import last_complete_checkpoint

FINAL = ("model.safetensors", "config.json", "generation_config.json", "README.md", "trainer_state.json")


QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --captions_per_image 1"
SAVES = "--save_strategy steps --save_steps 2 --eval_strategy steps --eval_steps 2"
SMALL = "--evaluate_loss false --per_device_train_batch_size 4"


@pytest.fixture
def command(images, captioner, tmp_path):
    """A run of a captioner whose steps are not a multiple of its epochs; it is evaluated on two images."""
    few = tmp_path / "few"
    few.mkdir()
    lines = (images / "metadata.jsonl").read_text().splitlines()[:2]
    (few / "metadata.jsonl").write_text("\n".join(lines))
    for line in lines:
        shutil.copy(images / json.loads(line)["file_name"], few)
    arguments = [
        "train",
        "--train_dir",
        str(images),
        "--validation_dir",
        str(few),
        "--model",
        captioner,
        "--recipe",
        "none",
    ]
    return [*arguments, *QUICK.split(), *SAVES.split(), *SMALL.split()]


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name not in (".run.lock", "subset.json") and "features" not in path.parts
    }


def steps_of(output):
    return json.loads(Path(output, "trainer_state.json").read_text())["global_step"]


def test_a_finished_run_that_is_resumed_changes_no_file(command, tmp_path, capsys, monkeypatch):
    """With one checkpoint kept, the newest checkpoint is the best one, from before the end of the run."""
    cider = iter([0.5, 0.4, 0.3])
    monkeypatch.setattr("hf_captioners.training.evaluation_loop.score_captions", lambda *_: {"cider_d": next(cider)})
    output = tmp_path / "run"
    typed = [*command, "--output_dir", str(output), "--max_steps", "4", "--save_total_limit", "1"]
    assert main(typed) == 0
    before = digests(output)
    assert steps_of(output) == 4
    capsys.readouterr()
    assert main([*typed, "--resume"]) == 0
    assert "had finished: nothing was trained" in capsys.readouterr().out
    assert digests(output) == before


def test_a_kill_before_the_final_save_and_a_resume_end_as_if_nothing_had_happened(command, tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    typed = [*command, "--max_steps", "4"]
    assert main([*typed, "--output_dir", str(whole)]) == 0

    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(running.CaptioningTrainer, "save_model", _unless_final(kill))
        main([*typed, "--output_dir", str(killed)])
    assert last_complete_checkpoint(killed).endswith("checkpoint-4") and not (killed / "model.safetensors").exists()
    assert main([*typed, "--output_dir", str(killed), "--resume"]) == 0
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert steps_of(killed) == 4
    kept = sorted(path.name for path in killed.glob("checkpoint-*"))
    assert kept == sorted(path.name for path in whole.glob("checkpoint-*"))
    assert main([*command, "--max_steps", "5", "--output_dir", str(killed), "--resume"]) == 0
    assert steps_of(killed) == 5, "more steps are trained when more are asked for"


def _unless_final(kill):
    save = running.CaptioningTrainer.save_model

    def save_model(self, output_dir=None, _internal_call=False):
        return save(self, output_dir, _internal_call) if _internal_call else kill()

    return save_model


def test_a_test_that_was_killed_is_made_up_for_and_a_complete_one_is_not_repeated(command, images, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(images, tmp_path / "data" / split)
    data = ["--train_dir", str(tmp_path / "data"), "--test_split", "test", "--test_metrics", "bleu"]
    data += ["--output_dir", str(tmp_path / "run"), "--max_steps", "2", "--resume"]
    assert main([*command, *data]) == 0
    results = tmp_path / "run" / "test_results.json"
    metrics = json.loads(results.read_text())
    card = (tmp_path / "run" / "README.md").read_text()
    results.unlink()
    assert main([*command, *data]) == 0
    assert json.loads(results.read_text()) == metrics
    assert (tmp_path / "run" / "README.md").read_text().count("CIDEr-D") == card.count("CIDEr-D")
    written = results.stat().st_mtime_ns
    assert main([*command, *data]) == 0
    assert results.stat().st_mtime_ns == written
    assert main([*command, *data, "--test_metrics", "rouge_l"]) == 0
    assert "rouge_l" in json.loads(results.read_text())

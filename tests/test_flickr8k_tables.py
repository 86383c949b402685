"""The queue of trainings in `benchmarks/flickr8k_tables.py`: order, choice of learning rates, resumption."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def queue(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import flickr8k_tables

    yield flickr8k_tables
    for name in ("flickr8k_tables", "provenance"):
        sys.modules.pop(name, None)


@pytest.fixture
def study(queue, tmp_path):
    (tmp_path / "data" / "flickr8k" / "train").mkdir(parents=True)
    study = queue.Study(tmp_path / "out", tmp_path / "data", tmp_path / "captions.json", tmp_path / "kept")
    study.prepare()
    study.prepare()  # a later call
    return study


def write_scores(queue, study, kind, scores):
    """Keep the figures of the search, made from runs with the CIDEr-D of each evaluation."""
    for rate, of_epochs in zip(queue.RATES[kind], scores, strict=True):
        job = study.search(kind, rate)
        folder = study.folder / job.folder
        folder.mkdir(parents=True)
        history = [{"loss": 1.0}, *({"eval_cider_d": score} for score in of_epochs), {"train_runtime": 1.0}]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        job.keeps.parent.mkdir(exist_ok=True)
        job.keeps.write_text(json.dumps(job.figures()))


def option(command, name):
    return command[command.index(name) + 1]


def test_rates_are_chosen_without_the_images_that_are_reported(queue, study):
    jobs = {job.name: job for job in study.jobs()}
    names = list(jobs)
    assert len(names) == len(study.jobs()), "every job has a state of its own"
    searches = [name for name in names if name.startswith("search_")]
    finals = [f"flickr8k_{kind}_seed_{seed}" for seed in queue.SEEDS for kind in queue.CAPTIONERS]
    for kind in queue.CAPTIONERS:
        places = [[names.index(name) for name in part if kind in name] for part in (searches, finals)]
        assert max(places[0]) < min(places[1])
    for kind in queue.CAPTIONERS:
        write_scores(queue, study, kind, [(0.1, 0.2), (0.9, 0.3), (0.2, 0.4)])
    for name in searches:
        command = jobs[name].command()
        data = study.folder / option(command, "--train_dir")
        assert [path.name for path in data.iterdir()] == ["train"], "the validation photographs are not there"
        assert float(option(command, "--validation_share")) * 6000 == pytest.approx(500, abs=0.01)
        assert int(option(command, "--seed")) not in queue.SEEDS
    for name in finals:
        command = jobs[name].command()
        kind = next(kind for kind in queue.CAPTIONERS if kind in name)
        assert float(option(command, "--learning_rate")) == queue.RATES[kind][2], "the last epoch decides"
        assert option(command, "--eval_strategy") == "no" and "--validation_share" not in command
        assert option(command, "--train_dir") == str(study.data_dir / "flickr8k")
    caches = {
        option(jobs[name].command(), "--feature_cache_dir") for name in [*searches, *finals, "runs_low_data_seed_1"]
    }
    assert len(caches) == 1, "features are computed once"


def test_published_commands_name_no_folder_of_a_machine(queue, study, monkeypatch):
    monkeypatch.setenv("HF_CAPTIONERS_DATA_DIR", str(study.data_dir))
    for kind in queue.CAPTIONERS:
        write_scores(queue, study, kind, [(0.1,), (0.3,), (0.2,)])
    for job in study.jobs():
        typed = study.typed(job.command())
        assert "/tmp" not in typed and str(study.folder) not in typed and sys.executable not in typed, typed
    text = (study.folder / "results" / "flickr8k_visualgpt.commands.txt").read_text()
    assert "one seed: 0.100 with 0.0003, 0.300 with 0.0006, 0.200 with 0.0012" in text
    assert "hf-captioners train visualgpt/flickr8k.yaml --learning_rate 0.0006" in text
    assert "python benchmarks/flickr8k.py runs/flickr8k_visualgpt/seed_1" in text


def test_kept_figures_stand_for_their_trainings(queue, study):
    """Where the figures of a captioner are kept, neither its search nor its training is run again."""

    def job(name, needs=(), **others):
        command = [sys.executable, "-c", f"open('calls.txt', 'a').write('{name} ')"]
        return queue.Job(name, lambda: command, f"runs/{name}", needs=needs, **others)

    study.kept_dir.mkdir()
    search = job("search", keeps=study.kept_dir / "search.json", figures=lambda: {"held_out_cider_d": 0.5})
    training = job("training", (search,))
    captions = job("captions", (training,), keeps=study.kept_dir / "captions.json", figures=lambda: {"cider_d": 0.4})
    table, study_of_rewards = job("table", (captions,)), job("rewards", (training,))
    assert queue.run(table, study)
    assert (study.folder / "calls.txt").read_text() == "search training captions table "
    kept = json.loads(captions.keeps.read_text())
    assert kept["cider_d"] == 0.4 and kept["provenance"][0]["recorded"]
    (study.folder / "calls.txt").unlink()
    for state in (study.folder / "jobs").iterdir():
        state.unlink()
    assert queue.run(table, study) and queue.run(study_of_rewards, study)
    assert (study.folder / "calls.txt").read_text() == "table training rewards ", (
        "weights that are read are made again"
    )


def test_published_seconds_are_those_of_the_machine_that_trained(queue, study):
    job = study.evaluation("show_attend_tell", 1)
    assert option(job.command(), "--training_seconds") == "0"
    study.kept_dir.mkdir()
    job.keeps.write_text(json.dumps({"runs": [{"training": {"seconds": 3132.4}}]}))
    assert option(job.command(), "--training_seconds") == "3132"


def test_a_job_is_run_once_and_resumed_after_a_failure(queue, study):
    script = "import sys; open('calls.txt', 'a').write(' '.join(sys.argv[1:]) + '|'); sys.exit(len(sys.argv) == 2)"
    command = [sys.executable, "-c", script, "first"]
    job = queue.Job("job", lambda: command, "runs/job", lambda: ["--resume"])
    calls = study.folder / "calls.txt"
    assert not queue.run(job, study)
    assert queue.read_state(study.folder / "jobs" / "job.json")["status"] == "failed"
    assert queue.run(job, study) and queue.run(job, study)
    assert calls.read_text() == "first|first --resume|"
    state = queue.read_state(study.folder / "jobs" / "job.json")
    assert state["status"] == "done" and state["attempts"] == 2 and state["seconds"] > 0
    (record,) = json.loads((study.folder / "runs" / "job" / "provenance.json").read_text())
    assert record["recorded"] and record["cpu"]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc")
def test_the_process_of_a_killed_queue_is_ended_before_its_job_is_resumed(queue, study):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    left_over = subprocess.Popen(command, start_new_session=True)
    until = time.monotonic() + 10
    while Path(f"/proc/{left_over.pid}/cmdline").read_bytes().split(b"\0")[0] != os.fsencode(sys.executable):
        assert time.monotonic() < until
        time.sleep(0.01)
    state = {"status": "started", "seconds": 5.0, "attempts": 1, "pid": left_over.pid, "command": command}
    queue.end_left_over(state | {"command": ["another program"]})
    assert left_over.poll() is None, "its number was given to another program since"
    path = study.folder / "jobs" / "job.json"
    path.write_text(json.dumps(state))
    assert queue.run(queue.Job("job", lambda: [sys.executable, "-c", ""], None), study)
    assert left_over.wait(10) != 0
    assert queue.read_state(path)["seconds"] > 5, "the seconds of all attempts"


def test_a_language_model_is_resumed_from_a_complete_checkpoint(queue, tmp_path):
    for step, complete in ((200, True), (1000, True), (1200, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if complete:
            (folder / "trainer_state.json").write_text("{}")
    assert queue.last_checkpoint(tmp_path) == tmp_path / "checkpoint-1000"
    assert queue.last_checkpoint(tmp_path / "none") is None

"""Resumable queue of the trainings for the tables on Flickr8k, self-critical training and low data.

    python benchmarks/flickr8k_tables.py --output_dir FOLDER \
        --data_dir $HF_CAPTIONERS_DATA_DIR --coco_captions captions_train2014.json
    python benchmarks/flickr8k_tables.py --output_dir FOLDER

The first command starts, the second one goes on: what is complete is skipped, what was interrupted is resumed. It can
be killed at any time. `--status` prints the jobs and their hours. FOLDER gets `runs`, `jobs` (the state and log of
every job) and `results`, whose files replace those of `benchmarks/results`. The figures of each training are kept in
`benchmarks/results/trainings`: a queue in an empty folder, on another machine for example, trains only captioners
that have no figures there.

Learning rates are chosen on 500 training photographs that are held out for it, by the CIDEr-D of the last epoch, with
a seed of its own; the final runs train on all 6,000, and the validation photographs only evaluate their last weights.
The language models read English novels and captions of COCO train2014, none of Flickr8k. All runs share the stored
features of the frozen vision model. Run it from a checkout without changes: the commit is recorded.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock
from provenance import DATA_DIR, ROOT, add_run_record, run_records, shell_word, write_results

from hf_captioners.output_files import write_text

KEPT_DIR = ROOT / "benchmarks" / "results" / "trainings"
SEEDS = (1, 2, 3)
SEARCH_SEED = 100  # it is not among the reported ones
HELD_OUT_SHARE = 500 / 6000
RATES = {"show_attend_tell": (4e-4, 8e-4, 1.6e-3), "visualgpt": (3e-4, 6e-4, 1.2e-3)}
CAPTIONERS = {  # recipe, title and options of the evaluation
    "show_attend_tell": (
        "show_attend_tell/flickr8k_soft.yaml",
        ["--title", "Show, Attend and Tell (soft)", "--recipe", "show_attend_tell/table1_soft.yaml"]
        + ["--conditions", "VGG, test photographs, no brevity penalty"],
    ),
    "visualgpt": ("visualgpt/flickr8k.yaml", ["--title", "VisualGPT", "--max_new_tokens", "24"]),
}
SELF_CRITICAL = {"show_attend_tell": ("Show", "after 6 epochs"), "visualgpt": ("VisualGPT", "all")}
CHECK_SECONDS = 20.0  # between two writes of the seconds of a running job
HF_CAPTIONERS = [sys.executable, "-m", "hf_captioners.cli"]


@dataclass(frozen=True)
class Job:
    """Command of the queue, with its name and output folder.

    Args:
        name: of its state and log.
        command: returns the command when the jobs before it are done; it is typed in the output folder.
        folder: of a training run, which gets a record of the checkout. None: it records that in its own result.
        resume: returns further arguments for a command that was interrupted.
        needs: the jobs whose outputs it reads, which run before it.
        keeps: the file of its figures. A job whose figures are kept is complete, even without its other outputs.
        figures: returns what is kept of a training run. None: the command writes the file itself.
    """

    name: str
    command: Callable[[], list[str]]
    folder: str | None
    resume: Callable[[], list[str]] = list
    needs: tuple["Job", ...] = ()
    keeps: Path | None = None
    figures: Callable[[], dict[str, Any]] | None = None


@dataclass(frozen=True)
class Study:
    """Folders and job definitions of the tables.

    Args:
        folder: the output folder.
        data_dir: folder of the data sets.
        coco_captions: `captions_train2014.json` of COCO.
        kept_dir: folder of the figures of each training.
    """

    folder: Path
    data_dir: Path
    coco_captions: Path
    kept_dir: Path

    def language_model(self, name: str, *options: str) -> Job:
        """Return the job that trains a small GPT-2 on novels."""
        folder = f"runs/{name}"
        text = self.data_dir / "text_lm" / "english_novels.train.txt.gz"
        fixed = (
            "--width 256 --layers 4 --heads 4 --positions 64 --block_size 64 --num_train_epochs 1 --use_cpu --seed 1 "
        )
        fixed += "--per_device_train_batch_size 16 --learning_rate 1e-3 --lr_scheduler_type cosine --warmup_steps 50 "
        fixed += "--logging_steps 50 --save_strategy steps --save_steps 200 --save_total_limit 1"
        command = [sys.executable, str(ROOT / "examples" / "pretrain_language_model.py"), "--text", str(text)]

        def resume() -> list[str]:
            last = last_checkpoint(self.folder / folder)
            return ["--resume_from_checkpoint", str(last)] if last else []

        return Job(name, lambda: [*command, *options, *fixed.split(), "--output_dir", folder], folder, resume)

    def training(self, kind: str, folder: str, options: Callable[[], list[str]], data: Path) -> Job:
        """Return the job that trains a captioner on Flickr8k."""
        vision = self.data_dir / "mobilenetv2" / "hf"
        fixed = ["--train_dir", str(data), "--vision_model", str(vision), "--feature_cache_dir", "runs/features"]
        fixed += ["--use_cpu", "--logging_steps", "50", "--output_dir", folder]
        recipe = CAPTIONERS[kind][0]
        name = folder.removeprefix("runs/").replace("/", "_")
        needs = tuple(self.language_models()) if kind == "visualgpt" else ()
        return Job(
            name,
            lambda: [*HF_CAPTIONERS, "train", recipe, *options(), *fixed],
            folder,
            resume=lambda: ["--resume"],
            needs=needs,
        )

    def search(self, kind: str, rate: float) -> Job:
        """Return the job that tries one learning rate, evaluated on held-out training photographs."""
        options = ["--learning_rate", f"{rate:g}", "--validation_share", f"{HELD_OUT_SHARE:.6f}"]
        options += ["--eval_strategy", "epoch", "--load_best_model_at_end", "false", "--save_total_limit", "1"]
        options += ["--seed", str(SEARCH_SEED), "--follow_links"]  # to the photographs of `prepare`
        job = self.training(kind, f"runs/search_{kind}/{rate:g}", lambda: options, self.folder / "runs" / "train_only")

        def figures() -> dict[str, Any]:
            score = last_score(self.folder / str(job.folder))
            return {"learning_rate": rate, "held_out_cider_d": score, "seconds": self.state(job)["seconds"]}

        return replace(job, keeps=self.kept_dir / f"{job.name}.json", figures=figures)

    def searches(self, kind: str) -> tuple[Job, ...]:
        """Return the jobs that try all learning rates for a captioner."""
        return tuple(self.search(kind, rate) for rate in RATES[kind])

    def final(self, kind: str, seed: int) -> Job:
        """Return the job that trains one seed with the selected learning rate."""

        def options() -> list[str]:
            rate = f"{self.chosen_rate(kind):g}"
            fixed = ["--eval_strategy", "no", "--save_strategy", "epoch", "--save_total_limit", "1"]
            return ["--learning_rate", rate, *fixed, "--seed", str(seed)]

        job = self.training(kind, f"runs/flickr8k_{kind}/seed_{seed}", options, self.data_dir / "flickr8k")
        return replace(job, needs=(*job.needs, *self.searches(kind)))

    def evaluation(self, kind: str, seed: int) -> Job:
        """Return the job that captions the validation photographs with one seed's captioner."""
        training = self.final(kind, seed)
        keeps = self.kept_dir / f"{training.name}.json"

        def command() -> list[str]:
            where = ["--data_dir", str(self.data_dir / "flickr8k"), "--output", str(keeps)]
            seconds = f"{self.training_seconds(training, keeps):.0f}"
            script = str(ROOT / "benchmarks" / "flickr8k.py")
            typed = [sys.executable, script, str(training.folder), *CAPTIONERS[kind][1], *where]
            return [*typed, "--training_seconds", seconds]

        return Job(f"captions_{training.name}", command, None, needs=(training,), keeps=keeps)

    def table(self, kind: str) -> Job:
        """Return the job that collects the scores of all seeds."""
        output, commands = f"results/flickr8k_{kind}.json", f"results/flickr8k_{kind}.commands.txt"
        script = str(ROOT / "benchmarks" / "flickr8k.py")
        evaluations = tuple(self.evaluation(kind, seed) for seed in SEEDS)

        def command() -> list[str]:
            jobs = [self.final(kind, seed) for seed in SEEDS]
            if kind == "visualgpt":
                jobs = [*self.language_models(), *jobs]
            typed = [self.typed(job.command()) for job in (*jobs, *evaluations)]
            where = ["--data_dir", str(self.data_dir / "flickr8k"), "--output", output]
            gather = [sys.executable, script, *(str(job.keeps) for job in evaluations), *CAPTIONERS[kind][1], *where]
            write_text(self.folder / commands, "\n".join([self.rates(kind), *typed, self.typed(gather)]) + "\n")
            return [*gather, "--commands", commands]

        return Job(f"flickr8k_{kind}", command, None, needs=evaluations)

    def reproduction(self, name: str, study: str, *options: str, needs: tuple[Job, ...] = ()) -> Job:
        """Return the job that executes the runs of a part of a study by the resumable `hf-captioners reproduce`."""
        folder = f"runs/{name}"
        fixed = ["--feature_cache_dir", "runs/features", "--use_cpu", "--output_dir", folder]
        runs = Job(f"runs_{name}", lambda: [*HF_CAPTIONERS, "reproduce", study, *options, *fixed], folder, needs=needs)
        keeps, commands = self.kept_dir / f"{name}.json", f"results/{name}.commands.txt"

        def command() -> list[str]:
            write_text(self.folder / commands, f"{self.typed(runs.command())}\n")
            script = str(ROOT / "benchmarks" / "gather_runs.py")
            return [sys.executable, script, folder, "--commands", commands, "--output", str(keeps)]

        return Job(name, command, None, needs=(runs,), keeps=keeps)

    def gathering(self, study: str, *parts: Job) -> Job:
        """Return the job that collects the results of a study."""
        output, commands = f"results/{study}.json", f"results/{study}.commands.txt"
        script = str(ROOT / "benchmarks" / "gather_runs.py")

        def command() -> list[str]:
            runs = [job for part in parts for job in part.needs]
            typed = [self.typed(job.command()) for job in (*self.language_models(), *runs)]
            gather = [sys.executable, script, *(str(part.keeps) for part in parts)]
            gather += ["--commands", commands, "--output", output]
            write_text(self.folder / commands, "\n".join([*typed, self.typed(gather)]) + "\n")
            return gather

        return Job(f"{study}_gathered", command, None, needs=parts)

    def language_models(self) -> list[Job]:
        """Return the jobs of both language models: trained on novels, and on novels and COCO captions."""
        captions = ["--captions", str(self.coco_captions), "--max_captions", "80000", "--max_text_tokens", "500000"]
        return [
            self.language_model("gpt2_novels", "--vocab_size", "5000", "--max_text_tokens", "1500000"),
            self.language_model("gpt2_captions", "--tokenizer", "runs/gpt2_novels", *captions),
        ]

    def targets(self) -> list[Job]:
        """Return the jobs whose results are wanted, in order."""
        flickr8k, vision = str(self.data_dir / "flickr8k"), str(self.data_dir / "mobilenetv2" / "hf")
        models, given = tuple(self.language_models()), ("--train_dir", flickr8k, "--vision_model", vision)
        low_data = [
            self.reproduction(f"low_data_seed_{seed}", "low_data", "--seeds", str(seed), *given, needs=models)
            for seed in SEEDS
        ]
        scenes = ("--table", "scenes", "--vision_model", vision)
        rewarded = [self.reproduction("self_critical_scenes", "self_critical", *scenes)]
        for seed in SEEDS:
            for kind, (row, regime) in SELF_CRITICAL.items():
                which = ["--table", "Flickr8k", "--row", row, "--regime", regime, "--seeds", str(seed)]
                training = self.final(kind, seed)
                start = ["--model", str(training.folder), "--train_dir", flickr8k]
                name = f"self_critical_{kind}_seed_{seed}"
                rewarded.append(self.reproduction(name, "self_critical", *which, *start, needs=(training,)))
        # One captioner after the other, so that its table is there as early as possible.
        return [
            *(self.table(kind) for kind in CAPTIONERS),
            self.gathering("low_data", *low_data),
            self.gathering("self_critical", *rewarded),
        ]

    def jobs(self) -> list[Job]:
        """Return all jobs in order."""
        jobs: dict[str, Job] = {}

        def add(job: Job) -> None:
            for needed in job.needs:
                add(needed)
            jobs.setdefault(job.name, job)

        for job in self.targets():
            add(job)
        return list(jobs.values())

    def state(self, job: Job) -> dict[str, Any]:
        """Return the state of a job, see `read_state`."""
        return read_state(self.folder / "jobs" / f"{job.name}.json")

    def training_seconds(self, training: Job, keeps: Path) -> float:
        """Return the duration of a training; stored results name it if it ran on another machine."""
        if not keeps.is_file():
            return float(self.state(training)["seconds"])
        return float(json.loads(keeps.read_text(encoding="utf-8"))["runs"][0]["training"]["seconds"])

    def held_out_scores(self, kind: str) -> dict[float, float]:
        """Return the last epoch's CIDEr-D on held-out photographs, by learning rate."""
        kept = [json.loads(Path(str(job.keeps)).read_text(encoding="utf-8")) for job in self.searches(kind)]
        return {figures["learning_rate"]: figures["held_out_cider_d"] for figures in kept}

    def chosen_rate(self, kind: str) -> float:
        """Return the learning rate with the highest CIDEr-D on held-out photographs."""
        scores = self.held_out_scores(kind)
        return max(scores, key=lambda rate: scores[rate])

    def rates(self, kind: str) -> str:
        """Return a shell comment with the tried learning rates and their scores."""
        tried = ", ".join(f"{score:.3f} with {rate:g}" for rate, score in self.held_out_scores(kind).items())
        return f"# CIDEr-D of the learning rates on 500 held-out training photographs, one seed: {tried}"

    def typed(self, command: list[str]) -> str:
        """Format a command as a person types it in the output folder."""
        local = {str(self.folder): ".", str(self.coco_captions): self.coco_captions.name}
        for path, name in local.items():
            command = [word.replace(path, name) for word in command]
        words = map(shell_word, command[1:])
        text = " ".join(["python", *words])
        return text.replace("python -m hf_captioners.cli", "hf-captioners")

    def prepare(self) -> None:
        """Create the folders, and a data set of training photographs with a held-out part."""
        for name in ("jobs", "results", "runs/train_only"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        link = self.folder / "runs" / "train_only" / "train"
        if not link.is_symlink():
            link.symlink_to(self.data_dir / "flickr8k" / "train")


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint of a training; transformers writes its trainer state last."""
    complete = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def last_score(folder: Path) -> float:
    """Return the CIDEr-D of a run's last evaluation."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry["eval_cider_d"] for entry in history if "eval_cider_d" in entry][-1]


def read_state(path: Path) -> dict[str, Any]:
    """Return the state of a job: `status`, `seconds` of all attempts, `attempts`, `pid` of the last one."""
    if not path.is_file():
        return {"status": "waiting", "seconds": 0.0, "attempts": 0, "pid": None}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def end_left_over(state: dict[str, Any]) -> None:
    """Terminate processes of a job whose queue was killed, as two processes must not write one folder."""
    pid = state["pid"]
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        if pid and words == state["command"]:
            os.killpg(pid, signal.SIGKILL)


def is_complete(job: Job, study: Study) -> bool:
    """Return True if a job is done, or its stored results exist."""
    return study.state(job)["status"] == "done" if job.keeps is None else job.keeps.is_file()


def run(job: Job, study: Study) -> bool:
    """Run a job and its prerequisites unless complete; return True if it is complete then."""
    if is_complete(job, study):
        return True
    if not run_all(job.needs, study):
        return False
    path, log = (study.folder / "jobs" / f"{job.name}.{ending}" for ending in ("json", "log"))
    state = read_state(path)
    end_left_over(state)
    command = job.command() + (job.resume() if state["attempts"] else [])
    state |= {"status": "started", "attempts": state["attempts"] + 1, "command": command}
    before, started = state["seconds"], time.monotonic()
    if job.folder is not None:
        add_run_record(study.folder / job.folder)
    print(time.strftime("%F %T"), job.name, shlex.join(command), flush=True)
    with log.open("a", encoding="utf-8") as file:
        environment = os.environ | {DATA_DIR: str(study.data_dir), "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=study.folder, env=environment, start_new_session=True
        )
        try:
            while process.returncode is None:
                write_text(path, json.dumps(state | {"pid": process.pid}, indent=1) + "\n")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(CHECK_SECONDS)
                state["seconds"] = round(before + time.monotonic() - started, 3)
        finally:  # Ctrl+C, or SIGTERM
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    state["status"] = "done" if process.returncode == 0 else "failed"
    write_text(path, json.dumps(state | {"pid": None}, indent=1) + "\n")
    print(time.strftime("%F %T"), job.name, state["status"], f"{state['seconds']:.0f} s", flush=True)
    if process.returncode == 0 and job.figures is not None:
        records = run_records(study.folder / str(job.folder))
        write_results(str(job.keeps), job.figures(), records, measured_here=False)
    return process.returncode == 0


def run_all(jobs: Iterable[Job], study: Study) -> bool:
    """Run jobs, continuing after a failed one; return True if all are complete then."""
    return sum(not run(job, study) for job in jobs) == 0


def print_status(study: Study) -> None:
    """Print the state of every job, and the hours so far."""
    jobs, seconds, done = study.jobs(), 0.0, 0
    for job in jobs:
        state, complete = study.state(job), is_complete(job, study)
        status = "done" if complete else str(state["status"])
        print(f"{job.name:<40} {status:<8} {state['seconds'] / 60:7.1f} min")
        seconds, done = seconds + state["seconds"], done + complete
    print(f"{done} of {len(jobs)} jobs, {seconds / 3600:.2f} hours in this folder")


def main() -> int:
    """Run the jobs; return 1 if any failed, whose log tells why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument(
        "--data_dir", type=Path, help="folder of flickr8k, mobilenetv2 and text_lm; kept for later calls"
    )
    parser.add_argument("--coco_captions", type=Path, help="captions_train2014.json; kept for later calls")
    parser.add_argument("--status", action="store_true", help="only print the state of the jobs")
    args = parser.parse_args()
    kept = args.output_dir / "jobs" / "study.json"
    if not kept.is_file():
        if args.data_dir is None or args.coco_captions is None:
            parser.error("The first call needs `--data_dir` and `--coco_captions`.")
        kept.parent.mkdir(parents=True, exist_ok=True)
        paths = {name: str(getattr(args, name).resolve()) for name in ("data_dir", "coco_captions")}
        write_text(kept, json.dumps(paths, indent=1) + "\n")
    paths = {name: Path(path) for name, path in json.loads(kept.read_text(encoding="utf-8")).items()}
    study = Study(args.output_dir.resolve(), kept_dir=KEPT_DIR, **paths)
    if args.status:
        print_status(study)
        return 0
    study.prepare()
    os.environ[DATA_DIR] = str(study.data_dir)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with FileLock(study.folder / "jobs" / ".lock", blocking=False):
        return int(not run_all(study.targets(), study))


if __name__ == "__main__":
    sys.exit(main())

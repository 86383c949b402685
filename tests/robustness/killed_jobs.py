"""Long jobs, killed at random times and resumed; their output must equal an undisturbed job's."""

import contextlib
import http.server
import json
import os
import random
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import PIL.Image
import torch
import tqdm.std
from safetensors.numpy import load

from hf_captioners.captioning.sidecars import is_interrupted
from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.data.generated_captions import RECORD_NAME
from tests.hub.released_files import write_visualgpt
from tests.parity.figures import Figures, variants

from .attacked_exports import write_export
from .attacked_images import HOSTILE, decoded_bytes, encoded, large_png, whole_images
from .mutators import mutated
from .outcomes import FAILED, RESULT, Outcome
from .watched_files import watch_opens

WALL_SECONDS = 900.0
TOLERANCE = 1e-6
MAX_SERIES = 5  # a job that ends before a random moment is begun anew
Outputs = dict[str, bytes]


@dataclass(frozen=True)
class Job:
    """A long job.

    Attributes:
        run: does the job in a folder, or resumes it; returns the exit status of a command.
        outputs: what it has written, by name, without what may differ between two undisturbed jobs.
        kills: how often the job is killed before it may end.
        status: the exit status of a whole job.
        prepare: makes what the job reads, from material, before processes are forked.
    """

    run: Callable[[Any, Path], int]
    outputs: Callable[[Path], Outputs]
    kills: int = 3
    status: int = 0
    prepare: Callable[[Any], Any] = lambda material: None


def kill_and_resume(job: Job, material: Any, rng: random.Random, folder: Path) -> Outcome:
    """Kill a job at random moments, resume it until it ends, and compare its outputs.

    Args:
        job: the job.
        material: what it reads.
        rng: random moments.
        folder: an empty folder.
    """
    undisturbed = material.root / "undisturbed" / job.run.__name__
    record = undisturbed.with_suffix(".json")
    if not record.exists():
        status, seconds = run_in_child(job, material, fresh(undisturbed))
        if status != job.status or not job.outputs(undisturbed):
            return Outcome(FAILED, "undisturbed", f"it ends with {status}: {printed_by(undisturbed)}")
        record.write_text(json.dumps(seconds))
    seconds, expected = json.loads(record.read_text()), job.outputs(undisturbed)
    moments: list[str] = []
    span = seconds if job.kills <= 3 else 1.2 * seconds / job.kills  # so that the last kills find a job at work
    reason, killed = "", folder / "killed"
    for _ in range(MAX_SERIES):
        fresh(killed)
        ended = None
        while ended is None and len(moments) < job.kills:
            moment = rng.random() * span
            ended, _ = run_in_child(job, material, killed, moment)
            moments += [f"{moment:.2f}"] if ended is None else []
        if ended is None:
            ended, _ = run_in_child(job, material, killed)
        reason = difference(expected, job.outputs(killed))
        if ended != job.status:
            reason = f"it ends with {ended}: {printed_by(killed)}"
        if opened := opened_outside(killed) or opened_outside(undisturbed):
            reason = f"it made {opened}; {reason}"
        if reason or len(moments) == job.kills:
            break
    what = f"killed after {', '.join(moments)} of {seconds:.2f} CPU seconds"
    counts = {"attempts": len(moments), "outside": int(reason.startswith("it made "))}
    return Outcome(FAILED if reason else RESULT, what, reason, round(seconds, 2), **counts)


def fresh(folder: Path) -> Path:
    """Return an empty folder of this name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.with_suffix(".opened").unlink(missing_ok=True)
    return folder


def printed_by(folder: Path) -> str:
    """Return the end of what a job in this folder has printed."""
    return folder.with_suffix(".printed").read_text(errors="replace")[-1500:]


def opened_outside(folder: Path) -> str:
    """Return the first file outside of what a job in this folder was given that it has opened or changed."""
    return folder.with_suffix(".opened").read_text().partition("\n")[0]


def cpu_seconds(child: int) -> float:
    """Return the CPU time that a process has taken."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def replace_locks(kind: Any, lock: Any) -> None:
    """Give a class of progress bars and its subclasses another lock.

    Theirs is shared by all forked processes, and the next one would wait forever for one that was killed. Subclasses
    have one of their own after `tqdm.contrib.concurrent`, which downloads from the Hub use.
    """
    kind.set_lock(lock)
    for subclass in kind.__subclasses__():
        replace_locks(subclass, lock)


def run_in_child(job: Job, material: Any, folder: Path, moment: float | None = None) -> tuple[int | None, float]:
    """Run a job in a forked process and kill it at a given CPU time.

    Returns:
        The exit status, or None if it was killed; and its CPU seconds.
    """
    child = os.fork()
    if not child:
        os.setsid()
        # Torch replaces its pool of threads at the first use after a fork, without a lock: a thread of autograd, which
        # asks for it at that moment, would find none and abort the process.
        torch.set_num_threads(1)
        printed = os.open(folder.with_suffix(".printed"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        outside = os.open(folder.with_suffix(".opened"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        replace_locks(tqdm.std.tqdm, threading.RLock())
        datasets.config.HF_DATASETS_CACHE = folder / "cache"
        # Written at once: the process may be killed before it ends.
        watch_opens(lambda line: os.write(outside, f"{line}\n".encode("utf-8", "replace")), folder, material.root)
        try:
            os._exit(job.run(material, folder))
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    end = time.monotonic() + WALL_SECONDS
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            # What the process started and left must not write any more.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if (moment is not None and cpu_seconds(child) >= moment) or time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            return None, usage.ru_utime + usage.ru_stime
        time.sleep(0.003)


def difference(expected: Outputs, found: Outputs) -> str:
    """Return the difference between two jobs' outputs; empty if equal, or weights within 1e-6."""
    if expected.keys() != found.keys():
        return f"the undisturbed job has {sorted(expected)}, the resumed one {sorted(found)}"
    for name, content in expected.items():
        if content == found[name]:
            continue
        if not name.endswith(".safetensors"):
            return f"{name} differs: {content[:300]!r} and {found[name][:300]!r}"
        ours, theirs = load(content), load(found[name])
        if ours.keys() != theirs.keys():
            return f"{name} has other arrays"
        apart = max(float(np.abs(ours[key].astype(np.float64) - theirs[key]).max()) for key in ours)
        if not apart <= TOLERANCE:
            return f"{name} differs by {apart:.3g}"
    return ""


def files_of(folder: Path, *names: str) -> Outputs:
    """Return the contents of files of a folder, those that are there."""
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


# The jobs.


def caption_folder(material: Any, folder: Path) -> int:
    """Caption a folder of 60 images, of which some are bad."""
    return caption(material, some_images(material, 60), folder)


def caption_10000(material: Any, folder: Path) -> int:
    """Caption a folder of 10,000 images, of which 1 % are bad."""
    return caption(material, some_images(material, 10_000), folder)


def caption_exported(material: Any, folder: Path) -> int:
    """Caption a folder of 60 images, of which some are bad, with onnxruntime."""
    return caption(material, some_images(material, 60), folder, "--backend", "onnx")


def caption_10000_exported(material: Any, folder: Path) -> int:
    """Caption a folder of 10,000 images, of which 1 % are bad, with onnxruntime."""
    return caption(material, some_images(material, 10_000), folder, "--backend", "onnx")


def caption(material: Any, images: Path, folder: Path, *backend: str) -> int:
    """Caption a folder of images."""
    if (folder / "out.jsonl").exists():  # killed after its last step; a repeated command says that it is complete
        return 1
    options = ["--batch_size", "8", "--num_beams", "1", "--max_new_tokens", "3", "--resume"]
    options += list(backend) or ["--device", "cpu"]
    model = str(material.kept["exported"]) if backend else material.captioner
    return main(["caption", str(images), "--model", model, "--output", str(folder / "out.jsonl"), *options])


def caption_beside(material: Any, folder: Path) -> int:
    """Caption 1,000 images, of which 1 % are bad, into text files beside them, of which a third have a text."""
    photos = folder / "photos"
    if not photos.exists():
        partial = shutil.copytree(some_images(material, 1000), fresh(folder / "partial"), dirs_exist_ok=True)
        for image in sorted(partial.iterdir())[::3]:
            image.with_suffix(".txt").write_text("mine\n")
        partial.rename(photos)
    interrupted = is_interrupted(photos, "txt")
    if not interrupted and (photos / RECORD_NAME).exists():  # killed after its last step
        return 1
    options = ["--batch_size", "8", "--num_beams", "1", "--max_new_tokens", "3", "--device", "cpu", "--workers", "1"]
    options += ["--append", *(["--resume"] if interrupted else [])]
    return main(["caption", str(photos), "--model", material.captioner, "--sidecar", *options])


def texts_beside(folder: Path) -> Outputs:
    """Return the text files."""
    return {path.name: path.read_bytes() for path in sorted((folder / "photos").glob("*.txt"))}


def some_images(material: Any, count: int) -> Path:
    """Return a folder of small images, of which at least 1 % are damaged or hostile."""
    folder, rng = material.root / f"images{count}", random.Random(count)
    if not folder.exists():
        partial = fresh(material.root / f"images{count}.partial")
        generator = np.random.default_rng(count)
        files = list(whole_images().values())
        makers = [maker for maker in HOSTILE if maker is not large_png]
        for number in range(count):
            path = partial / f"{number:05d}.png"
            if number % 100 == 7:
                content = b"x" * 10**8
                while len(content) > 10**6 or decoded_bytes(content) > 10**6:
                    hostile = rng.random() < 0.5
                    content = rng.choice(makers)(rng)[1] if hostile else mutated(rng.choice(files), rng, files)[0]
                path.write_bytes(content)
            else:
                pixels = generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                path.write_bytes(encoded(PIL.Image.fromarray(pixels), "PNG"))
        (partial / "00003.png").write_bytes(b"no image")  # there is always one
        partial.rename(folder)
    return folder


def caption_outputs(folder: Path) -> Outputs:
    """Return the captions."""
    return files_of(folder, "out.jsonl")


def extract(material: Any, folder: Path) -> int:
    """Extract the features of the images."""
    options = ["--vision_model", material.vision_model, "--use_cpu", "--batch_size", "2", "--kind", "float16"]
    return main(["extract-features", "--data_dir", str(material.images), "--output", str(folder / "store"), *options])


def store_outputs(folder: Path) -> Outputs:
    """Return the files of the store."""
    paths = sorted((folder / "store" / "train").glob("*"))
    return {path.name: path.read_bytes() for path in paths if not path.name.startswith(".")}


QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --captions_per_image 1"
SAVES = "--save_strategy steps --save_steps 1 --eval_strategy no --per_device_train_batch_size 2 --logging_steps 1"
KEPT = "--save_total_limit 2"


def train(material: Any, folder: Path, *more: str) -> int:
    """Train four steps."""
    arguments = ["train", "--train_dir", str(material.images), "--validation_dir", str(material.images)]
    arguments += [
        "--model",
        material.captioner,
        "--recipe",
        "none",
        "--output_dir",
        str(folder / "run"),
        "--max_steps",
        "4",
        "--resume",
    ]
    # The cache of features, which all runs of a person share, is killed with the job; nothing outside is written.
    with mock.patch("hf_captioners.features.shared_cache.default_folder", lambda: folder / "shared_features"):
        return main([*arguments, *QUICK.split(), *SAVES.split(), *KEPT.split(), *more])


def train_scst(material: Any, folder: Path) -> int:
    """Train four steps, self-critically."""
    return train(material, folder, "--scst", "--num_samples", "2")


def training_outputs(folder: Path) -> Outputs:
    """Return weights, configurations, steps and checkpoints."""
    run = folder / "run"
    found = files_of(run, "model.safetensors", "config.json", "generation_config.json", "tokenizer.json")
    if (run / "trainer_state.json").is_file():
        state = json.loads((run / "trainer_state.json").read_text())
        found["steps"] = str(state["global_step"]).encode()
        found["checkpoints"] = " ".join(sorted(path.name for path in run.glob("checkpoint-*"))).encode()
    return found


def convert(material: Any, folder: Path) -> int:
    """Convert a checkpoint; a killed conversion is begun again."""
    checkpoint = released_checkpoint(material)
    if (folder / "converted").exists():  # it appears only when it is complete
        return 0
    sizes = Figures.load(variants("visualgpt")[0]).config
    names = ("n_head", "bos_token_id", "eos_token_id", "pad_token_id")
    settings = [f"{name}={json.dumps(sizes[name])}" for name in names] + [f"srau_threshold={sizes['tau']}"]
    settings += ["normalize_srau=true"] if sizes["decoder"] == "srau_normalized" else []
    return main(["convert", "visualgpt", str(checkpoint), "--output", str(folder / "converted"), "--set", *settings])


def converted_outputs(folder: Path) -> Outputs:
    """Return the files of the captioner."""
    return {
        path.name: path.read_bytes()
        for path in sorted((folder / "converted").glob("*"))
        if path.is_file() and path.name != "README.md"
    }


def rows_of_a_table(material: Any) -> Path:
    """Return a folder of 2,000 images and their table."""
    table = material.root / "rows" / "metadata.jsonl"
    if not table.exists():
        shutil.copytree(material.images, table.parent, dirs_exist_ok=True)
        lines = [json.loads(line) for line in table.read_text().splitlines()]
        rows = [line | {"file_name": f"{number}.png"} for number, line in enumerate(lines * 200)]
        for row, line in zip(rows, lines * 200, strict=True):
            os.link(table.parent / line["file_name"], table.parent / row["file_name"])
        table.with_suffix(".partial").write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.replace(table.with_suffix(".partial"), table)
    return table.parent


def build_data_set(material: Any, folder: Path) -> int:
    """Build the Arrow files of 2,000 rows."""
    splits = load_captions("caption_folder", data_dir=rows_of_a_table(material), cache_dir=folder / "arrow")
    digest = "".join(f"{row['image_id']} {row['captions']}\n" for row in splits["train"].remove_columns("image"))
    (folder / "rows.txt").write_text(digest)
    return 0


def data_set_outputs(folder: Path) -> Outputs:
    """Return the rows that were read, and the Arrow files."""
    arrow = {path.name: path.read_bytes() for path in sorted((folder / "arrow").rglob("*.arrow"))}
    return files_of(folder, "rows.txt") | arrow


class SlowServer(http.server.BaseHTTPRequestHandler):
    """Serves an image for each number, some of them late or never."""

    def do_GET(self) -> None:
        """Answer."""
        number = int(self.path.strip("/").partition(".")[0])
        time.sleep(0.05 if number % 10 == 3 else 0.005)
        if number % 10 == 4:
            return self.send_error(404)
        content = encoded(PIL.Image.new("RGB", (16, 16), (number % 256, 0, 0)), "PNG")
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):  # killed clients hang up
            self.wfile.write(b"no image" if number % 10 == 5 else content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@cache
def serve() -> str:
    """Start the server in this process, and return its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowServer)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def download(material: Any, folder: Path) -> int:
    """Download 200 images."""
    lines = "".join(f"a dog\t{serve()}/{number}.png\n" for number in range(200))
    (folder / "Validation_GCC-1.1.0-Validation.tsv").write_text(lines)
    return main(
        ["download-images", "--data_dir", str(folder), "--split", "validation", "--workers", "4", "--retries", "0"]
    )


def download_outputs(folder: Path) -> Outputs:
    """Return the images, and the outcome of each address."""
    files = {
        path.name: path.read_bytes() for path in sorted((folder / "validation").glob("*.*")) if path.suffix == ".png"
    }
    log = folder / "validation" / "downloads.jsonl"
    outcomes = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        with contextlib.suppress(ValueError):  # a line that a kill has cut
            entry = json.loads(line)
            outcomes[entry["name"]] = entry["outcome"]
    return files | {"outcomes": json.dumps(sorted(outcomes.items())).encode()}


def released_checkpoint(material: Any) -> Path:
    """Return a checkpoint of the authors' program of VisualGPT."""
    path, figures = material.root / "best.pth", Figures.load(variants("visualgpt")[0])
    if not path.exists():
        write_visualgpt(path.with_suffix(".partial"), figures.weights, figures.config)
        os.replace(path.with_suffix(".partial"), path)
    return path


def images_and_export(material: Any, count: int) -> None:
    """Make a folder of images, and export the captioner."""
    some_images(material, count)
    write_export(material)


JOBS = {
    "caption": Job(caption_folder, caption_outputs, status=1, prepare=partial(some_images, count=60)),
    "caption --sidecar, 1,000 files": Job(
        caption_beside, texts_beside, kills=5, status=1, prepare=partial(some_images, count=1000)
    ),
    "extract-features": Job(extract, store_outputs),
    "train": Job(train, training_outputs),
    "train --scst": Job(train_scst, training_outputs),
    "convert": Job(convert, converted_outputs, prepare=released_checkpoint),
    "load_captions": Job(build_data_set, data_set_outputs, prepare=rows_of_a_table),
    "download-images": Job(download, download_outputs, status=1, prepare=lambda _: serve()),
    "caption --backend onnx": Job(
        caption_exported, caption_outputs, status=1, prepare=partial(images_and_export, count=60)
    ),
    "caption, 10,000 files": Job(
        caption_10000, caption_outputs, kills=10, status=1, prepare=partial(some_images, count=10_000)
    ),
    "caption --backend onnx, 10,000 files": Job(
        caption_10000_exported, caption_outputs, kills=10, status=1, prepare=partial(images_and_export, count=10_000)
    ),
}

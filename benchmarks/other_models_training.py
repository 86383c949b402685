"""Training cells of `other_models_matrix.py`: train, adapt, reward, resume after a kill, push and load."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from provenance import ROOT
from safetensors.torch import load_file

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.cli import main as run_command
from hf_captioners.training import CaptioningTrainer

sys.path.insert(0, str(ROOT))
from tests.hub.loopback_hub import LoopbackHub  # noqa: E402

if TYPE_CHECKING:
    from other_models_matrix import Family

LENGTH = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
CAPTIONS = ("a dog", "two children play with the red ball", "a man near water", "green grass", "a blue ball", "a man")
STEPS, KILLED_AT = 4, 2
TRAIN = ["--use_cpu", "--validation_share", "0.34", "--recipe", "none"]
TRAIN += ["--max_steps", str(STEPS), "--logging_steps", "1", "--learning_rate", "1e-2"]
TRAIN += ["--per_device_train_batch_size", "2", "--eval_strategy", "no", "--load_best_model_at_end", "false"]
TRAIN += ["--save_strategy", "steps", "--save_steps", str(KILLED_AT), "--generation_max_new_tokens", "8"]
REWARDS = ["--scst", "--num_samples", "2", "--reward_funcs", "self_retrieval"]  # differs for every two captions
ADAPTER = ["--use_peft", "--lora_r", "4"]
TO_HUB = """
import json, sys
from hf_captioners.cli import main
pushes = json.loads(sys.argv[1]).items()
sys.exit(max(main(["push", directory, name, *options]) for name, (directory, *options) in pushes))
"""
FROM_HUB = """
import json, sys
from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import load_pipeline
images, length, *names = json.loads(sys.argv[1])
found = {}
for name in names:
    caption = CaptionBatches(load_pipeline(name, "cpu"), **length)
    found[name] = [caption({"image": [path]})["caption"][0] for path in images]
print("FOUND" + json.dumps(found))
"""


def typed(*arguments: str) -> None:
    """Run a command, and raise its error."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = run_command(list(arguments))
    if status:
        raise RuntimeError(errors.getvalue().strip().splitlines()[-1])


def training_folder(family: Family) -> Path:
    """Return a folder of the photographs with captions."""
    folder = family.images.parent / "training_images"
    if not folder.is_dir():
        folder.mkdir()
        rows = []
        for path, caption in zip(family.photographs, CAPTIONS, strict=True):
            shutil.copy(path, folder)
            rows.append(json.dumps({"file_name": path.name, "captions": [caption]}))
        (folder / "metadata.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


def command_for(family: Family, name: str, *options: str) -> tuple[list[str], Path]:
    """Return the command of a training, and its output folder."""
    output = family.images.parent / name
    command = ["train", "--model", family.model, "--train_dir", str(training_folder(family))]
    return [*command, "--output_dir", str(output), *TRAIN, *options], output


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a saved captioner or adapter."""
    return {name: one for file in sorted(folder.glob("*.safetensors")) for name, one in load_file(file).items()}


def captions_of(model: str, family: Family) -> dict[str, str]:
    """Return the captions of the photographs by this library."""
    caption = CaptionBatches(load_pipeline(model, "cpu"), **LENGTH)
    return {path.name: caption({"image": [str(path)]})["caption"][0] for path in family.photographs}


def trained(family: Family, name: str, *options: str) -> str:
    """Train, and compare captions of the result with those of transformers for the saved files."""
    command, output = command_for(family, name, *options)
    typed(*command)
    weights = weights_of(output)
    start = {} if "--use_peft" in options else weights_of(Path(family.model))
    changed = [one for key, one in weights.items() if not torch.equal(one, start.get(key, torch.zeros_like(one)))]
    if not changed:
        return "no weight has changed"
    return family.cell(captions_of(str(output), family), family.of_transformers(str(output)))


def run_killed(command: list[str]) -> None:
    """Train in this process, which kills itself after its first checkpoint."""
    save = CaptioningTrainer._save_checkpoint

    def save_and_end(self: Any, *arguments: Any, **options: Any) -> None:
        save(self, *arguments, **options)
        if self.state.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    CaptioningTrainer._save_checkpoint = save_and_end  # type: ignore[method-assign]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        run_command(command)


def resumed(family: Family, name: str, *options: str) -> str:
    """Kill a training, resume it, and compare its weights with those of the run of `trained`."""
    command, output = command_for(family, f"{name}_killed", *options)
    child = multiprocessing.get_context("spawn").Process(target=run_killed, args=(command,))
    child.start()
    child.join()
    if child.exitcode != -signal.SIGKILL or not (output / f"checkpoint-{KILLED_AT}").is_dir():
        raise RuntimeError("the run was not killed")
    typed(*command, "--resume")
    whole, again = weights_of(family.images.parent / name), weights_of(output)
    same = whole.keys() == again.keys() and all(torch.equal(whole[key], again[key]) for key in whole)
    return "equal" if same else "different weights"


def pushed(family: Family) -> str:
    """Push the trained captioner, and the merged adapter, to a Hub, and caption with both in a new process."""
    folder = family.images.parent
    with LoopbackHub() as hub:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **hub.environment(folder / "home"), "HF_HUB_OFFLINE": "0"}
        names = {
            "tester/whole": [str(folder / "whole")],
            "tester/merged": [str(folder / "adapter"), "--merge_adapter"],
        }
        run_process(["-c", TO_HUB, json.dumps(names)], environment)
        given = json.dumps([[str(path) for path in family.photographs], LENGTH, *names])
        output = run_process(["-c", FROM_HUB, given], environment)
        found = json.loads(output.rpartition("FOUND")[2])
    cells = []
    for name, (directory, *_) in names.items():
        captions = dict(zip((path.name for path in family.photographs), found[name], strict=True))
        cells.append(family.cell(captions, family.of_transformers(directory)))
    return ", ".join(cells)


def run_process(arguments: list[str], environment: dict[str, str]) -> str:
    """Run Python, and return its output."""
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout


TRAINING_CELLS: dict[str, Callable[[Any], str]] = {
    "`train`": lambda family: trained(family, "whole"),
    "`train --use_peft`": lambda family: trained(family, "adapter", *ADAPTER),
    "`train --scst`": lambda family: trained(family, "rewarded", *REWARDS),
    "`train --scst --use_peft`": lambda family: trained(family, "rewarded_adapter", *REWARDS, *ADAPTER),
    "`train` killed, `--resume`": lambda family: resumed(family, "whole"),
    "`--scst` killed, `--resume`": lambda family: resumed(family, "rewarded", *REWARDS),
    "pushed, loaded in a new process": pushed,
}

"""Execution of runs: each in a child process, resumed after an interruption, with tables and cards after each."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from hf_captioners.output_files import (
    as_json,
    lock_of,
    open_for_writing,
    read_text_inside,
    require_no_links_out,
    write_text,
)

from .cards import write_published_row
from .recipe import RECIPES
from .runs import DONE, FAILED, RESULT, STARTED, Run, find_recipes
from .tables import as_csv, as_markdown

ELSEWHERE = "is executed by another process"


def execute_runs(
    runs: Sequence[Run],
    output: Path,
    overrides: Mapping[str, Any] | None = None,
    launcher: Sequence[str] = (sys.executable,),
    recipes: Path = RECIPES,
    on_start: Callable[[int, Run], None] | None = None,
) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Execute what is not done, each run in a process of its own, and update tables and cards after each.

    Runs that an earlier call left in the folder, of other rows, regimes and seeds, are part of the tables.

    Args:
        runs: see `plan_runs`.
        output: folder of all runs; `results.csv` and `results.md` are written there.
        overrides: training arguments that override those of the recipes.
        launcher: command that stands before `-m hf_captioners.cli`, for example `["accelerate", "launch"]`.
        recipes: folder of all recipes of the paper.
        on_start: called with the number of a run, from 1, and the run before it is executed.

    Yields:
        Each run and its result: `status` (`done`, `failed`, or that another process executes it), `error`, `figures`,
        `seconds`.

    Raises:
        ValueError: a run was started with different arguments.
        UnsafeFileError: a symbolic link leads out of the folder.
    """
    overrides = overrides or {}
    require_no_links_out(output)
    for run in runs:
        require_same_arguments(run, run.typed(overrides))
    every_recipe = find_recipes(recipes, runs[0].names["paper"], allow_code=True)  # for the order of rows alone
    for number, run in enumerate(runs, 1):
        if on_start is not None:
            on_start(number, run)
        result = execute_run(run, run.typed(overrides), launcher)
        results = [json.loads(read_text_inside(path, output)) for path in sorted(output.rglob(RESULT))]
        write_text(output / "results.csv", as_csv(results))
        write_text(output / "results.md", as_markdown(every_recipe, results))
        write_published_row([other for other in runs if other.names == run.names])
        yield run, result


def require_same_arguments(run: Run, arguments: Sequence[str]) -> None:
    """Keep a run from being resumed with arguments other than those that it was started with.

    Raises:
        ValueError: the arguments differ.
    """
    known, arguments = run.result(), without_tokens(arguments)
    if known is None or known["arguments"] == arguments:
        return
    if known["status"] == FAILED and not any(run.folder.rglob("checkpoint-*")):  # nothing to resume from
        return
    options = [f" {shlex.join(some)}".split(" --")[1:] for some in (known["arguments"], arguments)]
    before, now = ([f"--{text}" for text in some if text not in other] for some, other in (options, options[::-1]))
    raise ValueError(
        f"{run.folder} was run with other arguments (then {' '.join(before) or 'without some'}; now "
        f"{' '.join(now) or 'without some'}). Pass a different `output_dir`, or remove that folder."
    )


def without_tokens(arguments: Sequence[str]) -> list[str]:
    """Return typed arguments with `***` instead of access tokens, for files.

    Args:
        arguments: names and values in turn, as `Run.typed` returns them; names of tokens end in `_token`.
    """
    before = ["", *arguments]
    is_token = [name.startswith("--") and name.endswith("_token") for name in before]
    return ["***" if hidden else text for hidden, text in zip(is_token, arguments, strict=False)]


def execute_run(run: Run, arguments: Sequence[str], launcher: Sequence[str]) -> dict[str, Any]:
    """Train and test in a child process, unless that is done already; an interrupted run is resumed.

    A run that combines others is evaluated once they are done, in one process (`launcher` is that of training).

    A run that another process executes is left to it, so that several calls of the same command share the work.
    """
    waiting = [member for member in run.members if (result := member.result()) is None or result["status"] != DONE]
    if waiting:
        return {"status": f"waits for {', '.join(str(member.folder) for member in waiting)}"}
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock_of(run.folder / ".reproduce.lock", patience=0):
            return _execute(run, list(arguments), [sys.executable] if run.members else list(launcher))
    except Timeout:
        return {"status": ELSEWHERE}


def _execute(run: Run, arguments: list[str], launcher: list[str]) -> dict[str, Any]:
    known, shown = run.result(), without_tokens(arguments)
    same = known is not None and known["arguments"] == shown
    if known and same and known["status"] == DONE:
        return known
    log, metrics_file = run.folder / "run.log", run.folder / "test_results.json"
    metrics_file.unlink(missing_ok=True)
    result: dict[str, Any] = {**run.names, "seed": run.seed, "arguments": shown, "status": STARTED, "figures": {}}
    write_text(run.folder / RESULT, as_json(result) + "\n")
    started = time.time()
    with open_for_writing(log, "w") as file:
        command = [*launcher, "-m", "hf_captioners.cli", run.command, *arguments]
        command += ["--resume"] if same and not run.members else []
        own = {**os.environ, "PYTHONSAFEPATH": "1"}  # or `-m` imports files of the current folder, such as `yaml.py`
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, env=own).returncode
    if not same:  # the duration of an interrupted run is not known
        result["seconds"] = round(time.time() - started)
    if status == 0 and metrics_file.is_file():
        metrics = json.loads(read_text_inside(metrics_file))
        result |= {"status": DONE, "figures": {k: v for k, v in metrics.items() if isinstance(v, float)}}
    else:
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        reason = "no `test_split`: nothing was measured" if status == 0 else (lines or [f"exit status {status}"])[-1]
        result |= {"status": FAILED, "error": f"{reason} ({log})"}
    write_text(run.folder / RESULT, as_json(result) + "\n")
    return result

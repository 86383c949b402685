"""Execution of runs in child processes, resumed after an interruption; tables and cards are updated after each."""

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
    """Execute all unfinished runs in child processes; update tables and cards after each.

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
    """Raise an error if a started run would be resumed with different arguments.

    Raises:
        ValueError: the arguments differ.
    """
    result, arguments = run.result(), without_tokens(arguments)
    if result is None or result["arguments"] == arguments:
        return
    if result["status"] == FAILED and not any(run.folder.rglob("checkpoint-*")):  # nothing to resume from
        return
    options = [f" {shlex.join(some)}".split(" --")[1:] for some in (result["arguments"], arguments)]
    before, now = ([f"--{text}" for text in some if text not in other] for some, other in (options, options[::-1]))
    raise ValueError(
        f"{run.folder} was run with other arguments (then {' '.join(before) or 'without some'}; now "
        f"{' '.join(now) or 'without some'}). Pass a different `output_dir`, or remove that folder."
    )


def without_tokens(arguments: Sequence[str]) -> list[str]:
    """Replace access tokens in command line arguments by `***`, for files.

    Args:
        arguments: names and values in turn, as `Run.typed` returns them; names of tokens end in `_token`.
    """
    before = ["", *arguments]
    is_token = [name.startswith("--") and name.endswith("_token") for name in before]
    return ["***" if hidden else text for hidden, text in zip(is_token, arguments, strict=False)]


def execute_run(run: Run, arguments: Sequence[str], launcher: Sequence[str]) -> dict[str, Any]:
    """Train and test in a child process, unless the run is finished; an interrupted run is resumed.

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
    earlier, arguments_to_store = run.result(), without_tokens(arguments)
    same = earlier is not None and earlier["arguments"] == arguments_to_store
    if earlier and same and earlier["status"] == DONE:
        return earlier
    log, metrics_file = run.folder / "run.log", run.folder / "test_results.json"
    metrics_file.unlink(missing_ok=True)
    result: dict[str, Any] = {
        **run.names,
        "seed": run.seed,
        "arguments": arguments_to_store,
        "status": STARTED,
        "figures": {},
    }
    write_text(run.folder / RESULT, as_json(result) + "\n")
    started = time.time()
    with open_for_writing(log, "w") as file:
        command = [*launcher, "-m", "hf_captioners.cli", run.command, *arguments]
        command += ["--resume"] if same and not run.members else []
        environment = {
            **os.environ,
            "PYTHONSAFEPATH": "1",
        }  # or `-m` imports files of the current folder, such as `yaml.py`
        status = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False, env=environment
        ).returncode
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

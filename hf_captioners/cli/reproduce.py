"""`hf-captioners reproduce`: the rows of a published table, run with seeds and put beside what was published."""

import argparse
import csv
import io
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hf_captioners.reproduce.recipe import Recipe, as_arguments, in_percent

NAME = "reproduce"
HELP = "run the recipes of a published table and print mean and deviation beside the published figures"
RESULT = "result.json"
BEGUN, DONE, FAILED = "begun", "done", "failed"
ELSEWHERE = "is run by another call of this command"


def parent_parsers() -> list[argparse.ArgumentParser]:
    """All arguments of training: they override those of the recipes."""
    from .train import parent_parsers as training_parsers

    return training_parsers()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which rows, where."""
    parser.add_argument(
        "paper", help="short name, as the recipes give it: visualgpt, show_attend_tell, low_data, self_critical"
    )
    parser.add_argument("--table", help="number of the table; default: all")
    parser.add_argument("--row", help="only rows whose name holds this text")
    parser.add_argument("--regime", help="only this regime, for instance 1%%")
    parser.add_argument("--recipes", default="hf_captioners/reproduce/recipes", help="folder of the recipes")
    parser.add_argument("--data", dest="data_dir", default=argparse.SUPPRESS, help="folder of the data set")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of the recipe")
    parser.add_argument("--launcher", default=sys.executable, help='for instance "accelerate launch"')
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help="print the commands and do nothing")


@dataclass(frozen=True)
class Run:
    """One row, regime and seed."""

    recipe: Recipe
    regime: str
    seed: int
    folder: Path

    @property
    def names(self) -> dict[str, str]:
        """What identifies it in a table."""
        published = self.recipe.published
        assert published is not None
        return {"paper": published.paper, "table": published.table, "row": published.row, "regime": self.regime}

    def arguments(self, overrides: Mapping[str, Any]) -> list[str]:
        """The arguments of `hf-captioners train`: the recipe's, and behind them what was typed."""
        own = {"seed": self.seed, "output_dir": str(self.folder)}
        parts = (self.recipe.with_regime(self.regime), overrides, own)
        return [text for part in parts for name, value in part.items() for text in as_arguments(name, value)]


def run(args: argparse.Namespace) -> int:
    """Run what is not done yet; 1 if a run failed."""
    recipes = find_recipes(Path(args.recipes), args.paper, args.table, args.row)
    own = {"paper", "table", "row", "regime", "recipes", "seeds", "launcher", "dry_run", "output_dir", "seed"}
    overrides = {name: value for name, value in vars(args).items() if name not in own}
    output = Path(getattr(args, "output_dir", None) or Path("runs", "reproduce", args.paper))
    runs = list(planned(recipes, args.regime, args.seeds, output))
    if not runs:
        raise ValueError(f"No recipe of {args.paper} has the regime {args.regime!r}.")
    if args.dry_run:
        for one in runs:
            print(shlex.join(["hf-captioners", "train", *one.arguments(overrides)]))
        return 0
    from hf_captioners.output_files import write_text

    for one in runs:
        require_same_arguments(one, one.arguments(overrides))
    every_recipe = find_recipes(Path(args.recipes), args.paper)
    failed = False
    for number, one in enumerate(runs, 1):
        print(f"[{number}/{len(runs)}] {', '.join(one.names.values())}, seed {one.seed}", flush=True)
        result = execute(one, one.arguments(overrides), shlex.split(args.launcher))
        print(f"    {result['status']} {result.get('error') or ''}".rstrip(), flush=True)
        failed |= result["status"] == FAILED
        # What earlier calls for other rows, regimes and seeds left in the folder belongs to the table, too.
        results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(output.rglob(RESULT))]
        write_text(output / "results.csv", as_csv(results))
        write_text(output / "results.md", as_markdown(every_recipe, results))
        tell_cards([other for other in runs if other.names == one.names])
    print((output / "results.md").read_text(encoding="utf-8"))
    return int(failed)


def find_recipes(folder: Path, paper: str, table: str | None = None, row: str | None = None) -> list[Recipe]:
    """The recipes of a paper's rows.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: there are no such rows.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}: pass the recipes of the repository with --recipes.")
    known = [recipe for path in sorted(folder.rglob("*.yaml")) if (recipe := Recipe.load(path)).published]
    wanted = [
        recipe
        for recipe in known
        if (published := recipe.published)
        and published.paper == paper
        and table in (None, published.table)
        and (row is None or row in published.row)
    ]
    if not wanted:
        there = sorted({f"{one.published.paper} --table {one.published.table}" for one in known if one.published})
        raise ValueError(
            f"{folder} has no recipe of {paper}, table {table}, row {row}. There are: {'; '.join(there)}."
        )
    return wanted


def planned(recipes: list[Recipe], regime: str | None, seeds: list[int] | None, output: Path) -> Iterator[Run]:
    """All runs, seed after seed, so that every row has a figure early."""
    rounds = max(len(seeds or recipe.published.seeds) for recipe in recipes if recipe.published)
    for number in range(rounds):
        for recipe in recipes:
            assert recipe.published is not None
            own_seeds = seeds or recipe.published.seeds
            for name in recipe.published.regimes:
                if regime in (None, name) and number < len(own_seeds):
                    seed = own_seeds[number]
                    yield Run(recipe, name, seed, output / recipe.path.stem / slug(name) / f"seed_{seed}")


def slug(name: str) -> str:
    """A name as part of a path."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", name.replace("%", "_percent")).strip("_")


def require_same_arguments(one: Run, arguments: list[str]) -> None:
    """Keep a run from going on with other arguments than it began with.

    Raises:
        ValueError: it would.
    """
    known = read_result(one)
    if known is None or known["arguments"] == arguments:
        return
    if known["status"] == FAILED and not any(one.folder.rglob("checkpoint-*")):  # nothing to go on with
        return
    options = [f" {shlex.join(some)}".split(" --")[1:] for some in (known["arguments"], arguments)]
    before, now = ([f"--{text}" for text in some if text not in other] for some, other in (options, options[::-1]))
    raise ValueError(
        f"{one.folder} was run with other arguments (then {' '.join(before) or 'without some'}; now "
        f"{' '.join(now) or 'without some'}). Pass another --output_dir, or remove that folder."
    )


def execute(one: Run, arguments: list[str], launcher: list[str]) -> dict[str, Any]:
    """Train and test in a process of its own, unless that is done already; what was interrupted goes on.

    A run that another call of this command is at is left to it, so that several calls share the work.
    """
    one.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(one.folder / ".reproduce.lock", blocking=False):
            return _execute(one, arguments, launcher)
    except Timeout:
        return {"status": ELSEWHERE}


def _execute(one: Run, arguments: list[str], launcher: list[str]) -> dict[str, Any]:
    from hf_captioners.output_files import as_json, write_text

    known = read_result(one)
    same = known is not None and known["arguments"] == arguments
    if known and same and known["status"] == DONE:
        return known
    log, figures = one.folder / "run.log", one.folder / "test_results.json"
    figures.unlink(missing_ok=True)
    result: dict[str, Any] = {**one.names, "seed": one.seed, "arguments": arguments, "status": BEGUN, "figures": {}}
    write_text(one.folder / RESULT, as_json(result) + "\n")
    began = time.time()
    with log.open("w", encoding="utf-8") as file:
        command = [*launcher, "-m", "hf_captioners.cli", "train", *arguments, *(["--resume"] if same else [])]
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if not same:  # how long a run took that was interrupted is not known
        result["seconds"] = round(time.time() - began)
    if status == 0 and figures.is_file():
        numbers = json.loads(figures.read_text(encoding="utf-8"))
        result |= {"status": DONE, "figures": {k: v for k, v in numbers.items() if isinstance(v, float)}}
    else:
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        reason = "no --test_split: nothing was measured" if status == 0 else (lines or [f"exit status {status}"])[-1]
        result |= {"status": FAILED, "error": f"{reason} ({log})"}
    write_text(one.folder / RESULT, as_json(result) + "\n")
    return result


def read_result(one: Run) -> dict[str, Any] | None:
    """What a run left, or None."""
    path = one.folder / RESULT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def tell_cards(runs: list[Run]) -> None:
    """Put what was published beside what the runs of one row and regime measured, in the card of each of them.

    Rows of an unpublished study leave cards as they are.

    Args:
        runs: of that row and regime, with their seeds.
    """
    published = runs[0].recipe.published
    assert published is not None
    found = [(run, result) for run in runs if (result := read_result(run)) and result["status"] == DONE]
    described = [run.folder for run, _ in found if (run.folder / "card_facts.json").is_file()]
    if not described or not published.regimes[runs[0].regime].published:
        return
    from hf_captioners.hub.card_facts import TrainingFacts
    from hf_captioners.hub.cards import write_card

    facts = published.beside(runs[0].regime, {run.seed: result["figures"] for run, result in found})
    for folder in described:
        training = TrainingFacts.load(folder)
        assert training is not None
        training.reproduces = facts
        training.save(folder)
        write_card(folder)


def as_csv(results: list[dict[str, Any]]) -> str:
    """A line for each run, failed ones too."""
    metrics = list(dict.fromkeys(name for result in results for name in result["figures"]))
    head = ["paper", "table", "row", "regime", "seed", "status", "seconds", "error", "arguments"]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*head, *metrics], lineterminator="\n")
    writer.writeheader()
    for result in results:
        line = {**result, "arguments": shlex.join(result["arguments"]), **result["figures"]}
        writer.writerow({name: line.get(name, "") for name in writer.fieldnames})
    return text.getvalue()


def as_markdown(recipes: list[Recipe], results: list[dict[str, Any]]) -> str:
    """A table for people: measured mean ± deviation over the seeds in percent, and below it what was published."""
    from hf_captioners.hub.cards import with_deviation

    rows = [recipe.published for recipe in recipes if recipe.published]
    regimes = [regime for row in rows for regime in row.regimes.values()]
    published_metrics = dict.fromkeys(name for regime in regimes for name in regime.published)
    metrics = list(published_metrics or dict.fromkeys(name for one in results for name in one["figures"]))
    lines = [
        "| table | row | regime | | " + " | ".join(metrics) + " |",
        "|---|---|---|---|" + "---|" * len(metrics),
    ]
    for published in rows:
        for name, regime in published.regimes.items():
            mine = [one for one in results if one["row"] == published.row and one["regime"] == name]
            mine = [one for one in mine if one["table"] == published.table]
            if not mine:
                continue
            done = [one["figures"] for one in mine if one["status"] == DONE]
            failed = sum(one["status"] == FAILED for one in mine)
            runs = f"measured, {len(done)} run{'s' * (len(done) != 1)}" + f", {failed} failed" * bool(failed)
            measured = [
                with_deviation(in_percent([one[metric] for one in done if metric in one])) for metric in metrics
            ]
            lines.append(f"| {published.table} | {published.row} | {name} | {runs} | " + " | ".join(measured) + " |")
            if regime.published:
                theirs = [with_deviation(regime.published.get(metric, [])) for metric in metrics]
                lines.append("| | | | published | " + " | ".join(theirs) + " |")
    return "\n".join(lines) + "\n"

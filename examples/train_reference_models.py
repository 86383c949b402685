"""For maintainers: train the reference models, write their cards and push them.

    hf auth login
    make reference-models OWNER=my-organisation WITH=machine.yaml ARGS=visualgpt-coco-1-percent

`machine.yaml` holds training arguments of this machine for one reference model: paths of data and features, batch
sizes. Every reference model is a row of a published table. `hf-captioners reproduce` runs all of its seeds, so that
its card has mean and deviation beside the published metrics. The run of the first seed is pushed, not the best one.
Runs that are done are not repeated.
`--dry-run` does the same with a temporary Hub on the loopback address.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hf_captioners._version import __version__
from hf_captioners.hub.card_facts import CheckpointFacts
from hf_captioners.reproduce.recipe import RECIPES
from hf_captioners.reproduce.runs import find_recipes, plan_runs

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Reference:
    """A regime of a row of a published table, as the recipes name it."""

    paper: str
    table: str
    row: str
    regime: str


REFERENCES = {
    "visualgpt-coco-1-percent": Reference("visualgpt", "1", "VisualGPT (tau > 0)", "1%"),
    "show-attend-tell-flickr8k": Reference("show_attend_tell", "1", "Soft-Attention", "flickr8k"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Train and push; print the addresses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(REFERENCES)}")
    parser.add_argument("--owner", required=True, help="account or organisation to push to")
    parser.add_argument("--with", dest="settings", metavar="FILE", type=Path, help="YAML of training arguments")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of the recipe")
    parser.add_argument("--recipes", type=Path, default=RECIPES, help="folder of the recipes")
    parser.add_argument("--output_dir", type=Path, default=Path("runs", "reference_models"), help="folder of the runs")
    parser.add_argument("--dry-run", action="store_true", help="push to a Hub on the loopback address")
    args = parser.parse_args(argv)
    if unknown := set(args.names) - REFERENCES.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}, choose among {', '.join(REFERENCES)}")
    if args.settings and len(args.names) != 1:
        parser.error(f"--with holds the paths of one reference model: name one of {', '.join(REFERENCES)}")
    with hub_to_push_to(args.dry_run) as (variables, owner):
        for name in args.names or REFERENCES:
            folder = train(REFERENCES[name], args)
            push(folder, f"{owner or args.owner}/{name}", variables)
    return 0


def train(reference: Reference, args: argparse.Namespace) -> Path:
    """Run all seeds of a row.

    Returns:
        The folder of the first run.

    Raises:
        CalledProcessError: a run failed.
    """
    recipes = find_recipes(args.recipes, reference.paper, reference.table, reference.row)
    runs = plan_runs(recipes, args.output_dir, reference.regime, args.seeds)
    typed = ["--with", str(args.settings)] if args.settings else []
    typed += ["--seeds", *map(str, args.seeds)] if args.seeds else []
    row = ["--table", reference.table, "--row", reference.row, "--regime", reference.regime]
    places = ["--recipes", str(args.recipes), "--output_dir", str(args.output_dir)]
    captioners(["reproduce", reference.paper, *row, *places, *typed])
    return runs[0].folder


def push(folder: Path, repo_id: str, variables: Mapping[str, str]) -> None:
    """Push a captioner, with the handler of Inference Endpoints if it reads images.

    Raises:
        CalledProcessError: the push failed.
    """
    endpoint = [] if CheckpointFacts.read(folder).vision is None else ["--endpoint"]
    captioners(["push", str(folder), repo_id, *endpoint, "--message", f"hf-captioners {__version__}"], variables)


def captioners(typed: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    """Run `hf-captioners` in a child process: the address of a Hub is read when Python starts."""
    print("hf-captioners", *typed, flush=True)
    subprocess.run([sys.executable, "-m", "hf_captioners.cli", *typed], env=os.environ | (variables or {}), check=True)


@contextmanager
def hub_to_push_to(dry_run: bool) -> Iterator[tuple[Mapping[str, str], str | None]]:
    """Yield environment variables for processes that push, and the owner on the loopback Hub.

    Raises:
        PermissionError: you are not signed in; checked before training.
    """
    if not dry_run:
        from huggingface_hub import HfApi

        from hf_captioners.hub.pushing import explain_hub_errors

        with explain_hub_errors("the reference captioners"):
            HfApi().whoami()
        yield {}, None
        return
    sys.path.insert(0, str(ROOT))
    from tests.hub.loopback_hub import USER, LoopbackHub

    with LoopbackHub() as hub, tempfile.TemporaryDirectory() as home:
        yield hub.environment(Path(home)), USER
        for (kind, name), repository in hub.repositories.items():
            print(f"{kind} {name}: {', '.join(sorted(repository.files()))}")


if __name__ == "__main__":
    sys.exit(main())

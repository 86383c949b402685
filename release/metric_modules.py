"""Folders of the caption metrics for the Hub, which `evaluate.load("OWNER/cider_d")` loads from there.

`python -m release.metric_modules FOLDER --owner OWNER` writes one folder for each `evaluate` module of the package:
the module, its card, `requirements.txt`, and a page, because `evaluate` keeps modules in Spaces. `--push` pushes them
too; what did not change is not pushed again.
"""

import argparse
import html
import re
import sys
from pathlib import Path

import yaml
from huggingface_hub import HfApi

from hf_captioners import __version__
from hf_captioners.hub.pushing import explain_hub_errors
from hf_captioners.metrics import module_path
from hf_captioners.output_files import write_text

MODULES = Path(module_path("cider_d")).parent
EXTRAS = {"meteor": "metrics-data"}  # what the default arguments of a module need besides the package
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
SPACE = "sdk: static\npinned: false\nlicense: apache-2.0\n"
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<h1>{title}</h1>
<p>{description} Its card, in the tab Files, has an example and the range of its values.</p>
<pre>pip install "{requirement}"</pre>
<pre>import evaluate

metric = evaluate.load("{name}")</pre>
</html>
"""


def module_names() -> list[str]:
    """Return the names of the modules that have a card."""
    return sorted(path.parent.name for path in MODULES.glob("*/README.md"))


def module_files(metric: str, owner: str) -> dict[str, str]:
    """Return the files of a module on the Hub by their names.

    Args:
        metric: name of the module.
        owner: owner of the Space.

    Raises:
        ValueError: the card has no front matter, or its example does not load the module.
    """
    card = (MODULES / metric / "README.md").read_text(encoding="utf-8")
    front = FRONT_MATTER.match(card)
    local = f'from hf_captioners.metrics import module_path\n\nmetric = evaluate.load(module_path("{metric}"))\n'
    if front is None or card.count(local) != 1:
        raise ValueError(f"The card of {metric} has no front matter, or no example with\n{local}")
    name = f"{owner}/{metric}"
    extra = f"[{EXTRAS[metric]}]" if metric in EXTRAS else ""
    requirement = f"hf-captioners{extra}>={__version__}"
    card = card.replace(local, f'\nmetric = evaluate.load("{name}")\n')
    card = card.replace("## Use\n", f'## Use\n\n```bash\npip install "{requirement}"\n```\n')
    facts = {key: html.escape(str(value)) for key, value in yaml.safe_load(front[1]).items()}
    return {
        "README.md": f"---\n{SPACE}{card.removeprefix('---' + chr(10))}",
        f"{metric}.py": (MODULES / metric / f"{metric}.py").read_text(encoding="utf-8"),
        "requirements.txt": f"{requirement}\n",
        "index.html": PAGE.format(
            title=facts["title"],
            description=facts["description"],
            requirement=html.escape(requirement),
            name=html.escape(name),
        ),
    }


def write_modules(folder: Path, owner: str) -> list[Path]:
    """Write the folder of each module; return the folders."""
    for metric in module_names():
        (folder / metric).mkdir(parents=True, exist_ok=True)
        for name, text in module_files(metric, owner).items():
            write_text(folder / metric / name, text)
    return [folder / metric for metric in module_names()]


def push_module(folder: Path, owner: str) -> str:
    """Push the folder of a module into its Space; return the address.

    Raises:
        PermissionError, OSError: the Hub refused, see `explain_hub_errors`.
    """
    api, name = HfApi(library_name="hf-captioners", library_version=__version__), f"{owner}/{folder.name}"
    with explain_hub_errors(name):
        api.create_repo(name, repo_type="space", space_sdk="static", exist_ok=True)
        api.upload_folder(
            repo_id=name, repo_type="space", folder_path=folder, commit_message=f"hf-captioners {__version__}"
        )
    return f"{api.endpoint}/spaces/{name}"


def main(arguments: list[str] | None = None) -> int:
    """Write the folders, and push them if asked."""
    parser = argparse.ArgumentParser(prog="release.metric_modules", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the folders")
    parser.add_argument("--owner", required=True, help="account or organisation on the Hub")
    parser.add_argument("--push", action="store_true", help="push each folder into the Space OWNER/METRIC")
    args = parser.parse_args(arguments)
    for folder in write_modules(args.folder, args.owner):
        try:
            sys.stdout.write(f"{push_module(folder, args.owner) if args.push else folder}\n")
        except OSError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

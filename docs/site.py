"""Hooks of `make docs`: pages that are made from other files, and the parts of pages that comments name.

The first page is the README, and a guide is also a notebook, so that no text stands twice. A page may have these
comments, each in a line of its own:

- `<!-- section FILE: TITLE -->`: that section of another page, without its heading;
- `<!-- citation NAME -->`, `<!-- results NAME -->`: paper and measured figures of an architecture;
- `<!-- class configuration NAME -->`, `<!-- class modeling NAME -->`: documentation of its classes.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from hf_captioners.architectures import KINDS, get_architecture

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from known_changes import invalidating, known_changes  # noqa: E402

DOCS, RESULTS, SOURCES = ROOT / "docs", ROOT / "benchmarks" / "results", ROOT / "build" / "site_sources"
REPOSITORY_PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
NOTEBOOK = "first_captioner.md"  # the guide that is also a notebook
COMMENT = re.compile(r"^<!-- (section|citation|results|class) (.+?) -->$", re.MULTILINE)
API = {
    "captioners": (
        "Captioners",
        ["loading", "modeling.configuration_captioning", "modeling.modeling_captioning"],
        ["modeling.generation_captioning", "captioning.ensemble"],
    ),
    "processing": (
        "Processing and pipelines",
        ["processing.processing_captioning", "processing.image_processing_captioning"],
        ["processing.word_tokenizer", "pipelines.image_captioning"],
    ),
    "training": (
        "Training",
        ["training.running", "training.starting", "training.arguments", "training.trainer"],
        ["training.scst.arguments", "training.scst.trainer", "training.rewards.functions"],
    ),
    "captioning": (
        "Captioning",
        ["captioning.batches", "captioning.caption_files"],
        ["captioning.data_set", "captioning.scoring"],
    ),
    "explain": (
        "Explanations",
        ["explain.explanation", "explain.drawing"],
        ["explain.graph", "explain.attributes", "explain.page"],
    ),
    "data": ("Data", ["data.loading", "data.subsets"], ["data.scenes", "data.report"]),
    "features": ("Features", ["features.extraction"], ["features.feature_store"]),
    "metrics": ("Metrics", ["metrics.compute", "metrics.registry"], ["metrics.significance"]),
    "hub": ("Hub", ["hub.pushing", "hub.cards"], ["hub.convert.released"]),
}


def on_startup(**_: Any) -> None:
    """Lay out the sources as they are installed, where mkdocstrings looks for them when it is configured."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    package = SOURCES / "hf_captioners"
    package.mkdir(parents=True)
    for source in (
        *(ROOT / "hf_captioners").iterdir(),
        *(ROOT / name for name in ("modeling", "processing", "hub_cards")),
    ):
        if source.name != "__pycache__":
            (package / source.name).symlink_to(source)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from files of the repository, and the reference."""
    from mkdocs.structure.files import File

    pages = {name: repository_page(ROOT / source) for name, source in REPOSITORY_PAGES.items()}
    pages |= {f"api/{name}.md": reference_page(*parts) for name, parts in API.items()}
    pages[NOTEBOOK.replace(".md", ".ipynb")] = notebook((DOCS / NOTEBOOK).read_text(encoding="utf-8"))
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the comments of a page by what they name."""
    return COMMENT.sub(lambda found: PARTS[found[1]](*re.split(r": | ", found[2], maxsplit=1)), markdown)


def repository_page(path: Path) -> str:
    """Return the text of a file of the repository with links that are right for the site."""
    text = path.read_text(encoding="utf-8")
    for page, source in REPOSITORY_PAGES.items():
        text = text.replace(f"]({source})", f"]({page})")
    return text.replace("](docs/", "](").replace("(https://keepachangelog.com/)", "(https://keepachangelog.com)")


def reference_page(title: str, *modules: list[str]) -> str:
    """Return a page of the reference: the documentation of modules, made from their docstrings."""
    names = [f"hf_captioners.{module}" for part in modules for module in part]
    return f"# {title}\n\n" + "\n\n".join(
        f"## `{name}`\n\n::: {name}\n    options:\n      show_root_heading: false" for name in names
    )


def notebook(markdown: str) -> str:
    """Return a guide as a notebook, whose cells are its blocks of Python; links go to the pages of the site."""
    import jupytext

    linked = re.sub(r"\]\((\w+)\.md", r"](\1.html", markdown)
    found = jupytext.reads(linked.replace("```bash", "```bash .noeval"), fmt="md")
    for cell in found.cells:
        cell.source = cell.source.replace("```bash .noeval", "```bash")
        cell.id = f"cell-{found.cells.index(cell)}"  # equal in every build
    found.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return jupytext.writes(found, fmt="ipynb")


def section(file: str, title: str) -> str:
    """Return a section of a page without its heading.

    Raises:
        LookupError: the page has no such section.
    """
    text = (DOCS / file).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"docs/{file} has no section {title!r}.")
    return re.sub(r"\]\((?=\w+\.md)", "](../", found[1].strip())


def citation(name: str) -> str:
    """Return the paper of an architecture, and the names that a person types."""
    row = get_architecture(name)
    return f"Paper: {row.paper}. On the command line: `--architecture {row.name}`."


def class_documentation(kind: str, name: str) -> str:
    """Return the directives of the configuration, or of the models and the processor, of an architecture."""
    row = get_architecture(name)
    kinds = KINDS[:1] if kind == "configuration" else KINDS[1:]
    return "\n\n".join(f"::: {row.module(one)}.{row.prefix}{one}" for one in kinds)


def current_figures(name: str) -> dict[str, Any] | None:
    """Return a result, or None if there is none or a later change of the code invalidates it."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return None
    figures = json.loads(path.read_text(encoding="utf-8"))
    return None if invalidating(name, figures["provenance"], known_changes()) else figures


def results(name: str) -> str:
    """Return the measured figures of an architecture as a list, from the files in `benchmarks/results`."""
    lines = []
    if figures := current_figures(f"flickr8k_{name}"):
        lines.append(
            f"- Flickr8k, {figures['images']:,} validation photographs: CIDEr-D {figures['cider_d']:.3f}, BLEU-4 "
            f"{figures['bleu_4']:.3f}; shuffled control {figures['cider_d_shuffled']:.3f}."
        )
    if name == "eta" and (by_attributes := current_figures("attributes")):
        captioners = by_attributes["captioners"]
        scores = ", ".join(f"{one['cider_d']:.3f} ({attributes})" for attributes, one in captioners.items())
        lines.append(f"- Flickr8k, CIDEr-D by the attributes that are read: {scores}.")
    if learned := (current_figures("memorization") or {"runs": {}})["runs"].get(name):
        lines.append(
            f"- It learns: CIDEr-D {learned['cider_d']:.3f} on the {learned['images']} photographs of its training; "
            f"shuffled control {learned['cider_d_shuffled']:.3f}."
        )
    if looked := (current_figures("attention_on_objects") or {"runs": {}})["runs"].get(name):
        low, high = looked["times_even_interval"]
        lines.append(
            f"- Attention at nouns, on the drawn object that they name: {looked['times_even']:.2f} times that of even "
            f"attention (95 % interval {low:.2f} to {high:.2f})."
        )
    return "\n".join([*lines, "", "[Results](../results.md) says how they were measured."])


PARTS = {"section": section, "citation": citation, "results": results, "class": class_documentation}

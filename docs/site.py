"""Hooks of `make docs`: pages that are made from other files, and the parts of pages that comments name.

The first page is the README, and a guide is also a notebook, so that no text stands twice. A page may have these
comments, each in a line of its own:

- `<!-- citation NAME -->`, `<!-- results NAME -->`: paper and measured figures of an architecture;
- `<!-- names -->`: table of the names that the page documents;
- `<!-- class configuration NAME -->`, `<!-- class modeling NAME -->`: documentation of its classes.
"""

import inspect
import json
import pkgutil
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
NOTICE = "default_captioner/NOTICE"
REPOSITORY_PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
NOTEBOOK = "first_captioner.md"  # the guide that is also a notebook
NAMES = "<!-- names -->"
COMMENT = re.compile(r"^<!-- (citation|results|class) (.+?) -->$", re.MULTILINE)
METHODS = ("from_pretrained_parts", "visual_scores", "attention_maps", "relevance_maps")  # that people call
TYPE = re.compile(r"<code>`[^<]*</code>")
SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^::: (\S+)", re.MULTILINE)


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
    """Add the pages that are made from files of the repository."""
    from mkdocs.structure.files import File

    pages = {name: repository_page(ROOT / source) for name, source in REPOSITORY_PAGES.items()}
    pages[NOTEBOOK.replace(".md", ".ipynb")] = notebook((DOCS / NOTEBOOK).read_text(encoding="utf-8"))
    pages["NOTICE.txt"] = (ROOT / NOTICE).read_text(encoding="utf-8")
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the comments of a page by what they name."""
    text = COMMENT.sub(lambda found: PARTS[found[1]](*found[2].split()), markdown)
    return text.replace(NAMES, summary(text)) if NAMES in text else text


def on_page_content(html: str, **_: Any) -> str:
    """Remove the backticks of types that docstrings write as transformers does: (`int`, defaults to 5)."""
    return TYPE.sub(lambda found: found[0].replace("`", ""), html)


def repository_page(path: Path) -> str:
    """Return the text of a file of the repository with links that are right for the site."""
    text = path.read_text(encoding="utf-8")
    for page, source in REPOSITORY_PAGES.items():
        text = text.replace(f"]({source})", f"]({page})")
    text = text.replace("](docs/", "](").replace(f"]({NOTICE})", "](NOTICE.txt)")
    if path.name == "CHANGELOG.md":  # its sections are long, and unfold
        text = SECTION.sub(r'<details markdown="1"><summary>\1</summary>\n\2</details>\n\n', text)
    return text.replace("(https://keepachangelog.com/)", "(https://keepachangelog.com)")


def summary(markdown: str) -> str:
    """Return a table of the names that a page documents: links, and the first sentence of each documentation."""
    rows = ["| in `hf_captioners` | |", "|---|---|"]
    for name in DIRECTIVE.findall(markdown):
        documentation = inspect.getdoc(pkgutil.resolve_name(name)) or ""
        sentence = " ".join(documentation.partition("\n\n")[0].split()).replace("|", r"\|")
        rows.append(f"| [`{name.removeprefix('hf_captioners.')}`][{name}] | {sentence} |")
    return "\n".join(rows)


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


def citation(name: str) -> str:
    """Return the paper of an architecture, and the names that a person types."""
    row = get_architecture(name)
    return f"Paper: {row.paper}. On the command line: `--architecture {row.name}`."


def class_documentation(kind: str, name: str) -> str:
    """Return the directives of the configuration, or of the models and the processor, of an architecture."""
    row = get_architecture(name)
    kinds = KINDS[:1] if kind == "configuration" else KINDS[1:]
    options = f"\n    options:\n      members: [{', '.join(METHODS)}]"
    return "\n\n".join(f"::: {row.module(one)}.{row.prefix}{one}{options}" for one in kinds)


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


PARTS = {"citation": citation, "results": results, "class": class_documentation}

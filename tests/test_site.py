"""The site of `make docs`: its pages, the parts that are made from other files, and its links."""

import functools
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from hf_captioners.architectures import ARCHITECTURES as REGISTERED
from hf_captioners.interfaces import Captioner
from tests.browser import look_at, open_browser

ARCHITECTURES = {name: one for name, one in REGISTERED.items() if name != "toy"}  # of other tests
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
MAX_HEIGHT = 8000  # of a page in pixels, at a width of 1280
SMALLER = {
    "NUM_IMAGES = 1500": "NUM_IMAGES = 20",
    '"validation": 100, "test": 100': '"validation": 4, "test": 6',
    "NUM_DRAWINGS = 24_000": "NUM_DRAWINGS = 96",
    "EPOCHS = 5": "EPOCHS = 1",
}


HEIGHT = "return document.documentElement.scrollHeight"
SCROLLS = """
return [...document.querySelectorAll("pre, pre > code")].filter((one) => one.scrollWidth > one.clientWidth + 1).length
"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each request."""

    def log_message(self, *arguments):
        """Print nothing."""


def module(path):
    """The module of a script in `docs`."""
    spec = importlib.util.spec_from_file_location(f"site_{path.stem}", path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def pages_of(entries):
    """The pages of the navigation."""
    for entry in entries:
        for page in entry.values():
            yield from [page] if isinstance(page, str) else pages_of(page)


SITE = module(DOCS / "site.py")


def test_every_page_is_in_the_navigation_and_exists():
    pages = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert len(pages) == len(set(pages)) and set(pages) == {*SITE.REPOSITORY_PAGES, *written}


def test_every_public_name_is_in_the_reference():
    """Once, on a page of the reference or of an architecture; tables have a sentence on each."""
    public = json.loads((ROOT / "release" / "public_api.json").read_text(encoding="utf-8"))["names"]
    public = [name for name, entry in public.items() if entry["kind"] in ("class", "function")]
    shown = []
    for path in [*(DOCS / "api").glob("*.md"), *(DOCS / "architectures").glob("*.md")]:
        text = SITE.on_page_markdown(path.read_text(encoding="utf-8"))
        assert "<!--" not in text
        names = SITE.DIRECTIVE.findall(text)
        if path.parent.name == "api":
            rows = re.findall(r"^\| \[`[\w.]+`\]\[([\w.]+)\] \| .*\w.* \|$", text, re.MULTILINE)
            assert rows == names and names, path.name
        shown += [pkgutil.resolve_name(name) for name in names]
    shown.append(Captioner)  # an alias of Any
    missing = [name for name in public if pkgutil.resolve_name(name) not in shown]
    assert not missing, "these names are on no page of docs/api"
    assert len(shown) == len({id(one) for one in shown}), "a name is on two pages"


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_architecture_has_a_page_with_its_parts(name):
    page = (DOCS / "architectures" / f"{name}.md").read_text(encoding="utf-8")
    assert f"](../figures/{name}.svg)" in page and "```text" in page
    text = SITE.on_page_markdown(page)
    assert "<!--" not in text, "every comment is replaced"
    assert ARCHITECTURES[name].paper in text and f"--architecture {name}" in text
    prefix = ARCHITECTURES[name].prefix
    for kind in ("Config", "Model", "ForConditionalGeneration", "Processor"):
        assert re.search(rf"^::: hf_captioners\..*\.{prefix}{kind}$", text, re.MULTILINE)
    assert "| in the paper | what | where |" in text or "zodiac.md#equations-tables-and-figures-in-the-code" in text
    assert f"architectures/{name}.md#" in (DOCS / "paper_index.md").read_text() or name == "zodiac_aoanet"
    assert "[Results](../results.md)" in text


def test_measured_figures_are_those_of_the_result_files():
    known = json.loads((ROOT / "benchmarks" / "results" / "memorization.json").read_text(encoding="utf-8"))["runs"]
    assert all(f"CIDEr-D {run['cider_d']:.3f} on the" in SITE.results(name) for name, run in known.items())


def test_figures_are_those_of_their_script():
    drawing = module(DOCS / "figures" / "draw.py")
    assert set(drawing.FIGURES) == set(ARCHITECTURES)
    for name, figure in drawing.FIGURES.items():
        written = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert written == drawing.draw(figure), "run python docs/figures/draw.py"


def test_a_guide_is_a_notebook():
    """Its cells are the blocks of Python, in order; commands for other images stay text."""
    pytest.importorskip("jupytext", reason="the extra docs is not installed")
    text = (DOCS / SITE.NOTEBOOK).read_text(encoding="utf-8")
    cells = json.loads(SITE.notebook(text))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.strip() for block in BLOCK.findall(text)] and len(code) >= 6
    told = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert "```bash\nhf-captioners train" in told and "](data.html)" in told and "noeval" not in told


def test_the_guide_runs_from_top_to_bottom(fork_server, tmp_path):
    """With few images; an image and a figure are what the cells show."""
    code = "\n".join(BLOCK.findall((DOCS / SITE.NOTEBOOK).read_text(encoding="utf-8")))
    for usual, few in SMALLER.items():
        assert usual in code
        code = code.replace(usual, few)
    (tmp_path / "guide.py").write_text(code, encoding="utf-8")
    done = fork_server.run([tmp_path / "guide.py"], cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'cider_d_shuffled'" in done.stdout and (tmp_path / "first" / "captioner" / "README.md").is_file()
    assert "Warning" not in done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    shutil.rmtree(SITE.SOURCES, ignore_errors=True)  # as in a fresh checkout
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_without_a_warning(site):
    """Links, anchors and references of every page; the first page is the README, and no page needs another host."""
    first = (site / "index.html").read_text(encoding="utf-8")
    assert "Fine-tune a captioner on your own images" in first and 'href="training.html"' in first
    assert not re.search(r'<(script|link)[^>]+(src|href)="https?://(?!hf_captioners)', first)
    assert "self-resurrecting" in (site / "architectures" / "visualgpt.html").read_text(encoding="utf-8")


def estimated_height(html):
    """The height of a page from its letters, rows, headings and lines of code; usually within 300 pixels."""
    article = html[html.index("<article") : html.index("</article>")]
    article = re.sub(r"<details>.*?</details>", "", article, flags=re.DOTALL)
    code = "".join(re.findall(r"<pre.*?</pre>", article, re.DOTALL)).count("\n")
    text = re.sub(r"<pre.*?</pre>", "", article, flags=re.DOTALL)
    rows, headings = text.count("<tr"), len(re.findall("<h[1-4]", text))
    return 400 + 22 * code + 30 * rows + 110 * headings + 0.25 * len(re.sub("<[^>]+>", "", text))


def test_no_page_is_long(site):
    """By an estimate, with a tenth to spare; `test_every_page_in_a_browser` measures."""
    heights = {path.name: estimated_height(path.read_text(encoding="utf-8")) for path in site.glob("**/[!4]*.html")}
    assert len(heights) > 60 and max(heights.values()) > MAX_HEIGHT / 2, "the estimate is right"
    assert not {name: height for name, height in heights.items() if height > 1.1 * MAX_HEIGHT}


def test_the_first_page_begins_with_the_photograph(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    article = first[first.index("<article") :]
    assert article.index("<h1") < article.index('src="photo.jpg"') < article.index("<p>Image captioning for")


@pytest.fixture(scope="module")
def served(site):
    """The folder of the site, and its address: the search of pages that are opened as files does not work."""
    handler = functools.partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield site, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_every_page_in_a_browser(served):
    """Nothing is cut off, figures load, no page is long, and every page has its heading."""
    folder, address = served
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html") if path.name != "404.html")
    assert len(pages) > 30
    for width in (390, 1280):
        with open_browser(width) as browser:
            for page in pages:
                text = look_at(browser, f"{address}/{page}")
                if width == 1280:
                    assert browser.execute_script(HEIGHT) <= MAX_HEIGHT, page
                    assert not browser.execute_script(SCROLLS), f"code of {page} continues outside of its block"
                assert browser.execute_script("return document.querySelectorAll('article h1').length") == 1, page
                assert len(text) > 300, page

"""Result files name what measured them; results that a change invalidates are marked, and quoted nowhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = sorted((BENCHMARKS / "results").glob("*.json"))
PAGES = [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if not path.stem.startswith("results"))]
COMMENTED = sorted((ROOT / "hf_captioners" / "reproduce" / "recipes").rglob("*.yaml"))
LINK = re.compile(r"\]\([\w./]*results\w*\.md(?:#([\w-]*))?\)|benchmarks/results/(\w+)\.json")
DECIMAL = re.compile(r"(?<![\w.,])(\d+\.\d+)(?![\w.]*\w)")
BESIDE_METRIC = re.compile(r"(?:CIDEr|BLEU|METEOR|ROUGE|SPICE)[^.;|]{0,50}?" + DECIMAL.pattern)
SMALLEST_SCORE = 0.05  # smaller numbers of a section are deviations


@pytest.fixture
def modules(monkeypatch):
    """The modules on provenance, on known changes and of the page."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import known_changes
    import provenance
    import write_results

    yield provenance, known_changes, write_results
    for name in ("known_changes", "provenance", "write_results"):
        sys.modules.pop(name, None)


def git(*arguments, cwd=ROOT):
    identity = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    return subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


def has_history():
    """True in a clone with its whole history."""
    try:
        return git("rev-parse", "--is-shallow-repository").strip() == "false"
    except (OSError, subprocess.CalledProcessError):
        return False


def anchor(title):
    """The anchor of a heading, as in links to it."""
    return re.sub(r"[^\w\- ]", "", title.removeprefix("## ").lower()).replace(" ", "-")


def printed_scores(lines):
    """The numbers with three or more decimals in a section, its commands left out."""
    text = re.sub(r"```.*?```", "", "\n".join(lines), flags=re.DOTALL)
    return {float(number) for number in DECIMAL.findall(text) if len(number.partition(".")[2]) >= 3}


def is_rounding(number, scores):
    """True if a number is one of the scores with two or more decimals, or in percent with one."""
    digits = len(number.partition(".")[2])
    scale = 100 if digits == 1 else 1
    return any(number == f"{scale * score:.{digits}f}" for score in scores if score >= SMALLEST_SCORE)


def quotes(text, sections, names):
    """The figures of some sections that a text quotes.

    Figures before a link to a section or to a result file are those of the section, and so are those that follow in
    the paragraph without a link of their own. Without a link, a number after the name of a metric is a quote if it is
    a score of these sections and of no other one.
    """
    titles = {anchor(lines[0]): name for name, lines in sections.items()}
    old = set().union(*(printed_scores(sections[name]) for name in names if name in sections))
    present = set().union(*(printed_scores(lines) for name, lines in sections.items() if name not in names))
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        end, linked = 0, None
        for link in LINK.finditer(paragraph):
            linked = titles.get(link[1]) or link[2] or linked
            if linked in names:
                found += DECIMAL.findall(paragraph[end : link.start()])
            if link[1] or link[2]:
                end = link.end()
        if linked in names:
            found += DECIMAL.findall(paragraph[end:])
        beside = [match[1] for match in BESIDE_METRIC.finditer(paragraph[end:])]
        found += [number for number in beside if is_rounding(number, old) and not is_rounding(number, present)]
    return found


def test_every_result_file_names_what_measured_it():
    for path in RESULTS:
        records = json.loads(path.read_text(encoding="utf-8"))["provenance"]
        assert records, path.name
        for record in records:
            assert re.fullmatch(r"[0-9a-f]{40}", record["commit"]) and re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
            if record["recorded"]:
                assert {"dirty", "cpu", "threads", "versions", "command"} < set(record), path.name


def test_every_script_that_writes_results_records_their_provenance():
    writers = [path for path in BENCHMARKS.glob("*.py") if "benchmarks/results" in path.read_text(encoding="utf-8")]
    assert len(writers) > 10
    for path in [*writers, ROOT / "tests/robustness/attack.py", ROOT / "default_captioner/make_default_captioner.py"]:
        source = path.read_text(encoding="utf-8")
        dumped = re.findall(r"^.*(?:\.write_text|write_text\().*json\.dumps.*$", source, re.MULTILINE)
        dumped = [line for line in dumped if re.search(r"output|RESULTS", line)]
        assert not dumped, f"{path.name} writes a result file without `provenance.write_results`: {dumped}"


def test_a_record_says_whether_the_checkout_is_that_of_the_commit(modules, tmp_path):
    provenance, _, _ = modules
    (tmp_path / "modeling").mkdir()
    (tmp_path / "modeling" / "layer.py").write_text("x = 1\n")
    git("init", "-q", cwd=tmp_path)
    git("add", ".", cwd=tmp_path)
    git("commit", "-q", "-m", "first", cwd=tmp_path)
    commit = git("rev-parse", "HEAD", cwd=tmp_path).strip()
    (tmp_path / "notes.txt").write_text("no source")
    assert provenance.checkout(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "modeling" / "new.py").write_text("y = 1\n")
    assert provenance.checkout(tmp_path) == {"commit": commit, "dirty": True}
    (tmp_path / "modeling" / "new.py").unlink()
    (tmp_path / "modeling" / "layer.py").write_text("x = 2\n")
    assert provenance.checkout(tmp_path) == {"commit": commit, "dirty": True}
    copied = tmp_path / "modeling"  # a folder inside a repository of somebody else
    assert provenance.checkout(copied) == {"commit": None, "dirty": None}


def test_a_result_file_keeps_the_records_of_figures_that_are_added_to(modules, tmp_path, monkeypatch):
    provenance, _, _ = modules
    path = tmp_path / "results" / "rows.json"
    older = {"recorded": False, "commit": "1" * 40, "date": "2026-01-01"}
    provenance.write_results(path, {"rows": [1]}, [older])
    provenance.write_results(path, {"rows": [1, 2], "provenance": "stale"}, provenance.records_of(path))
    written = json.loads(path.read_text())
    assert written["rows"] == [1, 2]
    first, second = written["provenance"]
    assert first == older
    assert second["recorded"] and second["cpu"] and second["threads"] >= 1 and second["versions"]["torch"]
    provenance.write_results(path, {"rows": [3]})
    assert len(provenance.records_of(path)) == 1, "measured anew: no earlier commit has a part in it"
    assert provenance.records_of(tmp_path / "none.json") == []
    with pytest.raises(ValueError, match="no record"):
        provenance.write_results(path, {}, measured_here=False)


def test_figures_of_a_training_run_have_the_commit_that_trained(modules, tmp_path):
    provenance, _, _ = modules
    study, run = tmp_path, tmp_path / "row" / "seed_0"
    run.mkdir(parents=True)
    (unknown,) = provenance.run_records(run, study)
    assert unknown["commit"] is None and not unknown["recorded"]
    provenance.add_run_record(study)
    provenance.add_run_record(study)  # resumed by the same code
    (trained,) = provenance.run_records(run, study)
    assert trained["commit"] == provenance.CHECKOUT["commit"]
    (run / "provenance.json").write_text(json.dumps([{"recorded": True, "commit": "2" * 40}]))
    assert provenance.run_records(run, study)[0]["commit"] == "2" * 40


def test_a_recorded_command_names_no_folder_of_a_machine(modules, monkeypatch):
    provenance, _, _ = modules
    monkeypatch.setenv("HF_CAPTIONERS_DATA_DIR", "/elsewhere/data")
    words = [
        "/elsewhere/data",
        "/elsewhere/data/flickr8k",
        "/private/runs",
        str(ROOT / "docs" / "a b.jpg"),
        "--seeds",
        "1 2",
    ]
    expected = [
        "$HF_CAPTIONERS_DATA_DIR",
        "$HF_CAPTIONERS_DATA_DIR/flickr8k",
        ".../runs",
        "'docs/a b.jpg'",
        "--seeds",
        "'1 2'",
    ]
    assert [provenance.shell_word(word) for word in words] == expected


def test_a_change_is_judged_by_the_recorded_commits(modules):
    _, known_changes, _ = modules
    before, after = ({"commit": letter * 40} for letter in "ab")
    change = {"commit": "c" * 40, "why": "", "results": ["table"], "contained_in": [after["commit"]]}
    assert known_changes.invalidating("table", [after], [change]) == []
    assert known_changes.invalidating("other", [before], [change]) == []
    assert known_changes.invalidating("table", [before], [change]) == [change]
    assert known_changes.invalidating("table", [after, before], [change]) == [change], "a part of it is old"
    assert known_changes.invalidating("table", [{"commit": None}], [change]) == [change], "nobody knows its commit"


def test_a_section_names_commit_and_processor_once(modules):
    _, known_changes, _ = modules
    record = {"recorded": True, "commit": "a" * 40, "dirty": False, "cpu": "A CPU", "threads": 1, "date": "2026-01-01"}
    runs = [record, record | {"date": "2026-01-02"}, record | {"commit": "b" * 40, "dirty": True, "threads": 2}]
    line, _ = known_changes.provenance_lines("table", runs, [])
    assert line == (
        "*Measured by commit `aaaaaaa`, 2026-01-02, A CPU, 1 thread; "
        "commit `bbbbbbb` with uncommitted changes, 2026-01-01, A CPU, 2 threads.*"
    )


def test_git_says_which_commits_contain_a_change(modules, tmp_path):
    _, known_changes, _ = modules
    git("init", "-q", "-b", "main", cwd=tmp_path)
    commits = []
    for branch in ("main", "side", "main"):  # the commit of the side branch does not contain the second one of main
        if branch == "side":
            git("switch", "-q", "-c", branch, cwd=tmp_path)
        else:
            git("switch", "-q", branch, cwd=tmp_path) if commits else None
        git("commit", "-q", "--allow-empty", "-m", branch, cwd=tmp_path)
        commits.append(git("rev-parse", "HEAD", cwd=tmp_path).strip())
    first, side, second = commits
    ordered = known_changes.with_order({"commit": second, "contained_in": [first]}, commits, tmp_path)
    assert ordered["contained_in"] == [second]
    ordered = known_changes.with_order({"commit": first}, commits, tmp_path)
    assert ordered["contained_in"] == commits
    with pytest.raises(subprocess.CalledProcessError):
        known_changes.with_order({"commit": first}, ["0" * 40], tmp_path)


@pytest.mark.skipif(not has_history(), reason="the clone has no history")
def test_the_order_of_known_changes_is_that_of_git(modules):
    _, known_changes, _ = modules
    for change in known_changes.known_changes():
        missing = [name for name in change["results"] if not (BENCHMARKS / "results" / f"{name}.json").is_file()]
        assert not missing, "an entry names results that are not there"
        ordered = known_changes.with_order(change, known_changes.recorded_commits(change["results"]))
        assert change == ordered, "run python benchmarks/known_changes.py"


def test_a_planted_change_marks_its_section_and_finds_quotes(modules):
    _, _, write_results = modules
    change = {"commit": "e" * 40, "why": "a planted reason", "results": ["attributes"], "contained_in": []}
    mark = "**Measured before commit `eeeeeee` (a planted reason), to be repeated.**"
    assert not any(mark in page for page in write_results.pages().values())
    page = write_results.pages([change])["results_flickr8k"]
    title = "## Flickr8k: what attributes are worth to the Entangled Transformer"
    assert page.count(mark) == 1 and mark in page[page.index(title) :][:400]
    sections = write_results.written_sections([change])
    link = f"[results](docs/results_flickr8k.md#{anchor(title)})"
    names = ["attributes"]
    assert quotes(f"The captioner reaches 1.05 {link}.", sections, names) == ["1.05"]
    assert quotes("CIDEr-D is 1.047 with the words of the captions.", sections, names) == ["1.047"]
    assert quotes("A CIDEr-D of 104.7, in percent.", sections, names) == ["104.7"]
    assert quotes("A CIDEr-D of 1.047 ([results](results.md)).", sections, names) == ["1.047"]
    assert quotes("Set the width to 1.047.", sections, names) == []
    assert quotes("CIDEr-D is 0.471 with a transformer.", sections, names) == []
    assert quotes(f"{link}: 1.05 with the words of the captions.", sections, names) == ["1.05"]
    assert quotes("It takes 1.3 s (`benchmarks/results/attributes.json`).", sections, names) == ["1.3"]
    other = "docs/results.md#few-photographs-with-captions-of-their-own"
    assert quotes(f"It gains 0.445 of CIDEr-D ([results]({other})).", sections, names) == []
    assert quotes(f"CIDEr-D is 1.047 {link}.", sections, []) == []


@pytest.mark.parametrize(
    ("name", "page"), [("data", "region_features"), ("metrics", "metrics"), ("robustness", "robustness")]
)
def test_a_page_with_a_result_of_its_own_says_what_measured_it(name, page, modules):
    _, known_changes, _ = modules
    records = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))["provenance"]
    lines = known_changes.provenance_lines(name, records, known_changes.known_changes())
    assert "\n".join(lines) in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_no_page_quotes_a_figure_that_is_to_be_repeated(modules):
    _, known_changes, write_results = modules
    changes = known_changes.known_changes()
    sections, names = write_results.written_sections(changes), known_changes.invalidated(changes)
    quoted = {
        str(path.relative_to(ROOT)): found
        for path in [*PAGES, *COMMENTED]
        if (found := quotes(path.read_text(encoding="utf-8"), sections, names))
    }
    assert quoted == {}, f"figures of {', '.join(names)}, which are to be repeated"

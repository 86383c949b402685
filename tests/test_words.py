"""Names and prose use the terms of the field: words and phrases that must not occur in tracked text files.

Every forbidden word below is written in two parts, so that this file passes its own test.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VOCABULARY = "default_captioner/hf_captioners_default/captioner/tokenizer.json"
NOT_OURS = {"CHANGELOG.md", "LICENSE", VOCABULARY}  # the history of changes, a licence, words of photographs' captions

WORD_FOR_IMAGE = "pic" + "ture"  # transformers says image
WORD_FOR_AFTER = "be" + "hind"  # of an order: after
# (file, regular expression of the allowed words around it) -> reason.
ALLOWED = {
    WORD_FOR_IMAGE: {
        (
            "hf_captioners/data/scene_captions.py",
            rf"a {WORD_FOR_IMAGE} of \{{a\}} \{{where\}}",
        ): "a caption of drawn scenes",
        (
            "benchmarks/results/other_models_learning.json",
            rf"{WORD_FOR_IMAGE} of [^\"]+",
        ): "captions that models learned from drawn scenes",
    },
    WORD_FOR_AFTER: {
        ("hf_captioners/metrics/support.py", rf"{WORD_FOR_AFTER} below beneath"): "a list of prepositions"
    },
    "deal" + "t": {},
    "un" + "said": {},
}
NAMES = (
    "Starting" + "Point",
    "Final" + "Test",
    "Rewar" + "ded",
    "Start" + "Figures",
    "Collapse" + "Alarm",
    "UN" + "BENT",
    "NE" + "VER",
    "judge_" + "form",
    "Caption" + "Figures",
    "told_" + "arguments",
    "hub_errors_" + "told",
    "to" + "ss",
    "Loaded" + "Elsewhere",
    "_br" + "ing",
    "co" + "sts",
    "added_" + "loss",
)
# Phrases; `...` stands for any words, and words may be separated by line breaks.
PHRASES = (
    "What can be " + "said about a training run",
    "What a captioner is " + "made from",
    "arguments that a data set ... " + "has other defaults of",
    "What a caption " + "earns",
    "What captions are " + "worth",
    "what comes out " + "will be there later",
    "Have the model " + "that the run ends with",
    "the later " + "the weightier",
    "whatever " + "they say",
    "of each " + "another number",
    "nobody " + "else's business",
    "a card that " + "tells the truth",
    "length relative " + "to people's",
    "captions that " + "break off",
    "images are " + "brought to",
    "the way weights " + "come to life",
    "what sees ... " + "what writes",
)


def text_files() -> dict[str, str]:
    """Contents of all tracked text files by their names."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    contents = {}
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if name in NOT_OURS or not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            contents[name] = content.decode("utf-8", errors="replace")
    return contents


TEXTS = text_files() if (ROOT / ".git").exists() else {}


def folder_of(name: str) -> str:
    """The folder of a file: a folder of `hf_captioners` or `tests`, or a top-level folder."""
    parts = Path(name).parts[:-1]
    return "/".join(parts[:2] if parts[:1] in (("hf_captioners",), ("tests",)) else parts[:1]) or "."


FOLDERS = sorted({folder_of(name) for name in TEXTS})
each_folder = pytest.mark.parametrize("folder", FOLDERS)


def texts_of(folder: str) -> dict[str, str]:
    return {name: text for name, text in TEXTS.items() if folder_of(name) == folder}


def places(text: str, pattern: str) -> list[str]:
    """Lines in which a pattern begins, with their numbers."""
    lines = text.splitlines()
    found = []
    for match in re.finditer(pattern, text, re.IGNORECASE):
        number = text.count("\n", 0, match.start())
        found.append(f"line {number + 1}: {lines[number].strip()[:100]}")
    return found


def words_found(texts: dict[str, str]) -> list[str]:
    """Places of forbidden words, also as parts of names in snake case."""
    found = []
    for word, allowed in ALLOWED.items():
        for name, text in texts.items():
            for (file, around), _reason in allowed.items():
                text = re.sub(around, "", text, flags=re.IGNORECASE) if file == name else text
            # A whole word for most; `WORD_FOR_IMAGE` also within other words, as in a plural.
            pattern = word if word == WORD_FOR_IMAGE else rf"(?<![a-z]){word}(?![a-z])"
            found += [f"{name}, {place}" for place in places(text, pattern)]
            found += [f"{name}, file name"] if re.search(pattern, name, re.IGNORECASE) else []
    return found


def names_of(text: str) -> set[str]:
    """Every identifier that a Python file defines or uses."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, field, None)
            names |= set(value.split(".")) if isinstance(value, str) else set()
    return names


def names_found(texts: dict[str, str]) -> list[str]:
    """Forbidden identifiers in Python files, and in backquotes elsewhere and in docstrings."""
    found = []
    for name, text in texts.items():
        quoted = {part for span in re.findall(r"`([^`\n]+)`", text) for part in re.findall(r"\w+", span)}
        used = quoted | (names_of(text) if name.endswith(".py") else set())
        found += [f"{name}: {word}" for word in NAMES if word in used]
    return found


def phrases_found(texts: dict[str, str]) -> list[str]:
    patterns = []
    for phrase in PHRASES:
        words = [r"[^.]{0,40}?" if word == "..." else re.escape(word) for word in phrase.split()]
        patterns.append(r"[\s#]+".join(words))  # a comment continues after a number sign
    return [f"{name}, {place}" for name, text in texts.items() for p in patterns for place in places(text, p)]


VAGUE_START = re.compile(r"(What|Whether those|Those|One)\b")


def vague_first_lines(texts: dict[str, str]) -> list[str]:
    """First lines of docstrings that begin with a word for the thing instead of its name."""
    found = []
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                found += [f"{name}: {first}"] if VAGUE_START.match(first) else []
    return found


@each_folder
def test_first_lines_of_docstrings(folder):
    assert vague_first_lines(texts_of(folder)) == []


@each_folder
def test_words(folder):
    assert words_found(texts_of(folder)) == []


@each_folder
def test_names(folder):
    assert names_found(texts_of(folder)) == []


@each_folder
def test_phrases(folder):
    assert phrases_found(texts_of(folder)) == []


def test_every_exception_is_needed_and_has_a_reason():
    for allowed in ALLOWED.values():
        for (file, around), reason in allowed.items():
            assert reason and re.search(around, (ROOT / file).read_text(encoding="utf-8")), (file, around)


def test_forbidden_words_are_found():
    """The checks find what they look for."""
    assert words_found({"a.md": f"A\n{WORD_FOR_IMAGE.title()}s"}) == [f"a.md, line 2: {WORD_FOR_IMAGE.title()}s"]
    assert words_found({"a.py": f"x_{WORD_FOR_AFTER}_y = 1"}) and not words_found({"a.py": "x = 'image'"})
    allowed = f"a {WORD_FOR_IMAGE} of {{a}} {{where}}"
    assert not words_found({"hf_captioners/data/scene_captions.py": allowed}) and words_found({"b.py": allowed})
    assert names_found({"a.py": f"def f({NAMES[-2]}): pass"}) == [f"a.py: {NAMES[-2]}"]
    assert names_found({"a.md": f"see `x.{NAMES[0]}`"}) and not names_found({"a.md": NAMES[-2]})
    for first in ("What a run says.", "One row.", "Those of a row.", "Whether those of a row do."):
        assert vague_first_lines({"a.py": f'def f():\n    """{first}"""\n'}), first
    assert not vague_first_lines({"a.py": '"""Whatever. One."""'})
    for phrase in PHRASES:
        assert phrases_found({"a.py": "# " + phrase.replace("...", "of its own").replace(" ", "\n# ", 1)}), phrase

"""The tables of METEOR 1.5: synonyms, paraphrases and abbreviations, read from an installed pycocoevalcap.

Only its data files are read. No Java program is started.
"""

import importlib.util
import os
import zipfile
from functools import cached_property, lru_cache
from pathlib import Path

from .paraphrases import ParaphraseIndex, build

_FUNCTION_WORDS = """
    the , . to of and a in that for " is on 's it with was as said at he by be from have has are his but an
    this not i will \u2019 they ) -rrb- ( -lrb- who their had we which were been more or s its would about new
    one after you : also up when there than $ all out her people she year two - can if last first \u201c over
    other \u201d into some what so -- no time years could ? 't \u2014 '
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Function words, which have a lower weight than content words."""

_INDEX_VERSION = 1
_INSTALL = (
    "METEOR needs the tables of the `pycocoevalcap` package (no Java is started). Type `pip install "
    "'hf-captioners[metrics-data]'` or `pip install --no-deps pycocoevalcap`, or pass the path of its folder "
    '`meteor`, or compute METEOR without synonyms and paraphrases: stages=("exact", "stem").'
)
# Replacements of endings that give a base form, in order (WordNet's rules for nouns, verbs and adjectives).
_ENDINGS = (
    *(
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    *(("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    *(("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
)


class Synonyms:
    """Synset numbers of words and phrases (WordNet 3.0).

    Args:
        synsets: two lines per entry: the word, with `_` for blanks; its synset numbers.
        exceptions: two lines per entry: the base form; its irregular forms.
    """

    def __init__(self, synsets: str, exceptions: str) -> None:
        lines = synsets.split("\n")
        self._numbers = dict(zip(lines[::2], lines[1::2], strict=False))
        lines = exceptions.split("\n")
        self._bases: dict[str, list[str]] = {}
        for base, forms in zip(lines[::2], lines[1::2], strict=False):
            for form in forms.split():
                self._bases.setdefault(form, []).append(base)
        self.find = lru_cache(maxsize=1 << 16)(self._find)
        """Return the synset numbers of a lower-case word, or phrase with `_` for blanks, and of its base forms."""

    def _find(self, word: str) -> frozenset[int]:
        forms = [word, *(self._bases.get(word) or [self._base(word)])]
        return frozenset(int(number) for form in forms for number in self._numbers.get(form, "").split())

    def _base(self, word: str) -> str:
        stem, suffix = (word[:-3], "ful") if word.endswith("ful") else (word, "")
        if stem.endswith("ss") or len(stem) <= 2:
            return word
        for ending, replacement in _ENDINGS:
            if stem.endswith(ending) and (base := stem.removesuffix(ending) + replacement) in self._numbers:
                return base + suffix
        return word


class MeteorTables:
    """METEOR's tables of synonyms, paraphrases and abbreviations, each read on first use.

    Args:
        path: the folder `meteor` of pycocoevalcap, with `meteor-1.5.jar` and `data/paraphrase-en.gz`. By default the
            folder of the installed package.
        cache_dir: the folder for the index of the paraphrases (67 MB, built once in about ten seconds). By default
            `hf_captioners` in the Hugging Face cache folder.

    Raises:
        FileNotFoundError: the tables are missing; the message states what to install.

    Examples:
        >>> from hf_captioners.metrics import MeteorTables
        >>> tables = MeteorTables()  # doctest: +SKIP
        >>> tables.synonyms.find("bike") & tables.synonyms.find("bicycle")  # doctest: +SKIP
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, cache_dir: str | os.PathLike[str] | None = None
    ) -> None:
        self.path = Path(path) if path is not None else find_tables()
        self.jar, self._table = self.path / "meteor-1.5.jar", self.path / "data" / "paraphrase-en.gz"
        for file in (self.jar, self._table):
            if not file.is_file():
                raise FileNotFoundError(f"There is no file {file}. {_INSTALL}")
        self._cache = Path(cache_dir) if cache_dir is not None else cache_folder()

    def _read(self, name: str) -> str:
        with zipfile.ZipFile(self.jar) as jar:
            return jar.read(name).decode("utf-8")

    @cached_property
    def synonyms(self) -> Synonyms:
        """The synset numbers of words."""
        return Synonyms(self._read("synonym/english.synsets"), self._read("synonym/english.exceptions"))

    @cached_property
    def prefixes(self) -> tuple[frozenset[str], frozenset[str]]:
        """Abbreviations that keep their full stop, and those that keep it only before a number."""
        lines = [line.strip() for line in self._read("nonbreaking/english.prefixes").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        numeric = frozenset(line.split()[0] for line in lines if "#NUMERIC_ONLY#" in line)
        return frozenset(line for line in lines if "#" not in line), numeric

    @cached_property
    def paraphrases(self) -> ParaphraseIndex:
        """The index of paraphrases, which is built on first use."""
        state = self._table.stat()
        folder = self._cache / f"paraphrases-v{_INDEX_VERSION}-{state.st_size}-{int(state.st_mtime)}"
        if not folder.is_dir():
            build(self._table, folder)
        return ParaphraseIndex(folder)


def find_tables() -> Path:
    """Return the folder `meteor` of the installed pycocoevalcap, which has METEOR's tables.

    Raises:
        FileNotFoundError: it is not installed.
    """
    spec = importlib.util.find_spec("pycocoevalcap")  # a namespace package has locations but no file
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / "meteor" / "meteor-1.5.jar").is_file():
            return Path(place) / "meteor"
    raise FileNotFoundError(f"`pycocoevalcap` is not installed. {_INSTALL}")


def cache_folder() -> Path:
    """Return the folder `hf_captioners` in the Hugging Face cache (`HF_HOME`)."""
    home = (
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    return Path(home) / "hf_captioners"

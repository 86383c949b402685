import importlib.util

from hf_captioners.metrics.meteor_normalizer import MeteorNormalizer
from hf_captioners.metrics.meteor_tables import FUNCTION_WORDS, Synonyms, find_tables
from hf_captioners.metrics.snowball_english import stem


def test_stems_of_the_original(truth_json):
    stems = truth_json("meteor/stems.json.gz")
    wrong = {word: (expected, stem(word)) for word, expected in stems.items() if stem(word) != expected}
    assert len(stems) > 20_000
    assert not wrong


def test_normalised_strings_of_the_original(truth_rows, tables):
    rows = truth_rows("meteor/normalized.jsonl.gz")
    normalize = MeteorNormalizer(*tables.prefixes).normalize
    wrong = [(row["text"], row["norm"], got) for row in rows if (got := normalize(row["text"])) != row["norm"]]
    assert len(rows) > 2_000
    assert not wrong


def test_function_words_are_those_of_the_tables(tables):
    import zipfile

    with zipfile.ZipFile(tables.jar) as jar:
        words = jar.read("function/english.words").decode().split()
    assert frozenset(words) == FUNCTION_WORDS
    assert len(FUNCTION_WORDS) == 93


def test_synonyms_by_base_forms():
    synonyms = Synonyms("dog\n00000001 00000002\nrun\n3\nspoonful\n4\n", "run\nran running\n")
    assert synonyms.find("dog") == {1, 2}
    assert synonyms.find("dogs") == {1, 2}
    assert synonyms.find("ran") == {3}
    assert synonyms.find("cat") == frozenset()
    assert synonyms.find("running") == {3}


def test_installed_package_without_file_is_found(tmp_path, monkeypatch):
    """pycocoevalcap is a namespace package: it has locations, but no `__file__`."""
    folder = tmp_path / "pycocoevalcap" / "meteor"
    folder.mkdir(parents=True)
    (folder / "meteor-1.5.jar").touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert find_tables() == folder

"""Cut METEOR's tables to the words of the fixtures: `python tests/metrics/make_meteor_tables.py FOLDER [CAPTIONS]`.

FOLDER is the folder `meteor` of pycocoevalcap 1.2; CAPTIONS are further files of captions, as COCO results or
annotations (.json.gz). The result, `fixtures/meteor/tables`, has the form of FOLDER. It has the synonym sets of all
words, the paraphrases that occur in the captions of one image, and those of two single words of the fixtures.
"""

import gzip
import io
import json
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from hf_captioners.metrics import PTBTokenizer
from hf_captioners.metrics.meteor_normalizer import MeteorNormalizer
from hf_captioners.metrics.meteor_tables import _ENDINGS, MeteorTables

FIXTURES = Path(__file__).parent / "fixtures"
TARGET = FIXTURES / "meteor" / "tables"
COPIED = ("nonbreaking/english.prefixes", "function/english.words", "synonym/COPYING.WORDNET")
LONGEST = 7  # words of a phrase
DATE = (2015, 2, 10, 0, 0, 0)  # one for all members, so that the archive is reproducible


def read(path: Path) -> object:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def images_of_fixtures() -> Iterator[list[str]]:
    """Yield the captions of each image, tokenised."""
    for path in sorted((FIXTURES / "scores").glob("*.json.gz")):
        content = read(path)
        for one in content.get("sets", [content]) if isinstance(content, dict) else content:
            if "candidates" in one:
                for candidate, references in zip(one["candidates"], one["references"], strict=True):
                    yield [candidate, *references]


def images_of_captions(paths: Iterable[str]) -> Iterator[list[str]]:
    tokenize, captions = PTBTokenizer(), defaultdict(list)
    for path in paths:
        content = read(Path(path))
        rows = content["annotations"] if isinstance(content, dict) else content
        for row, text in zip(rows, tokenize([row["caption"] for row in rows]), strict=True):
            captions[row["image_id"]].append(text)
    yield from captions.values()


def words_of_scenes() -> set[str]:
    """Words and phrases of the tuples of SPICE, with `_` for blanks."""
    found = set()
    for name in ("spice_tuples", "spice_tuples_unstable"):
        with gzip.open(FIXTURES / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                for tuples in (row["test_tuples"], *row["ref_tuples"]):
                    found |= {part.replace(" ", "_") for parts in tuples for part in parts}
    return found


def bases(word: str) -> set[str]:
    """All base forms that are looked up for a word."""
    stem = word.removesuffix("ful")
    suffix = word[len(stem) :]
    return {word} | {stem.removesuffix(a) + b + suffix for a, b in _ENDINGS if stem.endswith(a)}


def pairs_of(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield entries of two lines."""
    return zip(lines[::2], lines[1::2], strict=False)


def paraphrases(table: Path, words: set[str], images_of: dict[str, set[int]]) -> Iterator[str]:
    """Yield the entries whose two sides are single known words, or occur in the captions of one image."""
    with gzip.open(table, "rt", encoding="utf-8", newline="\n") as lines:
        while entry := list(islice(lines, 3)):
            one, other = (line.rstrip("\n") for line in entry[1:])
            if {one, other} <= words or not images_of.get(one, set()).isdisjoint(images_of.get(other, ())):
                yield "".join(entry)


def main(folder: str, *captions: str) -> None:
    tables = MeteorTables(folder)
    normalize = MeteorNormalizer(*tables.prefixes).normalize
    fixture_words: set[str] = set()
    words, images_of, image = words_of_scenes(), defaultdict(set), 0
    for is_ours, source in ((True, images_of_fixtures()), (False, images_of_captions(captions))):
        for texts in source:
            image += 1
            for text in texts:
                split = normalize(text.replace("|||", "").replace("  ", " ")).split(" ")
                words.update(split)
                if is_ours:
                    fixture_words.update(split)
                for start in range(len(split)):
                    for stop in range(start + 1, min(len(split), start + LONGEST) + 1):
                        images_of[" ".join(split[start:stop])].add(image)
    with zipfile.ZipFile(tables.jar) as jar:
        members = {name: jar.read(name) for name in COPIED}
        synsets = jar.read("synonym/english.synsets").decode().split("\n")
        exceptions = jar.read("synonym/english.exceptions").decode().split("\n")
    irregular = [pair for pair in pairs_of(exceptions) if words & set(pair[1].split())]
    looked_up = {form for word in words for form in bases(word)} | {base for base, _ in irregular}
    kept = [pair for pair in pairs_of(synsets) if pair[0] in looked_up]
    for name, pairs in (("synsets", kept), ("exceptions", irregular)):
        members[f"synonym/english.{name}"] = "".join(f"{a}\n{b}\n" for a, b in pairs).encode()
    (TARGET / "data").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(TARGET / tables.jar.name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as jar:
        for name, content in members.items():
            jar.writestr(zipfile.ZipInfo(name, DATE), content, zipfile.ZIP_DEFLATED)
    entries = list(paraphrases(Path(folder) / "data" / "paraphrase-en.gz", fixture_words, images_of))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        file.write("".join(entries).encode())
    (TARGET / "data" / "paraphrase-en.gz").write_bytes(packed.getvalue())
    print(f"{len(words):,} words, {len(kept):,} synonym sets, {len(entries):,} paraphrases")


if __name__ == "__main__":
    main(*sys.argv[1:])

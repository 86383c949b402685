"""Words and vocabularies: published counts, to the word."""

import gzip
import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from hf_captioners.data.iu_xray_cleaning import clean_report
from hf_captioners.processing.vocabulary import count_words, karpathy_words, vocabulary


def packed(path):
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize(
    "caption, words",
    [
        ("Cloud-wreathed mountains.\n", ["cloud", "wreathed", "mountains"]),
        ("The chef's $1.99 meal, (hot)!", ["the", "chefs", "$199", "meal", "hot"]),
        ('A "sign"; #1 & a/b: x', ["a", "sign", "#1", "&", "a", "b:", "x"]),
    ],
)
def test_karpathys_rule(caption, words):
    assert karpathy_words(caption) == words


def test_vocabulary_is_ordered_and_cut():
    counts = count_words([["b", "a"], ["a", "b", "c"], ["d", "a"]])
    assert vocabulary(counts, 1) == ["a", "b", "c", "d"] and vocabulary(counts, 2) == ["a", "b"]
    with pytest.raises(ValueError, match="No word occurs 9 times; the most frequent occurs 3"):
        vocabulary(counts, 9)


def test_real_tokens(material):
    images = packed(material / "coco_formats" / "dataset_coco.excerpt.json.gz")["images"]
    sentences = [sentence for image in images for sentence in image["sentences"]]
    assert len(sentences) == 1510
    for sentence in sentences:
        assert karpathy_words(sentence["raw"]) == sentence["tokens"]


def test_r2gens_vocabulary(material):
    reports = packed(material / "iu_xray" / "annotation.json.gz")["train"]
    words = vocabulary(count_words(clean_report(entry["report"]).split() for entry in reports), 3)
    assert len(words) + 1 == packed(material / "iu_xray" / "r2gen_cleaned.train_val.json.gz")["vocabulary_threshold_3"]


@pytest.mark.slow
def test_published_sizes_of_coco(material):
    found = importlib.util.find_spec("pycocoevalcap")
    if found is None:
        pytest.skip("pycocoevalcap, which carries the complete caption files, is not installed")
    held_out = packed(material / "coco_formats" / "karpathy_split_ids.json.gz")
    held_out = {*held_out["val"], *held_out["test"]}
    jar = Path(next(iter(found.submodule_search_locations))) / "spice" / "spice-1.0.jar"
    everything, training = [], []
    with zipfile.ZipFile(jar) as archive:
        for part in ("train", "val"):
            for entry in json.loads(archive.read(f"coco/annotations/captions_{part}2014.json"))["annotations"]:
                words = karpathy_words(entry["caption"])
                everything.append(words)
                if entry["image_id"] not in held_out:
                    training.append(words)
    counts, training_counts = count_words(everything), count_words(training)
    assert (len(everything), len(counts)) == (616_767, 27_854)
    assert (len(vocabulary(counts, 6)), len(vocabulary(training_counts, 6))) == (9_486, 9_156)
    assert len(vocabulary(training_counts, 5)) == 9_995

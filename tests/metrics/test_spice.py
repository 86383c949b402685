import json
import math
import sys

import pytest

from hf_captioners.metrics import OriginalSpice, compute_caption_metrics, score_scenes

PREDICTIONS, REFERENCES = ["a dog", "a cat"], [["a dog", "dogs"], ["a bird"]]
STAND_IN = """#!{python}
import json, sys
arguments = sys.argv[1:]
assert arguments[:2] == ["-jar", "-Xmx8G"] and arguments[-2:] == ["-subset", "-silent"], arguments
rows = json.load(open(arguments[3]))
nothing = dict(f=None, pr=None, re=None, tp=0, fp=0, fn=0)
names = ("Object", "Attribute", "Relation", "Color", "Cardinality", "Size")
scores = [
    {{
        "image_id": row["image_id"],
        "scores": {{
            **{{name: nothing for name in names}},
            "All": dict(f=float(row["test"] in row["refs"]), pr=1.0, re=1.0, tp=1, fp=0, fn=0),
        }},
    }}
    for row in rows
]
{ending}
json.dump(scores, open(arguments[arguments.index("-out") + 1], "w"))
"""


@pytest.fixture
def program(tmp_path):
    """Create an `OriginalSpice` that starts a stand-in program instead of Java."""

    def make(ending="", **options):
        (tmp_path / "spice-1.0.jar").touch()
        java = tmp_path / "java"
        java.write_text(STAND_IN.format(python=sys.executable, ending=ending))
        java.chmod(0o755)
        return OriginalSpice(tmp_path / "spice-1.0.jar", java=str(java), **options)

    return make


def test_original_program_is_called_and_read(program):
    result = program().score(PREDICTIONS, REFERENCES)
    assert result.per_image.tolist() == [1.0, 0.0]
    assert result.corpus == 0.5
    assert math.isnan(result.categories["Color"])
    assert result.details[0]["All"].true_positives == 1


def test_only_the_original_is_called_spice(program):
    figures = compute_caption_metrics(PREDICTIONS, REFERENCES, ["spice"], spice=program())
    assert figures["spice"] == 0.5
    assert figures["per_image"]["spice"] == [1.0, 0.0]
    assert "original" in figures["variants"]["spice"]
    with pytest.raises(ValueError, match="pass spice=OriginalSpice"):
        compute_caption_metrics(PREDICTIONS, REFERENCES, ["spice"])


def test_cache_folder_is_made(program, tmp_path):
    ending = "assert arguments[arguments.index('-cache') + 1] == " + repr(str(tmp_path / "kept"))
    program(ending, cache_dir=tmp_path / "kept").score(PREDICTIONS, REFERENCES)
    assert (tmp_path / "kept").is_dir()


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("sys.exit('no memory')", "(?s)ended with code 1.*no memory"),
        ("sys.exit(0)", "wrote no scores"),
        ("scores.pop()", "no score for 1 of 2 images"),
    ],
)
def test_failures_say_what_happened(program, ending, message):
    with pytest.raises(RuntimeError, match=message):
        program(ending).score(PREDICTIONS, REFERENCES)


def test_missing_java_and_jar(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"spice-1\.0\.jar"):
        OriginalSpice(tmp_path / "spice-1.0.jar")
    (tmp_path / "spice-1.0.jar").touch()
    with pytest.raises(RuntimeError, match="no program 'java-that-is-not-there'"):
        OriginalSpice(tmp_path / "spice-1.0.jar", java="java-that-is-not-there").score(PREDICTIONS, REFERENCES)


def test_a_program_that_hangs_is_stopped(program):
    with pytest.raises(RuntimeError, match=r"stopped after 0\.2 seconds"):
        program("import time; time.sleep(60)", timeout=0.2).score(PREDICTIONS, REFERENCES)


def test_scenes_of_any_parser():
    tuples = {"a": [("dog",), ("dog", "big")], "b": [("dog",)], "c": []}
    result = score_scenes(["a", "c"], [["b"], ["a"]], lambda caption: tuples[caption], lambda phrase: frozenset())
    assert result.per_image.tolist() == [pytest.approx(2 / 3), 0.0]
    assert result.categories["Object"] == 0.5
    assert result.categories["Attribute"] == 0.0  # only the second image's references have one
    assert json.dumps(result.categories["All"]) == json.dumps(result.corpus)

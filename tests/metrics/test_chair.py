"""CHAIR on cases worked out by hand by the published procedure."""

import json

import pytest

from hf_captioners.cli import main
from hf_captioners.metrics import Chair, ObjectTable, coco_objects, compute_caption_metrics, read_instances

CASES = [
    # caption, references, annotated objects, mentioned objects, hallucinated ones
    ("a man riding a horse", ["a cowboy on a brown pony"], [], ["person", "horse"], []),
    ("a hot dog on a table", ["a sausage"], ["hot dog"], ["hot dog", "dining table"], ["dining table"]),
    ("two dogs and a baby elephant", ["an elephant calf"], [], ["dog", "elephant"], ["dog"]),
    ("a toilet with a wooden seat", ["a bathroom"], ["toilet"], ["toilet"], []),
    ("a urinal and a seat", ["a toilet"], [], ["toilet", "chair"], ["chair"]),
    ("a toilet seat next to a chair", ["a bathroom"], ["toilet"], ["toilet", "chair"], ["chair"]),
    (
        "women with wine glasses and knives",
        ["people drink"],
        ["knife"],
        ["person", "wine glass", "knife"],
        ["wine glass"],
    ),
    ("a passenger train at the station", ["the train stops"], [], ["train"], []),
    ("a passenger on a bus", ["a bus"], [], ["person", "bus"], ["person"]),
    ("a cat and another cat", ["a dog"], [], ["cat", "cat"], ["cat", "cat"]),
    ("green grass under a blue sky", ["a field"], [], [], []),
    ("a traffic light and a street light", ["stoplights"], [], ["traffic light", "traffic light"], []),
    ("a baby animal", ["a cub"], ["bear"], [], []),
    ("a dog on train tracks", ["a dog"], [], ["dog"], []),
    ("a solider with a phon", ["a man"], [], ["person", "cell phone"], ["cell phone"]),  # spelt so in the list
]
CAPTIONS, REFERENCES, INSTANCES, MENTIONS, WRONG = (list(column) for column in zip(*CASES, strict=True))


def test_by_hand():
    result = Chair(instances=INSTANCES).score(CAPTIONS, REFERENCES)
    assert (result.mentions, result.hallucinated) == (MENTIONS, WRONG)
    assert result.chair_i == pytest.approx(9 / 24)
    assert result.chair_s == pytest.approx(8 / 15)
    assert result.per_image_i == pytest.approx(
        [0, 1 / 2, 1 / 2, 0, 1 / 2, 1 / 2, 1 / 3, 0, 1 / 2, 1, 0, 0, 0, 0, 1 / 2]
    )


def test_from_references_alone():
    """Objects that only annotations have count as hallucinated."""
    result = Chair().score(CAPTIONS, REFERENCES)
    assert result.hallucinated[1] == ["hot dog", "dining table"] and result.hallucinated[3] == ["toilet"]
    assert result.chair_i == pytest.approx(13 / 24)


def test_as_a_metric():
    result = compute_caption_metrics(["Two DOGS!", "a cat"], [["A puppy."], ["a sofa"]], ["chair"])
    assert (result["chair_i"], result["chair_s"]) == (0.5, 0.5)
    assert result["per_image"] == {"chair_i": [0.0, 1.0], "chair_s": [0.0, 1.0]}
    assert result["variants"]["chair_i"].endswith("80 objects, those of an image from references")


def test_the_table_of_coco():
    """Every name and synonym is found as its object, in the singular and in the plural."""
    table = coco_objects()
    content = json.loads(
        (__import__("pathlib").Path(table.load.__func__.__code__.co_filename).parent / "coco_objects.json").read_text()
    )
    assert len(content["objects"]) == 80
    checked = 0
    for name, synonyms in content["objects"].items():
        for phrase in (name, *synonyms):
            assert [found for _, found in table.find(f"there is {phrase} here")] == [name], phrase
            if not phrase.endswith("s"):
                plural = f"{phrase[:-1]}ies" if phrase.endswith("y") and phrase[-2] not in "aeiou" else f"{phrase}s"
                assert [found for _, found in table.find(plural)] == [name], plural
            checked += 1
    assert checked > 300


def test_an_own_table(tmp_path):
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({"traffic cone": ["cone", "pylon"], "Truck": []}))
    table = ObjectTable.load(path)
    assert table.find("three pylons before a truck") == [("pylon", "traffic cone"), ("truck", "Truck")]
    with pytest.raises(ValueError, match="'trucks' is no object of the table. Did you mean `Truck`"):
        Chair(table, instances=[["trucks"]])
    with pytest.raises(ValueError, match="annotations of 1 images and 2 captions"):
        Chair(table, instances=[["truck"]]).score(["a", "b"], [["a"], ["b"]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON file"),
        ("[]", "is a list, expected objects with synonyms"),
        ("{}", "has no objects"),
        ('{"cat": "kitten"}', "synonyms of 'cat' are 'kitten', expected a list"),
        ('{"cat": ["pet"], "dog": ["pet"]}', "'pet' is a synonym of both 'cat' and 'dog'"),
    ],
)
def test_broken_tables(tmp_path, content, message):
    (tmp_path / "objects.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        ObjectTable.load(tmp_path / "objects.json")


def coco_instances():
    return {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
        "categories": [{"id": 5, "name": "bench"}, {"id": 9, "name": "dog"}],
        "annotations": [{"image_id": 1, "category_id": 5}, {"image_id": 1, "category_id": 9}],
    }


def test_annotations(tmp_path):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(coco_instances()))
    assert read_instances(path, ["2", "1", "b.jpg", "a.jpg"]) == [[], ["bench", "dog"], [], ["bench", "dog"]]
    with pytest.raises(ValueError, match="has none of the 1 images, such as 'c.jpg'.*'1'"):
        read_instances(path, ["c.jpg"])
    path.write_text(json.dumps({"x": ["dog"]}))
    assert read_instances(path, ["x", "y"]) == [["dog"], []]
    path.write_text(json.dumps({"annotations": [{"image_id": 1}]}))
    with pytest.raises(ValueError, match="KeyError.*expected COCO's instances"):
        read_instances(path, ["1"])


def test_the_command(tmp_path, capsys):
    predictions, references = tmp_path / "captions.json", tmp_path / "references.json"
    predictions.write_text(json.dumps([{"image_id": 1, "caption": "a dog on a bench"}]))
    references.write_text(json.dumps({"images": [], "annotations": [{"id": 1, "image_id": 1, "caption": "a dog"}]}))
    (tmp_path / "instances.json").write_text(json.dumps(coco_instances()))
    (tmp_path / "own.json").write_text('{"bench": []}')
    command = ["score", str(predictions), str(references), "--metrics", "chair", "--format", "json"]
    expected = {(): 0.5, ("--chair_instances", "instances.json"): 0.0, ("--chair_objects", "own.json"): 1.0}
    for typed, value in expected.items():
        files = [str(tmp_path / part) if part.endswith(".json") else part for part in typed]
        assert main([*command, *files]) == 0
        assert json.loads(capsys.readouterr().out)["chair_i"] == value, typed

"""nocaps: the official files, domains, and rows that are wrong."""

import json

import pytest

from hf_captioners.data import BadRowsError, DataReport

DOMAINS = ("in-domain", "near-domain", "out-domain")


def name_of(number):
    return f"00{number:x}3ea2087020901"


def entry(number, **changed):
    """An image as in the official files."""
    return {
        "id": number,
        "open_images_id": name_of(number),
        "height": 16,
        "width": 24,
        "coco_url": f"https://s3.amazonaws.com/nocaps/val/{name_of(number)}.jpg",
        "file_name": f"{name_of(number)}.jpg",
        "license": 0,
        "date_captured": "2018-11-06 11:04:33",
        **changed,
    }


def official():
    annotations = [
        {"image_id": number, "id": number * 10 + place, "caption": f"Caption {place} of {number}."}
        for number in range(3)
        for place in range(10)
    ]
    images = [entry(number, domain=domain) for number, domain in enumerate(DOMAINS)]
    return {"licenses": [], "info": {"version": "0.1"}, "images": images, "annotations": annotations}


@pytest.fixture
def folder(tmp_path, image):
    root = tmp_path / "nocaps"
    for number in range(3):
        image(root / "val" / f"{name_of(number)}.jpg")
    (root / "nocaps_val_4500_captions.json").write_text(json.dumps(official()))
    return root


def test_validation_has_ten_captions_and_domains(folder, load):
    rows = load("nocaps", folder, "validation", strict=True)
    assert rows["image_id"][:] == ["0", "1", "2"] and rows["domain"][:] == list(DOMAINS)
    assert rows[1]["captions"] == [f"Caption {place} of 1." for place in range(10)]
    assert rows[1]["open_images_id"] == name_of(1) and rows[1]["image"].size == (24, 16)
    assert [len(row["captions"]) for row in load("nocaps", folder, "validation", max_captions=5)] == [5, 5, 5]


def test_test_images_have_neither_captions_nor_domains(folder, load, image):
    image(folder / "test" / f"{name_of(7)}.jpg")
    (folder / "nocaps_test_image_info.json").write_text(json.dumps({"images": [entry(7)]}))
    rows = load("nocaps", folder, "test", strict=True)
    assert rows[0]["captions"] == [] and rows[0]["domain"] is None and rows[0]["image"].size == (24, 16)


def test_a_split_without_any_image_is_left_out_with_one_line(folder, load):
    (folder / "nocaps_test_image_info.json").write_text(json.dumps({"images": [entry(7), entry(8)]}))
    report = DataReport()
    assert list(load("nocaps", folder, report=report)) == ["validation"]
    assert [str(problem).split(": ", 1)[1] for problem in report.problems] == [
        "missing image: none of its images is in a folder test or beside it; the split 'test' is left out"
    ]
    assert set(load("nocaps", folder, with_images=False)) == {"validation", "test"}


@pytest.mark.parametrize("place", ["images", "images/val", "elsewhere"])
def test_places_of_images(folder, load, place):
    (folder / "images").mkdir()
    (folder / "val").rename(folder / place)
    options = {"image_dir": folder / place} if place == "elsewhere" else {}
    assert load("nocaps", folder, "validation", strict=True, **options)[2]["image"].size == (24, 16)


def test_wrong_rows_are_named(folder, load):
    content = official()
    content["images"] += [
        entry(3, domain="far-domain"),
        entry(4),
        {"id": 5, "domain": "in-domain"},
        entry(6, domain="in-domain"),
        entry(1, domain="in-domain"),
        entry(9, domain="in-domain", height="tall"),
    ]
    content["annotations"] += [
        *({"image_id": number, "id": 100 + number, "caption": "A dog."} for number in (3, 4, 5, 9)),
        {"image_id": 99, "id": 200, "caption": "nobody"},
        {"image_id": 0, "id": 201, "caption": " "},
        {"image_id": 0, "id": 5, "caption": "again"},
    ]
    path = folder / "nocaps_val_4500_captions.json"
    path.write_text(json.dumps(content))
    report = DataReport()
    assert len(load("nocaps", folder, "validation", with_images=False, report=report)) == 3
    named = {(problem.kind.value, problem.line): problem.message for problem in report.problems}
    assert {problem.file for problem in report.problems} == {str(path)}
    assert named.pop(("malformed row", 9)).startswith("Could not convert 'tall'")
    assert named == {
        (
            "malformed row",
            4,
        ): "the domain of image 3 is 'far-domain', expected one of in-domain, near-domain, out-domain",
        ("malformed row", 5): "the domain of image 4 is None, expected one of in-domain, near-domain, out-domain",
        ("malformed row", 6): "entry 6 of `images` lacks 'file_name'",
        ("missing caption", 7): "image 6 has no annotation",
        ("duplicate", 8): "the image id 1 occurs twice in `images`",
        ("missing image", 35): "annotation 200 belongs to image 99, which `images` lacks",
        ("missing caption", 36): "annotation 201 is ' '",
        ("duplicate", 37): "the annotation id 5 occurs twice",
    }
    with pytest.raises(BadRowsError, match="far-domain"):
        load("nocaps", folder, strict=True)


def test_errors_name_what_is_missing(tmp_path, load):
    with pytest.raises(
        FileNotFoundError, match="neither nocaps_val_4500_captions.json nor nocaps_test_image_info.json"
    ):
        load("nocaps", tmp_path)
    (tmp_path / "nocaps_val_4500_captions.json").write_text("[]")
    with pytest.raises(ValueError, match="is not in COCO's format"):
        load("nocaps", tmp_path)

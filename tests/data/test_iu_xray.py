"""IU X-ray: three forms of the same studies, the protocols and their counts, R2Gen's cleaning."""

import gzip
import io
import json
import tarfile

import pytest

from hf_captioners.data import DataReport
from hf_captioners.data.iu_xray import FEW_VIEWS, NO_TEXT
from hf_captioners.data.iu_xray_cleaning import clean_report, without_marks
from hf_captioners.data.iu_xray_studies import uid_of

# uid -> findings, impression, [(image without suffix, projection)]
STUDIES = {
    1: (
        "Heart is normal, XXXX clear.",
        "Normal chest.",
        [("1_IM-0001-3001", "Lateral"), ("1_IM-0001-4001", "Frontal")],
    ),
    2: ("", "Effusion.", [("2_IM-0652-1001", "Frontal")]),
    10: ("1. Clear lungs.", "", [("10_IM-1-1", "Frontal"), ("10_IM-1-2", "Frontal"), ("10_IM-1-3", "Lateral")]),
    12: ("", "", [("12_IM-1-1", "Frontal")]),
}
XML = """<?xml version="1.0" encoding="utf-8"?>
<eCitation><meta type="rr"/><uId id="CXR{uid}"/><MedlineCitation><Article>
<Abstract>{sections}</Abstract></Article></MedlineCitation><MeSH><major>normal</major><automatic>x</automatic></MeSH>
{images}</eCitation>"""


def xml_of(uid, backwards):
    findings, impression, views = STUDIES[uid]
    sections = [("COMPARISON", "None."), ("INDICATION", ""), ("FINDINGS", findings), ("IMPRESSION", impression)]
    if backwards:  # readers that take the third text as findings fail here
        sections.reverse()
    texts = "".join(
        f'<AbstractText Label="{name}">{text}</AbstractText>' if text else f'<AbstractText Label="{name}"/>'
        for name, text in sections
    )
    images = "".join(f'<parentImage id="CXR{name}"><caption/><url>x</url></parentImage>' for name, _ in views)
    return XML.format(uid=uid, sections=texts, images=images)


@pytest.fixture(params=["csv", "xml", "tgz"])
def form(request):
    return request.param


@pytest.fixture
def folder(tmp_path, image, form):
    """The same studies in each form; the images bear the names of the original archive."""
    root = tmp_path / "iu"
    for _, _, views in STUDIES.values():
        for name, _ in views:
            image(root / "NLMCXR_png" / f"CXR{name}.png")
    if form == "csv":
        write_csv(root)
    elif form == "xml":
        for uid in STUDIES:
            path = root / "ecgen-radiology" / f"{uid}.xml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(xml_of(uid, backwards=uid == 10))
    else:
        with tarfile.open(root / "NLMCXR_reports.tgz", "w:gz") as archive:
            for uid in sorted(STUDIES, reverse=True):
                content = xml_of(uid, backwards=uid == 1).encode()
                member = tarfile.TarInfo(f"ecgen-radiology/{uid}.xml")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return root


def write_csv(root):
    rows = [
        f'{uid},normal,normal,Xray,,None.,"{findings}","{impression}"'
        for uid, (findings, impression, _) in STUDIES.items()
    ]
    header = "\ufeffuid,MeSH,Problems,image,indication,comparison,findings,impression"
    (root / "indiana_reports.csv").write_text("\r\n".join([header, *rows]) + "\r\n", encoding="utf-8")
    views = [f"{uid},{name}.dcm.png,{side}" for uid, (_, _, images) in STUDIES.items() for name, side in images]
    (root / "indiana_projections.csv").write_text("\n".join(["uid,filename,projection", *views]) + "\n")


def test_each_form_gives_the_same_studies(folder, load, form):
    report = DataReport()
    both = load("iu_xray", folder, "test", protocol="all-as-test", sections=["findings", "impression"], report=report)
    assert dict(zip(both["image_id"], both["captions"], strict=True)) == {
        "CXR1": ["Heart is normal, XXXX clear. Normal chest."],
        "CXR2": ["Effusion."],
        "CXR10": ["1. Clear lungs."],
    }
    assert report.notes == {NO_TEXT: 1} and report.problems == []
    assert [len(images) for images in both["images"]] == [2, 1, 3]
    assert both[0]["images"][0].size == (24, 16)
    assert both["uid"][:] == [1, 2, 10] and both["mesh"][0] == "normal" and both["comparison"][0] == "None."
    if form == "csv":
        assert both["projections"][:] == [["Frontal", "Lateral"], ["Frontal"], ["Frontal", "Lateral", "Frontal"]]


def test_views_and_sections(folder, load, form):
    report = DataReport()
    options = {"protocol": "all-as-test", "min_views": 2, "max_views": 2}
    two = load("iu_xray", folder, "test", report=report, **options)
    assert two["image_id"][:] == ["CXR1", "CXR10"] and [len(images) for images in two["images"]] == [2, 2]
    assert report.notes == {NO_TEXT: 2}
    one = load("iu_xray", folder, "test", protocol="all-as-test", sections=["impression"], max_views=1)
    assert one["image_id"][:] == ["CXR1", "CXR2"] and one[0]["image"].size == (24, 16)
    assert one["file_names"][0] == (["1_IM-0001-4001.dcm.png"] if form == "csv" else ["CXR1_IM-0001-3001.png"])
    load("iu_xray", folder, "test", protocol="all-as-test", sections=["impression"], min_views=2, report=report)
    assert report.notes == {NO_TEXT: 2, FEW_VIEWS: 1}
    clean = load("iu_xray", folder, "test", protocol="all-as-test", clean=True, keep_marks=False)
    assert clean["captions"][:] == [["heart is normal clear ."], ["clear lungs ."]]


def test_a_missing_view_is_reported(folder, load):
    (folder / "NLMCXR_png" / "CXR10_IM-1-2.png").unlink()
    report = DataReport()
    with pytest.raises(ValueError, match=r"should have \{'test': 2\} rows and has \{'test': 1\}.*allow_partial=True"):
        load("iu_xray", folder, protocol="all-as-test")
    loaded = load("iu_xray", folder, protocol="all-as-test", allow_partial=True, report=report)
    assert loaded["test"]["image_id"][:] == ["CXR1"] and report.counts() == {"missing image": 1}


def r2gen(root, parts, **changes):
    content = {
        key: [
            {
                "id": name,
                "report": f"Report of {name}.",
                "image_path": [f"{name}/0.png", f"{name}/1.png"],
                "split": part,
            }
            | changes
            for name in names
        ]
        for key, part, names in parts
    }
    root.mkdir(exist_ok=True)
    (root / "annotation.json").write_text(json.dumps(content))


def test_r2gen_file_must_be_whole(tmp_path, image, load):
    # in one copy that is around, the key of the test part is four blanks
    r2gen(
        tmp_path / "iu",
        [("train", "train", ["CXR7_IM-1"]), ("val", "val", ["CXR8_IM-2-0001"]), ("    ", "test", ["CXR1_1_IM-0001"])],
    )
    for name in ("CXR7_IM-1", "CXR8_IM-2-0001", "CXR1_1_IM-0001"):
        for view in (0, 1):
            image(tmp_path / "iu" / "images" / name / f"{view}.png")
    with pytest.raises(
        ValueError, match=r"should have \{'train': 2069, 'validation': 296, 'test': 590\} rows and has"
    ):
        load("iu_xray", tmp_path / "iu")
    loaded = load("iu_xray", tmp_path / "iu", allow_partial=True, strict=True)
    assert {split: rows["uid"][:] for split, rows in loaded.items()} == {"train": [7], "validation": [8], "test": [1]}
    assert [len(views) for views in loaded["train"]["images"]] == [2]


def test_files_of_r2gens_form_with_other_numbers(tmp_path, load):
    r2gen(tmp_path / "iu", [("train", "train", ["17", "18"]), ("dev", "dev", ["19"])], image_path="one.png")
    report = DataReport()
    loaded = load("iu_xray", tmp_path / "iu", allow_partial=True, with_images=False, report=report)
    assert loaded["train"]["image_id"][:] == ["17", "18"] and loaded["train"]["file_names"][0] == ["one.png"]
    assert report.counts() == {"malformed row": 1} and "19 has the split 'dev'" in report.problems[0].message


@pytest.mark.parametrize(
    "name, uid",
    [
        ("CXR1234_IM-0001", 1234),
        ("CXR1234_IM-0001-0001", 1234),
        ("CXR1_1_IM-0001", 1),
        ("CXR5", 5),
        ("17", 17),
        ("x", None),
    ],
)
def test_numbers_of_studies(name, uid):
    assert uid_of(name) == uid


def test_errors_say_what_to_do(tmp_path, load):
    with pytest.raises(FileNotFoundError, match="none of annotation.json .the protocol r2gen is defined by"):
        load("iu_xray", tmp_path)
    with pytest.raises(FileNotFoundError, match="none of indiana_reports.csv, NLMCXR_reports.tgz"):
        load("iu_xray", tmp_path, protocol="visualgpt")
    with pytest.raises(ValueError, match="`protocol` is 'R2Gen'; expected r2gen, visualgpt or all-as-test"):
        load("iu_xray", tmp_path, protocol="R2Gen")
    with pytest.raises(ValueError, match="`sections` is 'findings'; expected a list of some of findings"):
        load("iu_xray", tmp_path, sections="findings")
    with pytest.raises(ValueError, match="`max_views` is 1; expected at least `min_views`"):
        load("iu_xray", tmp_path, min_views=2, max_views=1)
    (tmp_path / "indiana_reports.csv").write_text("uid,text\n1,x\n")
    (tmp_path / "indiana_projections.csv").write_text("uid,filename,projection\n")
    with pytest.raises(
        ValueError, match=r"indiana_reports.csv:2 has no column findings, impression; it has uid, text"
    ):
        load("iu_xray", tmp_path, protocol="all-as-test")


def test_marks_stay_unless_asked():
    assert clean_report("The XXXX are clear.. 3.7 cm mass; 2. No air-filled (XXXX)?") == (
        "the xxxx are clear . 37 cm mass . no air-filled xxxx ."
    )
    assert without_marks("The XXXX are x-XXXX clear.") == "The are x- clear."


def test_real_reports_are_cleaned_exactly(material):
    source = material / "iu_xray"
    reports = json.loads(gzip.decompress((source / "annotation.json.gz").read_bytes()))
    cleaned = json.loads(gzip.decompress((source / "r2gen_cleaned.train_val.json.gz").read_bytes()))
    compared = 0
    for part in ("train", "val"):
        for entry in reports[part]:
            assert clean_report(entry["report"]) == cleaned[part][entry["id"]]
            compared += 1
    assert compared == 2069 + 296
    words = [word for texts in (cleaned["train"], cleaned["val"]) for text in texts.values() for word in text.split()]
    assert len(words) > 60_000


def test_real_files(material, load):
    source = material / "iu_xray"
    options = {"with_images": False, "strict": True}
    loaded = load("iu_xray", source, **options)
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 2069, "validation": 296, "test": 590}
    assert all(len(names) == 2 for rows in loaded.values() for names in rows["file_names"])
    everything = {"protocol": "all-as-test", "sections": ["findings", "impression"], **options}
    report = DataReport()
    studies = load("iu_xray", source, "test", report=report, **everything)
    assert len(studies) == 3851 - 25 and report.notes == {NO_TEXT: 25}
    findings = dict(zip(studies["uid"], studies["findings"], strict=True))
    for rows in loaded.values():
        for row in rows.select_columns(["uid", "captions"]):
            assert row["captions"][0] == findings[row["uid"]].strip()
    load("iu_xray", source, report=report, **{**everything, "sections": ["findings"]})
    assert report.notes == {NO_TEXT: 514}
    split = load("iu_xray", source, protocol="visualgpt", **options)
    assert {name: len(rows) for name, rows in split.items()} == {"train": 2770, "validation": 189, "test": 378}
    ids = [set(rows["image_id"]) for rows in split.values()]
    assert len(set.union(*ids)) == sum(map(len, ids)) == 3851 - 514
    other = load("iu_xray", source, "train", protocol="visualgpt", seed=1, **options)
    assert set(other["image_id"]) != ids[0]

"""Names of images: forms that mean the same image, in tables, lists, containers, on the page and in metrics."""

import io
import json
import tarfile
import unicodedata

import pytest
from PIL import Image

from hf_captioners.captioning.image_list import find_images, views_of
from hf_captioners.data.containers import located, names_in
from hf_captioners.data.held_out import HeldOut
from hf_captioners.data.loading import load_captions
from hf_captioners.data.report import DataReport
from hf_captioners.image_names import FolderNames, ImageNames, file_part, is_absolute, last_parts, plain_form
from hf_captioners.metrics.caption_files import match_captions, read_captions
from hf_captioners.output_files import quoted_name
from hf_captioners.review.table import ReviewTable

COMPOSED, DECOMPOSED = "caf\u00e9.png", unicodedata.normalize("NFD", "caf\u00e9.png")
# names of files, and other forms of them
FORMS = {
    "a.png": ["./a.png", ".//a.png", "sub/../a.png", "a.png ", quoted_name("a.png"), '"a.png"'],
    "sub/b.png": ["sub//b.png", "./sub/./b.png", "sub/../sub/b.png"],
    "tab\tx.png": [quoted_name("tab\tx.png"), "./tab\tx.png"],
    '"quoted".png': ['./"quoted".png', json.dumps('"quoted".png')],
    DECOMPOSED: [COMPOSED, f"./{COMPOSED}"],
    "A.png": ["./A.png"],
}
PAIRS = [(name, form) for name, forms in FORMS.items() for form in forms]


def save_image(path, colour="red"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path)


@pytest.fixture
def folder(tmp_path):
    for name in FORMS:
        save_image(tmp_path / "images_of" / name)
    return tmp_path / "images_of"


def write_rows(folder, rows):
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_a_form_finds_its_image_and_no_other(folder, name, form):
    assert ImageNames(FORMS).find(form) == name
    assert FolderNames(folder).find(form) == name
    assert plain_form(form) == plain_form(name)


def test_an_exact_name_comes_first_and_case_differs(folder):
    save_image(folder / COMPOSED)
    save_image(folder / "sub" / "odd.PNG")
    (folder / "folder.png").mkdir()
    names = FolderNames(folder)
    assert (names.find(COMPOSED), names.find(DECOMPOSED)) == (COMPOSED, DECOMPOSED)
    assert (names.find("a.png"), names.find("A.png")) == ("a.png", "A.png")
    assert names.find("sub/odd.png") is None and names.near("Sub/ODD.png") == "sub/odd.PNG"
    for missing in ("none.png", "../a.png", "sub", "folder.png", "a.png/b.png", "", ".", "/a.png", "images_of/a.png"):
        assert names.find(missing) is None and names.near(missing) is None, missing
    assert names.find(str(folder / "sub" / "b.png")) == "sub/b.png"
    assert ImageNames([COMPOSED, DECOMPOSED]).find("./" + COMPOSED) == COMPOSED
    assert ImageNames(["a\u0301\u0323", "a\u0323\u0301"]).find("\u1ea1\u0301") is None  # which of the two is not known


@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_the_row_of_an_image_is_corrected_whatever_the_form_of_its_name(folder, name, form):
    write_rows(folder, [{"file_name": form, "captions": ["wrong"]}])
    table = ReviewTable(folder)
    table.keep(table.names.index(name), ["right"])
    lines = (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"file_name": form, "captions": ["right"]}]
    (row,) = load_captions("caption_folder", data_dir=str(folder), split="train")
    assert (row["image_id"], row["file_name"], row["captions"]) == (name, name, ["right"])


def test_rows_of_one_image_are_one_and_images_stay_two(folder):
    rows = [
        {"file_name": form, "caption": f"{name} {n}"} for name in FORMS for n, form in enumerate([name, *FORMS[name]])
    ]
    write_rows(folder, rows)
    report = DataReport()
    loaded = load_captions("caption_folder", data_dir=str(folder), split="train", report=report)
    assert report.problems == []
    assert {row["image_id"]: row["captions"] for row in loaded} == {
        name: [f"{name} {n}" for n in range(len(forms) + 1)] for name, forms in FORMS.items()
    }
    assert ReviewTable(folder).rows() == {row["image_id"]: row["captions"] for row in loaded}


def test_a_row_that_differs_in_case_is_refused_with_the_name_of_the_file(folder):
    write_rows(folder, [{"file_name": "a.png", "caption": "a"}, {"file_name": "SUB/b.png", "caption": "b"}])
    report = DataReport()
    loaded = load_captions("caption_folder", data_dir=str(folder), split="train", report=report)
    assert loaded["image_id"][:] == ["a.png"]
    (problem,) = (one for one in report.problems if one.line == 2)
    assert problem.kind == "missing image" and "Did you mean 'sub/b.png'?" in problem.message
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'b\.png'"):
        located(str(folder / "sub" / "B.png"))


def test_lines_of_a_list_find_their_images(folder, tmp_path):
    lines = [name for name in FORMS if "\t" not in name and '"' not in name] + ["./a.png", COMPOSED, "sub//b.png"]
    lines += [quoted_name("tab\tx.png"), f"a.png\t{COMPOSED}"]
    (folder / "list.txt").write_text("\n".join(lines), encoding="utf-8")
    found = find_images([str(folder / "list.txt")])
    single = [str(folder / name) for name in ("a.png", "sub/b.png", DECOMPOSED, "A.png", "tab\tx.png")]
    assert found == [*single, f"{folder / 'a.png'}\t{folder / DECOMPOSED}"]
    assert views_of(single[-1]) == [single[-1]] and len(views_of(found[-1])) == 2


def shard_with(path, names):
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate(names):
            buffer = io.BytesIO()
            Image.new("RGB", (8, 8), (number, 0, 0)).save(buffer, "PNG")
            member = tarfile.TarInfo(name)
            member.size = len(buffer.getvalue())
            tar.addfile(member, io.BytesIO(buffer.getvalue()))
    return path


def test_images_in_a_tar_shard(tmp_path):
    names = ["./a.png", "tab\tx.png", DECOMPOSED, "A.png", "/deep//c.png"]
    shard = shard_with(tmp_path / "0.tar", names)
    found = names_in(shard)
    assert found == [f"{shard}/{name}" for name in ("a.png", "tab\tx.png", DECOMPOSED, "A.png", "deep/c.png")]
    assert [views_of(name) for name in found] == [[name] for name in found]
    study = f"{found[0]}\t{found[3]}"
    assert views_of(study) == [found[0], found[3]]
    colours = [Image.open(located(name)).getpixel((0, 0))[0] for name in found]
    assert colours == [0, 1, 2, 3, 4]
    for form, number in (("./a.png", 0), (COMPOSED, 2), ("deep//c.png", 4)):
        assert Image.open(located(f"{shard}/{form}")).getpixel((0, 0))[0] == number
    with pytest.raises(FileNotFoundError, match="Did you mean 'tab"):
        located(f"{shard}/TAB\tx.png")


@pytest.mark.parametrize("names", [("a.png", "b.png", "a.png"), ("a.png", "./a.png"), ("s/a.png", "/s//a.png")])
def test_two_images_of_one_name_in_a_tar_shard_are_refused(tmp_path, names):
    with pytest.raises(ValueError, match=r"0\.tar has two images named (s/)?a\.png\. Rename one"):
        names_in(shard_with(tmp_path / "0.tar", names))


def test_predictions_and_references_in_other_forms_are_matched(tmp_path):
    predicted, references = tmp_path / "predicted.jsonl", tmp_path / "references.jsonl"
    predicted.write_text(
        "".join(
            json.dumps({"image": image, "caption": image}) + "\n"
            for image in ("./a.png", COMPOSED, "A.png", "x//b.png")
        )
    )
    rows = [("a.png", "one"), (".//a.png", "two"), (DECOMPOSED, "three"), ("A.png", "four"), ("x/b.png", "five")]
    references.write_text("".join(json.dumps({"image": image, "caption": text}) + "\n" for image, text in rows))
    matched = match_captions(read_captions(predicted), read_captions(references))
    assert matched.references == [["one", "two"], ["three"], ["four"], ["five"]]
    assert matched.predictions == ["./a.png", COMPOSED, "A.png", "x//b.png"] and not matched.missing


def test_images_that_an_earlier_run_held_out_are_found(folder):
    write_rows(folder, [{"file_name": f"./{name}", "caption": name} for name in FORMS])
    rows = load_captions("caption_folder", data_dir=str(folder), split="train")
    assert HeldOut(["./a.png", "sub//b.png"], 1).of(rows)["captions"][:] == [["a.png"], ["sub/b.png"]]
    with pytest.raises(ValueError, match="1 of 1 held-out images are not in this data set"):
        HeldOut(["B.png"], 1).of(rows)


def test_paths_of_windows(folder):
    for name in ("sub/a.png", "sub\\a.png", "sub/deep/b.png"):
        save_image(folder / name)
    names = FolderNames(folder)
    assert (names.find("sub\\a.png"), names.find("sub/a.png")) == ("sub\\a.png", "sub/a.png"), "an exact name first"
    assert names.find(".\\sub\\deep\\b.png") == names.find("sub\\deep/b.png") == "sub/deep/b.png"
    assert names.find("..\\sub\\deep\\b.png") is None and names.find("C:\\sub\\deep\\b.png") is None
    assert names.find_end("C:\\x\\sub\\deep\\b.png") == "sub/deep/b.png"
    assert names.find_end("\\\\pc\\share\\sub\\deep\\b.png") == "sub/deep/b.png"
    assert names.find_end("C:\\x\\c.png") is None and names.find_end("C:\\..\\..\\x") is None
    assert names.near("Sub\\DEEP\\b.PNG") == names.near("C:\\SUB\\deep\\B.png") == "sub/deep/b.png"
    assert is_absolute("C:\\a.png") and is_absolute("\\\\pc\\x\\a.png") and is_absolute("/a.png")
    assert not is_absolute("sub\\a.png") and not is_absolute("C-a.png")
    known = ImageNames(["sub/a.png", "b.png"])
    assert known.find("sub\\a.png") == "sub/a.png" and file_part("C:\\x\\b.png") == "b.png"
    assert list(last_parts("C:\\x\\b.png")) == ["x/b.png", "b.png"]

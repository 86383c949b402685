"""Folders and files in every form that people have them give the same rows through one recognition."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import datasets
import pyarrow
import pyarrow.ipc
import pytest

from hf_captioners.data import DataReport
from hf_captioners.data.checking import check_dataset
from hf_captioners.data.recognition import recognised

CAPTIONS = {"a.png": ["Ein Hund läuft.", "A dog."], "b.png": ["Two cats."], "c.png": ["A fish.", "Fish."]}
SPLITS = {"train": ["a.png", "b.png"], "validation": ["c.png"]}


@pytest.fixture
def photos(tmp_path_factory, image):
    folder = tmp_path_factory.mktemp("photos")
    return {name: image(folder / name).read_bytes() for name in CAPTIONS}


def tar_shards(root, photos, as_json=False):
    for split, names in SPLITS.items():
        with tarfile.open(root / f"set-{split}-000000.tar", "w") as shard:
            for name in names:
                stem = name.removesuffix(".png")
                texts = ("json", json.dumps({"caption": CAPTIONS[name], "url": "x"}).encode())
                texts = texts if as_json else ("txt", "\n".join(CAPTIONS[name]).encode())
                for ending, content in (("png", photos[name]), texts):
                    member = tarfile.TarInfo(f"{stem}.{ending}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    return root


def as_dataset(photos, names, column="image"):
    columns = {
        column: [{"bytes": photos[name], "path": name} for name in names],
        "captions": [CAPTIONS[name] for name in names],
        "year": list(range(len(names))),
    }
    features = {column: datasets.Image(), "captions": datasets.List(datasets.Value("string"))}
    return datasets.Dataset.from_dict(
        columns, features=datasets.Features(features | {"year": datasets.Value("int64")})
    )


def parquet_of_hub(root, photos):
    (root / "data").mkdir()
    for split, names in SPLITS.items():
        as_dataset(photos, names).to_parquet(root / "data" / f"{split}-00000-of-00001.parquet")
    return root


def arrow(root, photos):
    """Arrow files: a stream, as `datasets` writes it, and the form with the places of batches at its end."""
    for (split, names), writer in zip(SPLITS.items(), (pyarrow.ipc.new_stream, pyarrow.ipc.new_file), strict=True):
        table = as_dataset(photos, names, "photo").with_format("arrow")[:]
        with pyarrow.OSFile(str(root / f"{split}.arrow"), "wb") as file, writer(file, table.schema) as stream:
            stream.write_table(table)
    return root


def saved(root, photos):
    parts = {split: as_dataset(photos, names) for split, names in SPLITS.items()}
    datasets.DatasetDict(parts).save_to_disk(root / "saved")
    return root / "saved"


def coco(root, photos):
    (root / "annotations").mkdir()
    for part, names in (("train", SPLITS["train"]), ("val", SPLITS["validation"])):
        (root / f"{part}2017").mkdir()
        images = [{"id": ord(name[0]), "file_name": name, "height": 16, "width": 24} for name in names]
        pairs = [(ord(name[0]), text) for name in names for text in CAPTIONS[name]]
        captions = [{"id": number, "image_id": image, "caption": text} for number, (image, text) in enumerate(pairs)]
        content = {"info": {}, "licenses": [], "images": images, "annotations": captions}
        (root / "annotations" / f"captions_{part}2017.json").write_text(json.dumps(content))
        (root / "annotations" / f"instances_{part}2017.json").write_text("{}")
        for name in names:
            (root / f"{part}2017" / name).write_bytes(photos[name])
    return root


def table_of_windows(root, photos):
    """Semicolons, the encoding of Windows, and its paths, one of them absolute."""
    (root / "img").mkdir()
    lines = ["File_Name;Split;Caption_1;Caption_2"]
    for split, names in SPLITS.items():
        for name in names:
            (root / "img" / name).write_bytes(photos[name])
            place = f"img\\{name}" if name == "a.png" else f"C:\\Users\\Jörg\\set\\img\\{name}"
            lines.append(";".join([place, split, *CAPTIONS[name], ""][: 4 if len(CAPTIONS[name]) == 2 else 5]))
    (root / "bilder.csv").write_bytes("".join(f"{line}\r\n" for line in lines).encode("cp1252"))
    return root / "bilder.csv"


FORMS = {
    "tar shards": (tar_shards, "containers"),
    "tar shards with json": (lambda root, photos: tar_shards(root, photos, as_json=True), "containers"),
    "Parquet as on the Hub": (parquet_of_hub, "containers"),
    "Arrow": (arrow, "containers"),
    "save_to_disk": (saved, "containers"),
    "COCO's folders": (coco, "coco"),
    "a table of Windows": (table_of_windows, "caption_folder"),
}


@pytest.fixture(params=FORMS)
def form(request, tmp_path, photos):
    make, reader = FORMS[request.param]
    root = tmp_path / "data"
    root.mkdir()
    return make(root, photos), reader


def test_every_form_has_the_same_rows(form, photos, load):
    path, reader = form
    assert recognised("caption_folder", path, {}).name == reader
    report = DataReport()
    loaded = load("caption_folder", path, report=report)
    assert {split: rows["captions"][:] for split, rows in loaded.items()} == {
        split: [CAPTIONS[name] for name in names] for split, names in SPLITS.items()
    }
    assert not report.problems and report.kept == {"train": 2, "validation": 1}
    stored = loaded["train"].cast_column("image", datasets.Image(decode=False))[0]["image"]
    content = stored["bytes"] or Path(stored["path"]).read_bytes()
    assert content == photos["a.png"], "the very bytes, not written again"
    streamed = load("caption_folder", path, "validation", streaming=True)
    assert [row["captions"] for row in streamed] == [CAPTIONS["c.png"]]
    assert check_dataset("caption_folder", path).report.kept == report.kept


def test_one_shard_and_its_columns(tmp_path, photos, load):
    shard = tar_shards(tmp_path, photos) / "set-train-000000.tar"
    rows = load("caption_folder", shard)["train"]
    assert rows["image_id"][:] == ["set-train-000000.tar/a.png", "set-train-000000.tar/b.png"]
    parquet = parquet_of_hub(tmp_path, photos) / "data" / "train-00000-of-00001.parquet"
    rows = load("caption_folder", parquet)["train"]
    assert rows["year"][:] == [0, 1] and rows["file_name"][0] == "train-00000-of-00001.parquet/0"
    with pytest.raises(ValueError, match="has no column 'caption'; it has captions, year"):
        load("caption_folder", parquet, caption_columns=["caption"])
    with pytest.raises(ValueError, match=r"no column 'imag' of images.*Did you mean `image`"):
        load("caption_folder", parquet, image_column="imag")


def test_rows_with_one_caption_each_are_one_image(tmp_path, photos, load):
    columns = {
        "image": [{"bytes": photos["a.png"], "path": None}] * 2,
        "image_id": ["7", "7"],
        "text": CAPTIONS["a.png"],
        "split": ["val", "val"],
    }
    rows = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    rows.to_parquet(tmp_path / "x.parquet")
    loaded = load("caption_folder", tmp_path / "x.parquet")
    assert loaded["validation"].select_columns(["image_id", "captions"]).to_list() == [
        {"image_id": "7", "captions": CAPTIONS["a.png"]}
    ]


def test_bad_rows_of_containers_are_reported(tmp_path, photos, load):
    columns = {
        "image": [{"bytes": content, "path": None} for content in (photos["a.png"], b"no image", photos["b.png"])],
        "caption": ["A dog.", "A cat.", " "],
    }
    columns["image"].append(None)
    columns["caption"].append("A fish.")
    rows = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    rows.to_parquet(tmp_path / "x.parquet")
    report = DataReport()
    assert len(load("caption_folder", tmp_path, "train", report=report)) == 1
    assert [(one.kind, one.line) for one in report.problems] == [
        ("missing caption", 3),
        ("unreadable image", 2),
        ("unreadable image", 4),
    ]
    assert "has no image" in report.problems[2].message


def test_a_changed_shard_is_read_again(tmp_path, photos, load):
    folder = tmp_path / "set"  # beside the cache, which has Arrow files too
    folder.mkdir()
    tar_shards(folder, photos)
    before = load("caption_folder", folder, "train")
    shutil.copy(folder / "set-validation-000000.tar", folder / "set-train-000000.tar")
    after = load("caption_folder", folder, "train")
    assert (len(before), len(after)) == (2, 1) and after[0]["captions"] == CAPTIONS["c.png"]


def test_coco_without_the_images_of_a_part(tmp_path, photos, load):
    """Of the complete annotations, many people have the photographs of val2017 only."""
    shutil.rmtree(coco(tmp_path, photos) / "train2017")
    report = DataReport()
    assert list(load("caption_folder", tmp_path, report=report)) == ["validation"]
    assert [str(one) for one in report.problems] == [
        f"{tmp_path}/annotations/captions_train2017.json: missing image: there is no folder train2017 of its images, "
        "which are left out"
    ]


def test_coco_of_two_years(tmp_path, photos, load):
    coco(tmp_path, photos)
    (tmp_path / "annotations" / "captions_val2014.json").write_text("{}")
    with pytest.raises(ValueError, match="captions of COCO of 2014 and 2017: choose with `year=2017`"):
        load("caption_folder", tmp_path)
    assert list(load("caption_folder", tmp_path, year=2017)) == ["train", "validation"]


def test_a_table_of_a_usual_name_comes_first(tmp_path, photos, load):
    coco(tmp_path, photos)
    (tmp_path / "captions.csv").write_text("file_name;caption\nval2017\\c.png;A fish.\n")
    assert load("caption_folder", tmp_path, "train")["captions"][:] == [["A fish."]]


def test_files_of_other_forms(tmp_path, photos, load):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "bilder.csv").write_text("file_name;caption\na.png;A dog.\n")
    with pytest.raises(FileNotFoundError, match="If bilder.csv is the table: `metadata_file='bilder.csv'`"):
        load("caption_folder", tmp_path / "photos")
    (tmp_path / "table.xls").write_bytes(b"")
    with pytest.raises(ValueError, match=r"table.xls is a file, expected a folder .*Save it as .xlsx"):
        load("caption_folder", tmp_path / "table.xls")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="has no files that end in .tar"):
        load("containers", tmp_path / "empty")


def test_absolute_paths_of_another_place(tmp_path, image, load):
    for name in ("one/a.png", "two/b.png"):
        image(tmp_path / name)
    lines = ["D:\\old\\one\\a.png;A dog.", "/home/jörg/old/two/b.png;A cat.", "E:/gone/c.png;Gone."]
    (tmp_path / "captions.csv").write_text("file_name;caption\n" + "\n".join(lines))
    report = DataReport()
    rows = load("caption_folder", tmp_path, "train", report=report)
    assert dict(zip(rows["file_name"], rows["captions"], strict=True)) == {
        "one/a.png": ["A dog."],
        "two/b.png": ["A cat."],
    }
    assert [one.line for one in report.problems] == [4]
    assert "2 image(s) have absolute paths of another place" in report.remarks[0]


def test_two_paths_that_would_be_one_file(tmp_path, image, load):
    image(tmp_path / "a.png")
    lines = ["D:\\cats\\a.png;A cat.", "D:\\dogs\\a.png;A dog.", "d:/cats/./a.png;A small cat."]
    (tmp_path / "captions.csv").write_text("file_name;caption\n" + "\n".join(lines))
    report = DataReport()
    rows = load("caption_folder", tmp_path, "train", report=report)
    assert rows["captions"][:] == [["A cat."]]
    assert [one.kind for one in report.problems] == ["malformed row", "malformed row"]
    assert "would both be the file" in report.problems[0].message


def test_text_files_of_windows_beside_images(tmp_path, image, load):
    for name, text in (("a", "Ein Mädchen läuft über die Straße"), ("b", "Two cats")):
        image(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.txt").write_bytes(text.encode("cp1252"))
    report = DataReport()
    rows = load("caption_folder", tmp_path, "train", report=report)
    assert rows["captions"][0] == ["Ein Mädchen läuft über die Straße"] and not report.problems
    assert "a.txt: it is not UTF-8 and was read as cp1252" in report.remarks[0]

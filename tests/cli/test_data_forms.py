"""Data as people have them, in every command that reads them: train, evaluate, check-data, review."""

import json
import logging
import shutil
import subprocess
import sys

import pytest

from hf_captioners.cli import command_parser, load_command, main
from hf_captioners.cli.data_messages import FlagFormatter, option_flags
from hf_captioners.data.loading import load_captions

from .dataset_folders import containers

FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]
TWO_STEPS = ["--max_steps", "2", "--per_device_train_batch_size", "4", *FAST]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def of_excel(images, tmp_path):
    """The images in a folder `img`, with a table of semicolons in the encoding and with the paths of Windows."""
    folder = tmp_path / "fotos"
    shutil.copytree(images, folder / "img", ignore=shutil.ignore_patterns("metadata.jsonl"))
    lines = ["File_Name;Caption"]
    for row in map(json.loads, (images / "metadata.jsonl").read_text().splitlines()):
        lines += [f"img\\{row['file_name']};für Jörg: {caption}" for caption in row["captions"]]
    (folder / "captions.csv").write_bytes("".join(f"{line}\r\n" for line in lines).encode("cp1252"))
    return folder


@pytest.fixture
def shards(scenes, tmp_path):
    (tmp_path / "shards").mkdir()
    containers(tmp_path / "shards", [scenes[number] for number in range(6)])
    return tmp_path / "shards"


def test_check_data(of_excel, shards, capsys):
    assert main(["check-data", str(of_excel)]) == 0
    said = capsys.readouterr().out
    assert "train: 10 images" in said and "captions per image: 5 to 5" in said
    assert "read as cp1252, for example" in said and "für Jörg" in said
    assert "name its encoding: `--data_options encoding='...'`" in said and said.endswith("Nothing is wrong.\n")
    assert main(["check-data", str(of_excel / "captions.csv")]) == 0
    assert main(["check-data", str(shards)]) == 0
    assert "train: 4 images\nvalidation: 2 images" in capsys.readouterr().out


def test_evaluate(of_excel, shards, captioner, images, tmp_path, capsys):
    """The figures of a table of Excel and those of the same rows in `metadata.jsonl` are equal."""
    figures = []
    rows = [json.loads(line) for line in (images / "metadata.jsonl").read_text().splitlines()]
    plain = [{**row, "captions": [f"für Jörg: {text}" for text in row["captions"]]} for row in rows]
    shutil.copytree(of_excel / "img", tmp_path / "plain")
    (tmp_path / "plain" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    for data in (of_excel, of_excel / "captions.csv", tmp_path / "plain"):
        typed = [captioner, str(data), "--split", "train", "--device", "cpu", "--output", str(tmp_path / "f.json")]
        assert main(["evaluate", *typed]) == 0
        figures.append(json.loads((tmp_path / "f.json").read_text()))
    assert figures[0] == figures[1] == figures[2] and figures[0]["images"] == 10
    assert main(["evaluate", captioner, str(shards), "--split", "validation", "--device", "cpu"]) == 0


@pytest.mark.parametrize("form", ["of_excel", "shards"])
def test_train(form, request, language_model, vision_model, tmp_path, capsys):
    folder, output = request.getfixturevalue(form), tmp_path / "run"
    parts = ["--language_model", language_model, "--vision_model", vision_model, "--validation_share", "0.3"]
    assert main(["train", "--train_dir", str(folder), *parts, *TWO_STEPS, "--output_dir", str(output)]) == 0
    assert json.loads((output / "trainer_state.json").read_text())["global_step"] == 2
    held_out = (output / "held_out.json").exists()
    assert held_out == (form == "of_excel"), "the shards have a split of their own"
    split = "held_out" if held_out else "validation"
    assert main(["evaluate", str(output), str(folder), "--split", split, "--device", "cpu"]) == 0


def test_review_copies_the_table_and_goes_on_with_the_copy(of_excel, monkeypatch, capsys):
    served = []
    monkeypatch.setattr("hf_captioners.review.server.serve", lambda table, *_, **__: served.append(table))
    before = load_captions("caption_folder", of_excel, "train").remove_columns("image")
    assert main(["review", str(of_excel)]) == 0
    said = capsys.readouterr().out
    assert "the captions of 10 images were copied into" in said and "read as cp1252" in said
    served[0].keep(0, ["Ein Würfel."])
    after = load_captions("caption_folder", of_excel, "train")
    assert after["image_id"][:] == before["image_id"][:] and after["captions"][1:] == before["captions"][1:]
    assert after["captions"][0] == ["Ein Würfel."]
    assert main(["review", str(of_excel)]) == 0
    assert "copied" not in capsys.readouterr().out
    with open(of_excel / "captions.csv", "a") as table:
        table.write("img\\0.png;A new one\r\n")
    assert main(["check-data", str(of_excel)]) == 1
    assert "several tables: metadata.jsonl, captions.csv" in capsys.readouterr().out


def test_review_unpacks_shards(shards, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hf_captioners.review.server.serve", lambda *_, **__: None)
    assert main(["review", str(shards)]) == 2
    assert "name a new folder for them, `--unpack FOLDER`" in capsys.readouterr().err
    folder = tmp_path / "unpacked"
    assert main(["review", str(shards), "--unpack", str(folder)]) == 0
    assert f"{folder}: 6 images of {shards} with their captions." in capsys.readouterr().out
    packed, unpacked = load_captions("caption_folder", shards), load_captions("caption_folder", folder)
    for split in ("train", "validation"):
        assert unpacked[split]["captions"][:] == packed[split]["captions"][:]
        pixels = [[image.tobytes() for image in rows[split]["image"]] for rows in (packed, unpacked)]
        assert pixels[0] == pixels[1]
    assert main(["review", str(shards), "--unpack", str(folder)]) == 2
    assert "has files already" in capsys.readouterr().err


def test_advice_is_in_flags_on_the_command_line_and_in_arguments_in_python(of_excel, capsys):
    table = of_excel / "captions.csv"
    table.write_bytes(table.read_bytes().replace(b"File_Name;Caption", b"Bild;Satz"))
    with pytest.raises(ValueError, match=r"it has Bild, Satz. Name the columns: `file_column='...'`, `caption_col"):
        load_captions("caption_folder", of_excel)
    assert main(["check-data", str(of_excel)]) == 2
    typed = "Name the columns: `--data_options file_column='...'`, `--data_options caption_columns=['...']`."
    assert capsys.readouterr().err.endswith(f"{typed}\n")
    options = ["--data_options", "file_column=Bild", "--data_options", "caption_columns=[Satz]"]
    assert main(["check-data", str(of_excel), *options]) == 0


def test_the_log_of_a_command_has_flags():
    text = "x.csv:2: malformed row. Pass `encoding='...'`, or `year=2017`, see `batch_size`. "
    record = logging.LogRecord("hf_captioners.data", logging.WARNING, "", 0, text + "%s", (whole_list(),), None)
    assert FlagFormatter({"batch_size": "--batch_size"}).format(record) == (
        "x.csv:2: malformed row. Pass `--data_options encoding='...'`, or `--data_options year=2017`, see "
        "`--batch_size`. All of them: hf-captioners check-data."
    )


def whole_list():
    from hf_captioners.data import coco, report

    assert coco.Coco.name in ("coco",) and "year" in option_flags()
    return report.WHOLE_LIST


def test_a_mistyped_flag_imports_no_readers():
    code = "from hf_captioners.cli.data_messages import option_flags; print(option_flags())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "{}\n"


@pytest.mark.parametrize(
    "typed",
    [
        ["calibrate", "captioner", "caption_folder"],
        ["check-data", "folder"],
        ["evaluate", "captioner", "caption_folder"],
        ["review", "folder"],
        ["attributes", "train", "--output_dir", "folder"],
    ],
    ids=lambda typed: typed[0],
)
def test_options_of_data_typed_several_times(typed):
    name, *arguments = typed
    parser = command_parser(name, load_command(name))
    args = parser.parse_args([*arguments, "--data_options", "a=1", "--data_options", "b=2"])
    assert args.data_options == ["a=1", "b=2"]

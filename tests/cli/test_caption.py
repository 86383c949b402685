"""`hf-captioners caption`: outputs, kills, shards and bad images."""

import csv
import json
import shutil

import PIL.Image
import pytest

from hf_captioners.captioning import batches
from hf_captioners.cli import main
from hf_captioners.loading import load_captioner
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline


@pytest.fixture
def folder(images, tmp_path):
    """The ten images and three odd ones, without captions."""
    target = tmp_path / "photos"
    shutil.copytree(images, target)
    (target / "metadata.jsonl").unlink()
    scene = PIL.Image.open(target / "scene_000.png")
    scene.convert("L").save(target / "scene_010.png")
    scene.convert("RGBA").save(target / "scene_011.png")
    scene.convert("CMYK").save(target / "scene_012.jpg")
    return target


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_image_gets_the_captions_of_the_pipeline(folder, captioner, tmp_path):
    output = tmp_path / "captions.jsonl"
    assert main(["caption", str(folder), "--model", captioner, "--output", str(output), "--batch_size", "4"]) == 0
    records = lines_of(output)
    assert [record["image"] for record in records] == [str(path) for path in sorted(folder.iterdir())]
    model, processor = load_captioner(captioner)
    pipe = ImageCaptioningPipeline(model=model, processor=processor, device="cpu")
    for record in (records[0], records[10], records[12]):
        (expected,) = pipe(record["image"], return_scores=True)
        assert record["caption"] == expected["generated_text"]
        assert record["score"] == pytest.approx(expected["score"], abs=1e-4)
    assert not output.with_name("captions.jsonl.partial").exists()


def test_other_formats_have_the_same_captions(folder, captioner, tmp_path):
    found = {}
    for kind in ("jsonl", "csv", "txt", "json"):
        output = tmp_path / f"captions.{kind}"
        assert main(["caption", str(folder), "--model", captioner, "--output", str(output)]) == 0
        found[kind] = output
    records = lines_of(found["jsonl"])
    with open(found["csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["caption"], float(row["score"])) for row in rows] == [
        (record["image"], record["caption"], record["score"]) for record in records
    ]
    assert found["txt"].read_text().splitlines() == [f"{record['image']}\t{record['caption']}" for record in records]
    assert json.loads(found["json"].read_text()) == [
        {"image_id": index, "caption": record["caption"]} for index, record in enumerate(records)
    ]


def test_one_image_is_answered_on_the_screen(folder, captioner, tmp_path, capsys):
    image = folder / "scene_003.png"
    assert main(["caption", str(image), "--model", captioner, "--num_beams", "1", "--prompt", "a red"]) == 0
    assert capsys.readouterr().out.startswith("a red")
    (tmp_path / "list.txt").write_text("photos/scene_003.png\n\nphotos/scene_004.png\nphotos/scene_003.png\n")
    assert main(["caption", str(tmp_path / "list.txt"), "--model", captioner]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [str(folder / "scene_003.png"), str(folder / "scene_004.png")]


def test_unreadable_images_are_reported_and_counted(folder, captioner, tmp_path, capsys):
    (folder / "scene_001.png").write_bytes((folder / "scene_001.png").read_bytes()[:100])
    (folder / "scene_002.png").write_text("no image")
    output = tmp_path / "captions.jsonl"
    assert main(["caption", str(folder), "--model", captioner, "--output", str(output)]) == 1
    assert len(lines_of(output)) == 11
    err = capsys.readouterr().err
    assert "scene_001.png" in err and "scene_002.png" in err and "2 image(s) could not be read" in err


@pytest.mark.parametrize("torn", [False, True], ids=["", "last line cut off"])
def test_a_killed_run_is_resumed_without_duplicates(folder, captioner, tmp_path, capsys, monkeypatch, torn):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "captions.jsonl"
    arguments = ["caption", str(folder), "--model", captioner, "--batch_size", "3", "--output"]
    assert main([*arguments, str(whole)]) == 0
    caption_batches = batches.caption_batches

    def killed_after_two(*arguments, **options):
        for number, batch in enumerate(caption_batches(*arguments, **options)):
            if number == 2:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(batches, "caption_batches", killed_after_two)
    assert main([*arguments, str(output)]) == 130
    monkeypatch.setattr(batches, "caption_batches", caption_batches)
    assert not output.exists()
    partial = tmp_path / "captions.jsonl.partial"
    if torn:
        partial.write_bytes(partial.read_bytes()[:-10])
    assert main([*arguments, str(output)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*arguments, str(output), "--resume", "--num_beams", "1"]) == 2
    assert "other settings" in capsys.readouterr().err
    done = []

    def counted(pipeline, left, *arguments, **options):
        done.extend(left)
        return caption_batches(pipeline, left, *arguments, **options)

    monkeypatch.setattr(batches, "caption_batches", counted)
    assert main([*arguments, str(output), "--resume"]) == 0
    assert len(done) == (10 if torn else 7)  # the batch of a lost line is captioned as a whole
    assert [(r["image"], r["caption"]) for r in lines_of(output)] == [
        (r["image"], r["caption"]) for r in lines_of(whole)
    ]


def test_an_output_that_exists_is_kept_unless_overwritten(folder, captioner, tmp_path, capsys):
    output = tmp_path / "captions.txt"
    output.write_text("mine")
    arguments = ["caption", str(folder / "scene_000.png"), "--model", captioner, "--output", str(output)]
    for more in ([], ["--resume"]):
        assert main([*arguments, *more]) == 2
        assert "--overwrite" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main([*arguments, "--overwrite"]) == 0
    assert output.read_text().startswith(str(folder))


def test_shards_are_the_whole_job_and_do_not_overlap(folder, captioner, tmp_path):
    images = []
    for shard in ("1/3", "2/3", "3/3"):
        output = tmp_path / f"part{shard[0]}.jsonl"
        arguments = ["caption", str(folder), "--model", captioner, "--num_beams", "1", "--shard", shard]
        assert main([*arguments, "--output", str(output)]) == 0
        images.append([record["image"] for record in lines_of(output)])
    assert [len(part) for part in images] == [5, 4, 4]
    assert sorted(sum(images, [])) == [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input": "missing.png"}, "missing.png"),
        ({"input": "notes.md"}, "no image by its name"),
        ({"--model": "language"}, "a model of the type 'gpt2', for which captioning is not supported"),
        ({"--model": "nowhere"}, "nowhere"),
        ({"--output": "captions.xml"}, ".jsonl"),
        ({"--output": "notes.md/captions.jsonl"}, "cannot be written"),
        ({"--shard": "4/3"}, "'4/3'"),
        ({"--output": None, "--resume": ""}, "--output"),
    ],
)
def test_bad_input_is_answered(images, captioner, language_model, tmp_path, capsys, changed, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("")
    given = {"input": str(images), "--model": captioner, "--output": "captions.jsonl"} | changed
    if given["--model"] == "language":
        given["--model"] = language_model
    arguments = ["caption", given.pop("input")]
    arguments += [text for name, value in given.items() if value is not None for text in (name, value) if text]
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_batch_has_at_least_one_image(images, captioner, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["caption", str(images), "--model", captioner, "--batch_size", "0"])
    assert "`--batch_size` is '0', expected a whole number, at least 1" in capsys.readouterr().err


def test_coco_results_need_numbers(folder, captioner, tmp_path, capsys):
    arguments = ["caption", str(folder), "--model", captioner, "--output", str(tmp_path / "results.json")]
    shutil.copy(folder / "scene_003.png", folder / "other_3.png")
    assert main(arguments) == 2
    assert "the same number" in capsys.readouterr().err
    (folder / "other_3.png").rename(folder / "other.png")
    assert main(arguments) == 2
    assert "other.png" in capsys.readouterr().err


def test_lines_of_several_images_are_studies(folder, captioner, tmp_path, capsys):
    """In a list; beside a line of one image, and with a view that cannot be read."""
    lines = ["scene_003.png\tscene_004.png", "scene_005.png", "scene_006.png\tmissing.png"]
    (folder / "list.txt").write_text("\n".join(lines))
    output = tmp_path / "captions.jsonl"
    assert main(["caption", str(folder / "list.txt"), "--model", captioner, "--output", str(output)]) == 1
    assert "missing.png" in capsys.readouterr().err
    names = [str(folder / f"scene_00{number}.png") for number in (3, 4, 5)]
    pipe = ImageCaptioningPipeline(*load_captioner(captioner), device="cpu", packed_weights="float32")
    study, single = pipe([names[:2]], return_scores=True)[0][0], pipe(names[2], return_scores=True)[0]
    records = lines_of(output)
    assert [record["image"] for record in records] == ["\t".join(names[:2]), names[2]]
    assert [record["caption"] for record in records] == [study["generated_text"], single["generated_text"]]
    assert [record["score"] for record in records] == pytest.approx([study["score"], single["score"]], abs=1e-4)

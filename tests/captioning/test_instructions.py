"""Instructions with fields of each image, in batches, in jobs, in evaluations and in requests."""

import http.client
import json
import os
from functools import partial
from urllib.parse import quote

import numpy as np
import PIL.Image
import pytest

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import caption_batches, job_settings, load_pipeline
from hf_captioners.captioning.instructions import InstructionTemplate, rows_of_tables
from hf_captioners.cli import main
from hf_captioners.server.application import make_application
from tests.server.conftest import served
from tests.tiny_families import write_family

LENGTH = {"do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def folder(once_a_run):
    return str(once_a_run("family_qwen2_5_vl", partial(write_family, model_type="qwen2_5_vl")))


@pytest.fixture(scope="module")
def captioner(folder):
    return load_pipeline(folder, "cpu")


@pytest.fixture
def photos(tmp_path):
    """Three equal images with a table of tags."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    photos = tmp_path / "water {dog}"
    photos.mkdir()
    rows = [("a.png", "red ball"), ("b.png", "{file_name} on grass"), ("c.png", "green")]
    for name, _ in rows:
        PIL.Image.fromarray(pixels).save(photos / name)
    table = [{"file_name": name, "captions": ["a dog"], "tags": tags, "split": "test"} for name, tags in rows]
    (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, table)))
    return photos


def files(photos):
    return [str(photos / name) for name in ("a.png", "b.png", "c.png")]


def asked(captioner, photos, *instructions):
    """Captions and scores of these instructions, typed one by one."""
    pairs = zip(files(photos), instructions, strict=True)
    return [captioner(file, instruction=text, return_scores=True, **LENGTH)[0] for file, text in pairs]


@pytest.mark.parametrize(
    ("text", "row", "expanded"),
    [
        ("Describe this.", {}, "Describe this."),
        ("{{{file_name}}}", {}, "{a.png}"),
        ("{folder}: {tags}", {"tags": ["red", "{folder}"]}, "holiday: red, {folder}"),
        ("{tags}", {"tags": "what {is} it? }{"}, "what {is} it? }{"),
        ("{file_name}", {"file_name": "other"}, "other"),
    ],
)
def test_expansion(text, row, expanded):
    assert InstructionTemplate(text).expand("trips/holiday/a.png", row) == expanded


@pytest.mark.parametrize("text", ["{", "a } b", "{tags!r}", "{tags:>9}", "{tags.__class__}", "{0}", "{}", "{tags[0]}"])
def test_what_is_no_field(text):
    with pytest.raises(ValueError, match="`instruction` is"):
        InstructionTemplate(text)


def test_values_that_are_missing_or_special():
    template = InstructionTemplate("{tags} in {folder}")
    with pytest.raises(ValueError, match=r"no value for the field \{tags\}"):
        template.expand("holiday/a.png", {"tags": None})
    with pytest.raises(ValueError, match=r"the value of the field \{tags\} has '<image>', a special token"):
        template.expand("holiday/a.png", {"tags": "an <image> of"}, ["<image>"])
    with pytest.raises(
        ValueError, match=r"field \{tagz\}, and there are file_name, folder, tags. Did you mean `tags`"
    ):
        InstructionTemplate("{tagz}").require_columns(["tags"])


def test_columns_of_a_batch(captioner, photos):
    batch = {"image": files(photos), "question": ["two children ?", "{tags}", None]}
    columns = CaptionBatches(captioner, instruction="{question}", **LENGTH)(batch)
    expected = asked(captioner, photos, "two children ?", "{tags}", "")
    assert columns["caption"][:2] == [record["generated_text"] for record in expected[:2]]
    assert columns["score"][:2] == pytest.approx([record["score"] for record in expected[:2]], abs=1e-3)
    assert columns["caption"][2] is None and "no value for the field {question}" in columns["error"][2]
    with pytest.raises(ValueError, match=r"the field \{questions\}.*Did you mean `question`"):
        CaptionBatches(captioner, instruction="{questions}", **LENGTH)(batch)


@pytest.mark.parametrize("workers", [0, 1])
def test_fields_of_a_job(captioner, photos, workers):
    """Names, and columns of the table beside the images; values are not expanded again."""
    text = "{{{folder}}} {file_name}: {tags}"
    expected = asked(
        captioner,
        photos,
        "{water {dog}} a.png: red ball",
        "{water {dog}} b.png: {file_name} on grass",
        "{water {dog}} c.png: green",
    )
    batches = caption_batches(captioner, files(photos), 2, workers, instruction=text, **LENGTH)
    found = [record for batch in batches for record in batch.records]
    assert [record["caption"] for record in found] == [record["generated_text"] for record in expected]
    assert [record["score"] for record in found] == pytest.approx([one["score"] for one in expected], abs=1e-3)
    settings = job_settings(captioner, files(photos), instruction=text)
    assert settings["instruction"] == text
    (photos / "metadata.jsonl").write_text((photos / "metadata.jsonl").read_text().replace("green", "blue"))
    assert job_settings(captioner, files(photos), instruction=text) != settings
    assert rows_of_tables(InstructionTemplate("{file_name}"), files(photos)) == {}


def test_commands(folder, captioner, photos, capsys):
    typed = ["--device", "cpu", "--max_new_tokens", "6", "--generate", "min_new_tokens=6"]
    assert main(["caption", str(photos), "--model", folder, *typed, "--instruction", "{tags}"]) == 0
    printed = capsys.readouterr().out
    for record in asked(captioner, photos, "red ball", "{file_name} on grass", "green"):
        assert record["generated_text"] in printed
    assert main(["caption", str(photos), "--model", folder, *typed, "--instruction", "{tagz}"]) == 2
    assert "Did you mean `tags`?" in capsys.readouterr().err
    output = photos.parent / "scores.json"
    scored = ["--per_image", str(photos.parent / "each.jsonl"), "--output", str(output), "--metrics", "bleu"]
    assert main(["evaluate", folder, str(photos), *typed, *scored, "--instruction", "{tags}"]) == 0
    lines = [json.loads(line) for line in (photos.parent / "each.jsonl").read_text().splitlines()]
    expected = asked(captioner, photos, "red ball", "{file_name} on grass", "green")
    assert [line["caption"] for line in lines] == [record["generated_text"] for record in expected]
    assert json.loads(output.read_text())["instruction"] == "{tags}"


def test_requests(captioner, photos):
    """The server's instruction, that of a request, and one that a request must not have."""
    content = (photos / "a.png").read_bytes()

    def ask(port, instruction=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        path = "/caption" if instruction is None else f"/caption?instruction={quote(instruction)}"
        connection.request("POST", path, content, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    expected = asked(captioner, photos, "red ball", "{tags}", "green")
    with served(CaptionBatches(captioner, instruction="red ball", **LENGTH)) as port:
        assert ask(port)[1]["caption"] == expected[0]["generated_text"]
        assert ask(port, "{tags}")[1]["caption"] == expected[1]["generated_text"]
        status, answer = ask(port, "two <|image_pad|>")
        assert status == 422 and "a special token of the captioner" in answer["error"]
    with pytest.raises(ValueError, match=r"the field \{file_name\}, and images of requests have no fields"):
        make_application(CaptionBatches(captioner, instruction="{file_name}"))


def test_a_bad_image_in_a_batch_of_requests(captioner, photos):
    """It spoils no other answer: Qwen's processor refuses very long images."""
    PIL.Image.new("RGB", (2000, 4), "red").save(photos / "long.png")
    columns = CaptionBatches(captioner, **LENGTH)({"image": [*files(photos), str(photos / "long.png")]})
    assert all(columns["caption"][:3]) and "long.png cannot be prepared" in columns["error"][3]
    assert os.path.basename(columns["image"][3]) == "long.png"

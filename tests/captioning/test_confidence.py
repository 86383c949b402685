"""Confidence where people see it: batches, files, the command line, the pipeline, exported captioners, HTTP."""

import csv
import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest
from transformers import pipeline as make_pipeline

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import caption_batches, load_pipeline
from hf_captioners.captioning.image_list import find_images
from hf_captioners.cli import main
from hf_captioners.confidence.assessing import Assessor
from hf_captioners.confidence.calibration import Calibration, NotCalibratedError
from hf_captioners.data.generated_captions import assessed_files
from tests.confidence.conftest import calibrated, calibration_of  # noqa: F401

OPTIONS = {"num_beams": 3, "max_new_tokens": 12, "min_new_tokens": 4}
TYPED = ["--num_beams", "3", "--max_new_tokens", "12", "--generate", "min_new_tokens=4", "--device", "cpu"]


@pytest.fixture(scope="module")
def paths(images):
    return find_images([str(images)])[:5]


@pytest.fixture(scope="module")
def pipeline(calibrated):  # noqa: F811
    return load_pipeline(calibrated, device="cpu")


def numbers(words):
    return [(word["word"], word["confidence"]) for word in words]


def near(words):
    return [(word, None if value is None else pytest.approx(value, abs=2e-3)) for word, value in numbers(words)]


@pytest.mark.parametrize("mode", ["search", "samples"])
def test_a_batch_and_an_image_alone_are_equal(pipeline, paths, mode):
    together = CaptionBatches(pipeline, confidence=mode, **OPTIONS)({"image": paths})
    plain = CaptionBatches(pipeline, **OPTIONS)({"image": paths})
    assert together["caption"] == plain["caption"] and "confidence" not in plain
    for place, path in enumerate(paths):
        alone = CaptionBatches(pipeline, confidence=mode, **OPTIONS)({"image": [path]})
        assert alone["caption"] == [together["caption"][place]]
        assert numbers(alone["words"][0]) == near(together["words"][place])
        expected = together["confidence"][place]
        assert alone["confidence"][0] == (None if expected is None else pytest.approx(expected, abs=2e-3))
    known = [value for value in together["confidence"] if value is not None]
    assert known and all(0 <= value <= 1 for value in known)


def test_kinds_of_evidence_follow_the_search(pipeline, paths, monkeypatch):
    """Hypotheses count where the search is the calibrated one; otherwise tokens alone do."""
    used = []
    original = Assessor.assess

    def noted(self, record, agreement, estimator):
        used.append((estimator.kind, len(agreement.hypotheses), len(agreement.samples)))
        return original(self, record, agreement, estimator)

    monkeypatch.setattr(Assessor, "assess", noted)
    for options, mode, expected in [
        ({"num_beams": 3}, "search", ("beams", 3, 0)),
        ({"num_beams": 2}, "search", ("tokens", 0, 0)),
        ({"num_beams": 1}, "search", ("tokens", 0, 0)),
        ({"num_beams": 3}, "samples", ("beams_and_samples", 3, 4)),
        ({"num_beams": 1}, "samples", ("samples", 0, 4)),
        ({"num_beams": 1, "do_sample": True, "seed": 1}, "search", ("tokens", 0, 0)),
    ]:
        used.clear()
        CaptionBatches(pipeline, confidence=mode, max_new_tokens=8, **options)({"image": paths[:1]})
        assert set(used) == {expected}, options


def test_prompts_and_several_captions(pipeline, paths):
    """Words of the prompt have no confidence, all others have one; each of several captions has its own."""
    prompted = CaptionBatches(pipeline, confidence="search", prompt="three small dog", **OPTIONS)({"image": paths[:2]})
    for words in prompted["words"]:
        assert numbers(words)[:3] == [("three", None), ("small", None), ("dog", None)]
        assert all(word["confidence"] is not None for word in words[3:])
    options = OPTIONS
    several = CaptionBatches(pipeline, confidence="search", num_return_sequences=2, **options)({"image": paths[:1]})
    assert [len(several[name][0]) for name in ("caption", "score", "confidence", "words")] == [2] * 4
    best = CaptionBatches(pipeline, confidence="search", **options)({"image": paths[:1]})
    assert several["caption"][0][0] == best["caption"][0] and several["words"][0][0] == best["words"][0]


def test_forced_words_have_the_confidence_that_the_captioner_has_in_them(pipeline, paths):
    """A bias raises no confidence: forced words are as probable to the captioner as before."""
    dog = pipeline.tokenizer.convert_tokens_to_ids("dog")
    options = {**OPTIONS, "generate_kwargs": {"sequence_bias": [[[dog], 1000.0]]}}
    forced = CaptionBatches(pipeline, confidence="search", **options)({"image": paths[:2]})
    plain = CaptionBatches(pipeline, confidence="search", **OPTIONS)({"image": paths[:2]})
    for place, words in enumerate(forced["words"]):
        assert {word["word"] for word in words} == {"dog"} and all(0 < word["confidence"] < 1 for word in words)
        (record,) = pipeline(paths[place], return_token_scores=True, **options)
        assert all(score < -0.1 for score in record["token_scores"]), "before the bias"
        assert forced["words"][place] != plain["words"][place]


def test_the_surest_hypothesis(pipeline, paths):
    options = {"num_return_sequences": 3, **OPTIONS}
    found = CaptionBatches(pipeline, confidence="search", **options)({"image": paths})
    sure = CaptionBatches(pipeline, confidence="search", prefer_sure=True, **OPTIONS)({"image": paths})
    for captions, words, chosen in zip(found["caption"], found["words"], sure["caption"], strict=True):
        values = [[word["confidence"] for word in one] for one in words]
        ranks = [(sum(one) / len(one) if one else 0.0) + (len(one) >= 4) for one in values]
        assert ranks[captions.index(chosen)] == pytest.approx(max(ranks), abs=1e-3)
    assert sure["caption"] != [captions[0] for captions in found["caption"]]
    with pytest.raises(
        ValueError, match="^`prefer_sure` chooses among .* captions are searched greedily. Pass `num_beams=5`"
    ):
        CaptionBatches(pipeline, confidence="search", prefer_sure=True, num_beams=1)({"image": paths[:1]})
    with pytest.raises(ValueError, match="`prefer_sure` chooses by confidence: pass `confidence`"):
        CaptionBatches(pipeline, prefer_sure=True)


def test_doubtful_captions_are_left_out_and_counted(pipeline, paths):
    every = list(caption_batches(pipeline, paths, 5, confidence="search", **OPTIONS))[0]
    values = sorted(record["confidence"] for record in every.records if record["confidence"] is not None)
    least = values[len(values) // 2]
    kept = list(caption_batches(pipeline, paths, 5, confidence="search", min_confidence=least, **OPTIONS))[0]
    assert [one["image"] for one in kept.records] == [
        one["image"] for one in every.records if (one["confidence"] or 0) >= least
    ]
    assert len(kept.records) + len(kept.doubtful) == 5 and not kept.unreadable
    several = {"num_return_sequences": 3, "confidence": "search", "min_confidence": least, **OPTIONS}
    for record in list(caption_batches(pipeline, paths, 5, **several))[0].records:
        assert min(record["confidences"]) >= least and record["confidence"] == record["confidences"][0]
        assert len(record["captions"]) == len(record["scores"]) == len(record["confidences"])
    for wrong, message in ((1.5, "expected 0 to 1"), (0.5, "pass `confidence`")):
        with pytest.raises(ValueError, match=message):
            options = {} if wrong < 1 else {"confidence": "search"}
            next(caption_batches(pipeline, paths, min_confidence=wrong, **options))


def test_a_captioner_without_calibration_gives_no_number(captioner, calibrated, paths, tmp_path, capsys):  # noqa: F811
    with pytest.raises(NotCalibratedError, match="has no calibration .* hf-captioners calibrate"):
        next(caption_batches(load_pipeline(captioner, device="cpu"), paths, confidence="search"))
    assert main(["caption", paths[0], "--model", captioner, "--confidence", *TYPED]) == 2
    assert "so nothing is known of its confidence" in capsys.readouterr().err
    folder = shutil.copytree(calibrated, tmp_path / "captioner")
    calibration_of(folder, samples=0, kinds=("tokens", "beams")).save(folder)
    with pytest.raises(ValueError, match="calibrated without sampled captions"):
        Assessor(load_pipeline(str(folder), device="cpu"), mode="samples")
    packed = load_pipeline(calibrated, device="cpu", packed_weights="int8")
    with pytest.raises(ValueError, match="`packed_weights` is 'int8'"):
        Assessor(packed)
    with pytest.raises(ValueError, match="expected one of search, samples"):
        Assessor(packed, mode="sample")


def test_files(calibrated, images, tmp_path, capsys):  # noqa: F811
    """JSON lines, CSV and Parquet have the fields, a text file beside an image has the caption alone."""
    typed = ["caption", str(images), "--model", calibrated, "--confidence", *TYPED]
    for ending in ("jsonl", "csv", "parquet"):
        assert main([*typed, "--output", str(tmp_path / f"captions.{ending}")]) == 0
    records = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert len(records) == 10 and all({"confidence", "words"} <= record.keys() for record in records)
    with open(tmp_path / "captions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["confidence"] for row in rows] == [
        "" if record["confidence"] is None else str(record["confidence"]) for record in records
    ]
    table = pyarrow.parquet.read_table(tmp_path / "captions.parquet").to_pylist()
    assert [row["words"] for row in table] == [record["words"] for record in records]
    folder = tmp_path / "images"
    folder.mkdir()
    for path in images.glob("*.png"):
        shutil.copy(path, folder)
    least = sorted(record["confidence"] or 0 for record in records)[5]
    assert main(["caption", str(folder), *typed[2:], "--min_confidence", str(least), "--sidecar"]) == 0
    doubtful = sum((record["confidence"] or 0) < least for record in records)
    assert len(list(folder.glob("*.txt"))) == 10 - doubtful
    assert f"left out: {doubtful} caption(s) below `--min_confidence`" in capsys.readouterr().err


def test_command_line(calibrated, paths, capsys):  # noqa: F811
    assert main(["caption", paths[0], "--model", calibrated, "--confidence", *TYPED]) == 0
    caption, sureness = capsys.readouterr().out.rstrip("\n").split("\t")
    found = CaptionBatches(calibrated, device="cpu", confidence="search", **OPTIONS)({"image": paths[:1]})
    assert caption == found["caption"][0]
    assert sureness.startswith("?" if found["confidence"][0] is None else f"{found['confidence'][0]:.2f}")
    for name in (["--prefer_sure"], ["--min_confidence", "0.5"]):
        assert main(["caption", paths[0], "--model", calibrated, *name, *TYPED]) == 2
        assert "is about confidence: give `--confidence`" in capsys.readouterr().err


def test_the_pipeline_of_transformers(calibrated, paths):  # noqa: F811
    """An image, a list and an iterator have the confidence that `CaptionBatches` gives."""
    captioner = make_pipeline("image-captioning", model=calibrated, device="cpu", **OPTIONS)
    expected = CaptionBatches(calibrated, device="cpu", confidence="search", **OPTIONS)({"image": paths})
    listed = captioner(paths, return_confidence=True, batch_size=2, **OPTIONS)
    assert [one[0]["generated_text"] for one in listed] == expected["caption"]
    assert [numbers(one[0]["words"]) for one in listed] == [near(words) for words in expected["words"]]
    assert numbers(captioner(paths[0], return_confidence=True, **OPTIONS)[0]["words"]) == near(expected["words"][0])
    assert len(list(captioner(iter(paths), return_confidence="samples", **OPTIONS))) == 5
    assert "confidence" not in captioner(paths[0], **OPTIONS)[0]


def test_the_answer_over_http(calibrated, paths):  # noqa: F811
    """The answer has what `CaptionBatches` gives, also of requests that share a batch."""
    pytest.importorskip("aiohttp", reason="serving needs the extra `serve`")
    from concurrent.futures import ThreadPoolExecutor

    from tests.server.client import ask
    from tests.server.conftest import served

    contents = [Path(path).read_bytes() for path in paths]
    captioner = CaptionBatches(calibrated, device="cpu", confidence="search", **OPTIONS)
    expected = captioner({"image": contents})
    with served(captioner) as port, ThreadPoolExecutor(len(contents)) as clients:
        answers = list(clients.map(lambda content: ask(port, content), contents))
    assert [status for status, *_ in answers] == [200] * len(contents)
    for place, (_, answer, _) in enumerate(answers):
        assert answer["caption"] == expected["caption"][place]
        assert numbers(answer["words"]) == near(expected["words"][place])
        assert answer["confidence"] == pytest.approx(expected["confidence"][place], abs=2e-3)
    with served(CaptionBatches(calibrated, device="cpu", **OPTIONS)) as port:
        assert "confidence" not in ask(port, contents[0])[1]


def test_a_server_of_a_captioner_without_calibration_does_not_start(captioner, capsys):  # noqa: F811
    pytest.importorskip("aiohttp", reason="serving needs the extra `serve`")
    assert main(["serve", str(captioner), "--confidence", "--device", "cpu", "--port", "0"]) != 0
    assert "hf-captioners calibrate" in capsys.readouterr().err


def test_text_files_record_their_confidence(calibrated, images, tmp_path):  # noqa: F811
    """The review page reads it there; the files have captions alone."""
    folder = tmp_path / "images"
    folder.mkdir()
    for path in find_images([str(images)])[:3]:
        shutil.copy(path, folder)
    assert main(["caption", str(folder), "--model", calibrated, "--confidence", *TYPED, "--sidecar"]) == 0
    expected = CaptionBatches(calibrated, device="cpu", confidence="search", **OPTIONS)
    recorded = assessed_files(folder)
    for path in sorted(folder.glob("*.png")):
        found, name = expected({"image": [str(path)]}), path.with_suffix(".txt").name
        assert path.with_suffix(".txt").read_text() == found["caption"][0] + "\n"
        assert recorded[name]["caption"] == found["caption"][0]
        assert numbers(recorded[name]["words"]) == near(found["words"][0])


def test_calibration_of_the_loaded_folder(pipeline, calibrated):  # noqa: F811
    assert Assessor(pipeline).calibration.digest == Calibration.load(Path(calibrated)).digest

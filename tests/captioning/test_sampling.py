"""Captions that are sampled can be repeated, and evaluations are not sampled unless that is asked for."""

import json
import re
import shutil

import pytest

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.caption_files import CaptionFile
from hf_captioners.captioning.columns import load_pipeline
from hf_captioners.captioning.generation_options import options_of_evaluation, with_seed
from hf_captioners.cli import main


@pytest.fixture(scope="module")
def sampler(captioner, tmp_path_factory):
    """A copy of the captioner whose generation configuration samples."""
    folder = tmp_path_factory.mktemp("sampler") / "captioner"
    shutil.copytree(captioner, folder)
    path = folder / "generation_config.json"
    sampling = {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "num_beams": 1, "num_return_sequences": 1}
    path.write_text(json.dumps(json.loads(path.read_text()) | sampling))
    return str(folder)


@pytest.fixture
def photos(images, tmp_path):
    """The ten images without captions."""
    folder = tmp_path / "photos"
    shutil.copytree(images, folder)
    (folder / "metadata.jsonl").unlink()
    return folder


def caption(photos, model, output, *typed):
    typed = ("--model", model, "--output", str(output), "--batch_size", "4", "--device", "cpu", *typed)
    assert main(["caption", str(photos), *typed]) == 0
    return [json.loads(line)["caption"] for line in output.read_text().splitlines()]


def evaluate(model, images, output, *typed):
    typed = ("--split", "train", "--device", "cpu", "--metrics", "cider_d", "--per_image", str(output), *typed)
    assert main(["evaluate", model, str(images), "--output", str(output.with_suffix(".json")), *typed]) == 0
    captions = [json.loads(line)["caption"] for line in output.read_text().splitlines()]
    return captions, json.loads(output.with_suffix(".json").read_text())


def test_evaluation_is_a_search(sampler, captioner, images, tmp_path):
    """Equal to that of the same weights with a generation configuration that does not sample."""
    captions, figures = evaluate(sampler, images, tmp_path / "first.jsonl")
    assert (captions, figures) == evaluate(sampler, images, tmp_path / "second.jsonl")
    assert (captions, figures) == evaluate(captioner, images, tmp_path / "plain.jsonl", "--num_beams", "1")
    assert "seed" not in figures


def test_evaluation_samples_if_it_is_asked_to(sampler, images, tmp_path):
    asked = ("--generate", "do_sample=true")
    captions, figures = evaluate(sampler, images, tmp_path / "first.jsonl", *asked, "--seed", "3")
    assert figures["seed"] == 3
    assert (captions, figures) == evaluate(sampler, images, tmp_path / "second.jsonl", *asked, "--seed", "3")
    assert captions != evaluate(sampler, images, tmp_path / "searched.jsonl")[0]
    others, figures = evaluate(sampler, images, tmp_path / "other.jsonl", *asked)
    assert others != captions and isinstance(figures["seed"], int)
    again = evaluate(sampler, images, tmp_path / "again.jsonl", *asked, "--seed", str(figures["seed"]))
    assert again == (others, figures)


def test_seeds_of_captions(sampler, photos, tmp_path, capsys):
    """The same seed, also with other workers; another seed; and one that the command chose."""
    first = caption(photos, sampler, tmp_path / "first.jsonl", "--seed", "7", "--workers", "0")
    assert first == caption(photos, sampler, tmp_path / "second.jsonl", "--seed", "7", "--workers", "1")
    assert first != caption(photos, sampler, tmp_path / "other.jsonl", "--seed", "8")
    capsys.readouterr()
    chosen = caption(photos, sampler, tmp_path / "chosen.jsonl")
    (seed,) = re.findall(r"--seed (\d+)", capsys.readouterr().err)
    assert chosen == caption(photos, sampler, tmp_path / "again.jsonl", "--seed", seed)


@pytest.mark.parametrize("typed", [(), ("--seed", "11")])
@pytest.mark.parametrize("sidecar", [False, True])
def test_a_killed_job_goes_on_as_if_undisturbed(sampler, photos, tmp_path, capsys, monkeypatch, typed, sidecar):
    outputs = ["--sidecar"] if sidecar else ["--output", str(tmp_path / "killed.jsonl")]
    arguments = ["caption", str(photos), "--model", sampler, "--batch_size", "4", "--device", "cpu", *outputs]
    calls, add = [], CaptionFile.add

    def killed(self, *records):
        calls.append(records)
        if len(calls) == 2:
            raise KeyboardInterrupt
        add(self, *records)

    with monkeypatch.context() as patched:
        patched.setattr(CaptionFile, "add", killed)
        assert main([*arguments, *typed]) == 130
    (seed,) = set(re.findall(r"--seed (\d+)", capsys.readouterr().err))
    if typed:
        assert main([*arguments, "--resume", "--seed", "12"]) == 2
        assert "seed was 11, is 12" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    if sidecar:
        found = [path.read_text().removesuffix("\n") for path in sorted(photos.glob("*.txt"))]
        for path in photos.glob("*.txt"):
            path.unlink()
    else:
        found = [json.loads(line)["caption"] for line in (tmp_path / "killed.jsonl").read_text().splitlines()]
    whole = caption(photos, sampler, tmp_path / "whole.jsonl", "--seed", seed)
    assert found == ([" ".join(text.splitlines()) for text in whole] if sidecar else whole)


def test_batches_depend_on_seed_and_images_alone(sampler, images):
    pipeline = load_pipeline(sampler, device="cpu")
    names = sorted(map(str, images.glob("*.png")))
    columns = [CaptionBatches(pipeline, seed=5)({"image": names[first : first + 5]}) for first in (0, 5)]
    again = [CaptionBatches(pipeline, seed=5)({"image": names[first : first + 5]}) for first in (5, 0)][::-1]
    assert [one["caption"] for one in columns] == [one["caption"] for one in again]
    other = CaptionBatches(pipeline, seed=6)({"image": names[:5]})
    assert other["caption"] != columns[0]["caption"]


def test_options(sampler, captioner, caplog):
    samples, searches = load_pipeline(sampler, device="cpu"), load_pipeline(captioner, device="cpu")
    assert options_of_evaluation(searches, {"num_beams": 3}) == {"num_beams": 3}
    assert options_of_evaluation(samples, {"top_p": 0.5})["do_sample"] is False
    assert options_of_evaluation(samples, {"do_sample": True}) == {"do_sample": True}
    assert with_seed(samples, {"do_sample": False}) == {"do_sample": False}
    assert with_seed(searches, {}) == {} and with_seed(samples, {}, 4) == {"seed": 4}
    assert with_seed(searches, {"do_sample": True}, 0) == {"do_sample": True, "seed": 0}
    assert with_seed(samples, {}) != with_seed(samples, {})
    assert with_seed(searches, {}, 4) == {} and "`--seed 4` has no effect" in caplog.text
    with pytest.raises(ValueError, match="`--seed` is -1, expected a whole number"):
        with_seed(samples, {}, -1)

"""Captions and errors are equal by the command line, `datasets.map`, the handler of an endpoint and the server."""

import base64
import json
import os
import re
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import datasets
import pytest

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.image_list import find_images
from hf_captioners.cli import main
from tests.captioning.awkward_images import write_awkward_images

from .client import ask
from .conftest import served

HANDLER = Path(__file__).parents[2] / "hub_cards" / "endpoint_handler.py"
OPTIONS = {"num_beams": 2, "max_new_tokens": 10}


class Outcome(NamedTuple):
    """Outcome of captioning an image.

    Args:
        caption: None if it cannot be read.
        score: None if it cannot be read.
        error: the reason, in which the image is called `given as bytes`.
    """

    caption: str | None
    score: float | None
    error: str | None


def without_name(error, name):
    return None if error is None else error.replace(f"The image {name} ", "The image given as bytes ")


def by_command(paths, folder, captioner, tmp_path, capsys, *more):
    """Return the outcomes of the command line by path."""
    output = tmp_path / "captions.jsonl"
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
    main(["caption", str(folder), "--model", captioner, "--device", "cpu", "--output", str(output), *options, *more])
    records = {one["image"]: one for one in map(json.loads, output.read_text().splitlines())}
    errors = re.findall(r"^not captioned: (.*)$", capsys.readouterr().err, re.MULTILINE)
    outcomes = {name: Outcome(one["caption"], one["score"], None) for name, one in records.items()}
    for path in set(paths) - set(outcomes):
        (error,) = [one for one in errors if f" {path} " in one]
        outcomes[path] = Outcome(None, None, without_name(error, path))
    assert len(errors) + len(records) == len(paths)
    return [outcomes[path] for path in paths]


def by_map(paths, captioner):
    rows = datasets.Dataset.from_dict({"image": paths}, datasets.Features({"image": datasets.Image()}))
    found = rows.map(CaptionBatches(captioner, device="cpu", **OPTIONS), batched=True, batch_size=16)
    found = found.remove_columns("image")
    return [
        Outcome(row["caption"], row["score"], without_name(row["error"], path))
        for path, row in zip(paths, found, strict=True)
    ]


def by_endpoint(paths, captioner):
    """The handler reads base64; its captioner is that of this process, so that nothing is downloaded."""
    handler = object.__new__(runpy.run_path(str(HANDLER))["EndpointHandler"])
    handler.captioner = load_pipeline(captioner, device="cpu")
    inputs = [base64.b64encode(Path(path).read_bytes()).decode() for path in paths]
    found = handler({"inputs": inputs, "parameters": OPTIONS | {"return_scores": True}})
    return [Outcome(one.get("generated_text"), one.get("score"), one.get("error")) for (one,) in found]


def by_server(paths, captioner):
    caption = CaptionBatches(load_pipeline(captioner, device="cpu"), **OPTIONS)
    with served(caption) as port, ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda path: ask(port, Path(path).read_bytes()), paths))
    assert {status for status, *_ in answers} <= {200, 422}
    return [Outcome(one.get("caption"), one.get("score"), one.get("error")) for _, one, _ in answers]


def check_equal(expected, found, paths):
    for path, one, other in zip(paths, expected, found, strict=True):
        assert (one.caption, one.error) == (other.caption, other.error), path
        assert one.score == pytest.approx(other.score, abs=1e-3), path


def check_everywhere(folder, captioner, tmp_path, capsys, monkeypatch):
    """Return the outcomes of the command line, after a comparison with those of the others."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    paths = find_images([str(folder)])
    expected = by_command(paths, folder, captioner, tmp_path, capsys)
    check_equal(expected, by_map(paths, captioner), paths)
    check_equal(expected, by_endpoint(paths, captioner), paths)
    check_equal(expected, by_server(paths, captioner), paths)
    return dict(zip(paths, expected, strict=True))


def test_awkward_images(captioner, tmp_path, capsys, monkeypatch):
    (tmp_path / "awkward").mkdir()
    bad = write_awkward_images(tmp_path / "awkward")
    found = check_everywhere(tmp_path / "awkward", captioner, tmp_path, capsys, monkeypatch)
    assert len(found) == 30
    assert sorted(Path(path).name for path, one in found.items() if one.error) == bad
    assert len({one.caption for one in found.values() if one.caption}) > 1


@pytest.mark.slow
def test_photographs(captioner, material, tmp_path, capsys, monkeypatch):
    """200 photographs of COCO."""
    (tmp_path / "photographs").mkdir()
    for path in sorted((material / "coco" / "images").iterdir())[:200]:
        os.symlink(path, tmp_path / "photographs" / path.name)
    found = check_everywhere(tmp_path / "photographs", captioner, tmp_path, capsys, monkeypatch)
    assert len(found) == 200 and not [one for one in found.values() if one.error]

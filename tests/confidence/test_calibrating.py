"""Calibration on drawn scenes, whose truth is known, its file, its digest, its card and its figure."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hf_captioners.captioning.calibrating import calibrate, observe, observed_words, rows_of, store
from hf_captioners.cli import main
from hf_captioners.confidence.calibration import CALIBRATION_FILE, Calibration, NotCalibratedError
from hf_captioners.confidence.card_section import card_section, with_section
from hf_captioners.confidence.digests import captioner_digest
from hf_captioners.confidence.figure import calibration_figure
from hf_captioners.confidence.fitting import predicted_by
from hf_captioners.confidence.measures import calibration_error, reliability
from hf_captioners.hub.cards import make_card, write_generated_card
from hf_captioners.hub.checkpoint_files import checkpoint_files

from .conftest import DrawnCaptioner, calibration_of


@pytest.fixture(scope="module")
def drawn(captioner, many_scenes):
    return DrawnCaptioner(captioner, many_scenes)


@pytest.fixture(scope="module")
def calibration(drawn, many_scenes):
    return calibrate(
        drawn, rows_of(many_scenes, "even"), {"name": "drawn scenes", "split": "train", "rows": "even"}, 6
    )


@pytest.mark.parametrize("kind", ["tokens", "beams", "samples", "beams_and_samples"])
def test_probabilities_are_right_on_other_images(calibration, drawn, many_scenes, kind):
    """In each bin the share of right words lies within the interval of its mean confidence (99.9 %).

    The captioner's own probabilities are far off.
    """
    observed = observed_words(observe(drawn, rows_of(many_scenes, "odd"), 6), True)
    predicted = predicted_by(calibration.estimators[kind], calibration.rates, observed)
    words, supported = np.concatenate(predicted.words), np.concatenate(predicted.supported)
    for entry in reliability(words, supported):
        deviation = (entry["confidence"] * (1 - entry["confidence"]) / entry["count"]) ** 0.5
        assert abs(entry["right"] - entry["confidence"]) < 3.3 * deviation + 0.02, entry
    all_right = np.array([row.all() for row in predicted.supported])
    assert abs(predicted.captions.mean() - all_right.mean()) < 0.08
    own = np.array([1 / (1 + np.exp(-word.values["token"])) for one in observed for word in one.words])
    assert calibration_error(own, supported) > 2 * calibration_error(words, supported)
    figures = calibration.report[kind]
    assert figures["auroc_words"]["value"] > 0.75 and figures["calibration_error_words"]["value"] < 0.08


def test_the_file_keeps_everything(calibration, captioner, tmp_path):
    folder = shutil.copytree(captioner, tmp_path / "captioner")
    (folder / "README.md").write_text("# Mine\n\nMy words.\n")
    files = store(calibration, folder)
    assert [path.name for path in files] == ["confidence.json", "confidence.svg", "README.md"]
    loaded = Calibration.load(folder)
    assert (loaded.digest, loaded.num_beams, loaded.samples) == (captioner_digest(folder), 3, 6)
    assert loaded.data == {"name": "drawn scenes", "split": "train", "rows": "even", "images": 300, "words": 600}
    assert loaded.report == json.loads(json.dumps(calibration.report)) and loaded.rates == calibration.rates
    for kind, estimator in calibration.estimators.items():
        np.testing.assert_allclose(loaded.estimators[kind].words.weights, estimator.words.weights, atol=1e-6)
    assert {folder / "confidence.json", folder / "confidence.svg"} <= set(checkpoint_files(folder))


def test_another_captioner_is_refused(captioner, tmp_path):
    """By its weights or its tokenizer, which alone make the digest."""
    folder = shutil.copytree(captioner, tmp_path / "captioner")
    calibration_of(folder).save(folder)
    digest = Calibration.load(folder).digest
    (folder / "README.md").write_text("another card")
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    save_file({name: weights[name] for name in names[:5]}, folder / "model-00001-of-00002.safetensors")
    save_file(
        {name: weights[name] for name in names[5:]}, folder / "model-00002-of-00002.safetensors", {"format": "pt"}
    )
    (folder / "model.safetensors").unlink()
    tokenizer = folder / "tokenizer.json"
    values = json.loads(tokenizer.read_text())
    tokenizer.write_text(json.dumps(values | {"padding": {"strategy": "BatchLongest"}}, indent=1))
    assert Calibration.load(folder).digest == digest == captioner_digest(folder)
    (folder / "model-00001-of-00002.safetensors").unlink()
    changed = {name: weights[name] for name in names[:5]}
    changed[names[0]] = changed[names[0]] + 1e-3
    save_file(changed, folder / "model-00001-of-00002.safetensors")
    with pytest.raises(
        NotCalibratedError, match=r"is the calibration of another captioner: its digest is .*calibrate"
    ):
        Calibration.load(folder)
    save_file({name: weights[name] for name in names[:5]}, folder / "model-00001-of-00002.safetensors")
    values["model"]["merges"] = values["model"]["merges"][:-1]
    tokenizer.write_text(json.dumps(values))
    with pytest.raises(NotCalibratedError, match="another captioner"):
        Calibration.load(folder)
    with pytest.raises(FileNotFoundError, match="no weights"):
        captioner_digest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "its format is 2, expected 1"),
        ({"words": {"red": [1, 2]}}, "right more often than it occurs"),
        ({"words": {"red": [1]}}, "damaged"),
        ({"rate": float("nan")}, "nan is no number from 0 to 1"),
        ({"samples": 10**9}, "is no number from 0 to 100"),
        ({"estimators": {}}, "no estimator `tokens`"),
        ({"digest": None}, "another captioner"),
    ],
)
def test_damaged_files(calibrated, tmp_path, change, message):
    folder = shutil.copytree(calibrated, tmp_path / "captioner")
    path = folder / CALIBRATION_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        Calibration.load(folder)


def test_damaged_estimators(calibrated, tmp_path):
    folder = shutil.copytree(calibrated, tmp_path / "captioner")
    path = folder / CALIBRATION_FILE
    for name, value in (("weights", [1.0]), ("scales", [0.0, 1.0, 1.0]), ("means", [1e999, 0, 0])):
        values = json.loads((Path(calibrated) / CALIBRATION_FILE).read_text())
        values["estimators"]["tokens"]["words"][name] = value
        path.write_text(json.dumps(values))
        with pytest.raises(ValueError, match=rf"{path.name} is damaged \(`{name}`"):
            Calibration.load(folder)
    path.write_bytes(b"{")
    with pytest.raises(ValueError, match="is damaged"):
        Calibration.load(folder)


def test_too_little_to_calibrate_on(drawn, many_scenes):
    with pytest.raises(ValueError, match="The data have 20 images .* needs 50 at least"):
        calibrate(drawn, many_scenes.select(range(20)), {})
    with pytest.raises(ValueError, match="for English"):
        captions = ["ein roter Kreis steht rechts oben neben Quadraten"]
        german = many_scenes.select(range(60)).map(lambda row: {"captions": captions})
        calibrate(drawn, german, {})


def test_cards(calibration, captioner, tmp_path):
    """A card that this library generated has the section in its generated part; another one at its end, once."""
    folder = shutil.copytree(captioner, tmp_path / "captioner")
    assert write_generated_card(folder) and "## Confidence" not in (folder / "README.md").read_text()
    store(calibration, folder, write_generated_card)
    text = (folder / "README.md").read_text()
    assert text.count("## Confidence") == 1 and "300 images (drawn scenes, train, even rows)" in text
    assert make_card(folder).count("](confidence.svg)") == 1
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1}, folder / "model.safetensors")
    assert "## Confidence" not in make_card(folder)  # of weights that were trained further
    section = card_section(calibration)
    once = with_section("# Mine\n\nText\n", section)
    assert with_section(once, section) == once and once.startswith("# Mine\n\nText\n")
    hostile = card_section(_named(calibration, "<script>|\n# x"))
    assert "<script>" not in hostile and "\n# x" not in hostile


def _named(calibration, name):
    copied = Calibration.from_dict(json.loads(json.dumps(calibration.to_dict())))
    copied.data["name"] = name
    return copied


def test_the_figure_draws_every_bin(calibration):
    from xml.etree import ElementTree

    figures = calibration.report["beams"]
    svg = calibration_figure(figures, "3 < 4 & <b>")
    root = ElementTree.fromstring(svg)
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(circles) == len(figures["reliability"]) + len(figures["risk_coverage"])
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(0 < float(one.get("cx")) < width and 0 < float(one.get("cy")) < height for one in circles)
    assert "3 < 4 & <b>" in "".join(root.itertext())


def test_command(captioner, images, many_scenes, tmp_path, monkeypatch, capsys):
    """As a person types it; the captioner is one that knows something about the images."""
    folder = shutil.copytree(captioner, tmp_path / "captioner")
    rows = many_scenes.select(range(120))
    monkeypatch.setattr(
        "hf_captioners.cli.calibrate.load_packed_model", lambda args: DrawnCaptioner(str(folder), rows)
    )
    monkeypatch.setattr("hf_captioners.captioning.data_set.load_readable", lambda *args, **options: rows)
    assert main(["calibrate", str(folder), str(images), "--split", "train", "--rows", "even", "--samples", "0"]) == 0
    printed = capsys.readouterr()
    assert "60 images, 120 content words" in printed.out and "auroc words" in printed.out
    assert "samples" not in printed.out and f"Wrote {folder}/confidence.json." in printed.err
    assert set(Calibration.load(folder).estimators) == {"tokens", "beams"}
    assert "## Confidence" in (folder / "README.md").read_text()
    assert main(["calibrate", str(folder), str(images), "--samples", "-1"]) == 2
    assert "`--samples` is -1, expected 0 to 100" in capsys.readouterr().err


def test_command_on_images_of_which_the_captioner_knows_nothing(captioner, images, tmp_path, capsys):
    folder = shutil.copytree(captioner, tmp_path / "captioner")
    assert main(["calibrate", str(folder), str(images), "--split", "train", "--samples", "0"]) == 2
    assert "a calibration needs 50 at least" in capsys.readouterr().err
    assert not (folder / CALIBRATION_FILE).exists()

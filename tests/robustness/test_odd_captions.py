"""Captions without words, with which jobs go on, and captions that are too long, which are found before training."""

import json
import shutil
import warnings

import pytest

from hf_captioners.cli import main
from hf_captioners.training.evaluation import caption_statistics, score_captions

QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --captions_per_image 1"


def folder_of(images, place, captions):
    """A folder with these captions, one list for each of the first images."""
    place.mkdir(parents=True)
    with open(place / "metadata.jsonl", "w") as file:
        for path, texts in zip(sorted(images.glob("*.png")), captions, strict=False):
            shutil.copy(path, place)
            file.write(json.dumps({"file_name": path.name, "captions": texts}) + "\n")
    return str(place)


@pytest.fixture
def train(captioner, tmp_path):
    """Train on folders for one step, and return the exit status."""

    def run(train_dir, validation_dir, *more):
        arguments = [
            "train",
            "--model",
            captioner,
            "--recipe",
            "none",
            "--output_dir",
            str(tmp_path / "run"),
            *QUICK.split(),
        ]
        return main(
            [*arguments, "--max_steps", "1", "--train_dir", train_dir, "--validation_dir", validation_dir, *more]
        )

    return run


def test_training_goes_on_where_captions_have_no_words(images, train, tmp_path, caplog):
    data = folder_of(images, tmp_path / "data", [["."], ["\N{GRINNING FACE}"], ["a dog runs", "?!"]])
    wordless = folder_of(images, tmp_path / "wordless", [["."], ["..."]])
    with pytest.warns(UserWarning, match="2 of 2 reference captions have no words"):
        assert train(data, wordless) == 0
    assert "3 of 4 training captions have no words" in caplog.text
    log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert [entry["eval_cider_d"] for entry in log if "eval_cider_d" in entry] == [0.0]


def test_evaluation_goes_on_where_captions_have_no_words(images, captioner, tmp_path, capsys):
    data = folder_of(images, tmp_path / "data" / "test", [["."], ["a cube", "\N{THUMBS UP SIGN}"]])
    arguments = ["evaluate", captioner, str(tmp_path / "data"), "--max_new_tokens", "3", "--format", "json"]
    with pytest.warns(UserWarning, match=r"2 of 3 reference captions have no words.*first is of image 0"):
        assert main(arguments) == 0
    assert data and json.loads(capsys.readouterr().out)["images"] == 2


def test_references_without_words_have_no_mean_length():
    assert "length_ratio" not in caption_statistics(["a dog"], [["", ""]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert score_captions(["a dog", ""], [["."], ["!"]])["bleu_4"] < 1e-6


def test_captions_longer_than_the_decoder_are_refused_before_training(images, train, tmp_path, capsys):
    """The decoder of the tiny captioner has 96 positions."""
    long = " ".join(["a red circle above a blue square"] * 40)
    good = folder_of(images, tmp_path / "good", [["a dog"], ["a cat"]])
    data = folder_of(images, tmp_path / "data", [["a dog", long]] * 4 + [["a cat"], [long, long, long]])
    for train_dir, validation_dir, name in ((data, good, "training"), (good, data, "evaluation")):
        assert train(train_dir, validation_dir) == 2
        error = capsys.readouterr().err
        assert f"7 {name} captions have more tokens than the 96 positions of the decoder" in error
        assert error.count("tokens: 'a red circle") == 5 and "... and 2 more" in error and "row 5" in error
        assert "--max_caption_tokens 96" in error
        assert not list((tmp_path / "run").glob("features/*")), "refused before any work"
    assert train(data, data, "--max_caption_tokens", "97") == 2
    assert train(data, data, "--max_caption_tokens", "96") == 0

"""`hf-captioners train` on a folder of drawn images."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.data.training_images import TrainingImages
from hf_captioners.loading import load_captioner
from hf_captioners.training.few_images import REWARDS
from hf_captioners.training.starting import ModelArguments, start_captioner
from tests.modeling.toy import TOY

FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]


@pytest.fixture
def parts(language_model, vision_model):
    return ["--language_model", language_model, "--vision_model", vision_model, *FAST]


def log_of(output):
    return json.loads(Path(output, "trainer_state.json").read_text())["log_history"]


def test_from_a_folder_to_a_captioner(images, parts, tmp_path, capsys):
    output = tmp_path / "run"
    arguments = ["train", "--train_dir", str(images), "--output_dir", str(output), "--validation_share", "0.3"]
    fields = ["encoder_layers=2", "attn_implementation=eager"]
    assert main([*arguments, *parts, "--num_train_epochs", "2", "--model_config", *fields]) == 0
    assert "Best evaluation, at epoch" in capsys.readouterr().out
    model, processor = load_captioner(str(output))
    assert model.config.encoder_layers == 2
    assert (model.generation_config.num_beams, model.generation_config.max_new_tokens) == (5, 20)
    assert [entry["epoch"] for entry in log_of(output) if "eval_cider_d" in entry] == [1.0, 2.0]
    assert main(["caption", str(images / "scene_000.png"), "--model", str(output)]) == 0
    assert capsys.readouterr().out.strip()


def test_held_out_images_are_named_and_remembered(images, parts, tmp_path, caplog, capsys):
    arguments = ["train", "--train_dir", str(images), "--output_dir", str(tmp_path / "run")]
    assert main([*arguments, *parts, "--max_steps", "1", "--validation_share", "0.3"]) == 0
    assert "3 of 10 were held out at random (seed 42)" in caplog.text
    out = capsys.readouterr().out
    assert "Training on 7 images with 35 captions; evaluated on 3 held-out images." in out
    assert "(held_out)" in Path(tmp_path, "run", "README.md").read_text()
    remembered = json.loads(Path(tmp_path, "run", "held_out.json").read_text())
    assert len(remembered["image_ids"]) == 3 and remembered["seed"] == 42
    again = ["evaluate", str(tmp_path / "run"), str(images), "--split", "held_out", "--device", "cpu"]
    assert main([*again, "--per_image", str(tmp_path / "scores.jsonl"), "--max_new_tokens", "4"]) == 0
    scored = [json.loads(line)["image_id"] for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert sorted(scored) == sorted(remembered["image_ids"])


def test_split_folders_and_a_recipe(images, language_model, vision_model, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(images, tmp_path / "data" / split)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"train_dir: {tmp_path}/data\nlanguage_model: {language_model}\nvision_model: {vision_model}\n"
        f"output_dir: {tmp_path}/run\nnum_train_epochs: 7\nlearning_rate: 1e-3\n"
        "model_config: {srau_threshold: 0.3}\n"
    )
    assert main(["train", str(recipe), "--num_train_epochs", "1", *FAST]) == 0
    assert load_captioner(f"{tmp_path}/run")[0].config.srau_threshold == 0.3
    captions = [json.loads(line) for line in next(Path(tmp_path, "run/captions").glob("*.jsonl")).open()]
    assert len(captions) == 10
    assert max(entry["epoch"] for entry in log_of(tmp_path / "run")) == 1.0


def test_fields_typed_after_a_recipe_are_added_to_its_fields(images, parts, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("max_steps: 1\nmodel_config: {srau_threshold: 0.3, encoder_layers: 2}\n")
    arguments = ["--train_dir", str(images), "--output_dir", str(tmp_path / "run"), "--validation_share", "0.3"]
    assert main(["train", str(recipe), *arguments, *parts, "--model_config", "encoder_layers=1"]) == 0
    config = load_captioner(str(tmp_path / "run"))[0].config
    assert (config.srau_threshold, config.encoder_layers) == (0.3, 1)


def test_how_captions_are_written_is_typed_and_saved(images, parts, tmp_path):
    arguments = ["--train_dir", str(images), "--validation_share", "0.3", *parts, "--max_steps", "1"]
    typed = ["--processor_config", "drop_final_punctuation=false", "lowercase=false"]
    assert main(["train", *arguments, "--output_dir", str(tmp_path / "first"), *typed]) == 0
    processor = load_captioner(str(tmp_path / "first"))[1]
    assert (processor.drop_final_punctuation, processor.lowercase) == (False, False)
    assert processor.drop_punctuation is False
    again = ["--model", str(tmp_path / "first"), "--recipe", "none", "--processor_config", "lowercase=true"]
    arguments = ["--train_dir", str(images), "--validation_share", "0.3", *FAST, "--max_steps", "1"]
    assert main(["train", *arguments, *again, "--output_dir", str(tmp_path / "second")]) == 0
    processor = load_captioner(str(tmp_path / "second"))[1]
    assert (processor.drop_final_punctuation, processor.lowercase) == (False, True)


def test_what_a_captioner_replaces_is_logged(images, parts, tmp_path, caplog):
    arguments = ["train", "--train_dir", str(images), "--validation_share", "0.3", *parts, "--max_steps", "1"]
    assert main([*arguments, "--output_dir", str(tmp_path / "first")]) == 0
    assert "not used" not in caplog.text
    again = ["--model", str(tmp_path / "first"), "--output_dir", str(tmp_path / "second"), "--image_size", "64"]
    again += ["--recipe", "none"]
    assert main([*arguments, *again]) == 0
    assert "so these are not used: `language_model`, `vision_model`, `image_size`." in caplog.text


def test_metrics_that_cannot_be_computed_are_reported_before_training(images, parts, tmp_path, capsys, monkeypatch):
    def no_tables(*args, **kwargs):
        raise FileNotFoundError("METEOR needs tables")

    monkeypatch.setattr("hf_captioners.metrics.meteor.Meteor", no_tables)
    arguments = ["train", "--train_dir", str(images), "--output_dir", str(tmp_path / "run"), *parts]
    assert main([*arguments, "--test_split", "train", "--test_metrics", "meteor"]) == 2
    assert "METEOR needs tables" in capsys.readouterr().err
    assert main([*arguments, "--eval_metrics", "cider_d", "meteor"]) == 2
    assert "METEOR needs tables" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_an_earlier_run_is_resumed_or_left_alone(images, parts, tmp_path, capsys):
    arguments = ["train", "--train_dir", str(images), "--output_dir", str(tmp_path / "run"), *parts]
    arguments += ["--validation_dir", str(images)]
    assert main([*arguments, "--resume", "--num_train_epochs", "1"]) == 0
    assert "starting from the beginning" in capsys.readouterr().out
    assert main([*arguments, "--num_train_epochs", "2"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*arguments, "--num_train_epochs", "2", "--resume"]) == 0
    assert "Resuming from" in capsys.readouterr().out
    assert [entry["epoch"] for entry in log_of(tmp_path / "run") if "eval_cider_d" in entry] == [1.0, 2.0]


def test_a_run_is_resumed_from_a_named_checkpoint(images, parts, tmp_path, capsys):
    arguments = ["train", "--train_dir", str(images), "--validation_dir", str(images), *parts]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*arguments, "--output_dir", str(first), "--num_train_epochs", "2"]) == 0
    whole = log_of(first)
    begun = min(first.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
    resumed = [*arguments, "--output_dir", str(second), "--num_train_epochs", "2", "--resume_from_checkpoint"]
    capsys.readouterr()
    assert main([*resumed, str(begun)]) == 0
    assert f"Resuming from {begun}." in capsys.readouterr().out
    both = [[entry["eval_loss"] for entry in log if "eval_loss" in entry] for log in (whole, log_of(second))]
    assert len(both[0]) == 2
    assert both[0] == pytest.approx(both[1], abs=1e-6)
    assert main([*resumed, str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main([*resumed, str(first)]) == 2  # a captioner, not a checkpoint
    assert "not complete" in capsys.readouterr().err


def test_a_run_is_not_resumed_on_changed_data_unless_that_is_typed(images, parts, tmp_path, capsys):
    data, output = shutil.copytree(images, tmp_path / "data"), tmp_path / "run"
    arguments = ["train", "--train_dir", str(data), "--validation_dir", str(images), "--output_dir", str(output)]
    assert main([*arguments, *parts, "--max_steps", "1"]) == 0
    files = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
    rows = (data / "metadata.jsonl").read_text().splitlines(keepends=True)
    (data / "metadata.jsonl").write_text("".join(rows[:-3]))
    more = [*arguments, *parts, "--max_steps", "2", "--resume"]
    capsys.readouterr()
    assert main(more) == 2
    said = capsys.readouterr().err
    assert "10 training images before, 7 now" in said and "--allow_changed_data" in said
    assert {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()} == files
    assert main([*more, "--allow_changed_data"]) == 0
    card = (output / "README.md").read_text()
    assert "After checkpoint-1 it was resumed on changed data: 10 training images before, 7 now." in card


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train_dir": None}, "--train_dir"),
        ({"train_dir": "missing"}, "there is no file or folder"),
        ({"train_dir": "empty"}, "metadata.jsonl"),
        ({"language_model": None}, "--language_model"),
        ({"language_model": "vision"}, "'gpt2' language model"),
        ({"vision_model": "language"}, "vision model"),
        ({"vision_model": "nowhere"}, "nowhere is no checkpoint"),
        ({"tokenizer": "nowhere"}, "nowhere is no checkpoint"),
        ({"output_dir": "file"}, "is a file"),
        ({"architecture": "cubism"}, "'cubism'"),
        ({"model": "language"}, "is a model of the type 'gpt2'"),
        ({"model_config": "encoder_layers"}, "name=value"),
        ({"model_config": "srau_threshold=0.7"}, "srau_threshold"),
        ({"processor_config": "uppercase=true"}, "'uppercase', and a VisualGPTProcessor has no such field"),
        ({"validation_share": "0.01"}, "at least 2"),
    ],
)
def test_bad_input_is_answered(images, language_model, vision_model, tmp_path, capsys, changed, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    given = {
        "train_dir": str(images),
        "language_model": language_model,
        "vision_model": vision_model,
        "output_dir": str(tmp_path / "run"),
        "tokenizer": language_model,
        "validation_share": "0.3",
    }
    places = {
        "missing": tmp_path / "missing",
        "empty": tmp_path / "empty",
        "file": tmp_path / "file",
        "vision": vision_model,
        "language": language_model,
    }
    given |= {name: places.get(value, value) for name, value in changed.items()}
    arguments = [text for name, value in given.items() if value is not None for text in (f"--{name}", str(value))]
    assert main(["train", *arguments, *FAST]) == 2
    assert said in capsys.readouterr().err


def test_a_timm_backbone_with_its_own_image_preparation(language_model, tmp_path):
    import timm

    backbone = timm.create_model("test_resnet", num_classes=0)
    save_file(backbone.state_dict(), tmp_path / "weights.safetensors")
    source = f"timm:test_resnet:{tmp_path}/weights.safetensors"
    model, processor = start_captioner(ModelArguments(language_model=language_model, vision_model=source))
    expected = timm.data.resolve_model_data_config(backbone)
    assert list(processor.image_processor.image_mean) == list(expected["mean"])
    assert model.config.region_feature_size == backbone.num_features
    _, resized = start_captioner(ModelArguments(language_model=language_model, vision_model=source, image_size=64))
    assert resized.image_processor.crop_size["height"] == 64


def test_an_architecture_of_another_package(images, vision_model, tmp_path):
    output = tmp_path / "run"
    command = ["train", "--architecture", TOY.name, "--train_dir", str(images), "--output_dir", str(output), *FAST]
    command += ["--vision_model", vision_model, "--validation_share", "0.3", "--max_steps", "2"]
    assert main([*command, "--model_config", "vision_grid_size=[1,2]"]) == 0
    config = json.loads((output / "config.json").read_text())
    assert (config["model_type"], config["vision_grid_size"]) == (TOY.model_type, [1, 2])
    assert {"modeling_toy.py", "modeling_captioning.py"} <= {path.name for path in output.glob("*.py")}
    assert main(["caption", str(images / "scene_000.png"), "--model", str(output)]) == 0


def test_going_on_with_a_few_images_ends_with_rewards(images, captioner, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(REWARDS, "max_steps", 3)
    output = tmp_path / "run"
    arguments = ["train", "--model", captioner, "--train_dir", str(images), *FAST, "--validation_share", "0.3"]
    assert main([*arguments, "--output_dir", str(output)]) == 0
    out = capsys.readouterr().out
    first = "Recipe few_images: 7 images, fewer than 500, train a given captioner. `--recipe none` trains without it."
    assert out.splitlines()[0] == first
    assert "3 held-out images are left for an evaluation of the result.\n" in out
    assert "At most 3 steps in batches of 10, 1 steps an epoch.\n" in out
    assert "Before these steps, at most 4 epochs of cross-entropy on 35 pairs.\n" in out
    assert "At the end, 40% of each weight is that of the captioner before training.\n" in out
    assert "train_runtime" not in out, "both parts are told in sentences"
    assert "On held-out images:\n3 images" in out and "--split held_out" not in out
    assert not list(output.glob("checkpoint-*"))
    assert main([*arguments, "--output_dir", str(output)]) == 2
    assert f"{output} holds a run already" in capsys.readouterr().err
    assert main([*arguments, "--output_dir", str(output), "--resume"]) == 0
    assert f"The run in {output} had finished" in capsys.readouterr().out


def test_what_is_typed_about_a_few_images_stays(images, captioner, tmp_path, capsys):
    arguments = ["train", "--model", captioner, "--train_dir", str(images), *FAST, "--validation_share", "0.3"]
    assert main([*arguments, "--output_dir", str(tmp_path / "few"), "--num_train_epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "At most 1 steps in batches of 10" in out and "Before these steps, at most 4 epochs" in out
    assert "At the end, 40% of each weight" in out
    assert main([*arguments, "--output_dir", str(tmp_path / "none"), "--recipe", "none", "--max_steps", "1"]) == 0
    out = capsys.readouterr().out
    assert "Recipe" not in out and "batches of 25" in out and "Before these steps" not in out


def test_a_captioner_that_is_trained_further_is_compared_with_what_it_was(images, captioner, tmp_path, capsys):
    """On the held-out images, and after a second round on those that neither was trained on; a page shows captions."""
    train = ["train", "--train_dir", str(images), "--validation_share", "0.4", "--max_steps", "1", "--recipe", "none"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*train, "--model", captioner, "--output_dir", str(first), *FAST, "--test_split", "train"]) == 0
    said = capsys.readouterr().out
    assert "Test: bleu_1 " in said and "cider_d " in said.partition("Test: ")[2].partition("\n")[0]
    assert "On held-out images:\n4 images, tokenizer ptb\n" in said
    assert (
        f"{first} against {captioner} (paired bootstrap over images, means of the scores per image):" in said
        and "interval" in said
    )
    assert "4 images are too few for a verdict, expected 30 or more." in said and "significant" not in said
    assert f"The captions side by side: {first}/comparison.html" in said
    assert (first / "comparison.html").read_text().count("<h2>") == 4
    held_out = json.loads((first / "held_out.json").read_text())["image_ids"]
    record = json.loads((first / "training_images.json").read_text())
    assert sorted([*held_out, *(name for name, _ in record["images"])]) == sorted(
        path.name for path in images.glob("*.png")
    )
    seen = TrainingImages.of(load_captions("caption_folder", data_dir=str(images))["train"]).images
    record["images"] += [["renamed.png", digest] for name, digest in seen if name == held_out[0]]
    (first / "training_images.json").write_text(json.dumps(record))
    further = [*train, "--model", str(first), "--output_dir", str(second), *FAST]
    assert main(further) == 0
    said = capsys.readouterr().out
    assert "On held-out images:\n3 images" in said and f"{first}: trained on 1 more image, which is left out" in said
    known = {name for name, _ in json.loads((second / "training_images.json").read_text())["images"]}
    assert known == {name for name, _ in record["images"]}, "those of the captioner that it started from are its own"
    assert main(["evaluate", str(second), str(images), "--split", "held_out", "--max_new_tokens", "3"]) == 0
    assert "4 images are too few for a verdict" in capsys.readouterr().err
    assert main([*further[: -len(FAST) - 1], str(tmp_path / "third"), *FAST, "--no_comparison"]) == 0
    assert "On held-out images" not in capsys.readouterr().out

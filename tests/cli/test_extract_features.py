"""`hf-captioners extract-features`, and training on what it wrote."""

import base64
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from transformers import (
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
)

from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.features.extraction import DetectorExtractor, GridExtractor
from hf_captioners.features.feature_store import FeatureStore
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.loading import load_captioner
from hf_captioners.training.data_arguments import DataArguments
from tests.variants import slow_unless

FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]
TWO_STEPS = ["--max_steps", "2", "--per_device_train_batch_size", "4", "--validation_share", "0.3", *FAST]


def extract(images, output, *model, **options):
    typed = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return main(["extract-features", "--data_dir", str(images), "--output", str(output), "--use_cpu", *model, *typed])


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


@pytest.fixture
def vision(vision_model):
    return ["--vision_model", vision_model]


def test_extracted_once_and_trained_on(images, language_model, vision, tmp_path, capsys):
    assert extract(images, tmp_path / "features", *vision, batch_size=4) == 0
    assert "train: 10 of 10 images computed" in capsys.readouterr().out
    assert extract(images, tmp_path / "features", *vision) == 0
    assert "train: 0 of 10 images computed" in capsys.readouterr().out
    parts = ["--data_dir", str(images), "--language_model", language_model, *vision, *TWO_STEPS]
    assert (
        main(["train", *parts, "--features", str(tmp_path / "features"), "--output_dir", str(tmp_path / "run")]) == 0
    )
    assert not (tmp_path / "run" / "features").exists()  # nothing was computed again
    assert json.loads((tmp_path / "run" / "config.json").read_text())["region_extractor"]["name"].endswith(
        "vision_model, layer -1, own grid"
    )
    capsys.readouterr()
    assert main(["caption", str(images / "scene_000.png"), "--model", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("form", slow_unless(lambda form: form != "att", ["bottom_up.tsv", "detections.hdf5", "att"]))
def test_bottom_up_features_of_others_are_trained_on(images, language_model, form, tmp_path, capsys):
    ids = load_captions("caption_folder", data_dir=str(images))["train"]["image_id"]
    rng = np.random.default_rng(0)
    corners = {name: np.sort(rng.random((3, 2, 2), dtype=np.float32), axis=1) for name in ids}
    regions = {name: (rng.random((3, 8), dtype=np.float32), corners[name].reshape(3, 4)) for name in ids}
    path = tmp_path / form
    if form == "detections.hdf5":
        with h5py.File(path, "w") as file:
            for name, (features, _) in regions.items():
                file[f"{name}_features"] = features
    elif form == "att":
        path.mkdir()
        for name, (features, _) in regions.items():
            np.savez(path / f"{name}.npz", feat=features)
    else:
        coded = {name: [base64.b64encode(part).decode() for part in parts] for name, parts in regions.items()}
        path.write_text(
            "".join(f"{name}\t4\t4\t3\t{boxes}\t{features}\n" for name, (features, boxes) in coded.items())
        )
    typed = ["train", "--data_dir", str(images), "--features", str(path), "--output_dir", str(tmp_path / "run")]
    assert main([*typed, "--language_model", language_model, *TWO_STEPS]) == 0
    assert load_captioner(str(tmp_path / "run"))[0].config.region_feature_size == 8
    typed[-1] = str(tmp_path / "other")
    sized = ["--model_config", "region_feature_size=7"]
    assert main([*typed, "--language_model", language_model, *sized, *TWO_STEPS]) == 2
    assert "8 features per region, the captioner reads 7" in capsys.readouterr().err


def test_one_source_is_opened_once_for_all_splits(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 16), np.float32))
    data = DataArguments(features=str(tmp_path))
    assert data.regions_of("train") is data.regions_of("validation")


def test_features_of_an_unknown_extractor_are_not_those_of_a_vision_model(
    images, language_model, vision, tmp_path, capsys
):
    (tmp_path / "att").mkdir()
    for name in load_captions("caption_folder", data_dir=str(images))["train"]["image_id"]:
        np.save(tmp_path / "att" / f"{name}.npy", np.ones((2, 16), np.float32))
    parts = ["--data_dir", str(images), "--language_model", language_model, *vision, *TWO_STEPS]
    assert main(["train", *parts, "--features", str(tmp_path / "att"), "--output_dir", str(tmp_path / "run")]) == 2
    assert "features of an unknown extractor" in capsys.readouterr().err


def test_features_of_another_vision_model_are_refused(images, language_model, vision, tmp_path, capsys):
    torch.manual_seed(5)
    config = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32)
    ViTModel(config).save_pretrained(tmp_path / "other")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "other")
    assert extract(images, tmp_path / "features", "--vision_model", str(tmp_path / "other")) == 0
    parts = ["--data_dir", str(images), "--language_model", language_model, *vision, *TWO_STEPS]
    assert (
        main(["train", *parts, "--features", str(tmp_path / "features"), "--output_dir", str(tmp_path / "run")]) == 2
    )
    assert "not those of this captioner's vision part" in capsys.readouterr().err
    assert extract(images, tmp_path / "features", *vision) == 2  # nor are they mixed
    assert "Use a different folder" in capsys.readouterr().err


def test_a_captioner_of_detected_regions(images, language_model, detector, tmp_path, capsys):
    assert extract(images, tmp_path / "features", "--detector", detector, top_k=4, kind="int8") == 0
    assert "largest rounding error 0.0" in capsys.readouterr().out
    store = FeatureStore(tmp_path / "features" / "train")
    assert len(store) == 10 and store.description.kind == "int8"
    regions = store["scene_003.png"]
    assert regions.features.shape == (4, 16) and regions.boxes.shape == (4, 4) and regions.scores.shape == (4,)
    parts = ["--data_dir", str(images), "--language_model", language_model, *TWO_STEPS]
    assert (
        main(["train", *parts, "--features", str(tmp_path / "features"), "--output_dir", str(tmp_path / "run")]) == 0
    )
    model, _ = load_captioner(str(tmp_path / "run"))
    assert model.config.region_feature_size == 16 and model.config.vision_config is None
    assert model.config.region_extractor["name"].endswith("best 4 queries of score >= 0")


@pytest.mark.parametrize("extractor", [GridExtractor, DetectorExtractor])
def test_killed_and_repeated(images, vision, detector, tmp_path, monkeypatch, extractor):
    """An interrupted and resumed run leaves the same shards as an uninterrupted one."""
    vision = vision if extractor is GridExtractor else ["--detector", detector, "--top_k", "4"]
    monkeypatch.setattr(
        "hf_captioners.features.data_set.FeatureStoreWriter", partial(FeatureStoreWriter, shard_bytes=1)
    )
    assert extract(images, tmp_path / "whole", *vision, batch_size=3) == 0
    call, batches = extractor.__call__, []

    def stopped_in_the_third(self, inputs):
        if len(inputs["pixel_values"]) > 1:  # not the probe of the features' size
            batches.append(len(inputs["pixel_values"]))
            if len(batches) == 3:
                raise KeyboardInterrupt
        return call(self, inputs)

    monkeypatch.setattr(extractor, "__call__", stopped_in_the_third)
    assert extract(images, tmp_path / "killed", *vision, batch_size=3) == 130
    assert len(FeatureStore(tmp_path / "killed" / "train")) == 6
    assert extract(images, tmp_path / "killed", *vision, batch_size=3) == 0
    assert batches == [3, 3, 3, 3]
    assert contents(tmp_path / "killed" / "train") == contents(tmp_path / "whole" / "train")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"split": "dev"}, "has no split 'dev'; there are train"),
        ({"data_options": "image_dir"}, "NAME=VALUE"),
        ({"data_dir": "nowhere"}, "nowhere"),
        ({"vision_model": "nowhere"}, "nowhere is no checkpoint"),
        ({"output": __file__}, "is a file"),
    ],
)
def test_bad_input_is_answered(images, vision_model, tmp_path, capsys, changed, said):
    given = {"data_dir": images, "output": tmp_path / "features", "vision_model": vision_model} | changed
    typed = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    assert main(["extract-features", "--use_cpu", *typed]) == 2
    assert said in capsys.readouterr().err


def test_features_that_are_not_there(images, language_model, vision, tmp_path, capsys):
    parts = ["--data_dir", str(images), "--language_model", language_model, *vision, *TWO_STEPS]
    missing = [*parts, "--features", str(tmp_path / "nowhere"), "--output_dir", str(tmp_path / "run")]
    assert main(["train", *missing]) == 2
    assert "extract-features ... --split train" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_share_the_images(images, vision, tmp_path):
    assert extract(images, tmp_path / "one", *vision, kind="float32", batch_size=1) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    typed = ["extract-features", "--data_dir", str(images), "--output", str(tmp_path / "two"), *vision]
    typed += ["--use_cpu", "--kind", "float32", "--batch_size", "1"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, "-m", "hf_captioners.cli", *typed], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "5 of 10" not in done.stderr and "train: 5 of 10 images computed by this process" in done.stdout
    one, two = FeatureStore(tmp_path / "one" / "train"), FeatureStore(tmp_path / "two" / "train")
    assert sorted(one) == sorted(two) and len(list(Path(tmp_path, "two", "train").glob("regions-00[01]-*"))) == 2
    for image_id in one:
        assert one[image_id].features.tobytes() == two[image_id].features.tobytes()

"""Models that are not supported are refused in one line, before images and weights are read."""

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import PIL.Image
import pytest
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedModel, pipeline

from hf_captioners.architectures import ARCHITECTURES, TRANSFORMERS_CAPTIONERS, Purpose
from hf_captioners.captioning import CaptionBatches
from hf_captioners.cli import main
from hf_captioners.loading import load_captioner, require_supported
from hf_captioners.pipelines import image_captioning
from hf_captioners.pipelines.instructed_checks import COMPARED
from hf_captioners.pipelines.instructed_inputs import CHAT_FAMILIES, PROMPTS
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, SCSTArguments, SCSTTrainer
from tests.unsupported_models import MODELS, write_unsupported

TRAINING = ["--train_dir", "IMAGES", "--validation_share", "0.3", "--output_dir", "OUTPUT", "--model", "MODEL"]
CAPTIONING = {
    "caption": ["caption", "IMAGES", "--model", "MODEL"],
    "caption --output": ["caption", "IMAGES", "--output", "OUTPUT.jsonl", "--model", "MODEL"],
    "caption --sidecar": ["caption", "IMAGES", "--sidecar", "caption", "--model", "MODEL"],
    "evaluate": ["evaluate", "MODEL", "IMAGES", "--split", "train"],
    "serve": ["serve", "MODEL"],
}
UNTRAINED = {
    "train": ["train", *TRAINING],
    "train --use_peft": ["train", "--use_peft", *TRAINING],
    "train --scst": ["train", "--scst", *TRAINING],
}
COMMANDS = {
    "explain": ["explain", "IMAGES/scene_000.png", "--model", "MODEL"],
    "export": ["export", "MODEL", "--output_dir", "OUTPUT"],
}
WITHOUT_TEMPLATE = ("fuyu", "udop")  # no chat template says where an image and an instruction belong


@pytest.fixture(scope="session", params=MODELS)
def unsupported(request, once_a_run):
    """The type of a model that is neither explained nor exported, and its folder."""
    return request.param, once_a_run(request.param, partial(write_unsupported, model_type=request.param))


@pytest.fixture(params=WITHOUT_TEMPLATE)
def uncaptioned(request, tmp_path):
    """The type of a model that is not supported at all, and its folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": request.param}))
    return request.param, folder


@pytest.fixture
def nothing_is_read(monkeypatch):
    """An image or weights that are read end the test."""

    def read(*arguments, **options):
        pytest.fail(f"{arguments} was read")

    monkeypatch.setattr(PIL.Image, "open", read)
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", read)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_in_one_line(command, unsupported, images, tmp_path, capsys, nothing_is_read):
    refused_in_one_line(COMMANDS[command], *unsupported, images, tmp_path, capsys)


@pytest.mark.parametrize("command", CAPTIONING | UNTRAINED)
def test_captioning_and_training_refuse_in_one_line(command, uncaptioned, images, tmp_path, capsys, nothing_is_read):
    refused_in_one_line((CAPTIONING | UNTRAINED)[command], *uncaptioned, images, tmp_path, capsys)


def refused_in_one_line(typed, model_type, folder, images, tmp_path, capsys):
    places = {"IMAGES": images, "OUTPUT": tmp_path / "output", "MODEL": folder}
    command = typed[0]
    for name, place in places.items():
        typed = [text.replace(name, str(place)) for text in typed]
    assert main(typed) == 2
    lines = capsys.readouterr().err.splitlines()
    (refusal,) = [line for line in lines if "error" in line]
    assert lines[-1] == refusal, "the refusal has several lines"
    assert f"{folder} is a model of the type {model_type!r}" in refusal and "captioners of this library" in refusal
    assert ("vision-encoder-decoder" in refusal) == (command not in ("explain", "export"))
    assert "damaged" not in refusal and ".." not in refusal
    assert not (tmp_path / "output.jsonl").exists()


@pytest.mark.parametrize("model_type", WITHOUT_TEMPLATE)
@pytest.mark.parametrize("purpose", Purpose)
def test_other_types_are_refused(model_type, purpose, tmp_path):
    """The configuration alone decides."""
    refused_by_type(model_type, purpose, tmp_path)


@pytest.mark.parametrize("model_type", [*PROMPTS, *CHAT_FAMILIES])
@pytest.mark.parametrize("purpose", [Purpose.EXPLANATION, Purpose.EXPORT])
def test_captioners_that_follow_instructions_are_neither_explained_nor_exported(model_type, purpose, tmp_path):
    refused_by_type(model_type, purpose, tmp_path)


def refused_by_type(model_type, purpose, tmp_path):
    assert model_type in CONFIG_MAPPING
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ValueError, match=f"model of the type {model_type!r}, for which {purpose} is not supported"):
        load_captioner(str(tmp_path), purpose)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_captioners_of_this_library_are_supported(architecture, tmp_path):
    model_type = ARCHITECTURES[architecture].model_type
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    for purpose in Purpose:
        require_supported(str(tmp_path), purpose)
    assert hasattr(CONFIG_MAPPING[model_type], "encoder_inputs")  # by which its objects are known


def test_code_of_a_checkpoint_that_is_not_of_this_library(tmp_path):
    """Whatever its configuration calls itself; and it runs only if it is trusted."""
    (tmp_path / "other.py").write_text(
        "from transformers import PreTrainedConfig\n\n\nclass OtherConfig(PreTrainedConfig):\n    model_type = 'git'\n"
    )
    content = {"model_type": "git", "auto_map": {"AutoConfig": "other.OtherConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="model of the type 'git', for which captioning is not supported"):
        require_supported(str(tmp_path), trust_remote_code=True)
    require_supported(str(tmp_path))


def test_code_of_a_captioner_of_another_package(captioner, tmp_path):
    """Its checkpoint has the code, and its type is not registered here."""
    for file in Path(captioner).iterdir():
        shutil.copy(file, tmp_path)
    for file in (tmp_path / "config.json", tmp_path / "configuration_visualgpt.py"):
        file.write_text(file.read_text().replace('"captioning_visualgpt"', '"captioning_elsewhere"'))
    for purpose in Purpose:
        require_supported(str(tmp_path), purpose, trust_remote_code=True)
    require_supported(str(tmp_path))  # transformers asks whether the code may run


def test_adapters_are_of_their_captioner(unsupported, tmp_path):
    model_type, folder = unsupported
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    with pytest.raises(ValueError, match=f"{folder.name} is a model of the type {model_type!r}"):
        require_supported(str(tmp_path), Purpose.EXPLANATION)


def test_batches_refuse_before_they_read(uncaptioned, images, nothing_is_read):
    caption = CaptionBatches(str(uncaptioned[1]))
    with pytest.raises(ValueError, match="captioning is not supported. Supported: captioners of this library"):
        caption({"image": [str(images / "scene_000.png")]})


@pytest.mark.parametrize("model_type", MODELS)
def test_objects_are_refused(model_type, tmp_path):
    """By the trainers and the pipeline, in which no processor matters."""
    model = MODELS[model_type]()
    parts = {"tokenizer": SimpleNamespace(pad_token_id=0), "image_processor": SimpleNamespace()}
    with pytest.raises(ValueError, match="needs its whole processor"):
        image_captioning.ImageCaptioningPipeline(model=model, **parts)
    model.config.model_type = "fuyu"
    with pytest.raises(ValueError, match="type 'fuyu', for which training is not supported"):
        CaptioningTrainer(model, CaptioningTrainingArguments(str(tmp_path), use_cpu=True))
    with pytest.raises(ValueError, match="type 'fuyu', for which training on rewards is not supported"):
        SCSTTrainer(model, SCSTArguments(str(tmp_path), use_cpu=True), None)
    with pytest.raises(ValueError, match="type 'fuyu', for which this pipeline is not supported"):
        image_captioning.ImageCaptioningPipeline(model=model, **parts)
    with pytest.raises(ValueError, match="for which this pipeline is not supported"):
        pipeline("image-captioning", model=model, **parts)


def test_the_pipeline_of_checkpoints_has_the_same_table():
    captioned = {name for name, purposes in TRANSFORMERS_CAPTIONERS.items() if Purpose.CAPTIONING in purposes}
    assert set(COMPARED) == captioned
    assert all(not hasattr(AutoConfig.for_model(name), "encoder_inputs") for name in ("blip", "git"))


def test_folder_without_configuration(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no config.json, so it is no captioner.$"):
        require_supported(str(tmp_path))


def test_output_folder_of_a_training_that_has_not_ended(tmp_path):
    for step in (90, 200):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(FileNotFoundError, match="its training has not ended.*checkpoint-200.$"):
        require_supported(str(tmp_path))

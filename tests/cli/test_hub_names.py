"""Names of models on the Hub, checked before anything is loaded."""

import json

import pytest
from huggingface_hub import HfApi

from hf_captioners.cli import main
from hf_captioners.cli.paths import check_source
from hf_captioners.loading import read_vision_config
from hf_captioners.training.starting import ModelArguments, check_parts
from tests.hub.loopback_hub import loopback_hub  # noqa: F401

CLOSED = "http://127.0.0.1:9"  # nobody listens


@pytest.fixture
def hub(offline, loopback_hub, monkeypatch, tmp_path):  # noqa: F811
    loopback_hub.use_here(monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    return loopback_hub


def push(name, **config):
    HfApi().create_repo(name)
    HfApi().upload_file(path_or_fileobj=json.dumps(config).encode(), path_in_repo="config.json", repo_id=name)


def test_a_name_that_the_hub_does_not_have(hub, images, capsys):
    with pytest.raises(FileNotFoundError, match="`model`: tester/none is no checkpoint.*no such model on the Hub"):
        check_source("model", "tester/none")
    parts = ["--language_model", "tester/none", "--vision_model", "timm:resnet18"]
    assert main(["train", "--train_dir", str(images), *parts, "--output_dir", "out"]) == 2
    error = capsys.readouterr().err
    assert "`--language_model`: tester/none" in error and error.count("\n") == 1


def test_a_name_of_the_hub_is_not_taken_for_a_missing_folder(hub):
    push("tester/model", model_type="gpt2")
    check_source("language_model", "tester/model")


def test_the_kind_of_a_model_on_the_hub(hub):
    push("tester/vision", model_type="vit", image_size=32)
    push("tester/bert", model_type="bert", vocab_size=9)
    assert read_vision_config("tester/vision").model_type == "vit"
    with pytest.raises(ValueError, match="tester/bert.*'bert' model, which reads `input_ids`"):
        read_vision_config("tester/bert")
    with pytest.raises(ValueError, match="tester/vision.*'vit' model, the decoder needs a 'gpt2'"):
        check_parts(ModelArguments(language_model="tester/vision", vision_model="tester/vision"))


def test_a_hub_that_does_not_answer_is_no_mistake(hub):  # what loads the model asks again
    hub.before = lambda method, path: (_ for _ in ()).throw(RuntimeError("down"))
    check_source("model", "tester/model")


def test_no_connection_to_the_hub(hub, images, captioner, capsys, monkeypatch):
    """The error is one line, at once: the library would try for half a minute; a cached model needs no connection."""
    push("tester/model", model_type="gpt2")
    HfApi().hf_hub_download("tester/model", "config.json")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", CLOSED)
    check_source("language_model", "tester/model")
    for typed in (["caption", str(images), "--model", "tester/other"], ["push", captioner, "tester/mine"]):
        assert main(typed) == 2
        error = capsys.readouterr().err
        assert "there is no connection to the Hub" in error and error.count("\n") == 1, error


def test_a_slow_connection_is_no_missing_one(hub, monkeypatch):
    """Loading the model waits longer than the check of its name."""
    from huggingface_hub.errors import HTTPError

    class ReadTimeout(HTTPError):
        pass

    def slow(*args, **options):
        raise ReadTimeout("timed out")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", slow)
    check_source("model", "tester/model")

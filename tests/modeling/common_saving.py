"""Checks of saving and loading, in this process and in a fresh one, with the package and without."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from transformers import AutoModel, AutoModelForImageTextToText, AutoProcessor

from hf_captioners.modeling.modeling_captioning import CaptioningPreTrainedModel
from tests.comparisons import assert_computed_alike, assert_same_weights
from tests.fork_server import ForkServer

from .common_case import FEATURE_SIZE, IMAGE_SIZE, WAYS_IN, CaptionerCase, assert_close, both_inputs

SCRIPT = Path(__file__).with_name("fresh_process.py")
VISION_PREFIX = "encoder.vision."
LARGE = 64  # elements from which the spread of a tensor is compared


def run_fresh_process(
    fork_server: ForkServer,
    case: CaptionerCase,
    model: Any,
    checkpoint: Path | str,
    folder: Path,
    variables: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Run `fresh_process.py`, in which the package cannot be imported at first, and return `results_of(folder)`.

    Args:
        fork_server: where the process comes from: it has not imported this project.
        case: source of the inputs.
        model: source of the captions.
        checkpoint: a directory, or a name on the Hub.
        folder: directory for the files of the process.
        variables: environment variables; default: no Hub.
    """
    image = folder / "image.png"
    Image.linear_gradient("L").resize((IMAGE_SIZE, IMAGE_SIZE)).convert("RGB").save(image)
    inputs = {way_in: case.inputs(way_in) for way_in in WAYS_IN}
    torch.save({"inputs": inputs, "captions": case.captions(model), "image": str(image)}, folder / "inputs.pt")
    environment = os.environ | (variables or {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(folder / "modules")})
    arguments = [SCRIPT, checkpoint, folder / "inputs.pt", folder / "results.pt", SCRIPT.parents[2], case.package]
    done = fork_server.run(arguments, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return results_of(folder)


def results_of(folder: Path) -> dict[str, Any]:
    """Return what `fresh_process.py` stored, and the path of its image."""
    return torch.load(folder / "results.pt") | {"image": folder / "image.png"}


def names_in(directory: Path) -> set[str]:
    """Return the names of the saved tensors."""
    with safe_open(directory / "model.safetensors", "pt") as file:
        return set(file.keys())


def state_names(model: Any) -> set[str]:
    """Return the names that a checkpoint must contain: every tensor of the state once."""
    state = set(model.state_dict())
    return state - set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else state


def assert_names(saved: set[str], expected: set[str]) -> None:
    """Assert equal names; transformers saves a backbone under the names of its model type on the Hub."""
    assert len(saved) == len(expected)
    assert {name for name in saved if VISION_PREFIX not in name} == {
        name for name in expected if VISION_PREFIX not in name
    }


class SavingChecks(CaptionerCase):
    """Checks 2 to 10, 25 to 27, 30 and 41 of the common suite."""

    def test_save_and_load_keep_every_weight(self, model, checkpoint, place):
        loaded, report = AutoModelForImageTextToText.from_pretrained(checkpoint, output_loading_info=True)
        assert type(loaded) is type(model)
        assert not loaded.training
        assert not any(report.values()), report
        assert_same_weights(loaded, model)
        for way_in in WAYS_IN:
            inputs = {**self.inputs(way_in), "decoder_input_ids": self.captions(model)}
            assert_computed_alike(loaded(**inputs).logits, model(**inputs).logits)

    def test_saved_file_holds_every_weight_once(self, model, checkpoint):
        assert_names(names_in(checkpoint), state_names(model))

    def test_saving_what_was_loaded_keeps_names(self, model, checkpoint, tmp_path):
        AutoModelForImageTextToText.from_pretrained(checkpoint).save_pretrained(tmp_path)
        assert names_in(tmp_path) == names_in(checkpoint)
        again, report = AutoModelForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values()), report
        assert_same_weights(again, model)

    def test_trunk_and_captioner_load_each_other(self, model, checkpoint, tmp_path):
        trunk, report = AutoModel.from_pretrained(checkpoint, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"], report
        assert_same_weights(trunk, model.model)
        trunk.save_pretrained(tmp_path)
        captioner, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
        assert not report["unexpected_keys"], report
        head = {"lm_head.bias"} | (set() if model.config.tie_word_embeddings else {"lm_head.weight"})
        head |= dict(model.named_buffers(recurse=False)).keys()
        assert set(report["missing_keys"]) <= head, report
        assert_same_weights(captioner.model, model.model)

    def test_missing_weights_get_their_law(self, monkeypatch, tmp_path):
        """Parameters that a checkpoint lacks are initialised as in a new model."""
        fresh = AutoModelForImageTextToText.from_config(self.make_model().config)
        kept = "model.encoder.vision.model.layernorm.weight"
        fresh.save_pretrained(tmp_path, state_dict={kept: fresh.state_dict()[kept]})
        for name in ("empty", "empty_like"):
            monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
        loaded, report = type(fresh).from_pretrained(tmp_path, output_loading_info=True)
        assert set(report["missing_keys"]) >= state_names(fresh) - {kept}
        theirs = dict(loaded.named_parameters()) | dict(loaded.named_buffers())
        for name, tensor in (dict(fresh.named_parameters()) | dict(fresh.named_buffers())).items():
            assert_same_law(name, theirs[name], tensor)

    def test_every_module_is_initialized(self, monkeypatch):
        """`_init_weights` gets every module, also those without parameters of their own."""
        seen, original = set(), CaptioningPreTrainedModel._init_weights
        monkeypatch.setattr(
            CaptioningPreTrainedModel, "_init_weights", lambda model, part: (seen.add(part), original(model, part))
        )
        fresh = AutoModelForImageTextToText.from_config(self.make_model().config)
        missed = [name for name, part in fresh.named_modules() if ".vision" not in name and part not in seen]
        assert not missed

    def test_load_from_state_dict(self, model):
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert_same_weights(type(model).from_pretrained(None, config=model.config, state_dict=state), model)

    def test_tied_weights(self, model, checkpoint):
        """With tying, input and output embeddings are one tensor, after loading too."""
        for one in (model, type(model).from_pretrained(checkpoint)):
            tied = one.config.tie_word_embeddings
            assert (one.get_output_embeddings().weight is one.get_input_embeddings().weight) == tied

    def test_untied_weights(self, tmp_path):
        model = self.make_model(tie_word_embeddings=False)
        ours, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        assert ours is not embedding and not torch.equal(ours, embedding)
        model.save_pretrained(tmp_path)
        assert_names(names_in(tmp_path), set(model.state_dict()))
        assert_same_weights(type(model).from_pretrained(tmp_path), model)

    def test_mismatched_shapes(self, checkpoint):
        """Weights of other sizes are an error unless `ignore_mismatched_sizes` is set."""
        with pytest.raises(RuntimeError, match="size mismatch|ignore_mismatched_sizes"):
            AutoModelForImageTextToText.from_pretrained(checkpoint, region_feature_size=FEATURE_SIZE + 3)
        loaded, report = AutoModelForImageTextToText.from_pretrained(
            checkpoint, region_feature_size=FEATURE_SIZE + 3, ignore_mismatched_sizes=True, output_loading_info=True
        )
        assert report["mismatched_keys"]
        assert all(torch.isfinite(parameter).all() for parameter in loaded.parameters())

    def test_load_under_device_context(self, model, checkpoint):
        with torch.device("cpu"):
            assert_same_weights(type(model).from_pretrained(checkpoint), model)
        with torch.device("meta"):
            skeleton = type(model)(model.config)
        assert {parameter.device.type for parameter in skeleton.parameters()} == {"meta"}

    def test_pickle(self, model, place, tmp_path):
        torch.save(model, tmp_path / "model.pt")
        again = torch.load(tmp_path / "model.pt", weights_only=False)
        place(again)
        assert_same_weights(again, model)
        inputs = {**self.inputs("regions"), "decoder_input_ids": self.captions(model)}
        assert_computed_alike(again(**inputs).logits, model(**inputs).logits)

    def test_dtype_is_saved(self, model, tmp_path):
        halved = self.make_model().to(torch.bfloat16)
        halved.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path)
        assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
        assert_same_weights(loaded, halved)
        single = type(model).from_pretrained(tmp_path, dtype=torch.float32)
        assert {parameter.dtype for parameter in single.parameters()} == {torch.float32}

    def test_generation_config_is_saved(self, tmp_path):
        model = self.make_model()
        model.generation_config.update(num_beams=4, max_new_tokens=7)
        model.generation_config.bookkeeping = "live"
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).generation_config
        assert (loaded.num_beams, loaded.max_new_tokens, loaded.bookkeeping) == (4, 7, "live")
        assert loaded.eos_token_id == model.config.eos_token_id

    def test_frozen_backbone_stays_frozen(self, model, checkpoint):
        for one in (model, type(model).from_pretrained(checkpoint)):
            vision = one.model.encoder.vision
            one.train()
            assert not any(parameter.requires_grad for parameter in vision.parameters())
            assert not any(module.training for module in vision.modules())
            assert one.model.encoder.training and one.model.decoder.training
            one.eval()

    def test_processor_round_trip(self, checkpoint):
        processor, again = self.make_processor(), AutoProcessor.from_pretrained(checkpoint)
        assert type(again) is type(processor)
        image = Image.linear_gradient("L")
        ours, theirs = (one(images=image, text="a dog", return_tensors="pt") for one in (processor, again))
        assert_same_inputs(theirs, ours)


class FreshProcessChecks(CaptionerCase):
    """Checks 2 and 44 of the common suite in a fresh process, with the package and without."""

    def test_package_was_absent(self, fresh_process):
        assert "No module named 'hf_captioners'" in fresh_process["import_error"]
        assert fresh_process["imported"] == []
        assert all(name.startswith("transformers_modules.") for name in fresh_process["without"]["modules"])
        assert all(name.startswith(f"{self.package}.") for name in fresh_process["with"]["modules"])

    def test_loading_runs_only_what_the_captioner_needs(self, fresh_process, model):
        """No code that loads pretrained vision models, and that of detectors only for a captioner with a detector."""
        assert "loading_vision" not in fresh_process["executed"]
        assert ("layers_detector" in fresh_process["executed"]) == model.config.has_detector

    @both_inputs
    @pytest.mark.parametrize("package", ["with", "without"])
    def test_fresh_process_gives_equal_logits(self, fresh_process, model, package, way_in):
        inputs = {**self.inputs(way_in), "decoder_input_ids": self.captions(model)}
        with torch.no_grad():
            assert_computed_alike(fresh_process[package]["logits"][way_in], model(**inputs).logits)
            assert_computed_alike(fresh_process[package]["hidden"][way_in], model.model(**inputs).last_hidden_state)

    @pytest.mark.parametrize("package", ["with", "without"])
    def test_fresh_process_gives_equal_captions(self, fresh_process, model, package):
        captions = model.generate(**self.inputs("regions"), num_beams=3, max_new_tokens=6)
        assert torch.equal(fresh_process[package]["captions"], captions)

    @pytest.mark.parametrize("package", ["with", "without"])
    def test_fresh_processor_gives_equal_inputs(self, fresh_process, package):
        expected = self.make_processor()(images=Image.open(fresh_process["image"]), text="a dog", return_tensors="pt")
        assert_same_inputs(fresh_process[package]["processed"], expected)

    def test_fresh_pipeline_gives_equal_caption(self, fresh_process, model):
        processor = self.make_processor()
        pixels = processor(images=Image.open(fresh_process["image"]), return_tensors="pt")["pixel_values"]
        text = processor.post_process_image_text_to_text(model.generate(pixel_values=pixels, max_new_tokens=6))
        assert [record["generated_text"] for record in fresh_process["without"]["pipeline"]] == text
        assert fresh_process["with"]["text"] == fresh_process["without"]["text"] == text


def assert_same_inputs(actual: Any, expected: Any) -> None:
    """Assert equal tokens, and images within 1/255 before normalisation, as the fast path is to the exact one."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_close(actual[name], tensor, atol=1 / 255 / 0.22 if tensor.is_floating_point() else 0)


def poisoned(make: Any) -> Any:
    """Return `make` with memory filled with NaN."""

    def make_poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() and tensor.device.type != "meta" else tensor

    return make_poisoned


def assert_same_law(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert finite values: equal for a constant initialisation, otherwise of similar mean and spread."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, name
    assert torch.isfinite(actual).all(), f"{name} is not finite"
    actual, expected = actual.float(), expected.float()
    if expected.numel() < 2 and expected.item() not in (0, 1):
        return  # a random number says nothing about its law
    if expected.numel() < 2 or expected.std() == 0 or not expected.is_floating_point():
        assert torch.equal(actual, expected), (
            f"{name} is {actual.flatten()[:3]}, a new model has {expected.flatten()[:3]}"
        )
    elif expected.numel() >= LARGE:
        assert 0.6 < actual.std() / expected.std() < 1.6, f"{name}: std {actual.std():.3g}, new {expected.std():.3g}"
        assert (actual.mean() - expected.mean()).abs() < expected.std(), f"{name}: mean {actual.mean():.3g}"

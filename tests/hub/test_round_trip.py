"""A captioner of every architecture is pushed and loaded in a fresh process, with and without the package."""

import pytest
import torch
from PIL import Image

from hf_captioners.hub.pushing import push_checkpoint
from tests.comparisons import assert_computed_alike
from tests.modeling.common_saving import run_fresh_process

from .captioner_cases import NAMES, save_captioner

MAX_FILES_OF_CODE = 22  # code of detectors and of pretrained backbones has files of its own, which are imported on use


@pytest.mark.parametrize("name", NAMES)
def test_push_and_pull(name, loopback_hub, fork_server, monkeypatch, tmp_path):
    loopback_hub.use_here(monkeypatch, tmp_path / "home")
    case, model = save_captioner(name, tmp_path / "captioner")
    push_checkpoint(tmp_path / "captioner", "tester/captioner")
    pushed = loopback_hub.repository("tester/captioner")
    assert [commit.title for commit in pushed.branches["main"]] == ["initial commit", "Upload captioner"]
    assert {"model.safetensors", "config.json", "generation_config.json", "README.md"} <= pushed.files().keys()
    assert len([path for path in pushed.files() if path.endswith(".py")]) <= MAX_FILES_OF_CODE

    environment = loopback_hub.environment(tmp_path / "fresh")
    found = run_fresh_process(fork_server, case, model, "tester/captioner", tmp_path, environment)
    assert "No module named 'hf_captioners'" in found["import_error"] and found["imported"] == []
    with torch.no_grad():
        captions = model.generate(**case.inputs("regions"), num_beams=3, max_new_tokens=6)
        inputs = {**case.inputs("regions"), "decoder_input_ids": case.captions(model)}
        logits = model(**inputs).logits
        processor = case.make_processor()
        pixels = processor(images=Image.open(found["image"]), return_tensors="pt")["pixel_values"]
        texts = processor.post_process_image_text_to_text(model.generate(pixel_values=pixels, max_new_tokens=6))
    for package, module in (("with", f"{case.package}."), ("without", "transformers_modules.tester.captioner.")):
        result = found[package]
        assert all(name.startswith(module) for name in result["modules"]), result["modules"]
        assert torch.equal(result["captions"], captions)
        assert_computed_alike(result["logits"]["regions"], logits)
        assert [record["generated_text"] for record in result["pipeline"]] == texts == result["text"]

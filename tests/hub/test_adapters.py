"""LoRA adapters of a captioner: push, load and merge."""

import peft
import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_captioners.cli import main
from hf_captioners.hub.card_merging import read_card
from hf_captioners.hub.pushing import push_checkpoint
from hf_captioners.loading import adapter_settings, base_of_adapter, load_captioner
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

from .captioner_cases import NAMES, save_captioner


def load_adapted(name):
    """Load an adapter of the Hub, which has no processor, with its captioner, which has none either."""
    settings = adapter_settings(name)
    assert base_of_adapter(name, settings) == "tester/base"
    return AutoModelForImageTextToText.from_pretrained(name)


@pytest.mark.parametrize("name", NAMES)
def test_lora_round_trip(name, hub, tmp_path):
    """Logits are equal after base and adapter are pushed, loaded and merged, and after the merged model is pushed."""
    case, _ = save_captioner(name, tmp_path / "base")
    push_checkpoint(tmp_path / "base", "base")
    base = AutoModelForImageTextToText.from_pretrained("tester/base")
    adapted = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    ).eval()
    inputs = {**case.inputs("regions"), "decoder_input_ids": case.captions(base)}
    with torch.no_grad():
        expected = adapted(**inputs).logits
    adapted.save_pretrained(tmp_path / "adapter")
    push_checkpoint(tmp_path / "adapter", "adapter")
    pushed = hub.repository("tester/adapter").files()
    assert pushed.keys() == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    card = read_card(pushed["README.md"].decode(), "there")
    assert card.metadata["library_name"] == "peft" and card.metadata["base_model"] == ["tester/base"]
    assert (
        "More Information Needed" not in card.generated
        and 'load_captioner("tester/adapter")  # with tester/base' in card.generated
    )

    again = AutoModelForImageTextToText.from_pretrained("tester/base")
    with torch.no_grad():
        assert not torch.allclose(again(**inputs).logits, expected, atol=1e-2)
        merged = peft.PeftModel.from_pretrained(again, "tester/adapter").merge_and_unload()
        torch.testing.assert_close(merged(**inputs).logits, expected, atol=1e-4, rtol=0)
        apart = load_adapted("tester/adapter")
        torch.testing.assert_close(apart(**inputs).logits, expected, atol=1e-4, rtol=0)
        merged.push_to_hub("merged")
        whole = AutoModelForImageTextToText.from_pretrained("tester/merged")
        torch.testing.assert_close(whole(**inputs).logits, expected, atol=1e-4, rtol=0)


def save_adapter(base, folder):
    config = peft.LoraConfig(target_modules="all-linear", r=2, init_lora_weights=False)
    peft.get_peft_model(AutoModelForImageTextToText.from_pretrained(base), config).save_pretrained(folder)


def test_an_adapter_of_a_directory_is_refused(hub, saved, tmp_path):
    save_adapter(saved, tmp_path / "adapter")
    with pytest.raises(ValueError, match="which is not on the Hub. Push that one first"):
        push_checkpoint(tmp_path / "adapter", "adapter")
    assert not hub.repositories


def test_an_adapter_is_pushed_merged(hub, saved, tmp_path, capsys):
    save_adapter(saved, tmp_path / "adapter")
    assert main(["push", str(tmp_path / "adapter"), "merged", "--merge_adapter"]) == 0
    files = hub.repository("tester/merged").files()
    assert {"model.safetensors", "processor_config.json", "config.json"} <= files.keys()
    assert "adapter_config.json" not in files
    image = torch.randn(2, 3, 32, 32)
    sources = ("tester/merged", str(tmp_path / "adapter"), str(saved))
    logits = [
        load_captioner(one)[0](pixel_values=image, decoder_input_ids=torch.ones(2, 3, dtype=torch.long)).logits
        for one in sources
    ]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=0)
    assert not torch.allclose(logits[0], logits[2], atol=1e-2)
    assert main(["push", str(saved), "merged", "--merge_adapter"]) == 2
    assert "is no adapter" in capsys.readouterr().err


def test_a_training_that_could_not_be_pushed_is_refused(hub, saved, tmp_path):
    model, processor = load_captioner(str(saved))
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))
    arguments = CaptioningTrainingArguments(str(tmp_path / "run"), use_cpu=True, push_to_hub=True, eval_strategy="no")
    with pytest.raises(ValueError, match="which is not on the Hub. Push that one first.*--merge_adapter"):
        CaptioningTrainer(model, arguments, processing_class=processor)
    assert not hub.repositories

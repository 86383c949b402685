"""LoRA adapters of a captioner: push, load and merge."""

import peft
import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_captioners.hub.card_merging import read_card
from hf_captioners.hub.pushing import push_checkpoint

from .captioner_cases import NAMES, save_captioner


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
        and 'PeftModel.from_pretrained(model, "tester/adapter")' in card.generated
    )

    again = AutoModelForImageTextToText.from_pretrained("tester/base")
    with torch.no_grad():
        assert not torch.allclose(again(**inputs).logits, expected, atol=1e-2)
        merged = peft.PeftModel.from_pretrained(again, "tester/adapter").merge_and_unload()
        torch.testing.assert_close(merged(**inputs).logits, expected, atol=1e-4, rtol=0)
        merged.push_to_hub("merged")
        whole = AutoModelForImageTextToText.from_pretrained("tester/merged")
        torch.testing.assert_close(whole(**inputs).logits, expected, atol=1e-4, rtol=0)


def test_an_adapter_of_a_directory_is_refused(hub, saved, tmp_path):
    base = AutoModelForImageTextToText.from_pretrained(saved)
    peft.get_peft_model(base, peft.LoraConfig(target_modules="all-linear")).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="which is not on the Hub. Push that one first"):
        push_checkpoint(tmp_path / "adapter", "adapter")
    assert not hub.repositories

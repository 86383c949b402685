"""`hf-captioners train --use_peft`, and the adapter in the other commands and in pipelines."""

import json

from transformers import pipeline

from hf_captioners.cli import main

FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "5"]


def test_train_caption_and_go_on(images, captioner, tmp_path, capsys):
    data, adapter = ["--train_dir", str(images), "--validation_share", "0.3"], str(tmp_path / "adapter")
    lora = ["--use_peft", "--lora-r", "4", "--lora_target_modules", "c_attn", "q_proj", "--learning_rate", "1e-2"]
    base = ["train", *data, *FAST, "--model", captioner, "--recipe", "none", "--max_steps", "2"]
    assert main([*base, *lora, "--output_dir", adapter]) == 0
    said = capsys.readouterr().out
    assert f"A VisualGPTForConditionalGeneration from the captioner {captioner} with a LoRA adapter." in said
    assert "frozen: " in said
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert settings["r"] == 4 and settings["lora_alpha"] == 32 and sorted(settings["target_modules"])[0] == "c_attn"

    photo = str(images / "scene_000.png")
    assert main(["caption", photo, "--model", adapter, "--num_beams", "1", "--max_new_tokens", "5"]) == 0
    shown = capsys.readouterr().out
    caption = pipeline("image-captioning", model=adapter)(photo, generate_kwargs={"num_beams": 1, "max_new_tokens": 5})
    assert caption[0]["generated_text"] and caption[0]["generated_text"] in shown
    assert main(["evaluate", adapter, str(images), "--split", "held_out", "--max_new_tokens", "4"]) == 0

    rewarded = ["train", *data, *FAST, "--model", adapter, "--scst", "--max_steps", "1", "--num_samples", "2"]
    assert main([*rewarded, "--output_dir", str(tmp_path / "rewarded"), "--eval_strategy", "no"]) == 0
    again = json.loads((tmp_path / "rewarded/adapter_config.json").read_text())
    assert again["base_model_name_or_path"] == captioner and again["r"] == 4

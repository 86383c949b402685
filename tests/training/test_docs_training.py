"""The code blocks of the pages on training run, with small local models instead of those they name."""

import copy
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
)

from hf_captioners.cli import command_parser, load_command, main
from hf_captioners.training import SCSTArguments

REPOSITORY = Path(__file__).parents[2]
PAGES = ("training.md", "training_recipes.md", "self_critical.md", "adapters.md")
PAGE = "".join((REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
SMALL = {
    "timm:resnet50.a1_in1k": "vision",
    "nlpconnect/vit-gpt2-image-captioning": "vision_gpt2",
    "distilgpt2": "gpt2",
}
FAST = ["--use_cpu", "--generation_max_new_tokens", "4", "--generation_num_beams", "1", "--disable_tqdm", "true"]


def blocks(language):
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    for name, small in SMALL.items():
        found = [block.replace(name, small) for block in found]
    return found


@pytest.fixture
def place(tmp_path, monkeypatch, scenes, tokenizer):
    """A folder with `my_images`, an image, and the small models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for split in ("train", "validation"):
        folder = tmp_path / "my_images" / split
        folder.mkdir(parents=True)
        with open(folder / "metadata.jsonl", "w") as file:
            for index, row in enumerate(scenes[split]):
                row["image"].save(folder / f"{index}.png")
                file.write(json.dumps({"file_name": f"{index}.png", "captions": row["captions"]}) + "\n")
    scenes["train"][0]["image"].save("photo.jpg")
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer._set_processor_class(None)  # a tokenizer that was saved with a processor names it
    text = GPT2Config(vocab_size=len(tokenizer), n_positions=96, n_embd=32, n_layer=1, n_head=2, eos_token_id=0)
    GPT2LMHeadModel(text).save_pretrained("gpt2")
    tokenizer.save_pretrained("gpt2")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained("vision")
    joined = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        ViTConfig(**sizes, image_size=32, patch_size=8), text
    )
    joined.decoder_start_token_id, joined.pad_token_id = tokenizer.bos_token_id, tokenizer.pad_token_id
    VisionEncoderDecoderModel(joined).save_pretrained("vision_gpt2")
    tokenizer.save_pretrained("vision_gpt2")
    for folder in ("vision", "vision_gpt2"):
        ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return tmp_path


def test_python(place, capsys):
    names = {}
    for block in blocks("python"):
        exec(compile(block.replace("num_train_epochs=3", "num_train_epochs=1"), "training.md", "exec"), names)
    assert names["model"].config.model_type == "vision-encoder-decoder"
    assert (place / "my_python_captioner" / "model.safetensors").is_file()
    assert (place / "my_merged_captioner" / "model.safetensors").is_file()


def commands():
    return [shlex.split(line) for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines()]


def test_the_first_commands(place):
    first, caption, *_ = commands()
    assert main([*first[1:], "--num_train_epochs", "1", *FAST]) == 0
    assert main(caption[1:]) == 0


@pytest.mark.slow
def test_all_commands(place, capsys):
    recipe = blocks("yaml")[0]
    (place / "recipe.yaml").write_text(recipe)
    first, caption, with_recipe, recurrent, explain, transformer, graph, aoanet, pretrain, rewarded, *adapted = (
        commands()
    )
    assert main([*first[1:], "--num_train_epochs", "1", *FAST]) == 0
    assert main(caption[1:]) == 0
    assert main([*with_recipe[1:], "--output_dir", "my_captioner", "--resume", *FAST]) == 2
    assert "is of a different model" in capsys.readouterr().err
    assert main([*with_recipe[1:], *FAST]) == 0
    assert "at epoch" in capsys.readouterr().out
    assert main([*recurrent[1:], "--num_train_epochs", "1", *FAST]) == 0
    assert main(explain[1:]) == 0
    for line in (transformer, graph, aoanet):
        assert main([*line[1:], "--num_train_epochs", "1", *FAST]) == 0
    assert main([*rewarded[1:], "--num_train_epochs", "1", "--scst_after_epochs", "1", *FAST]) == 0
    assert (place / "my_rewarded_captioner" / "start" / "model.safetensors").is_file()
    adapt, caption_with_it = adapted
    assert main([*adapt[1:], "--max_steps", "1", *FAST]) == 0
    assert main(caption_with_it[1:]) == 0
    assert pretrain[0] == "python"


def test_published_schedules_are_flags(tmp_path):
    """The command line reads every option of that table with its value."""
    table = PAGE.split("## Published schedules")[1].split("\n\n")[1]
    spans = [shlex.split(span) for span in re.findall(r"`(--[^`]*)`", table)]
    parser = command_parser("train", load_command("train"))
    kinds = set()
    for typed in spans:
        args = parser.parse_args(["--output_dir", str(tmp_path), "--use_cpu", *typed])
        names = (field.name for field in dataclasses.fields(SCSTArguments))
        training = SCSTArguments(**{name: getattr(args, name) for name in names if hasattr(args, name)})
        kinds.add(str(getattr(training.lr_scheduler_type, "value", training.lr_scheduler_type)))
        if "--lr_scheduler_kwargs" in typed:
            assert training.lr_scheduler_kwargs["factor"] in (0.8, 0.5)
    assert len(spans) >= 12
    assert kinds == {"noam", "step_decay", "constant", "reduce_lr_on_plateau"}


def test_the_sweep(place, capsys):
    """A turn of the loop, and the table's second run, with a trained encoder."""
    recipe, (loop, *_) = blocks("yaml")[0], blocks("sh")
    (place / "recipe.yaml").write_text(recipe)
    (command,) = [line for line in loop.splitlines() if "hf-captioners" in line]
    assert main([*shlex.split(command.replace("$tau", "0.1"))[1:], "--num_train_epochs", "1", *FAST]) == 0
    state = json.loads((place / "runs" / "tau_0.1" / "trainer_state.json").read_text())
    assert "best_metric" in state
    (second,) = re.findall(r"a second run: `(.*?)`", PAGE)
    flags = shlex.split(second.replace("FIRST_RUN", "runs/tau_0.1"))
    arguments = ["--train_dir", "my_images", "--output_dir", "runs/second", "--max_steps", "1", *FAST]
    assert main(["train", *flags, *arguments]) == 0
    saved = json.loads((place / "runs" / "second" / "config.json").read_text())
    assert saved["freeze_vision"] is False
    assert saved["srau_threshold"] == 0.1


@pytest.mark.slow
def test_the_language_model_example(place, fork_server):
    (command,) = [shlex.split(line) for block in blocks("bash") for line in block.splitlines() if "examples" in line]
    import gzip

    with gzip.open("novels.txt.gz", "wt") as file:
        file.write("It was a bright cold day.\n\nThe dog ran over the hill.\n" * 40)
    assert command[0] == "python"
    command[1] = str(REPOSITORY / command[1])
    command[command.index("4000")] = "400"
    fork_server.run([*command[1:], "--use_cpu", "--bf16", "--block_size", "32"], check=True)
    model = GPT2LMHeadModel.from_pretrained("my_language_model")
    assert (model.config.n_embd, model.config.n_layer) == (128, 3)
    assert model.config.vocab_size <= 400

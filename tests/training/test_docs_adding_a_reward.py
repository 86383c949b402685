"""The page about adding a reward, followed step by step, with small local models."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from hf_captioners.cli import main

from .scst_settings import scst_trainer

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_reward.md").read_text(encoding="utf-8")
EXAMPLE = Path(__file__).parents[2] / "examples" / "rewards_in_trl.py"
FILE, IN_TRL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FAST = ["--use_cpu", "--disable_tqdm", "true", "--max_steps", "1", "--logging_steps", "1", "--num_samples", "2"]
FAST += ["--generation_num_beams", "1", "--generation_max_new_tokens", "4", "--evaluate_loss", "false"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards.py").write_text(FILE)
    yield tmp_path
    sys.modules.pop("my_rewards", None)


def test_the_command(folder, scenes, make_captioner, processor):
    make_captioner().save_pretrained("my_captioner")
    processor.save_pretrained("my_captioner")
    for split in ("train", "validation"):
        images = folder / "my_images" / split
        images.mkdir(parents=True)
        with open(images / "metadata.jsonl", "w") as file:
            for index, row in enumerate(scenes[split]):
                row["image"].save(images / f"{index}.png")
                file.write(json.dumps({"file_name": f"{index}.png", "captions": row["captions"]}) + "\n")
    (command,) = re.findall(r"```bash\nhf-captioners (.*?)\n```", PAGE, re.DOTALL)
    assert main([*shlex.split(command), *FAST]) == 0
    log = json.loads(Path("my_rewarded_captioner/trainer_state.json").read_text())["log_history"]
    entry = next(entry for entry in log if "reward" in entry)
    parts = [entry[f"reward_{name}"] for name in ("cider_d", "shares_words", "brightness")]
    assert entry["reward"] == pytest.approx(parts[0] + 0.5 * parts[1] + 0.1 * parts[2], abs=1e-4)


def test_what_the_functions_get(folder, scenes, make_captioner, processor):
    """The table of keywords is complete, and the functions of the page give their values."""
    namespace, seen = {}, {}
    exec(FILE, namespace)

    def watch(completions, images, **columns):
        seen.update(columns, completions=completions, images=images)
        return [0.0] * len(completions)

    functions = [watch, namespace["brightness"], namespace["shares_words"]]
    trainer = scst_trainer(make_captioner(), processor, scenes, folder / "run", functions)
    values = trainer.rewards(["a red circle", "dark"], [0, 1], [True, False], ["a red circle", "dark"])
    table = PAGE.split("| keyword |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:])))
    assert set(seen) - {"image_id", "split", "scene", "objects"} == named  # and the columns of the data set
    is_dark = [image.convert("L").resize((1, 1)).getpixel((0, 0)) < 64 for image in seen["images"]]
    assert values[:, 1].tolist() == [float(not is_dark[0]), float(is_dark[1])]
    words = {word for text in seen["references"][0] for word in text.lower().split()}
    assert values[0, 2] == pytest.approx(sum(word in words for word in ("a", "red", "circle")) / 3)


def test_in_trl(folder, monkeypatch):
    trl = pytest.importorskip("trl", reason="the extra `test` installs trl")
    from .tiny_language_models import CAPTIONS, vision_language_model, words_tokenizer

    torch.manual_seed(0)
    from PIL import Image

    images = [Image.new("RGB", (16, 16), (shade, 0, 0)) for shade in (10, 200)]
    prompts = [[{"role": "user", "content": "a red circle"}]] * 2
    model, processor = vision_language_model(words_tokenizer())
    made = trl.GRPOConfig

    def on_a_cpu(*args, **options):
        return made(*args, **options, use_cpu=True, bf16=False, max_completion_length=4, report_to=[])

    monkeypatch.setattr(trl, "GRPOConfig", on_a_cpu)
    rows = Dataset.from_dict({"prompt": prompts, "captions": CAPTIONS, "image": images})
    scope = {"model": model, "processor": processor, "rows": rows}
    exec(IN_TRL, scope)
    log = scope["trainer"].state.log_history
    assert scope["trainer"].state.global_step == 1 and log


def test_the_example_in_trl(folder, monkeypatch, capsys):
    """`examples/rewards_in_trl.py` on a tiny LLaVA: rewards above 0, and a saved model whose weights have changed."""
    pytest.importorskip("trl", reason="the extra `test` installs trl")
    from transformers import AutoModelForImageTextToText

    from .tiny_language_models import vision_language_model, words_tokenizer

    torch.manual_seed(0)
    model, processor = vision_language_model(words_tokenizer())
    model.save_pretrained("tiny")
    processor.save_pretrained("tiny")
    typed = "--model tiny --output_dir trained --images 2 --image_size 64 --steps 2 --generations 2 --use_cpu"
    monkeypatch.setattr(sys, "argv", ["rewards_in_trl.py", *typed.split(), "--learning_rate", "1e-2"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    rewards = [float(re.search(r"rouge_l ([0-9.]+)", line)[1]) for line in lines]
    assert len(lines) == 2 and max(rewards) > 0, lines
    trained = AutoModelForImageTextToText.from_pretrained("trained")
    before = dict(model.named_parameters())
    assert any(not torch.equal(weight, before[name]) for name, weight in trained.named_parameters())

"""The page about rewards in TRL, followed step by step, with small untrained models."""

import json
import re
import runpy
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_captioners.cli import main
from hf_captioners.loading import load_captioner
from tests.tiny_families import CHAT_FAMILIES, write_family
from tests.variants import slow_unless

trl = pytest.importorskip("trl", reason="the extra `test` installs trl")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rewards_in_trl.md").read_text(encoding="utf-8")
IN_TRL, ROWS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
_, EXAMPLE, WITHOUT_TEMPLATE = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
NAMED = re.search(r"The script ran for.*?\n\n", PAGE, re.DOTALL)[0]
TESTED = re.search(r"`(--images [^`]*)`", PAGE)[1]


@pytest.fixture
def folder_of(once_a_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda name: once_a_run(f"family_{name}", partial(write_family, model_type=name))


@pytest.fixture
def my_images(tmp_path, scenes):
    folder = tmp_path / "my_images"
    folder.mkdir()
    with open(folder / "metadata.jsonl", "w") as file:
        for index, row in enumerate(scenes["train"]):
            row["image"].save(folder / f"{index}.png")
            file.write(json.dumps({"file_name": f"{index}.png", "captions": row["captions"], "split": "train"}) + "\n")
    return folder


def test_the_lines_of_the_page(folder_of, my_images, monkeypatch):
    made = trl.GRPOConfig

    def on_a_cpu(*args, **options):
        return made(*args, **options, use_cpu=True, bf16=False, max_completion_length=4, report_to=[])

    monkeypatch.setattr(trl, "GRPOConfig", on_a_cpu)
    model, processor = load_captioner(str(folder_of("qwen3_vl")))
    scope = {"model": model, "processor": processor}
    exec(ROWS, scope)
    exec(IN_TRL, scope)
    log = scope["trainer"].state.log_history
    assert scope["trainer"].state.global_step == 1 and "rewards/rouge_l/mean" in log[0]


def test_the_page_names_all_families_with_a_chat_template():
    assert set(re.findall(r"`(\w+)`", NAMED)) == set(CHAT_FAMILIES)


@pytest.mark.parametrize("model_type", slow_unless(("qwen3_vl",).__contains__, CHAT_FAMILIES))
def test_the_example(model_type, folder_of, monkeypatch, capsys):
    """Rewards are printed, and the weights of the saved model have changed."""
    folder = str(folder_of(model_type))
    typed = shlex.split(EXAMPLE.replace("Qwen/Qwen3-VL-2B-Instruct", folder))
    assert typed[0] == "python" and folder in typed
    typed += [*TESTED.split(), "--learning_rate", "1e-2", "--max_new_tokens", "16"]
    monkeypatch.setattr(sys, "argv", typed[1:])
    runpy.run_path(str(ROOT / typed[1]), run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    rewards = [float(re.search(r"rouge_l ([0-9.]+)", line)[1]) for line in lines]
    assert len(lines) == 2 and all(0 <= reward <= 1 for reward in rewards), lines
    if model_type == "qwen3_vl":
        assert max(rewards) > 0, lines
        before = dict(AutoModelForImageTextToText.from_pretrained(folder).named_parameters())
        trained = AutoModelForImageTextToText.from_pretrained("my_vision_language_model")
        assert any(not torch.equal(weight, before[name]) for name, weight in trained.named_parameters())


def test_models_without_a_chat_template(folder_of, my_images):
    """TRL refuses them, and the command of the page trains them."""
    folder = str(folder_of("florence2"))
    typed = shlex.split(WITHOUT_TEMPLATE.replace("\\\n", "").replace("florence-community/Florence-2-base-ft", folder))
    fast = ["--use_cpu", "--max_steps", "1", "--generation_max_new_tokens", "4", "--num_samples", "2"]
    assert main([*typed[1:], *fast]) == 0
    assert Path("my_florence", "adapter_config.json").exists()
    model, processor = load_captioner(folder)
    rows = trl_rows()
    options = trl.GRPOConfig("out", use_cpu=True, bf16=False, report_to=[], max_steps=1)
    with pytest.raises(Exception, match="chat template"):
        trl.GRPOTrainer(model, [len], args=options, train_dataset=rows, processing_class=processor).train()


def trl_rows():
    scope = {}
    exec(ROWS, scope)
    return scope["rows"]

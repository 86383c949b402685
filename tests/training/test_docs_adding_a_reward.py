"""The page about adding a reward, followed step by step, with small local models."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from hf_captioners.cli import main

from .scst_settings import scst_trainer

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_reward.md").read_text(encoding="utf-8")
(FILE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
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

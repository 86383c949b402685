"""The blocks of docs/hub.md run in their order, against the loopback Hub."""

import json
import re
import shlex
from pathlib import Path

from PIL import Image

from hf_captioners.cli import main
from tests.modeling.gpt2_parts import tiny_gpt2_tokenizer
from tests.parity.figures import Figures

from .captioner_cases import save_captioner
from .released_files import words, write_modules, write_visualgpt

PAGE = Path(__file__).parents[2] / "docs" / "hub.md"
ELSEWHERE = ("hf ",)  # commands of another program


def released_checkpoints() -> list[str]:
    """Files of the authors' form, and what the page's command needs for so small ones."""
    figures, other = Figures.load("visualgpt/main"), Figures.load("show_attend_tell/main")
    sizes = figures.config
    write_visualgpt(Path("VisualGPT_best.pth"), figures.weights, sizes)
    tokenizer = tiny_gpt2_tokenizer()
    tokenizer.add_tokens([f"<{index}>" for index in range(sizes["vocab_size"] - len(tokenizer))])
    tokenizer.save_pretrained("gpt2")
    write_modules(Path("BEST_checkpoint.pth.tar"), other.weights, other.config["options"])
    table = {word: index + 1 for index, word in enumerate(words(other.config["options"]["vocab_size"] - 4))}
    Path("WORDMAP.json").write_text(json.dumps(table))
    return [f"{name}={sizes[name]}" for name in ("bos_token_id", "eos_token_id", "pad_token_id")]


def test_blocks_run(hub, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    save_captioner("visualgpt", tmp_path / "my_captioner")
    Image.linear_gradient("L").convert("RGB").save("photo.jpg")
    ids = released_checkpoints()
    names: dict = {}
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    ran = 0
    for language, text in blocks:
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            ran += 1
            continue
        for line in text.strip().splitlines():
            line = line.removeprefix("HF_HUB_OFFLINE=1 ")
            if line.startswith(ELSEWHERE):
                continue
            command, *arguments = shlex.split(line)
            assert command == "hf-captioners"
            if "n_head=4" in arguments:
                arguments += ["--set", *ids]
            assert main(arguments) == 0, line
            ran += 1
    assert ran >= 10
    assert {"captioner", "captioner-adapter"} <= {name.split("/")[1] for _, name in hub.repositories}

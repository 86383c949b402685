"""The code blocks of docs/hub.md and the examples in docstrings run, against the loopback Hub."""

import inspect
import json
import re
import shlex
from pathlib import Path

from PIL import Image
from transformers import AutoProcessor

from hf_captioners.cli import main
from hf_captioners.hub.convert.converting import convert_checkpoint
from hf_captioners.hub.pushing import push_checkpoint, push_model
from hf_captioners.hub.serving import push_space
from tests.modeling.gpt2_parts import tiny_gpt2_tokenizer
from tests.parity.figures import Figures

from .captioner_cases import save_captioner
from .released_files import words, write_modules, write_visualgpt

PAGE = Path(__file__).parents[2] / "docs" / "hub.md"
ELSEWHERE = ("hf ",)  # commands of a different program


def released_checkpoints() -> dict[str, int]:
    """Write checkpoints of the authors' form; return the token ids of their small vocabulary."""
    figures, other = Figures.load("visualgpt/main"), Figures.load("show_attend_tell/main")
    sizes = figures.config
    write_visualgpt(Path("VisualGPT_best.pth"), figures.weights, sizes)
    tokenizer = tiny_gpt2_tokenizer()
    tokenizer.add_tokens([f"<{index}>" for index in range(sizes["vocab_size"] - len(tokenizer))])
    tokenizer.save_pretrained("gpt2")
    write_modules(Path("BEST_checkpoint.pth.tar"), other.weights, other.config["options"])
    table = {word: index + 1 for index, word in enumerate(words(other.config["options"]["vocab_size"] - 4))}
    Path("WORDMAP.json").write_text(json.dumps(table))
    return {name: sizes[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


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
                arguments += ["--set", *(f"{name}={token}" for name, token in ids.items())]
            assert main(arguments) == 0, line
            ran += 1
    assert ran >= 10
    assert {"captioner", "captioner-adapter"} <= {name.split("/")[1] for _, name in hub.repositories}


def test_examples_in_docstrings_run(hub, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    _, model = save_captioner("visualgpt", tmp_path / "my_captioner")
    ids = released_checkpoints()

    def convert_small(*arguments, settings, **options):
        return convert_checkpoint(*arguments, settings=settings | ids, **options)

    names = {"push_checkpoint": push_checkpoint, "push_space": push_space, "convert_checkpoint": convert_small}
    names |= {"model": model, "processor": AutoProcessor.from_pretrained("my_captioner")}
    for function in (push_checkpoint, push_model, push_space, convert_checkpoint):
        (block,) = re.findall(r"^```python\n(.*?)^```", inspect.getdoc(function), flags=re.M | re.S)
        exec(compile(block, function.__name__, "exec"), names)
    assert hub.repository("tester/captioner").private
    assert "app.py" in hub.repository("tester/captioner", "space").files()
    assert AutoProcessor.from_pretrained("converted").tokenizer.bos_token_id == ids["bos_token_id"]

"""Access tokens never reach a file of a run."""

import pickle
import sys
import zipfile

import torch

from hf_captioners.cli import main
from hf_captioners.loading import load_captioner
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"


def files_with(folder, text):
    """Files that contain a text, in clear or in an entry of a zip archive."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            contents = [path.read_bytes()]
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    contents += [archive.read(name) for name in archive.namelist()]
            if any(text.encode() in content for content in contents):
                found.append(str(path.relative_to(folder)))
    return found


def test_no_file_of_a_run_has_the_token_and_the_trainer_keeps_it(scenes, captioner, tmp_path):
    model, processor = load_captioner(captioner)
    saves = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "no", "per_device_train_batch_size": 4}
    settings = {"max_steps": 1, "use_cpu": True, "disable_tqdm": True, "hub_token": TOKEN, "project": "said in clear"}
    arguments = CaptioningTrainingArguments(str(tmp_path / "run"), **settings, **saves)
    trainer = CaptioningTrainer(model, arguments, scenes, processing_class=processor)
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    assert files_with(tmp_path, TOKEN) == []
    places = ["run/checkpoint-1/training_args.bin", "run/training_args.bin"]
    assert files_with(tmp_path, "said in clear") == places, "the search finds text in these files"
    saved = torch.load(tmp_path / places[1], weights_only=False)
    assert (saved.hub_token, saved.max_steps) == (None, 1)
    assert trainer.args.hub_token == arguments.hub_token == TOKEN
    assert pickle.loads(pickle.dumps(trainer.args)).hub_token == TOKEN, "processes still receive it"


def test_results_of_recipes_do_not_have_the_token(tmp_path):
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "table1_row.yaml").write_text(
        "dataset: scenes\nreproduces:\n  paper: toy\n  table: 1\n  row: a row\n  seeds: [0]\n  regimes:\n"
        "    all:\n      arguments: {max_steps: 1}\n      published: {bleu_4: [19.5]}\n"
    )
    stub = tmp_path / "stub.py"  # stands in for Python, and checks that it receives the token
    stub.write_text(
        "import json, sys\nvalue = lambda name: sys.argv[sys.argv.index(name) + 1]\n"
        f"assert value('--hub_token') == 'hf_' + {TOKEN[3:]!r}\n"
        "open(value('--output_dir') + '/test_results.json', 'w').write('{\"bleu_4\": 0.2}')\n"
        "open(value('--output_dir') + '/calls', 'a').write('called ')\n"
    )
    typed = ["reproduce", "toy", "--recipes", str(recipes), "--output_dir", str(tmp_path / "out")]
    typed += ["--launcher", f"{sys.executable} {stub}", "--hub_token", TOKEN]
    for _ in range(2):
        assert main(typed) == 0
    assert files_with(tmp_path, TOKEN) == []
    assert next(tmp_path.rglob("calls")).read_text() == "called ", "a run that is done is known by its arguments"

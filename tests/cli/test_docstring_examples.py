"""The examples in docstrings of what the commands call, run in a folder where their names exist."""

import importlib
import re
import shutil

import pytest

EXAMPLES = {
    "hf_captioners.training.running": ["train_captioner"],
    "hf_captioners.training.parser": ["read_arguments"],
    "hf_captioners.captioning.batches": ["caption_batches"],
    "hf_captioners.captioning.caption_files": ["CaptionFile"],
    "hf_captioners.captioning.data_set": ["caption_data_set"],
    "hf_captioners.captioning.scoring": ["score_files"],
    "hf_captioners.explain.explanation": ["explain_caption"],
}
FEW = "max_steps=1, use_cpu=True, generation_num_beams=1, generation_max_new_tokens=5"
FEW_OF_RECIPE = (
    '"output_dir": "my_lstm_of_a_recipe", "image_size": 32, "max_steps": 1, "use_cpu": True, "validation_share": 0.3, '
    '"generation_num_beams": 1, "min_word_count": 1}'
)


@pytest.fixture
def place(tmp_path, monkeypatch, images, captioner, word_captioner):  # noqa: F811
    """A folder with images, captioners and files of captions."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(images, "my_images/train")
    shutil.copytree(images, "my_images/test")
    shutil.copytree(images, "flickr8k")
    shutil.copytree(images, "holiday")
    shutil.copy(images / "scene_000.png", "photo.jpg")
    shutil.copytree(word_captioner, "my_lstm")
    lines = (images / "metadata.jsonl").read_text().splitlines()
    for name in ("predictions.jsonl", "other.jsonl"):
        text = "\n".join(re.sub(r'"captions": \["([^"]*)".*', r'"caption": "\1"}', line) for line in lines)
        (tmp_path / name).write_text(text)
    shutil.copytree(images, "references.json")
    return tmp_path


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in EXAMPLES.items() for name in names])
def test_example(module, name, place, captioner, language_model, vision_model):
    if name != "train_captioner":
        shutil.copytree(captioner, "my_captioner")
    (code,) = re.findall(r"```python\n(.*?)```", getattr(importlib.import_module(module), name).__doc__, re.DOTALL)
    code = re.sub(r"^ {8}", "", code, flags=re.MULTILINE)
    if name == "read_arguments":
        code = code.replace('"output_dir": "my_captioner"}', FEW_OF_RECIPE)
    if name == "score_files":
        code = code.replace('"captions.jsonl"', '"predictions.jsonl"')
    for named, local in (
        ("distilgpt2", language_model),
        ("timm:resnet50.a1_in1k", vision_model),
        ("num_train_epochs=3", FEW),
        ('train_dir="my_images"', 'train_dir="my_images", validation_share=0.3'),
    ):
        code = code.replace(named, local)
    exec(compile(code, name, "exec"), {})

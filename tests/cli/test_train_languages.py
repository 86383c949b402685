"""`hf-captioners train` on captions in other languages: refused with what to type, or trained, never silent."""

import json
import shutil

import pytest

from hf_captioners.cli import main
from hf_captioners.loading import load_captioner

FAST = ["--use_cpu", "--disable_tqdm", "true", "--generation_num_beams", "1", "--generation_max_new_tokens", "8"]
GERMAN = ["Ein Hund läuft über die Straße.", "Zwei Katzen sitzen auf dem Sofa", "Das Mädchen spielt Fußball!"]
CHINESE = ["一只狗在海滩上奔跑。", "两只猫坐在沙发上", "一个女孩在踢足球。"]


@pytest.fixture
def folder_of(images, tmp_path):
    def make(captions):
        folder = tmp_path / "data"
        shutil.copytree(images, folder)
        table = folder / "metadata.jsonl"
        rows = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
        for number, row in enumerate(rows):
            row["captions"] = [captions[number % 3], captions[(number + 1) % 3]]
        table.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return str(folder)

    return make


def test_german_for_an_english_captioner_is_refused_before_the_first_step(folder_of, tmp_path, capsys):
    output = tmp_path / "run"
    typed = ["train", "--model", "default", "--train_dir", folder_of(GERMAN), "--output_dir", str(output), *FAST]
    assert main([*typed, "--num_train_epochs", "2", "--validation_share", "0.3"]) == 2
    message = capsys.readouterr().err
    assert (
        "training captions" in message
        and "are unknown" in message
        and "'mädchen'" in message
        and "--language_model" in message
    )
    assert not (output / "model.safetensors").exists()


def test_chinese_is_refused_for_ptb_and_trained_by_characters(folder_of, vision_model, tmp_path, capsys):
    parts = ["--architecture", "show_attend_tell", "--vision_model", vision_model, "--min_word_count", "1"]
    typed = ["train", "--train_dir", folder_of(CHINESE), *parts, *FAST, "--validation_share", "0.3"]
    typed += ["--max_steps", "2", "--per_device_train_batch_size", "4", "--output_dir"]
    assert main([*typed, str(tmp_path / "refused")]) == 2
    assert "--caption_tokenizer characters" in capsys.readouterr().err
    output = tmp_path / "run"
    chinese = ["--caption_tokenizer", "characters", "--language", "zh", "--generation_max_new_tokens", "32"]
    assert main([*typed, str(output), *chinese]) == 0
    model, processor = load_captioner(str(output))
    assert model.generation_config.max_new_tokens == 32, "its captions may be as long as those of its evaluations"
    assert (
        processor.decode(processor(text_target=["一只狗在海滩上。"], return_tensors="pt")["labels"][0])
        == "一只狗在海滩上"
    )
    card = (output / "README.md").read_text(encoding="utf-8")
    assert "language: zh" in card and "Tokenizer: `characters`" in card

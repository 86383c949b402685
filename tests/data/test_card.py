"""Dataset cards state what was loaded, its splits and what was left out."""

import pytest
from huggingface_hub import DatasetCard

from hf_captioners.data import DataReport
from hf_captioners.data.card import dataset_card


def test_card_of_a_folder(load, tmp_path, image):
    image(tmp_path / "own" / "a.png")
    (tmp_path / "own" / "captions.txt").write_text("a.png\tA dog runs\na.png\tA dog\ngone.png\tA cat\n")
    report = DataReport()
    made = dataset_card("caption_folder", load("caption_folder", tmp_path / "own", report=report), report)
    made.save(tmp_path / "README.md")
    saved = DatasetCard.load(tmp_path / "README.md")
    assert saved.data.task_ids == ["image-captioning"] and saved.data.size_categories == ["n<1K"]
    card = str(made)
    assert card == str(saved)
    assert "| train | 1 | 2 | 2 to 2 | 2 to 3, mean 2.5 |" in card
    assert "Reported while loading: 1 x missing image." in card
    assert str(tmp_path) not in card, "local paths are omitted"


def test_card_states_the_protocol(load):
    options = {"num_images": {"train": 5}, "image_size": 32}
    card = str(dataset_card("scenes", load("scenes", **options), DataReport(), **options))
    assert "`num_images={'train': 5}`" in card and "`seed=0`" in card and "Licence: Apache-2.0." in card
    assert "Every row of the source is included." in card
    with pytest.raises(ValueError, match="has no option sed"):
        dataset_card("scenes", {}, sed=1)


def test_card_of_a_seeded_split_says_so(material, load):
    options = {"protocol": "visualgpt", "with_images": False}
    report = DataReport()
    reports = load("iu_xray", material / "iu_xray", report=report, **options)
    card = str(dataset_card("iu_xray", reports, report, **options))
    assert "drawn by seed" in card and "never published" in card and "`seed=0`" in card
    assert "| train | 2,770 | 2,770 | 1 to 1 |" in card and "514 x study without the sections asked for" in card

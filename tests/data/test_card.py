"""Cards say what was loaded, how it was divided and what was left out."""

import pytest
import yaml

from hf_captioners.data import DataReport
from hf_captioners.data.card import dataset_card


def test_card_of_a_folder(load, tmp_path, image):
    image(tmp_path / "own" / "a.png")
    (tmp_path / "own" / "captions.txt").write_text("a.png\tA dog runs\na.png\tA dog\ngone.png\tA cat\n")
    report = DataReport()
    card = dataset_card("caption_folder", load("caption_folder", tmp_path / "own", report=report), report)
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["task_ids"] == ["image-captioning"] and metadata["size_categories"] == ["n<1K"]
    assert "| train | 1 | 2 | 2 to 2 | 2 to 3, mean 2.5 |" in card
    assert "Reported while loading: 1 x missing image." in card
    assert str(tmp_path) not in card, "no path of this machine is told"


def test_card_tells_the_protocol(load):
    options = {"num_images": {"train": 5}, "image_size": 32}
    card = dataset_card("scenes", load("scenes", **options), DataReport(), **options)
    assert "`num_images={'train': 5}`" in card and "`seed=0`" in card and "Licence: Apache-2.0." in card
    assert "Every row of the source is here." in card
    with pytest.raises(ValueError, match="has no option sed"):
        dataset_card("scenes", {}, sed=1)


def test_card_of_a_seeded_split_says_so(material, load):
    options = {"protocol": "visualgpt", "with_images": False}
    report = DataReport()
    card = dataset_card("iu_xray", load("iu_xray", material / "iu_xray", report=report, **options), report, **options)
    assert "drawn by seed" in card and "never published" in card and "`seed=0`" in card
    assert "| train | 2,770 | 2,770 | 1 to 1 |" in card and "514 x study without the sections asked for" in card

"""Low-data subsets: the released draw to the id, nesting, lists that others reuse."""

import json
from pathlib import Path

import pytest
from datasets import Dataset

from hf_captioners.data.subsets import CaptionSubset, draw_subset, released_subset

# Shares in the papers: VisualGPT 0.1, 0.5 and 1 % (and 5 to 100 % in its Figure 7).
PUBLISHED_SHARES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
PROCEDURES = Path(__file__).parents[1] / "parity" / "fixtures" / "visualgpt_procedures" / "procedures.json"


def rows(with_ids):
    made = [
        {"image_id": f"p{number}", "captions": [f"{number} {k}" for k in range(1 + number % 5)], "split": "train"}
        for number in range(200)
    ]
    if with_ids:
        for number, row in enumerate(made):
            row["caption_ids"] = [number * 10 + k for k in range(len(row["captions"]))]
    return Dataset.from_list(made)


@pytest.mark.parametrize("case", range(3))
def test_the_released_draw(case):
    drawn = json.loads(PROCEDURES.read_text())["low_data_sampling"][case]
    train, restval = (
        range(int(first), int(last) + 1)
        for first, last in (drawn[name].split("..") for name in ("train_ids", "restval_ids"))
    )
    subset = released_subset(train, restval, drawn["train_percentage"], drawn["seed"])
    assert [int(name) for name in subset.ids] == drawn["chosen_train"] + drawn["chosen_restval"]


@pytest.mark.parametrize("with_ids", [True, False])
def test_captions_of_images_can_part(with_ids, tmp_path):
    dataset = rows(with_ids)
    subset = draw_subset(dataset, 0.1, "caption", seed=3)
    part = subset.of(dataset)
    assert sum(map(len, part["captions"])) == len(subset.ids) == 60
    whole = dict(zip(dataset["image_id"], dataset["captions"], strict=True))
    for row in part:
        assert (
            row["captions"] and [text for text in whole[row["image_id"]] if text in row["captions"]] == row["captions"]
        )
        if with_ids:
            number = int(row["image_id"][1:])
            assert row["captions"] == [
                whole[row["image_id"]][caption_id - number * 10] for caption_id in row["caption_ids"]
            ]
    assert any(len(row["captions"]) < len(whole[row["image_id"]]) for row in part)
    subset.save(tmp_path / "list.json")
    assert CaptionSubset.load(tmp_path / "list.json") == subset
    assert CaptionSubset.load(tmp_path / "list.json").of(dataset)["captions"][:] == part["captions"][:]


def test_images_keep_all_their_captions():
    dataset = rows(True)
    part = draw_subset(dataset, 0.05, "image").of(dataset)
    assert len(part) == 10
    assert all(row["captions"] == dataset[int(row["image_id"][1:])]["captions"] for row in part)


@pytest.mark.parametrize("unit", ["caption", "image"])
def test_nested_and_independent_draws(unit):
    dataset = rows(True)
    nested = [set(draw_subset(dataset, share, unit, seed=1).ids) for share in PUBLISHED_SHARES]
    assert all(small <= large for small, large in zip(nested, nested[1:], strict=False))
    assert len(nested[-1]) == (600 if unit == "caption" else 200)
    assert set(draw_subset(dataset, 0.2, unit, seed=2).ids) != nested[5]
    apart = [set(draw_subset(dataset, share, unit, seed=1, nested=False).ids) for share in (0.05, 0.1)]
    assert not apart[0] <= apart[1]
    assert set(draw_subset(dataset, 0.1, unit, seed=1, nested=False).ids) == apart[1], "the same again"


def test_errors_say_what_is_wrong(tmp_path):
    dataset = rows(True)
    with pytest.raises(ValueError, match=r"`share` is 50; expected more than 0, at most 1 \(1 % is 0.01\)"):
        draw_subset(dataset, 50)
    with pytest.raises(ValueError, match="`unit` is 'photo'"):
        draw_subset(dataset, 0.5, "photo")
    subset = CaptionSubset("image", 0.1, 0, "by hand", ("p1", "nobody"))
    with pytest.raises(ValueError, match="lacks 1 of the 2 images of the subset, such as nobody"):
        subset.of(dataset)
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ValueError, match="is not a subset"):
        CaptionSubset.load(tmp_path / "x.json")

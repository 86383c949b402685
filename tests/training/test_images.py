"""Pairs of image and caption, their order, and their batches."""

import pytest
import torch
from datasets import Dataset

from hf_captioners.processing.processing_captioning import pad_inputs
from hf_captioners.training.collator import CaptionCollator, SeparateCaptions
from hf_captioners.training.images import CaptionedImages, CaptionPairs, CaptionSampler

ROWS = Dataset.from_dict(
    {"image": ["a", "b", "c"], "captions": [["a0"], ["b0", "b1", "b2"], ["c0", "c1"]], "image_id": ["x", "y", "z"]}
)


def test_pairs_are_every_image_with_every_caption():
    pairs = CaptionPairs(CaptionedImages(ROWS))
    found = [(pair["image"], pair["caption"]) for pair in (pairs[index] for index in range(len(pairs)))]
    assert found == [("a", "a0"), ("b", "b0"), ("b", "b1"), ("b", "b2"), ("c", "c0"), ("c", "c1")]


def test_an_epoch_of_all_captions_sees_each_pair_once_in_a_new_order():
    sampler = CaptionSampler([0] * 50 + [1] * 50, None, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert sorted(first) == sorted(second) == list(range(100)) == list(range(len(sampler)))
    assert first != second


def test_the_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        sampler = CaptionSampler([0] * 50 + [1] * 50, 20, seed)
        sampler.set_epoch(epoch)
        list(sampler)  # drawing once does not change what is drawn next
        return list(sampler)

    assert order(1, 3) == order(1, 3)
    assert order(1, 3) != order(2, 3)
    assert order(1, 3) != order(1, 4)


@pytest.mark.parametrize("count", [1, 2])
def test_some_captions_of_each_image_are_drawn_without_repetition(count):
    image_of = [0, 1, 1, 1, 2, 2]
    sampler = CaptionSampler(image_of, count, seed=0)
    seen = set()
    for epoch in range(30):
        sampler.set_epoch(epoch)
        drawn = list(sampler)
        assert len(drawn) == len(set(drawn)) == len(sampler)
        images = [image_of[pair] for pair in drawn]
        assert [images.count(image) for image in range(3)] == [1, min(3, count), min(2, count)]
        seen.update(drawn)
    assert seen == set(range(6))  # over the epochs every caption is drawn


def test_captions_of_an_image_can_stay_together():
    image_of = [index // 5 for index in range(100)]
    sampler = CaptionSampler(image_of, 3, seed=0, together=True)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        images = [image_of[pair] for pair in sampler]
        assert len(images) == 60 and all(len(set(images[at : at + 3])) == 1 for at in range(0, 60, 3))
        orders.append(images)
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("rows", "error", "expected"),
    [
        (ROWS.remove_columns("captions"), ValueError, "`captions`"),
        (ROWS.remove_columns("image"), ValueError, "`image`"),
        (ROWS.select([]), ValueError, "no rows"),
        (ROWS.to_iterable_dataset(), TypeError, "Streamed"),
    ],
)
def test_unusable_data_sets_are_refused(rows, error, expected):
    with pytest.raises(error, match=expected):
        CaptionedImages(rows)


def test_an_image_without_captions_is_named():
    rows = Dataset.from_dict({"image": ["a", "b"], "captions": [["a0"], []], "image_id": ["x", "y"]})
    with pytest.raises(ValueError, match="'y'"):
        CaptionPairs(CaptionedImages(rows))


def test_batches_of_one_length():
    """Sorted into batches whose order is random; every pair once; an incomplete batch is the last."""
    lengths = [5, 9, 7] * 34
    sampler = CaptionSampler(range(102), None, seed=0, lengths=lengths, batch_size=10)
    pairs = list(sampler)
    assert sorted(pairs) == list(range(102))
    batches = [[lengths[pair] for pair in pairs[start : start + 10]] for start in range(0, 102, 10)]
    assert sum(len(set(batch)) == 1 for batch in batches) >= 8
    means = [sum(batch) / len(batch) for batch in batches[:10]]
    assert means != sorted(means) and batches[-1] == [9, 9]
    sampler.set_epoch(1)
    assert list(sampler) != pairs


class OnePixel(SeparateCaptions):
    """Encoder that encodes an image as its name."""

    declared_inputs = {"attribute_ids": "ids"}

    def encode_images(self, images):
        return {"pixel_values": torch.tensor([[ord(image["image"])] for image in images])}

    def encode_columns(self, columns, images):
        padded = pad_inputs(columns, self.declared_inputs, images)
        return {name: torch.from_numpy(values) for name, values in padded.items()}

    def encode_captions(self, captions):
        return {"labels": torch.tensor([[len(caption)] for caption in captions])}


def test_ids_beside_images_are_padded_and_masked():
    """Ids per image, once per image in shared batches, and for images and batches without ids."""
    rows = ROWS.add_column("attribute_ids", [[7, 8, 9], [], [0]])
    images = CaptionedImages(rows, declared_inputs={"attribute_ids": "ids"})
    pairs = CaptionPairs(images)
    batch = CaptionCollator(OnePixel())([pairs[index] for index in (0, 3, 5)])
    assert batch["attribute_ids"].tolist() == [[7, 8, 9], [0, 0, 0], [0, 0, 0]]
    assert batch["attribute_mask"].tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert batch["attribute_ids"].dtype == torch.int64 and batch["attribute_mask"].dtype == torch.bool
    assert batch["pixel_values"].tolist() == [[ord("a")], [ord("b")], [ord("c")]]
    shared = CaptionCollator(OnePixel(), share_images=True)([pairs[index] for index in (4, 5, 1, 2)])
    assert shared["attribute_mask"].tolist() == [[True], [False]] and len(shared["labels"]) == 4
    alone = CaptionCollator(OnePixel())([images[1]])
    assert alone["attribute_ids"].tolist() == [[0]] and alone["attribute_mask"].tolist() == [[False]]
    assert CaptionCollator(OnePixel())([CaptionedImages(ROWS)[0]]).keys() == {"pixel_values"}
    without = CaptionedImages(ROWS, declared_inputs={"attribute_ids": "ids"})
    assert "declared" not in without[0], "a declared input may be missing: the model decides what it needs"

"""Features are computed once, equal those of the model, and are refused by different extractors."""

import numpy as np
import pytest
import torch
from datasets import Dataset, Image, List

from hf_captioners.data.image_digests import image_digests
from hf_captioners.features.cache import FeatureCache, can_cache
from hf_captioners.features.feature_store import FeatureStore
from hf_captioners.features.region_rows import require_stored_rows
from hf_captioners.training.collator import CaptionCollator, ForeignEncoder
from hf_captioners.training.images import CaptionedImages


@pytest.fixture
def images(scenes):
    return CaptionedImages(scenes["train"])


def cache_of(directory, model, processor, **options):
    return FeatureCache(directory, model, processor, batch_size=5, shard_bytes=1, **options)  # a shard a batch


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.0), ("float16", 2e-3)])
def test_stored_features_are_those_of_the_model(tmp_path, make_captioner, processor, images, dtype, tolerance):
    model = make_captioner()
    stored = cache_of(tmp_path, model, processor, dtype=dtype).features_of(images.rows)
    assert len(stored) == len(images) == 12
    for row in (0, 4, 5, 11):
        pixels = processor(images=[images[row]["image"]], return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            direct = model.get_region_features(pixels)
        np.testing.assert_allclose(
            stored[row]["region_features"], direct.region_features[0], atol=max(tolerance, 1e-6)
        )
        np.testing.assert_allclose(stored[row]["region_boxes"], direct.region_boxes[0], atol=1e-6)


def test_an_image_is_the_same_by_a_link_to_its_folder(tmp_path, scenes):
    (tmp_path / "images").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "images", target_is_directory=True)
    for number in range(2):
        scenes["train"][number]["image"].save(tmp_path / "images" / f"{number}.png")
    rows = {
        name: Dataset.from_dict({"image": [str(tmp_path / name / f"{n}.png") for n in range(2)]}).cast_column(
            "image", Image()
        )
        for name in ("images", "link")
    }
    assert image_digests(rows["images"]) == image_digests(rows["link"])
    assert len(set(image_digests(rows["link"]))) == 2


def test_features_are_computed_once(tmp_path, make_captioner, processor, images, monkeypatch):
    model = make_captioner()
    computed = cache_of(tmp_path, model, processor).features_of(images.rows)
    computed = [computed[row]["region_features"] for row in range(12)]
    monkeypatch.setattr(FeatureCache, "_extract", lambda *_: pytest.fail("computed again"))
    for same in (model, make_captioner()):
        stored = cache_of(tmp_path, same, processor).features_of(images.rows)
        np.testing.assert_array_equal([stored[row]["region_features"] for row in range(len(stored))], computed)


def test_a_killed_build_is_resumed(tmp_path, make_captioner, processor, images, monkeypatch):
    model = make_captioner()
    whole = cache_of(tmp_path / "whole", model, processor).features_of(images.rows)
    extract, calls = FeatureCache._extract, []

    def killed_at_the_second_batch(self, batch):
        calls.append(len(batch["pixel_values"]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return extract(self, batch)

    monkeypatch.setattr(FeatureCache, "_extract", killed_at_the_second_batch)
    with pytest.raises(KeyboardInterrupt):
        cache_of(tmp_path / "killed", model, processor).features_of(images.rows)
    resumed = cache_of(tmp_path / "killed", model, processor).features_of(images.rows)
    assert calls == [5, 5, 5, 2]  # the second batch again, the first never
    for row in range(12):  # within one step of float16
        np.testing.assert_allclose(
            resumed[row]["region_features"], whole[row]["region_features"], rtol=1e-3, atol=1e-5
        )


def test_a_different_extractor_gets_its_own_features(tmp_path, make_captioner, processor, images):
    first = cache_of(tmp_path, make_captioner(seed=0), processor)
    second = cache_of(tmp_path, make_captioner(seed=1), processor)
    layer = cache_of(tmp_path, make_captioner(seed=0, vision_feature_layer=0), processor)
    stored = first.features_of(images.rows)
    assert len({cache.features_of(images.rows).source.folder for cache in (first, second, layer)}) == 3
    with pytest.raises(ValueError, match="vision part"):
        require_stored_rows(stored.source, second.extractor, stored.keys)


def test_unfinished_features_are_refused(tmp_path, make_captioner, processor, images):
    cache = cache_of(tmp_path, make_captioner(), processor)
    stored = cache.features_of(images.rows)
    next(stored.source.folder.glob("regions-*-00001.safetensors")).unlink()
    with pytest.raises(ValueError, match="7 of 12"):
        require_stored_rows(FeatureStore(stored.source.folder), cache.extractor, stored.keys)


def test_features_that_do_not_fit_are_refused(tmp_path, make_captioner, processor, images, monkeypatch):
    model = make_captioner()
    with torch.no_grad():
        for parameter in model.model.encoder.vision.model.layernorm.parameters():
            parameter.fill_(1e6)
    with pytest.raises(ValueError, match="float32"):
        cache_of(tmp_path, model, processor).features_of(images.rows)


def test_data_sets_share_what_they_have_in_common(tmp_path, make_captioner, processor, scenes, monkeypatch):
    """There is one store per extractor: a second data set adds only its own images, and each image is stored once."""
    cache, computed = cache_of(tmp_path, make_captioner(), processor), []
    extract = FeatureCache._extract
    monkeypatch.setattr(
        FeatureCache,
        "_extract",
        lambda self, batch: computed.append(len(batch["pixel_values"])) or extract(self, batch),
    )
    first = cache.features_of(CaptionedImages(scenes["train"].select(range(4))).rows)
    rows = scenes["train"].select([2, 5, 3, 5])
    second = cache.features_of(CaptionedImages(rows).rows)
    assert computed == [4, 1]
    np.testing.assert_array_equal(second[0]["region_features"], first[2]["region_features"])
    np.testing.assert_array_equal(second[1]["region_features"], second[3]["region_features"])
    assert first.source.folder == second.source.folder


def test_views_are_one_set_of_regions(tmp_path, make_captioner, processor, scenes):
    drawn = scenes["train"]["image"]
    rows = Dataset.from_dict({"images": [drawn[:2], drawn[2:3]], "captions": [["a"], ["b"]]})
    images = CaptionedImages(rows.cast_column("images", List(Image())))
    cache = cache_of(tmp_path, make_captioner(), processor, dtype="float32")
    images.features = cache.features_of(images.rows)
    batch = CaptionCollator(None)([images[0], images[1]])
    single = cache.features_of(CaptionedImages(scenes["train"].select([1, 2])).rows)
    assert batch["region_features"].shape == (2, 32, 16) and batch["region_boxes"].shape == (2, 32, 4)
    assert batch["region_mask"].sum(1).tolist() == [32, 16] and batch["region_mask"][1, :16].all()
    np.testing.assert_allclose(batch["region_features"][0, 16:], single[0]["region_features"], atol=1e-6)
    np.testing.assert_allclose(batch["region_features"][1, :16], single[1]["region_features"], atol=1e-6)


def test_views_are_learned_from_without_stored_features(make_captioner, make_trainer, processor, scenes):
    """Training and evaluation with a backbone that learns, too: views in batches give what their regions give."""
    images = scenes["train"]["image"]
    studies = [images[:2], images[2:3], images[3:5], images[5:6]]
    rows = Dataset.from_dict({"images": studies, "captions": [["a red circle"], ["b"], ["a"], ["c"]]})
    rows = rows.cast_column("images", List(Image()))
    losses = {}
    for frozen in (True, False):
        for cached in (True, False):
            model = make_captioner(freeze_vision=frozen)
            trainer = make_trainer(
                model,
                train_rows=rows,
                eval_rows=rows,
                cache_features=cached,
                feature_cache_dtype="float32",
                num_train_epochs=1,
                evaluate_loss=True,
            )
            before = trainer.evaluate()["eval_loss"]
            trainer.train()
            losses[frozen, cached] = before, trainer.evaluate()["eval_loss"]
            assert (trainer._feature_cache is not None) == (frozen and cached)
    np.testing.assert_allclose(losses[True, True], losses[True, False], rtol=1e-4)
    np.testing.assert_allclose([losses[key][0] for key in losses], losses[True, True][0], rtol=1e-4)
    assert losses[False, False][1] < losses[False, False][0]


def test_captioners_of_transformers_refuse_views(scenes):
    with pytest.raises(ValueError, match="max_views=1"):
        ForeignEncoder.encode_images(None, [{"images": scenes["train"]["image"][:2]}])


def test_a_trained_backbone_is_not_cached(make_captioner):
    assert can_cache(make_captioner())
    assert not can_cache(make_captioner(freeze_vision=False))

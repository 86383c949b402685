"""A captioner trains on stored features, and refuses those of a different extractor."""

import numpy as np
import pytest
import torch
from transformers import DetrImageProcessor

from hf_captioners.features.agreement import require_own_features
from hf_captioners.features.cache import vision_part
from hf_captioners.features.extraction import DetectorExtractor
from hf_captioners.features.feature_store import FeatureStore, OtherExtractorError, StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.region_source import Regions
from hf_captioners.features.regions_column import store_regions, with_regions
from tests.modeling.tiny_detectors import make_detector


@pytest.fixture
def store_of(tmp_path, scenes):
    """Store the regions of all scenes."""

    def write(extract, description, prepare=list):
        with FeatureStoreWriter(tmp_path / "features", description) as writer:
            for rows in scenes.values():
                store_regions(rows, extract, writer, prepare=prepare)
        return FeatureStore(tmp_path / "features")

    return write


def strips(images):
    """Regions of different number, of the images' own colours."""
    rows = [np.asarray(image, np.float32).mean(axis=1) / 255 for image in images]
    return [Regions(row[: 5 + index % 3]) for index, row in enumerate(rows)]


def test_features_of_its_own_vision_part_train_as_images_do(store_of, scenes, make_trainer, make_captioner, processor):
    """The losses of two epochs are those of training on the images with cached features."""
    model = make_captioner()
    own = vision_part(model, processor)
    store = store_of(own, own.description("float16"), own.prepare)
    curves = []
    for rows in (scenes, {name: with_regions(part, store) for name, part in scenes.items()}):
        trainer = make_trainer(make_captioner(), train_rows=rows["train"], eval_rows=rows["validation"])
        trainer.train()
        curves.append([entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history])
    losses = [[loss for loss in curve if loss is not None] for curve in curves]
    assert len(losses[0]) == len(losses[1]) > 3
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert trainer.model.config.region_extractor == {
        "name": own.description("float16").extractor,
        "revision": own.digest,
    }


@pytest.mark.slow
def test_pixels_cache_and_store_of_a_detector_train_alike(
    store_of, scenes, make_trainer, make_captioner, processor, tmp_path
):
    """Images of a batch have different numbers of regions; the losses of two epochs are the same three ways."""
    make_detector("detr").save_pretrained(tmp_path / "detr")
    DetrImageProcessor(size={"shortest_edge": 48, "longest_edge": 64}).save_pretrained(tmp_path / "detr")
    name = str(tmp_path / "detr")
    every = DetectorExtractor.from_detector(name)
    middle = float(np.median([one.scores for one in every(every.prepare(list(scenes["train"]["image"])))]))
    choice = {"max_regions": 6, "min_regions": 2, "score_threshold": middle}
    own_processor = type(processor)(type(processor.image_processor).from_backbone(name), processor.tokenizer)
    extractor = DetectorExtractor.from_detector(name, **choice)
    store = store_of(extractor, extractor.description("float32"), extractor.prepare)
    assert len({len(store[image].features) for image in scenes["train"]["image_id"]}) > 1
    stored = {part: with_regions(rows, store) for part, rows in scenes.items()}
    losses = []
    for rows, cached in ((scenes, False), (scenes, True), (stored, False)):
        model = make_captioner(vision_model=name, **{f"vision_{field}": value for field, value in choice.items()})
        fields = {"cache_features": cached, "feature_cache_dtype": "float32", "processing_class": own_processor}
        trainer = make_trainer(model, train_rows=rows["train"], eval_rows=rows["validation"], **fields)
        trainer.train()
        curve = [entry.get("loss", entry.get("eval_loss")) for entry in trainer.state.log_history]
        losses.append([loss for loss in curve if loss is not None])
    assert len(losses[0]) > 3
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-4)


def test_features_of_a_different_vision_model_are_refused(store_of, scenes, make_trainer, make_captioner, processor):
    other = vision_part(make_captioner(seed=1), processor)
    store = store_of(other, other.description("float16"), other.prepare)
    trainer = make_trainer(make_captioner(), train_rows=with_regions(scenes["train"], store))
    with pytest.raises(OtherExtractorError, match="not those of this captioner's vision part"):
        trainer.train()


def test_a_captioner_without_vision_part_records_the_extractor(
    store_of, scenes, make_trainer, make_captioner, processor, tmp_path
):
    description = StoreDescription("mean colours", "1", 3, boxes=False)
    store = store_of(strips, description)
    model = make_captioner(vision_model=None, region_feature_size=3)
    rows = {name: with_regions(part, store) for name, part in scenes.items()}
    trainer = make_trainer(model, train_rows=rows["train"], eval_rows=rows["validation"], num_train_epochs=1)
    trainer.train()
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    model.save_pretrained(tmp_path / "saved")
    saved = type(model).from_pretrained(tmp_path / "saved")
    require_own_features(saved, processor, store)
    with FeatureStoreWriter(tmp_path / "newer", StoreDescription("mean colours", "2", 3, boxes=False)) as writer:
        writer.add("a", Regions(np.ones((1, 3), np.float32)))
    with pytest.raises(OtherExtractorError, match=r"of mean colours \(revision 2\).* trained on .*revision 1"):
        require_own_features(saved, processor, FeatureStore(tmp_path / "newer"))
    with pytest.raises(ValueError, match="3 features per region, the captioner reads 7"):
        require_own_features(make_captioner(vision_model=None, region_feature_size=7), processor, store)


def test_features_without_boxes_are_refused_where_boxes_are_needed(store_of, scenes, make_trainer, make_captioner):
    """Before the first step, with what to do."""
    store = store_of(strips, StoreDescription("strips", "1", 3, "float32", boxes=False))
    model = make_captioner(vision_model=None, region_feature_size=3, use_region_boxes=True)
    trainer = make_trainer(model, train_rows=with_regions(scenes["train"], store), eval_strategy="no")
    with pytest.raises(ValueError, match=r"has no boxes, and `config.use_region_boxes` is set"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_scales_of_a_grid_are_part_of_the_extractor(make_captioner, processor):
    """Another list of scales is another digest, and the description names them."""
    one, several = (vision_part(make_captioner(vision_grid_size=size), processor) for size in (2, [1, 2]))
    assert one.digest != several.digest
    assert several.description("float32").extractor.endswith("1 x 1 and 2 x 2 grid")

"""Regions of vision models and detectors: equal to the outputs of the models; every change renames the extractor."""

import numpy as np
import pytest
import torch
from transformers import DetrImageProcessor, ViTConfig, ViTImageProcessor, ViTModel

from hf_captioners.features.agreement import attach_extractor
from hf_captioners.features.cache import vision_part
from hf_captioners.features.extraction import DetectorExtractor, GridExtractor
from hf_captioners.features.feature_store import OtherExtractorError
from tests.modeling.tiny_detectors import make_detector


def test_a_captioner_of_stored_regions_gets_their_detector(detector, make_captioner, processor, scenes, tmp_path):
    """Captions of photographs equal those of the stored features; a different choice is refused; saved and loaded."""
    extractor = DetectorExtractor.from_detector(detector, max_regions=6)
    model = make_captioner(vision_model=None, region_feature_size=16)
    images = scenes["train"]["image"][:2]
    stored = extractor(extractor.prepare(images))
    expected = model.generate(**processor(regions=[one.as_entry() for one in stored], return_tensors="pt"))
    with pytest.raises(OtherExtractorError, match="features of an unknown extractor"):
        attach_extractor(model, processor, extractor)
    model.config.region_extractor = {"name": "detections", "revision": extractor.digest}
    with pytest.raises(OtherExtractorError, match="trained on features of detections .revision [0-9a-f]{16}"):
        attach_extractor(model, processor, DetectorExtractor.from_detector(detector, max_regions=5))
    own_processor = type(processor)(processor.image_processor, processor.tokenizer)
    attached = attach_extractor(model, own_processor, extractor)
    inputs = own_processor(images=images, return_tensors="pt")
    assert torch.equal(attached.generate(**inputs), expected)
    attached.save_pretrained(tmp_path / "captioner")
    own_processor.save_pretrained(tmp_path / "captioner")
    loaded = type(attached).from_pretrained(tmp_path / "captioner")
    again = type(processor).from_pretrained(tmp_path / "captioner")
    assert torch.equal(loaded.generate(**again(images=images, return_tensors="pt")), expected)
    assert vision_part(loaded, again).digest == extractor.digest
    with pytest.raises(ValueError, match="has a 'detr' vision part already"):
        attach_extractor(attached, own_processor, extractor)


@pytest.fixture
def detector(tmp_path):
    """The directory of a detector that keeps proportions."""
    make_detector("detr").save_pretrained(tmp_path / "detr")
    DetrImageProcessor(size={"shortest_edge": 48, "longest_edge": 64}).save_pretrained(tmp_path / "detr")
    return str(tmp_path / "detr")


def test_regions_of_a_detector_are_those_of_a_captioner_made_of_it(detector, make_captioner, processor, scenes):
    """Same numbers of the real regions, same digest; every other choice, weight or size is a different extractor."""
    choice = {"max_regions": 6, "min_regions": 2, "score_threshold": 0.3}
    extractor = DetectorExtractor.from_detector(detector, **choice)
    captioner = make_captioner(vision_model=detector, **{f"vision_{name}": value for name, value in choice.items()})
    own_processor = type(processor)(type(processor.image_processor).from_backbone(detector), processor.tokenizer)
    assert extractor.digest == vision_part(captioner, own_processor).digest
    image = scenes["train"]["image"][0]
    images = [image, image.resize((90, 60)), image.crop((0, 0, 30, 50))]
    found = extractor(extractor.prepare(images))
    with torch.no_grad():
        direct = captioner.get_region_features(**own_processor(images=images, return_tensors="pt"))
    counts = direct.region_mask.sum(1).tolist()
    assert [len(regions.features) for regions in found] == counts and all(2 <= count <= 6 for count in counts)
    for row, regions in enumerate(found):
        real = direct.region_mask[row]
        np.testing.assert_allclose(regions.features, direct.region_features[row, real], atol=1e-5)
        np.testing.assert_allclose(regions.boxes, direct.region_boxes[row, real], atol=1e-6)
        assert (np.diff(regions.scores) <= 0).all() and regions.scores.dtype == np.float32
    others = [{}, {**choice, "max_regions": 5}, {**choice, "nms_threshold": 0.5}, {**choice, "grid_size": 2}]
    digests = {DetectorExtractor.from_detector(detector, **other).digest for other in others}
    digests.add(DetectorExtractor.from_detector(detector, image_size=32, **choice).digest)
    with torch.no_grad():
        next(extractor.backbone.parameters()).add_(1)
    digests.add(DetectorExtractor(extractor.backbone, extractor.image_processor, "other weights").digest)
    assert len(digests | {extractor.digest}) == 7
    described = DetectorExtractor.from_detector(detector, **choice).description("float16")
    assert described.extractor == f"{detector}, best 2 to 6 queries of score >= 0.3"
    assert described.feature_size == 16 and described.scores


def test_the_grid_of_a_vision_model_is_that_of_a_captioner_made_of_it(tmp_path, make_captioner, processor, scenes):
    """Same numbers and same digest; a different grid, layer, size or weight is a different extractor."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    vit = ViTModel(config)
    vit.save_pretrained(tmp_path / "vit")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    captioner = make_captioner(vision_model=str(tmp_path / "vit"))
    own_processor = type(processor)(
        type(processor.image_processor).from_backbone(str(tmp_path / "vit")), processor.tokenizer
    )
    extractor = GridExtractor.from_vision_model(str(tmp_path / "vit"))
    assert extractor.digest == vision_part(captioner, own_processor).digest
    images = scenes["train"]["image"][:3]
    with torch.no_grad():
        direct = captioner.get_region_features(own_processor(images=images, return_tensors="pt")["pixel_values"])
    for row, regions in enumerate(extractor(extractor.prepare(images))):
        np.testing.assert_allclose(regions.features, direct.region_features[row], rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(regions.boxes, direct.region_boxes[row], atol=1e-6)
    captioner.save_pretrained(tmp_path / "captioner")
    own_processor.save_pretrained(tmp_path / "captioner")
    loaded = type(captioner).from_pretrained(tmp_path / "captioner")
    reloaded_processor = type(processor).from_pretrained(tmp_path / "captioner")
    assert vision_part(loaded, reloaded_processor).digest == extractor.digest
    others = [{"grid_size": 2}, {"feature_layer": 0}, {"image_size": 24}]
    digests = {GridExtractor.from_vision_model(str(tmp_path / "vit"), **choice).digest for choice in others}
    assert len(digests | {extractor.digest}) == 4
    found = GridExtractor.from_vision_model(str(tmp_path / "vit"), grid_size=2).description("int8")
    assert found.extractor.endswith("vit, layer -1, 2 x 2 grid") and found.feature_size == 16 and found.kind == "int8"

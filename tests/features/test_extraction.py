"""Regions of vision models and detectors: equal to the outputs of the models; every change renames the extractor."""

import numpy as np
import pytest
import torch
from transformers import (
    ConditionalDetrConfig,
    ConditionalDetrForObjectDetection,
    DetrConfig,
    DetrForObjectDetection,
    DetrImageProcessor,
    ResNetConfig,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrImageProcessor,
    RTDetrResNetConfig,
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
    YolosConfig,
    YolosForObjectDetection,
    YolosImageProcessor,
)

from hf_captioners.features.cache import vision_part
from hf_captioners.features.extraction import DetectorExtractor, GridExtractor, corners

SMALL = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 9,
    "num_labels": 5,
}


def small_resnet(kind=ResNetConfig):
    return kind(
        embedding_size=8,
        hidden_sizes=[8, 8, 8, 8],
        depths=[1, 1, 1, 1],
        out_features=["stage4"] if kind is ResNetConfig else ["stage2", "stage3", "stage4"],
    )


def detr():
    config = DetrConfig(backbone_config=small_resnet(), **SMALL)
    return DetrForObjectDetection(config), DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 96})


def conditional_detr():
    config = ConditionalDetrConfig(backbone_config=small_resnet(), **SMALL)
    return ConditionalDetrForObjectDetection(config), DetrImageProcessor(
        size={"shortest_edge": 64, "longest_edge": 96}
    )


def yolos():
    config = YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[64, 64],
        num_detection_tokens=9,
        num_labels=5,
    )
    return YolosForObjectDetection(config), YolosImageProcessor(size={"height": 64, "width": 64})


def rt_detr():
    config = RTDetrConfig(
        backbone_config=small_resnet(RTDetrResNetConfig),
        encoder_hidden_dim=16,
        encoder_in_channels=[8, 8, 8],
        feat_strides=[8, 16, 32],
        encode_proj_layers=[2],
        decoder_in_channels=[16, 16, 16],
        **SMALL,
    )
    return RTDetrForObjectDetection(config), RTDetrImageProcessor(size={"height": 64, "width": 64})


def with_different_queries(model, processor):
    """Weights large enough for queries to find different things."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.5)
    return model.eval(), processor


@pytest.mark.parametrize("family", [detr, conditional_detr, yolos, rt_detr])
def test_regions_of_a_detector_are_its_queries(family, scenes):
    model, processor = with_different_queries(*family())
    extractor = DetectorExtractor(model, processor, "detector", top_k=9)
    images = scenes["train"]["image"][:2]
    found = extractor(extractor.prepare(images))
    outputs = model(**extractor.prepare(images))
    boxes = corners(outputs.pred_boxes).detach()
    for row, regions in enumerate(found):
        assert regions.features.shape == (9, 16) and (np.diff(regions.scores) <= 0).all()
        assert regions.boxes.min() >= 0 and regions.boxes.max() <= 1
        # Every region has the state and the box of one query.
        query = [int((boxes[row] - torch.from_numpy(box)).abs().sum(1).argmin()) for box in regions.boxes]
        assert sorted(query) == list(range(9))
        states = outputs.last_hidden_state[row, -9:][query].detach()
        np.testing.assert_allclose(regions.features, states, atol=1e-5)
        logits = outputs.logits[row, query].detach()
        classes = logits.softmax(-1)[:, :5] if logits.shape[-1] == 6 else logits.sigmoid()
        np.testing.assert_allclose(regions.scores, classes.amax(-1), atol=1e-5)


@pytest.mark.parametrize("family", [detr, yolos])
def test_scores_are_those_of_the_detectors_own_processor(family, scenes):
    model, processor = with_different_queries(*family())
    extractor = DetectorExtractor(model, processor, "detector", top_k=9)
    inputs = extractor.prepare(scenes["train"]["image"][:1])
    (regions,) = extractor(inputs)
    (own,) = processor.post_process_object_detection(model(**inputs), threshold=0.0)
    np.testing.assert_allclose(np.sort(regions.scores), np.sort(own["scores"].detach()), atol=1e-5)


def test_queries_are_chosen_by_score(scenes):
    model, processor = with_different_queries(*detr())
    images = scenes["train"]["image"][:1]

    def extract(**choice):
        extractor = DetectorExtractor(model, processor, "detector", **choice)
        return extractor(extractor.prepare(images))[0]

    every = extract(top_k=9)
    assert len(extract(top_k=4).features) == 4
    np.testing.assert_allclose(extract(top_k=4).boxes, every.boxes[:4], atol=1e-6)
    middle = float(every.scores[5:7].mean())
    assert len(extract(top_k=9, score_threshold=middle).features) == 6
    assert len(extract(score_threshold=1.0).features) == 1  # an image needs a region
    for choice in ({"top_k": 0}, {"score_threshold": 1.5}):
        with pytest.raises(ValueError, match="expected >= 1 and 0..1"):
            extract(**choice)


def test_a_different_choice_or_weight_is_a_different_extractor():
    torch.manual_seed(0)
    model, processor = detr()
    found = [
        DetectorExtractor(model, processor, "d", **choice).description("float16") for choice in ({}, {"top_k": 3})
    ]
    with torch.no_grad():
        next(model.parameters()).add_(1)
    found.append(DetectorExtractor(model, processor, "d").description("float16"))
    assert len({description.revision for description in found}) == 3
    assert found[0].extractor == "d, best 50 queries of score >= 0" and found[0].feature_size == 16 and found[0].scores


def test_a_classifier_is_no_detector(scenes):
    extractor = DetectorExtractor.__new__(DetectorExtractor)
    torch.manual_seed(0)
    vit = ViTModel(
        ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32)
    )
    extractor.__init__(vit, ViTImageProcessor(size={"height": 32, "width": 32}), "vit")
    with pytest.raises(ValueError, match="vit .ViTModel. returns no query states"):
        extractor(extractor.prepare(scenes["train"]["image"][:1]))


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

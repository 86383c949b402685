"""Regions from detectors: those of the detector itself, chosen as configured, alone as in a batch, and loaded again.

Two families run in the fast tests, the others with the mark `slow`.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    DetrImageProcessor,
    ResNetConfig,
    ResNetForImageClassification,
    ResNetModel,
    RTDetrImageProcessor,
    YolosImageProcessor,
)

from hf_captioners.features.extraction import DetectorExtractor, GridExtractor
from hf_captioners.modeling.configuration_captioning import CaptioningConfig
from hf_captioners.modeling.layers_detector import VisionDetector, corners, finest_level, not_suppressed
from hf_captioners.modeling.layers_vision import VisionBackbone
from hf_captioners.modeling.loading_vision import load_detector_model, load_vision_model
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor, CaptioningImageProcessorFast
from hf_captioners.processing.processing_captioning import CaptioningProcessor
from tests.comparisons import assert_computed_alike

from .common_case import assert_close
from .tiny_detectors import (
    FAMILIES,
    QUERIES,
    SIDE,
    WITHOUT_MAP,
    detector_config,
    make_captioner,
    make_detector,
    sizes_for,
)
from .word_parts import VOCABULARY, tiny_word_tokenizer

FAST = ("detr", "yolos")
families = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FAMILIES]
)
fast_families = pytest.mark.parametrize("family", FAST)
# Two computations of one detector differ by this much: sampling at offsets amplifies rounding layer by layer.
ROUNDING = 1e-5
SCORING = Path(__file__).parents[1] / "hub" / "scoring_process.py"


def make_part(family, **fields):
    """Return the vision part of a captioner with a small detector, and the detector."""
    detector = make_detector(family)
    config = CaptioningConfig(vision_config=detector.config, **fields)
    part = VisionDetector(config).eval()
    part.model.load_state_dict(detector.state_dict())
    return part, detector


def padded_images(family, seed=0):
    """Return images of different sizes in one batch, with their mask."""
    sizes = sizes_for(family)
    generator = torch.Generator().manual_seed(seed)
    edge = max(max(size) for size in sizes)
    pixels, mask = torch.zeros(len(sizes), 3, edge, edge), torch.zeros(len(sizes), edge, edge, dtype=torch.int64)
    for row, (height, width) in enumerate(sizes):
        pixels[row, :, :height, :width] = torch.randn(3, height, width, generator=generator)
        mask[row, :height, :width] = 1
    return pixels, mask


def own_detections(detector, pixels):
    """Return the first, best entry of each query among all classes, by the rule of the detector's family."""
    outputs = detector(pixel_values=pixels)
    softmax = outputs.logits.shape[-1] == detector.config.num_labels + 1
    processor = DetrImageProcessor() if softmax else RTDetrImageProcessor()
    if not softmax:  # one entry for each query, where the processor keeps the best pairs of query and class
        best = outputs.logits.amax(-1, keepdim=True)
        outputs.logits = torch.where(outputs.logits == best, outputs.logits, torch.full_like(outputs.logits, -1e4))
    return outputs, processor.post_process_object_detection(outputs, threshold=-1.0)


@families
@torch.no_grad()
def test_regions_are_the_detections_of_the_detector(family):
    """State, box and score of each query are those of the detector and of its own post-processing."""
    part, detector = make_part(family)
    pixels = torch.randn(2, 3, *sizes_for(family)[0], generator=torch.Generator().manual_seed(0))
    found, (outputs, own) = part.detect(pixels), own_detections(detector, pixels)
    states = outputs.last_hidden_state[:, -QUERIES:]
    assert found.region_features.shape == (2, QUERIES, states.shape[-1]) and found.region_mask.all()
    for row, detections in enumerate(own):
        order = detections["scores"].argsort(descending=True)
        assert_close(found.region_scores[row], detections["scores"][order], atol=ROUNDING)
        assert_close(found.region_boxes[row], detections["boxes"][order].clamp(0, 1), atol=ROUNDING)
        assert torch.equal(found.region_labels[row], detections["labels"][order])
        boxes = corners(outputs.pred_boxes[row]).clamp(0, 1)
        queries = [int((boxes - box).abs().sum(1).argmin()) for box in found.region_boxes[row]]
        assert sorted(queries) == list(range(QUERIES)), "a query is missing, or is there twice"
        assert_close(found.region_features[row], states[row, queries])


@families
@torch.no_grad()
def test_alone_as_in_a_padded_batch(family):
    """Images of several sizes in one batch have the regions that each has alone, without padding."""
    part, _ = make_part(family, vision_grid_size=None if family in WITHOUT_MAP else 2)
    pixels, mask = padded_images(family)
    together = part.detect(pixels, mask)
    for row, (height, width) in enumerate(sizes_for(family)):
        alone = part.detect(pixels[row : row + 1, :, :height, :width])
        for name, values in alone.items():
            assert_close(together[name][row : row + 1], values)
    noise = torch.where(mask[:, None] == 1, pixels, torch.randn(pixels.shape))
    assert_close(part.detect(noise, mask).region_features, together.region_features)


@families
def test_saved_loaded_and_exported(family, tmp_path):
    model = make_captioner(family)
    pixels, mask = padded_images(family)
    inputs = {"pixel_values": pixels, "pixel_mask": mask}
    expected = model.generate(**inputs, num_beams=2, max_new_tokens=6)
    model.save_pretrained(tmp_path)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    assert torch.equal(loaded.generate(**inputs, num_beams=2, max_new_tokens=6), expected)
    regions = model.get_region_features(**inputs)
    assert torch.equal(model.generate(**regions, num_beams=2, max_new_tokens=6), expected)


@pytest.mark.slow
@torch.no_grad()
def test_a_fresh_process_without_the_package_computes_the_same(fork_server, tmp_path):
    """A process loads a captioner of every family; logits of its own caption are equal."""
    expected = {}
    for family in FAMILIES:
        folder, model, (pixels, mask) = tmp_path / family, make_captioner(family), padded_images(family)
        model.save_pretrained(folder / "captioner")
        inputs = {"pixel_values": pixels, "pixel_mask": mask}
        inputs["decoder_input_ids"] = model.generate(**inputs, max_new_tokens=6)
        expected[family] = model(**inputs).logits
        torch.save(inputs, folder / "inputs.pt")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = fork_server.run([SCORING, *(tmp_path / family for family in FAMILIES)], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    for family, logits in expected.items():
        assert_computed_alike(torch.load(tmp_path / family / "logits.pt"), logits)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_vision_part_is_exported(family):
    choice = {"vision_max_regions": 5, "vision_score_threshold": 0.3, "vision_nms_threshold": 0.5}
    part, _ = make_part(family, **choice)
    pixels = torch.randn(2, 3, *sizes_for(family)[0], generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(part, (pixels,), strict=False).module()
    found, expected = exported(pixels), part(pixels)
    assert torch.equal(found["region_mask"], expected["region_mask"])
    for name in ("region_features", "region_boxes"):
        assert_computed_alike(found[name], expected[name], ROUNDING)


@families
def test_what_learns(family):
    """Trained: gradients through the states reach all that is not frozen. Frozen: nothing has gradients."""
    pixels = torch.randn(2, 3, *sizes_for(family)[0], generator=torch.Generator().manual_seed(0))
    labels = torch.randint(4, VOCABULARY, (2, 4), generator=torch.Generator().manual_seed(0))
    for frozen in (False, True):
        model = make_captioner(family, freeze_vision=frozen).train()
        vision = model.model.encoder.vision
        assert not vision.model.training, "groups and noise of queries would be regions"
        model(pixel_values=pixels, labels=labels).loss.backward()
        trained = {name: weight for name, weight in vision.named_parameters() if weight.requires_grad}
        assert bool(trained) != frozen
        silent = [name for name, weight in trained.items() if weight.grad is None]
        assert not silent, f"no gradient reaches {silent}"


@torch.no_grad()
def test_the_choice_of_queries():
    every, detector = make_part("detr")
    pixels = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    found = every.detect(pixels)
    scores = found.region_scores
    assert (scores.diff(dim=1) <= 0).all()
    middle = float(scores[:, 4:6].mean())

    def part(**fields):
        chosen = VisionDetector(CaptioningConfig(vision_config=detector.config, **fields)).eval()
        chosen.model.load_state_dict(detector.state_dict())
        return chosen

    best = part(vision_max_regions=4).detect(pixels)
    for name, values in best.items():
        assert torch.equal(values, found[name][:, :4])
    above = part(vision_score_threshold=middle).detect(pixels).region_mask
    assert torch.equal(above, (scores >= middle) | (torch.arange(QUERIES) == 0))
    assert part(vision_score_threshold=1.0, vision_min_regions=3).detect(pixels).region_mask.sum(1).tolist() == [3, 3]
    kept = part(vision_nms_threshold=0.3).detect(pixels)
    for row in range(2):
        expected = plain_suppression(found.region_boxes[row].tolist(), 0.3)
        assert torch.equal(kept.region_boxes[row][kept.region_mask[row]], found.region_boxes[row][expected])
    cells = part(vision_grid_size=[1, 2]).detect(pixels)
    assert cells.region_features.shape == (2, QUERIES + 5, 16) and cells.region_mask.all()
    assert torch.equal(cells.region_features[:, :QUERIES], found.region_features)
    encoded = detector(pixel_values=pixels).encoder_last_hidden_state
    assert_close(cells.region_features[:, QUERIES], encoded.mean(1))
    assert cells.region_boxes[0, QUERIES].tolist() == [0, 0, 1, 1] and (cells.region_labels[:, QUERIES:] == -1).all()


def plain_suppression(boxes, threshold):
    """Return the boxes that greedy suppression keeps, the best first."""

    def overlap(one, other):
        width = min(one[2], other[2]) - max(one[0], other[0])
        height = min(one[3], other[3]) - max(one[1], other[1])
        shared = max(width, 0) * max(height, 0)
        areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
        return shared / (sum(areas) - shared)

    kept = []
    for index, box in enumerate(boxes):
        if all(overlap(boxes[other], box) <= threshold for other in kept):
            kept.append(index)
    return kept


def test_suppression_is_greedy():
    """A box that is suppressed suppresses none."""
    boxes = torch.tensor([[[0, 0, 1, 1], [0.4, 0, 1.4, 1], [0.8, 0, 1.8, 1], [0, 0, 1, 0.95]]])
    assert not_suppressed(boxes, 0.3).tolist() == [[True, False, True, False]]


def test_tokens_of_an_encoder_are_maps():
    assert finest_level(4, 64, 64) == (2, 2) and finest_level(6, 48, 96) == (2, 3)
    assert finest_level(96 + 24 + 6 + 2, 64, 96) == (8, 12)  # four levels
    with pytest.raises(ValueError, match="11 tokens .* 64 x 64 pixels"):
        finest_level(11, 64, 64)


REFUSED = [
    ("detr", {"vision_max_regions": 10}, r"`vision_max_regions` is 10, and the 'detr' detector has 9 queries"),
    ("detr", {"vision_max_regions": 0}, "`vision_max_regions` is 0"),
    ("detr", {"vision_min_regions": 0}, "`vision_min_regions` is 0"),
    ("detr", {"vision_max_regions": 3, "vision_min_regions": 4}, "`vision_max_regions` is 3, expected at least 4"),
    ("detr", {"vision_score_threshold": 1.5}, "`vision_score_threshold` is 1.5"),
    ("detr", {"vision_nms_threshold": -0.1}, "`vision_nms_threshold` is -0.1"),
    ("yolos", {"vision_feature_layer": 1}, "`vision_feature_layer` is 1, .* 'yolos' detector are its queries"),
]


@pytest.mark.parametrize(("family", "fields", "message"), REFUSED)
def test_choices_that_cannot_be(family, fields, message):
    with pytest.raises(ValueError, match=message):
        CaptioningConfig(vision_config=detector_config(family), **fields)


def test_vision_models_without_queries_have_no_choice():
    with pytest.raises(ValueError, match="`vision_max_regions` is 4, and a 'resnet' vision model has no queries"):
        CaptioningConfig(vision_config=ResNetConfig(), vision_max_regions=4)


def test_models_that_are_no_detectors(tmp_path):
    """A classifier as a detector, YOLOS as a grid, a trunk without heads, and a family without queries."""
    resnet = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]}
    ResNetForImageClassification(ResNetConfig(**resnet)).save_pretrained(tmp_path / "resnet")
    CaptioningImageProcessor().save_pretrained(tmp_path / "resnet")
    with pytest.raises(ValueError, match="is a 'resnet' model, expected a detector"):
        DetectorExtractor.from_detector(str(tmp_path / "resnet"))
    yolos = make_detector("yolos")
    yolos.save_pretrained(tmp_path / "yolos")
    YolosImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(tmp_path / "yolos")
    with pytest.raises(ValueError, match="is a 'yolos' detector, whose tokens are no cells"):
        GridExtractor.from_vision_model(str(tmp_path / "yolos"))
    with pytest.raises(ValueError, match="is a YolosModel, which returns no boxes and scores"):
        load_vision_model(yolos.vit)
    yolos.vit.save_pretrained(tmp_path / "trunk")
    with pytest.raises(ValueError, match="lacks .* weights of a 'yolos' detector"):
        load_vision_model(str(tmp_path / "trunk"))
    with pytest.raises(ValueError, match="is a 'pp_ocrv5_mobile_det' model, which has no queries"):
        load_detector_model("somewhere", "pp_ocrv5_mobile_det")


def test_masks_that_cannot_be():
    part, _ = make_part("detr")
    with pytest.raises(ValueError, match=r"`pixel_mask` has the shape \(2, 8, 8\), expected \(2, 64, 64\)"):
        part(torch.zeros(2, 3, SIDE, SIDE), torch.ones(2, 8, 8))
    grid = VisionBackbone(CaptioningConfig(vision_config=ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1])))
    with pytest.raises(ValueError, match="`pixel_mask` has the shape .* a grid covers the whole image"):
        grid(torch.zeros(2, 3, SIDE, SIDE), torch.ones(2, SIDE, SIDE))
    assert isinstance(grid.model, ResNetModel)


def photographs():
    """Return images of several sizes and modes."""
    generator = np.random.default_rng(0)
    sizes = [(80, 60), (60, 90), (200, 40)]
    return [Image.fromarray(generator.integers(0, 255, (height, width, 3), np.uint8)) for width, height in sizes]


def own_processors():
    sizes = {"shortest_edge": 48, "longest_edge": 96}
    square = {"height": SIDE, "width": SIDE}
    return {
        "detr": DetrImageProcessor(size=dict(sizes)),
        "yolos": YolosImageProcessor(size=dict(sizes)),
        "rt_detr": RTDetrImageProcessor(size=square),
    }


@pytest.mark.parametrize("name", ["detr", "yolos", "rt_detr"])
def test_preparation_is_that_of_the_detector(name, tmp_path):
    """Sizes and pixels of each image as the detector's own processor gives them; a canvas of one size for all."""
    own_processors()[name].save_pretrained(tmp_path)
    own = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    ours = CaptioningImageProcessor.from_backbone(str(tmp_path))
    fast = CaptioningImageProcessorFast(
        **{key: value for key, value in ours.to_dict().items() if key in ours.valid_kwargs.__annotations__}
    )
    batch, fast_batch = (processor(photographs(), return_tensors="pt") for processor in (ours, fast))
    torch.testing.assert_close(fast_batch["pixel_values"], batch["pixel_values"], atol=1e-6, rtol=0)
    for row, photograph in enumerate(photographs()):
        expected = own(photograph, return_tensors="pt")["pixel_values"][0]
        height, width = expected.shape[1:]
        assert_close(batch["pixel_values"][row, :, :height, :width], expected, atol=1e-5)
        if name == "rt_detr":
            assert "pixel_mask" not in batch
            continue
        assert batch["pixel_values"].shape[2:] == (96, 96) and not batch["pixel_values"][row, :, height:].any()
        for mask in (batch["pixel_mask"][row], fast_batch["pixel_mask"][row]):
            assert mask[:height, :width].all() and mask.sum() == height * width
    alone = ours(photographs()[0], return_tensors="pt")
    assert torch.equal(alone["pixel_values"][0], batch["pixel_values"][0])


def test_the_processor_gives_the_mask_to_the_captioner(tmp_path):
    """Photographs and studies of views through processor, `generate` and a saved checkpoint: each as alone."""
    image_processor = CaptioningImageProcessor.from_backbone(own_processors()["detr"])
    processor = CaptioningProcessor(image_processor, tiny_word_tokenizer())
    model, (first, second, third) = make_captioner("detr", vision_score_threshold=0.2), photographs()
    inputs = processor(images=[first, second, third], return_tensors="pt")
    assert set(inputs) == {"pixel_values", "pixel_mask"}
    together = model.generate(**inputs, min_new_tokens=4, max_new_tokens=4)
    for row, photograph in enumerate((first, second, third)):
        alone = model.generate(**processor(images=photograph, return_tensors="pt"), min_new_tokens=4, max_new_tokens=4)
        assert torch.equal(alone[0], together[row])
    studies = processor(images=[[first, second], [third]], return_tensors="pt")
    assert studies["pixel_mask"].shape == (2, 2, 96, 96)
    views = model.get_region_features(**studies)
    for row, views_of_study in enumerate(([first, second], [third])):
        alone = model.get_region_features(**processor(images=views_of_study, return_tensors="pt"))
        joined = alone.region_features[alone.region_mask]
        assert_close(views.region_features[row][views.region_mask[row]], joined)
    processor.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    again = CaptioningProcessor.from_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert loaded.config.vision_score_threshold == 0.2
    assert torch.equal(
        loaded.generate(
            **again(images=[first, second, third], return_tensors="pt"), min_new_tokens=4, max_new_tokens=4
        ),
        together,
    )

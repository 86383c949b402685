"""Explanations of a captioner with a detector: the real regions with their names, over the image without padding."""

import io

import numpy as np
from PIL import Image
from transformers import DetrImageProcessor

from hf_captioners.explain.drawing import draw_attention
from hf_captioners.explain.explanation import explain_caption
from hf_captioners.explain.graph import draw_graph
from hf_captioners.explain.page import render_page
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from tests.hub.captioner_cases import case_of
from tests.modeling.common_case import FEATURE_SIZE
from tests.modeling.tiny_detectors import DETR, LABELS

NAMES = {number: f"thing {number}" for number in range(LABELS)}


def test_regions_of_a_detector():
    case = case_of("image_transformer")
    case.vision = {"model_type": "detr", **DETR, "d_model": FEATURE_SIZE, "id2label": NAMES}
    model = case.make_model(attn_implementation="eager", vision_grid_size=None, vision_max_regions=6)
    own = DetrImageProcessor(size={"shortest_edge": 48, "longest_edge": 64})
    processor = case.make_processor()
    processor.image_processor = CaptioningImageProcessor.from_backbone(own)
    noise = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    vision = model.get_encoder().vision
    found = vision.detect(**processor(images=image, return_tensors="pt"))
    vision.score_threshold = float(found.region_scores[0, 2:4].mean())  # three regions remain
    explanation = explain_caption(model, processor, image, "a dog on the grass")
    assert explanation.image.size == (64, 48), "without the canvas of 64 x 64"
    assert explanation.maps.shape == (5, 3) and explanation.boxes.shape == (3, 4)
    np.testing.assert_allclose(explanation.maps.sum(1), 1, atol=1e-4)
    np.testing.assert_allclose(explanation.boxes, found.region_boxes[0, :3], atol=1e-6)
    assert explanation.region_names == [NAMES[label] for label in found.region_labels[0, :3].tolist()]
    assert explanation.graph.is_parent.shape == (3, 3)
    draw_graph(explanation).savefig(io.BytesIO(), format="svg")
    text = io.StringIO()
    explanation.maps[0] = [0.8, 0.1, 0.1]  # not even: the first region is outlined
    draw_attention(explanation).savefig(text, format="svg")
    page = render_page({"photo": explanation})
    assert f"region 0, {explanation.region_names[0]}: 80 %" in page
    assert f"80 {explanation.region_names[0]}</text>" in page

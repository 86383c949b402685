"""Architectures pass the common checks with a detector as their vision part, the third way in.

The checks are those of the architecture's own test class; images go through a small detector instead of a ViT.
"""

from typing import Any

import pytest

from hf_captioners.architectures import ARCHITECTURES
from tests.hub.captioner_cases import case_of

from .common import CaptionerChecks
from .common_case import FEATURE_SIZE
from .tiny_detectors import DETR, RESNET

pytestmark = pytest.mark.slow
# Images of 32 x 32 have 4 x 4 cells in the second stage.
DETECTOR: dict[str, Any] = {
    **{"model_type": "detr", **DETR, "d_model": FEATURE_SIZE, "dropout": 0.0},
    "backbone_config": {**RESNET, "out_features": ["stage2"]},
}
# In encoder and decoder, `create_bidirectional_mask` of transformers reads whether DETR's mask hides anything.
WAITS = 2
# Checks of the vision part of the other tests, a ViT, that do not apply to this detector, with the reason.
NOT_APPLICABLE = {
    "test_boxes_stay_in_float32": "in bfloat16, boxes are those that the detector computes",
    "test_disk_offload": "DETR reads the weights of its query embedding without calling it, so no hook loads them",
    "test_unsplittable_modules_exist": "the module is called VisionDetector, and there is no VisionBackbone",
    "test_attention_implementation_is_set_everywhere": "a ResNet has no attention to implement",
    "test_missing_weights_get_their_law": "it removes a weight of the ViT",
    **dict.fromkeys(
        ("test_compiled_forward", "test_compiled_gradients", "test_exported_program", "test_exported_captioner"),
        "test_detectors.py::test_the_vision_part_is_exported exports the detector of every family",
    ),
    **dict.fromkeys(
        ("test_every_option_runs", "test_every_change_matters", "test_every_dropout_matters"),
        "fields of the parts after the vision part, which read regions",
    ),
    "test_every_trainable_parameter_gets_a_gradient": (
        "DETR's first layer attends to queries of zeros, so the gradient of its projection of values is zero; "
        "test_detectors.py::test_what_learns checks gradients"
    ),
}
# One architecture passes all checks. What follows the regions cannot tell where they come from, so the others pass
# those that images go through.
COMPLETE = "m2_transformer"
OF_IMAGES = {
    *("test_regions_of_images_may_be_computed_before", "test_row_alone_equals_row_in_batch"),
    *("test_two_views_are_the_regions_of_both", "test_one_and_two_views_in_a_batch"),
    *("test_save_and_load_keep_every_weight", "test_load_under_device_context", "test_frozen_backbone_does_not_move"),
}
for name, architecture in sorted(ARCHITECTURES.items()):
    case = type(case_of(name))
    bases = (case,) if issubclass(case, CaptionerChecks) else (case, CaptionerChecks)
    title = f"Test{architecture.prefix}WithDetector"
    known = {check for base in bases for check in dir(base) if check.startswith("test_")}
    left_out = set(NOT_APPLICABLE) if name == COMPLETE else known - OF_IMAGES
    globals()[title] = type(
        title, bases, {"vision": DETECTOR, "waits_of_vision": WAITS, "__module__": __name__, **dict.fromkeys(left_out)}
    )

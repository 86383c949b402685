"""Small random detectors: of attributes, and of every family of transformers whose queries can be regions."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForObjectDetection

from hf_captioners.modeling.configuration_attribute_detector import AttributeDetectorConfig
from hf_captioners.modeling.modeling_attribute_detector import AttributeDetectorModel
from hf_captioners.modeling.modeling_image_transformer import ImageTransformerForConditionalGeneration

from .common_case import FEATURE_SIZE, VISION, disturb
from .word_parts import VOCABULARY

WORDS = ["dog", "grass", "ball", "water"]
QUERIES, LABELS = 9, 5
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8] * 4, "depths": [1] * 4}
THREE_STAGES = {"out_features": ["stage2", "stage3", "stage4"]}
HGNET = {
    **{"model_type": "hgnet_v2", "stem_channels": [3, 8, 8], "embedding_size": 8, "hidden_sizes": [8] * 4},
    **{f"stage_{name}_channels": [8] * 4 for name in ("in", "mid", "out")},
    **{"depths": [1] * 4, "stage_num_blocks": [1] * 4, "stage_numb_of_layers": [1] * 4},
    **THREE_STAGES,
}
VIT = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}
ATTENTION = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("attention_heads",)}
DETR = {
    **{"backbone_config": {**RESNET, "out_features": ["stage4"]}, "d_model": 16, **ATTENTION},
    **{"encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
    **{"num_queries": QUERIES, "num_labels": LABELS},
}
DEFORMABLE = {**DETR, "d_model": 32, "backbone_config": {**RESNET, **THREE_STAGES}}
RT_DETR = {
    **DETR,
    **{"backbone_config": {**RESNET, "model_type": "rt_detr_resnet", **THREE_STAGES}},
    **{"encoder_hidden_dim": 16, "encoder_in_channels": [8] * 3, "feat_strides": [8, 16, 32]},
    **{"encode_proj_layers": [2], "decoder_in_channels": [16] * 3},
}
D_FINE = {**RT_DETR, "backbone_config": HGNET, "decoder_n_points": [4] * 3}
LW_DETR = {
    **{"d_model": 16, "decoder_ffn_dim": 16, "decoder_layers": 2, "decoder_self_attention_heads": 2},
    **{"decoder_cross_attention_heads": 2, "decoder_n_points": 2, "num_queries": QUERIES, "num_labels": LABELS},
    "group_detr": 2,
}
WINDOWS = {"model_type": "lw_detr_vit", **VIT, "pretrain_image_size": 64, "num_windows": 4, "out_indices": [2, 4]}
# Model type and fields of each family.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "detr": ("detr", DETR),
    "conditional_detr": ("conditional_detr", DETR),
    "dab_detr": ("dab-detr", {**{k: v for k, v in DETR.items() if k != "d_model"}, "hidden_size": 16}),
    "deformable_detr": ("deformable_detr", DEFORMABLE),
    "deformable_detr_two_stages": (
        "deformable_detr",
        {**DEFORMABLE, "two_stage": True, "with_box_refine": True, "two_stage_num_proposals": QUERIES},
    ),
    "table_transformer": ("table-transformer", DETR),
    "rt_detr": ("rt_detr", RT_DETR),
    "rt_detr_v2": ("rt_detr_v2", RT_DETR),
    "d_fine": ("d_fine", D_FINE),
    "deimv2": ("deimv2", D_FINE),
    "lw_detr": (
        "lw_detr",
        {
            **LW_DETR,
            "backbone_config": {**WINDOWS, "window_block_indices": [0, 2]},
            "projector_scale_factors": [1.0],
        },
    ),
    "rf_detr": (
        "rf_detr",
        {
            **LW_DETR,
            "backbone_config": {**VIT, "model_type": "rf_detr_dinov2", "num_windows": 2, "out_indices": [2, 4]},
            "intermediate_size": 16,
        },
    ),
    "yolos": (
        "yolos",
        {
            **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16},
            **{"image_size": [64, 64], "num_detection_tokens": QUERIES, "num_labels": LABELS},
        },
    ),
}
# Families that return no map beside their queries, and those whose maps need sides that are multiples of 32.
WITHOUT_MAP = ("dab_detr", "lw_detr", "rf_detr")
SQUARES = ("rt_detr", "rt_detr_v2", "d_fine", "deimv2", "lw_detr", "rf_detr")


def detector_config(family: str, **fields: Any) -> Any:
    """Return the configuration of a small detector."""
    model_type, known = FAMILIES[family]
    return AutoConfig.for_model(model_type, **{**known, **fields})


def make_detector(family: str, **fields: Any) -> Any:
    """Return a small detector with random weights, in which every parameter matters."""
    torch.manual_seed(0)
    return disturb(AutoModelForObjectDetection.from_config(detector_config(family, **fields))).eval()


def make_attribute_detector(**fields: Any) -> AttributeDetectorModel:
    """Return a small detector of attributes on a ViT, in which every parameter matters."""
    torch.manual_seed(0)
    plain = {"words": WORDS, "vision_config": dict(VISION), "region_feature_size": FEATURE_SIZE, "hidden_sizes": [6]}
    config = AttributeDetectorConfig(**plain | {"initial_bias": -1.0} | fields)
    return disturb(AttributeDetectorModel(config)).eval()


SIDE = 64


# Sizes of images in a batch, height and width.
SIZES = [(SIDE, SIDE), (SIDE, 32), (48, SIDE)]


EVEN_SIZES = [(SIDE, SIDE), (SIDE, SIDE), (SIDE, SIDE)]


def make_captioner(family, **fields):
    """Return a captioner whose encoder has relations between boxes, with a small detector."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "embedding_size": 16, "hidden_size": 16, "num_heads": 2, "encoder_layers": 1}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return ImageTransformerForConditionalGeneration.from_pretrained_parts(
        make_detector(family), **sizes, **ids, **fields
    )


def sizes_for(family):
    return EVEN_SIZES if family in SQUARES else [(96, 96), (96, SIDE), (SIDE, 96)] if "deform" in family else SIZES


def detector_batch(family):
    """Return four images with captions of equal length.

    Each process has two: on a CPU, torch 2.15 computes a wrong gradient of a batch norm in evaluation mode for one
    image whose incoming gradient is stored with channels last, as RT-DETR's is.
    """
    generator = torch.Generator().manual_seed(0)
    return {
        "pixel_values": torch.randn(4, 3, *sizes_for(family)[0], generator=generator),
        "labels": torch.randint(4, VOCABULARY, (4, 4), generator=generator),
    }

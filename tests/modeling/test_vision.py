"""Regions from every kind of backbone: any stage, any grid, boxes, fixed statistics, loading."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    TimmWrapperConfig,
)

from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.layers_vision import VisionBackbone, grid_boxes, token_grid
from hf_captioners.modeling.loading_vision import load_vision_model
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from tests.comparisons import assert_computed_alike

from .common_case import assert_close, disturb
from .gpt2_parts import TEXT, random_gpt2

SIDE = 64
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": SIDE,
    "patch_size": 16,
}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 24], "depths": [1] * 4}
SWIN = {
    "model_type": "swin",
    "embed_dim": 8,
    "depths": [1] * 3,
    "num_heads": [1, 2, 2],
    "window_size": 4,
    "image_size": SIDE,
    "patch_size": 4,
}
TEXT_TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 10}


def timm_config(architecture: str, **model_args: Any) -> dict[str, Any]:
    return {"model_type": "timm_wrapper", "architecture": architecture, "num_labels": 0, "model_args": model_args}


# Configuration, layer, and the expected map: width, rows, columns.
BACKBONES: dict[str, tuple[dict[str, Any], int, tuple[int, int, int]]] = {
    "vit": ({"model_type": "vit", **VIT}, -1, (16, 4, 4)),
    "vit_first_layer": ({"model_type": "vit", **VIT}, 1, (16, 4, 4)),
    "clip": ({"model_type": "clip", "vision_config": VIT, "text_config": TEXT_TOWER}, -1, (16, 4, 4)),
    "clip_vision_model": ({"model_type": "clip_vision_model", **VIT}, -2, (16, 4, 4)),
    "siglip": ({"model_type": "siglip_vision_model", **VIT}, -1, (16, 4, 4)),
    "dinov2": ({"model_type": "dinov2", **VIT}, -1, (16, 4, 4)),
    "dinov2_with_registers": ({"model_type": "dinov2_with_registers", **VIT}, -1, (16, 4, 4)),
    "mobilenet_v2": ({"model_type": "mobilenet_v2", "depth_multiplier": 0.35, "image_size": SIDE}, -1, (1280, 2, 2)),
    "resnet": (RESNET, -1, (24, 2, 2)),
    "resnet_second_stage": (RESNET, 2, (12, 8, 8)),
    "swin": (SWIN, -1, (32, 4, 4)),
    "swin_first_stage": (SWIN, 1, (16, 8, 8)),
    "timm_resnet": (timm_config("resnet10t"), -1, (512, 2, 2)),
    "timm_vit": (timm_config("vit_tiny_patch16_224", img_size=SIDE, depth=2), -1, (192, 4, 4)),
    "timm_swin": (
        timm_config("swin_tiny_patch4_window7_224", img_size=SIDE, embed_dim=16, depths=[1] * 4, window_size=2),
        -1,
        (128, 2, 2),
    ),
}
# With random weights, the outputs of networks this deep do not depend on the image.
SILENT = ("mobilenet_v2", "timm_resnet")
backbones = pytest.mark.parametrize("name", BACKBONES)


def make_backbone(name: str, **fields: Any) -> VisionBackbone:
    """A random backbone in which every parameter matters."""
    vision_config, layer, _ = BACKBONES[name]
    torch.manual_seed(0)
    config = VisualGPTConfig(**{"vision_config": dict(vision_config), "vision_feature_layer": layer} | fields)
    return disturb(VisionBackbone(config), scale=0.02).eval()


def images(number: int = 2) -> torch.Tensor:
    return torch.randn(number, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@backbones
@torch.no_grad()
def test_regions_are_the_cells_of_the_map(name):
    """Number, width and order: region i of a map of w columns is row i // w, column i % w."""
    backbone, (width, rows, columns) = make_backbone(name), BACKBONES[name][2]
    features = backbone.feature_map(images())
    assert features.shape == (2, width, rows, columns)
    regions = backbone(images())
    assert regions.region_features.shape == (2, rows * columns, width)
    assert torch.isfinite(regions.region_features).all()
    for index in range(rows * columns):
        assert_computed_alike(regions.region_features[:, index], features[:, :, index // columns, index % columns])
    assert regions.region_boxes.shape == (2, rows * columns, 4)
    assert regions.region_mask.all()


@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in SILENT])
@torch.no_grad()
def test_cells_depend_on_their_place(name):
    """A change in one corner of the image changes that corner's cell more than the opposite one's."""
    backbone = make_backbone(name)
    plain, changed = images(1), images(1)
    changed[..., : SIDE // 4, : SIDE // 4] += 1.0
    difference = (backbone(changed).region_features - backbone(plain).region_features).norm(dim=-1)[0]
    assert difference[0] > 1.2 * difference[-1]


@pytest.mark.parametrize("grid", [1, 3, 14])
@pytest.mark.parametrize("name", ["vit", "resnet", "timm_vit"])
@torch.no_grad()
def test_pooling_to_a_grid(name, grid):
    """n x n cells by adaptive averages, from smaller maps too."""
    regions = make_backbone(name, vision_grid_size=grid)(images())
    features = make_backbone(name).feature_map(images())
    pooled = torch.nn.functional.adaptive_avg_pool2d(features, grid)
    assert_close(regions.region_features, pooled.flatten(2).transpose(1, 2))
    assert regions.region_boxes.shape == (2, grid * grid, 4)


@pytest.mark.parametrize("name", ["vit", "resnet"])
@torch.no_grad()
def test_several_scales_are_nested_grids(name):
    """1 + 4 + 16 cells: those of each scale alone, one scale after the other, every cell inside of one above it."""
    scales = [1, 2, 4]
    found = make_backbone(name, vision_grid_size=scales)(images())
    alone = [make_backbone(name, vision_grid_size=scale)(images()) for scale in scales]
    assert found.region_features.shape[1] == 21 and found.region_mask.all()
    assert_close(found.region_features, torch.cat([regions.region_features for regions in alone], dim=1))
    assert_close(found.region_boxes, torch.cat([regions.region_boxes for regions in alone], dim=1))
    boxes, tolerance = found.region_boxes[0], 1e-6
    inside = (boxes[:, None, :2] >= boxes[None, :, :2] - tolerance) & (
        boxes[:, None, 2:] <= boxes[None, :, 2:] + tolerance
    )
    assert inside.all(-1).sum(1).tolist() == [1] + [2] * 4 + [3] * 16


@pytest.mark.parametrize("grid", [0, [2, 2], [], [1, 0], "7", 2.0])
def test_wrong_grids(grid):
    with pytest.raises(ValueError, match="`vision_grid_size` is .*expected a number of cells per side"):
        VisualGPTConfig(vision_grid_size=grid)


def test_boxes_tile_the_image():
    boxes = grid_boxes(2, 3, "cpu")
    assert boxes[0].tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert boxes[2].tolist() == pytest.approx([2 / 3, 0, 1, 1 / 2])
    assert boxes[3].tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    assert areas.sum().item() == pytest.approx(1.0)


def test_tokens_form_a_grid():
    assert token_grid(50, 7, 7) == (7, 7)  # one prefix token
    assert token_grid(12, 3, 4) == (3, 4)
    assert token_grid(16, 16, 16) == (4, 4)  # two halvings
    with pytest.raises(ValueError, match="15 tokens .* 16 x 16 patches"):
        token_grid(15, 16, 16)


def test_images_need_not_be_square():
    regions = make_backbone("resnet")(torch.randn(1, 3, 64, 96))
    assert regions.region_features.shape == (1, 6, 24)
    assert regions.region_boxes[0, -1].tolist() == pytest.approx([2 / 3, 1 / 2, 1, 1])


@pytest.mark.parametrize("name", ["resnet", "vit"])
@pytest.mark.parametrize("gradients", [False, True])
def test_few_images_at_a_time(name, gradients):
    """Without gradients, a CPU computes a batch in parts; the regions are those of the whole batch."""
    backbone, sizes = make_backbone(name, freeze_vision=not gradients, vision_grid_size=[1, 2]), []
    backbone.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["pixel_values"])), with_kwargs=True
    )
    found = backbone(images(10)).region_features
    assert sizes == ([10] if gradients else [4, 4, 2])
    alone = torch.cat([backbone(image[None]).region_features for image in images(10)])
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trained"])
@pytest.mark.parametrize("name", ["resnet", "mobilenet_v2", "timm_resnet"])
def test_statistics_of_batch_normalisation_are_fixed(name, frozen):
    """Training or not, an image has the same regions, whatever else is in the batch."""
    backbone = make_backbone(name, freeze_vision=frozen)
    expected = backbone(images()).region_features
    statistics = {key: value.clone() for key, value in backbone.named_buffers()}
    assert any("running_mean" in key for key in statistics)
    backbone.train()
    for number in (2, 5):
        regions = backbone(images(number) if number == 2 else torch.cat((images(), 9 * torch.ones(3, 3, SIDE, SIDE))))
        assert_close(regions.region_features[:2], expected, atol=1e-4)
        assert regions.region_features.requires_grad != frozen
    assert all(torch.equal(value, statistics[key]) for key, value in backbone.named_buffers())
    assert backbone.model.training != frozen


@pytest.mark.parametrize("name", ["clip", "dinov2_with_registers", "timm_vit", "mobilenet_v2"])
def test_captioner_from_a_vision_checkpoint(name, place, tmp_path):
    """All vision weights are loaded, and saved with the captioner; of two towers, only the vision tower is used."""
    vision_config, layer, (width, rows, columns) = BACKBONES[name]
    vision_config = dict(vision_config)
    whole = disturb(AutoModel.from_config(AutoConfig.for_model(vision_config.pop("model_type"), **vision_config)))
    whole.save_pretrained(tmp_path / "vision")
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        random_gpt2(TEXT), str(tmp_path / "vision"), vision_feature_layer=layer, encoder_layers=1, encoder_ffn_dim=16
    )
    assert model.config.region_feature_size == width
    tower = getattr(whole, "vision_model", whole)
    expected = tower.eval()(pixel_values=images()).last_hidden_state
    found = model.model.encoder.vision.model(pixel_values=images()).last_hidden_state
    assert_computed_alike(found, expected)
    assert model.get_region_features(images()).region_features.shape == (2, rows * columns, width)
    model.save_pretrained(tmp_path / "captioner")
    again = VisualGPTForConditionalGeneration.from_pretrained(tmp_path / "captioner")
    assert_computed_alike(
        again.get_region_features(images()).region_features, model.get_region_features(images()).region_features
    )
    from_object = VisualGPTForConditionalGeneration.from_pretrained_parts(random_gpt2(TEXT), whole, encoder_layers=1)
    found = from_object.model.encoder.vision.model(pixel_values=images()).last_hidden_state
    assert_computed_alike(found, expected)
    with pytest.raises(ValueError, match=f"the vision model gives {width} features"):
        VisualGPTForConditionalGeneration.from_pretrained_parts(random_gpt2(TEXT), whole, region_feature_size=1)


def test_classifiers_lose_their_heads():
    classifier = disturb(AutoModelForImageClassification.from_config(AutoConfig.for_model("vit", **VIT))).eval()
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(random_gpt2(TEXT), classifier, encoder_layers=1)
    expected = classifier.vit(pixel_values=images()).last_hidden_state
    assert_computed_alike(model.model.encoder.vision.model(pixel_values=images()).last_hidden_state, expected)


def test_language_models_are_refused(tmp_path):
    random_gpt2(TEXT).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'gpt2' model, which reads `input_ids`"):
        load_vision_model(str(tmp_path))


@torch.no_grad()
def test_mobilenet_of_transformers_equals_timm(material):
    """The same ImageNet weights give the same map of an image in both libraries."""
    folder = material / "mobilenetv2"
    if not folder.is_dir():
        pytest.skip(f"no trained backbone at {folder}")
    maps = []
    for source in (str(folder / "hf"), f"timm:mobilenetv2_100:{folder / 'timm.safetensors'}"):
        loaded = load_vision_model(source)
        assert isinstance(loaded.config, TimmWrapperConfig) == source.startswith("timm:")
        backbone = VisionBackbone(VisualGPTConfig(vision_config=loaded.config, vision_grid_size=7)).eval()
        backbone.model.load_state_dict(loaded.state_dict())
        maps.append(backbone(torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))).region_features)
    assert maps[0].shape == (1, 49, 1280)
    assert maps[0].std() > 0.1
    assert_close(maps[0], maps[1], atol=1e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention"])
def test_attention_implementations_reach_the_parts_that_have_them(implementation):
    """A CNN has no attention to implement; a transformer and the captioner's own layers take what was asked for."""
    text = {"vocab_size": 30, "n_embd": 16, "n_layer": 1, "n_head": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    cnn = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    transformer = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    for vision, expected in ((cnn, "eager"), (transformer, implementation)):
        config = VisualGPTConfig(vision_config=dict(vision), region_feature_size=8, text_config=dict(text), **ids)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation=implementation)
        for chosen in (implementation, "eager", implementation):
            model.set_attn_implementation(chosen)
            assert model.config._attn_implementation == model.config.text_config._attn_implementation == chosen
            backbone = model.model.encoder.vision.model.config._attn_implementation
            assert backbone == ("eager" if chosen == "eager" else expected)

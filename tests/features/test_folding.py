"""Batch norms merged into convolutions: equal features, and models that cannot be merged stay as they are."""

import pytest
import timm
import torch
from torch import nn
from transformers import MobileNetV2Config, MobileNetV2ImageProcessor, MobileNetV2Model, ResNetConfig, ResNetModel

from hf_captioners.features.extraction import GridExtractor
from hf_captioners.features.folding import fold_batch_norms

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def with_statistics(model):
    """Return a model in evaluation mode whose batch norms change their input."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for values in (norm.running_mean, norm.bias.data):
                values.normal_(std=0.2)
            for values in (norm.running_var, norm.weight.data):
                values.uniform_(0.5, 1.5)
    return model.eval()


def mobilenet():
    model = MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.35, image_size=64))
    return model, lambda: model(pixel_values=IMAGES).last_hidden_state


def resnet():
    model = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck"))
    return model, lambda: model(pixel_values=IMAGES).last_hidden_state


def timm_model(name):
    model = timm.create_model(name, pretrained=False)
    return model, lambda: model.forward_features(IMAGES)


def batch_norms(model):
    return [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]


@pytest.mark.parametrize("build", [mobilenet, resnet, lambda: timm_model("mobilenetv2_050")])
def test_features_stay(build):
    torch.manual_seed(0)
    model, features = build()
    with_statistics(model)
    count = len(batch_norms(model))
    with torch.no_grad():
        plain = features()
        assert plain.abs().max() > 0.1, "features tell something"
        assert fold_batch_norms(model, features) == count
        torch.testing.assert_close(features(), plain, rtol=1e-4, atol=1e-4)
    assert not batch_norms(model)


class Branching(nn.Module):
    """A convolution whose output is read twice, or that is called twice."""

    def __init__(self, calls):
        super().__init__()
        self.convolution, self.norm, self.calls = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), calls

    def forward(self, images):
        output = self.convolution(images)
        return self.norm(output) + (output if self.calls == 1 else self.convolution(images))


@pytest.mark.parametrize("calls", [1, 2])
def test_a_model_that_cannot_be_merged_stays(calls):
    model = with_statistics(Branching(calls))
    before = {name: values.clone() for name, values in model.state_dict().items()}
    with torch.no_grad():
        assert fold_batch_norms(model, lambda: model(IMAGES)) == 0
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


def test_an_extractor_keeps_its_digest(tmp_path):
    """Stores are those of the plain weights."""
    torch.manual_seed(0)
    with_statistics(mobilenet()[0]).save_pretrained(tmp_path)
    MobileNetV2ImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}).save_pretrained(
        tmp_path
    )
    plain, folded = (GridExtractor.from_vision_model(str(tmp_path), grid_size=2) for _ in range(2))
    folded.fold_batch_norms()
    assert folded.digest == plain.digest and not batch_norms(folded.backbone)
    inputs = {"pixel_values": IMAGES}
    for one, other in zip(plain(inputs), folded(inputs), strict=True):
        assert abs(one.features - other.features).max() < 1e-4

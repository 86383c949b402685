"""The attribute detector: ways in, saving with and without the package, learning, and refused values."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModel

from hf_captioners.modeling.configuration_attribute_detector import AttributeDetectorConfig
from hf_captioners.modeling.modeling_attribute_detector import AttributeDetectorModel
from tests.comparisons import assert_computed_alike, assert_same_weights

from .common_case import FEATURE_SIZE, IMAGES, CaptionerCase, assert_close, clone
from .tiny_detectors import WORDS, make_attribute_detector


def inputs(way_in="regions"):
    return CaptionerCase().inputs(way_in)


@pytest.fixture(scope="module")
def detector():
    return make_attribute_detector()


def test_images_and_their_regions(detector):
    """Images, and the features that the vision part makes of them; masked regions change nothing."""
    images = inputs("pixels")
    expected = detector(**images)
    assert expected.probabilities.shape == (IMAGES, len(WORDS))
    assert expected.region_logits.shape == (IMAGES, 4, len(WORDS))
    assert_close(detector(**detector.get_region_features(**images)).probabilities, expected.probabilities)
    given = inputs()
    hidden = given | {"region_features": given["region_features"] + 9.0 * ~given["region_mask"][..., None]}
    assert_close(detector(**hidden).probabilities, detector(**given).probabilities)
    product = 1 - (1 - expected.region_logits.sigmoid()).prod(1)
    assert_close(expected.probabilities, product)
    assert_close(expected.log_probabilities.exp() + expected.log_absence.exp(), torch.ones(IMAGES, len(WORDS)))


def test_loss_is_a_sum_over_words(detector):
    labels = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    out = detector(**inputs(), labels=labels)
    p = out.probabilities
    assert_close(out.loss, -(labels * p.log() + (1 - labels) * (1 - p).log()).sum(1).mean())
    with pytest.raises(ValueError, match=r"`labels` has the shape \(3, 2\), expected \(3, 4\) \(images, words\)"):
        detector(**inputs(), labels=labels[:, :2])


def test_training_lowers_the_loss(detector):
    model, labels = clone(detector).train(), torch.eye(4)[:IMAGES]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(**inputs(), labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert not any(parameter.grad is not None for parameter in model.vision.parameters())


def test_saved_detector(detector, fork_server, tmp_path):
    """The Auto classes load it: here, and in a process without the package."""
    detector.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is AttributeDetectorConfig
    again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is AttributeDetectorModel and not any(report.values()), report
    assert_same_weights(again, detector)
    torch.save(inputs(), tmp_path / "inputs.pt")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["auto_map"].keys() == {"AutoConfig", "AutoModel"}
    script = (
        "import sys; sys.modules['hf_captioners'] = None\n"
        "import torch; from transformers import AutoModel\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "print(model(**torch.load('inputs.pt')).probabilities.tolist())"
    )
    run = fork_server.run(["-c", script, tmp_path], cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    found = torch.tensor(json.loads(run.stdout.splitlines()[-1]))
    assert_computed_alike(found, detector(**inputs()).probabilities)
    assert len(list(tmp_path.glob("*.py"))) <= 16


def test_weights_that_are_missing_get_their_law(detector, tmp_path):
    """A new detector finds every word improbable."""
    torch.manual_seed(0)
    plain = AttributeDetectorModel(AttributeDetectorConfig(words=WORDS, region_feature_size=FEATURE_SIZE))
    assert plain(region_features=torch.zeros(1, 1, FEATURE_SIZE)).probabilities.max() < 0.002
    plain.save_pretrained(tmp_path, state_dict={"network.score.weight": plain.network.score.weight})
    again = AttributeDetectorModel.from_pretrained(tmp_path)
    assert torch.equal(again.network.score.bias, plain.network.score.bias)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"words": ["dog", "dog"]}, "`words` has 'dog' twice"),
        ({"words": ["dog", ""]}, "`words` has the entry '', expected words"),
        ({"words": []}, "`words` is empty"),
        ({"hidden_sizes": [0]}, r"`hidden_sizes` is \[0\], expected positive integers"),
        ({"dropout": 1.0}, "`dropout` is 1.0"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        make_attribute_detector(**fields)

"""Show, Attend and Tell's hard attention: the common checks, samples, baseline and gradient."""

import itertools
from typing import Any, ClassVar

import pytest
import torch

from hf_captioners.modeling.modeling_show_attend_tell import EXPECTED
from tests.comparisons import assert_computed_alike

from .common_case import FEATURE_SIZE, IMAGES, TOKENS, assert_close
from .common_forward import MaskChecks, OutputChecks
from .common_generation import CacheChecks
from .common_saving import SavingChecks
from .common_training import LossChecks, TrainingChecks
from .show_attend_tell_case import HARD, ShowAttendTellCase


class TestHardAttention(
    ShowAttendTellCase, SavingChecks, OutputChecks, MaskChecks, LossChecks, TrainingChecks, CacheChecks
):
    """Common checks with sampled locations in training and the most probable one otherwise."""

    without_draws: ClassVar[dict[str, Any]] = {"location_sampling_probability": 0.0}

    def make_config(self, **fields):
        return super().make_config(**HARD | {"location_decoding": "argmax"} | fields)


def hard_model(**fields):
    return TestHardAttention().make_model(**{"dropout": 0.0, "location_decoding": "expectation"} | fields)


def test_drawn_locations_are_outputs_and_can_be_repeated():
    """In training every token has a location; passed back, the locations give the same result."""
    case, model = TestHardAttention(), hard_model().train()
    inputs = {**case.inputs("regions"), "decoder_input_ids": case.captions(model)}
    out = model(**inputs)
    assert out.locations[0].shape == (IMAGES, TOKENS)
    visible = inputs["region_mask"].gather(1, out.locations[0])
    assert visible.all(), "a hidden region was drawn"
    assert_close(model(**inputs, locations=out.locations).logits, out.logits)
    other = model(**inputs)
    assert not torch.equal(other.locations[0], out.locations[0])
    assert model.eval()(**inputs).locations is None, "the expectation samples nothing"


@pytest.mark.parametrize(("unit", "expected"), [("batch", {0.0, 1.0}), ("caption", None)])
def test_half_and_half_rule(unit, expected):
    """The choice is made once per batch or per caption, for all of its steps."""
    case, model = (
        TestHardAttention(),
        hard_model(location_sampling_probability=0.5, location_sampling_unit=unit).train(),
    )
    inputs = {**case.inputs("regions"), "decoder_input_ids": case.captions(model, rows=30 * IMAGES)}
    shares = set()
    for seed in range(8):
        torch.manual_seed(seed)
        drew = model(**inputs).locations[0] != EXPECTED
        assert (drew.all(1) | ~drew.any(1)).all()
        shares.add(drew[:, 0].float().mean().item())
    assert shares == expected if expected else all(0.3 < share < 0.7 for share in shares)


def test_relevance_needs_the_expectation():
    case, model = TestHardAttention(), hard_model()
    inputs, sequences = case.inputs("regions"), case.captions(model)
    assert model.relevance_maps(sequences, **inputs).sum() > 0
    model.config.location_decoding = "argmax"
    with pytest.raises(ValueError, match=r"'argmax'` uses single regions: .*location_decoding = \"expectation\""):
        model.relevance_maps(sequences, **inputs)


def test_decoding_rules_of_hard_attention():
    """The expectation is soft attention; argmax and sampling use one region."""
    case = TestHardAttention()
    inputs = case.inputs("regions")
    expectation, argmax, sampling = (
        hard_model(location_decoding=rule) for rule in ("expectation", "argmax", "sampling")
    )
    inputs["decoder_input_ids"] = case.captions(expectation)
    soft = case.make_model(attention_type="soft")
    soft.load_state_dict(expectation.state_dict(), strict=False)
    assert_computed_alike(expectation(**inputs).logits, soft(**inputs).logits)
    out = argmax(**inputs, output_attentions=True)
    assert torch.equal(out.locations[0], out.cross_attentions[0].argmax(-1))
    drawn = {tuple(sampling(**inputs).locations[0].flatten().tolist()) for _ in range(4)}
    assert len(drawn) > 1


def test_baseline_follows_the_nll_in_training_only(tmp_path):
    case, model = TestHardAttention(), hard_model()
    inputs = {**case.inputs("regions"), "labels": case.labels(model)}
    model(**inputs)
    assert model.location_baseline == 0
    for expected_share in (0.1, 0.19):
        loss = model.train()(**inputs).loss.item()
        assert abs(model.location_baseline.item() - expected_share * loss) < 0.1 * expected_share * loss
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path).location_baseline, model.location_baseline)


def test_gradient_of_hard_attention_is_unbiased():
    """The mean of sampled gradients = the gradient of the expected log-likelihood, enumerated over all locations."""
    model = hard_model(
        location_reward="caption_sum",
        location_reward_weight=1.0,
        location_entropy_weight=0.0,
        loss_reduction="caption_mean",
        vision_config=None,
        embedding_size=6,
        hidden_size=6,
        attention_size=5,
    )
    features = 2 * torch.randn(1, 3, FEATURE_SIZE, generator=torch.Generator().manual_seed(0))
    labels = TestHardAttention().words(model, 1, 2)
    parameters = [
        parameter
        for name, parameter in model.named_parameters()
        if not name.endswith("score.bias")  # a constant of all scores has no gradient
    ]

    def flat(loss):
        return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, parameters)]).double()

    exact = flat(expected_nll(model, features, labels))
    model.train()
    torch.manual_seed(0)
    batches, rows, means = 80, 250, []
    for _ in range(batches):
        model.location_baseline.fill_(9.0)  # any constant will do
        means.append(flat(model(region_features=features, labels=labels.repeat(rows, 1)).loss))
    stacked = torch.stack(means)
    error = stacked.std(0) / batches**0.5
    assert error.norm() < 0.05 * exact.norm(), f"standard error {error.norm():.3g}, gradient {exact.norm():.3g}"
    assert ((stacked.mean(0) - exact).abs() <= 4 * error + 1e-7).all()


def expected_nll(model, features, labels):
    """Return the expected negative log-likelihood of a caption of two words over all pairs of locations."""
    begin = model.prepare_decoder_input_ids_from_labels(labels)
    total = 0.0
    for places in itertools.product(range(features.shape[1]), repeat=2):
        locations = torch.tensor([places])
        out = model(region_features=features, decoder_input_ids=begin, locations=(locations,), output_attentions=True)
        probability = out.cross_attentions[0].gather(-1, locations[..., None]).prod()
        total = total + probability * torch.nn.functional.cross_entropy(out.logits[0], labels[0], reduction="sum")
    return total

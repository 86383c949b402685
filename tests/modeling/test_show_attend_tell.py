"""Show, Attend and Tell: the common checks and its own properties."""

import pytest
import torch
from transformers import AutoModelForImageTextToText, DynamicCache

from hf_captioners.modeling.configuration_show_attend_tell import ShowAttendTellConfig
from hf_captioners.modeling.layers_recurrent import RecurrentCache

from .common import CaptionerChecks
from .common_case import FEATURE_SIZE, IMAGES, REGIONS, TOKENS, assert_close
from .show_attend_tell_case import HARD, ShowAttendTellCase


class TestShowAttendTell(ShowAttendTellCase, CaptionerChecks):
    """The common checks, and the properties of soft attention."""

    options = [
        {"attention_activation": "relu", "visual_gate": "vector", "initial_state_layers": 0, "output_layer": "linear"},
        {"visual_gate": "none", "num_layers": 2, "attention_layers": 3, "output_hidden_layers": 2},
        {"output_previous_word": False, "output_context": False, "output_activation": "linear"},
        {"doubly_stochastic_reduction": "caption_sum", "loss_reduction": "caption_mean", "probability_floor": 1e-8},
        {"doubly_stochastic_reduction": "batch_sum", "loss_reduction": "sum"},
        {"zero_begin_embedding": True, "initial_state_activation": "linear", "initial_state_layers": 3},
        HARD,
        {"attention_type": "hard", "location_reward": "token", "location_decoding": "argmax"},
        {"attention_type": "hard", "location_loss_reduction": "batch_sum", "location_sampling_unit": "batch"},
    ]
    option_fields = {"doubly_stochastic_weight": 1.0, "dropout": 0.0}
    changes = [{"attention_activation": "relu"}, {"initial_state_activation": "linear"}]
    dropouts = ["dropout"]

    def unread(self, model):
        return ("score.bias",)  # a constant of all scores leaves the softmax as it is

    def check_option(self, model, inputs, outputs):
        """Attention and gates of each layer; gates lie in (0, 1)."""
        assert len(outputs.gates) == len(outputs.cross_attentions) == model.config.num_layers
        for gates, weights in zip(outputs.gates, outputs.cross_attentions, strict=True):
            assert weights.shape == (IMAGES, TOKENS, REGIONS)
            assert (gates.visual is None) == (model.config.visual_gate == "none")
            for gate in gates:
                assert gate is None or (gate > 0).all() and (gate < 1).all()

    def test_doubly_stochastic_penalty_by_hand(self):
        """Eq. 26 over the steps that predict a word, in its three reductions."""
        plain, labels = self.make_model(), self.labels(self.make_model())
        inputs = {**self.inputs("regions"), "labels": labels}
        without = plain(**inputs, output_attentions=True)
        real = (labels != -100)[..., None]
        squares = (1 - (without.cross_attentions[0] * real).sum(1)) ** 2
        unmasked = (1 - without.cross_attentions[0].sum(1)) ** 2
        expected = {
            "mean": squares.mean(),
            "caption_sum": squares.sum(1).mean(),
            "batch_sum": unmasked.mean(1).sum(),
        }
        for reduction, penalty in expected.items():
            model = self.make_model(doubly_stochastic_weight=0.5, doubly_stochastic_reduction=reduction)
            assert_close(model(**inputs).loss, without.loss + 0.5 * penalty)

    def test_zero_begin_embedding_stays_zero(self):
        model = self.make_model(zero_begin_embedding=True).train()
        embedding = model.get_input_embeddings()
        with torch.no_grad():
            embedding.weight[embedding.padding_idx] = 0
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
        model(**self.inputs("regions"), labels=self.labels(model)).loss.backward()
        optimizer.step()
        assert not embedding.weight[model.config.decoder_start_token_id].any()

    def test_cache_of_a_different_type(self, model):
        with pytest.raises(TypeError, match="is a DynamicCache, a recurrent decoder needs a `RecurrentCache`"):
            model(
                **self.inputs("regions"),
                decoder_input_ids=self.captions(model),
                cache=DynamicCache(),
                use_cache=True,
            )

    def test_recurrent_cache_holds_one_state_per_layer(self, model):
        cache = RecurrentCache()
        model.generate(**self.inputs("regions"), num_beams=3, max_new_tokens=5, cache=cache)
        assert [tuple(layer.states["hidden"].shape) for layer in cache.layers] == [
            (3 * IMAGES, model.config.hidden_size)
        ]
        with pytest.raises(ValueError, match="cannot be cropped"):
            cache.crop(1)


def test_configurations_that_ask_for_gradient_checkpointing():
    """As old configurations do; an encoder without a vision part has nothing to checkpoint."""
    case = ShowAttendTellCase()
    config = case.make_config(vision_config=None, region_feature_size=FEATURE_SIZE)
    config.gradient_checkpointing = True
    model = AutoModelForImageTextToText.from_config(config)
    assert model.is_gradient_checkpointing and model.model.decoder.layers[0].gradient_checkpointing


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_type": "stochastic"}, "`attention_type` is 'stochastic', expected one of 'soft', 'hard'"),
        ({"num_layers": 0}, "`num_layers` is 0"),
        ({"dropout": 1.0}, "`dropout` is 1.0"),
        ({"location_sampling_probability": 1.5}, "`location_sampling_probability` is 1.5"),
        ({"region_mask_rule": "zero_projected_sum"}, "`region_mask_rule` is 'zero_projected_sum'"),
        (
            {"tie_word_embeddings": True, "output_layer": "linear", "hidden_size": 8},
            "as wide as the word embeddings, got 8 and 512",
        ),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        ShowAttendTellConfig(**fields)

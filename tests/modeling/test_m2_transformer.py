"""The M2 Transformer: the common checks and its own properties."""

from typing import get_args

import pytest
import torch

from hf_captioners.modeling.configuration_m2_transformer import M2TransformerConfig
from hf_captioners.modeling.layers_transformer import PositionTable
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_m2_transformer import M2TransformerProcessor

from .common import CaptionerChecks
from .common_case import IMAGES, REGIONS, TOKENS, CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer


class M2TransformerCase(CaptionerCase):
    """Two levels, both read by two decoder layers."""

    encoder_slots = 3

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "hidden_size": 20, "num_attention_heads": 2, "ffn_dim": 24}
        depth = {"encoder_layers": 2, "decoder_layers": 2, "memory_slots": 3}
        return M2TransformerConfig(**sizes | depth | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return M2TransformerProcessor(images, tiny_word_tokenizer())


class TestM2Transformer(M2TransformerCase, CaptionerChecks):
    """The common checks, and the fields."""

    options = [
        {"fusion": "last", "memory_slots": 0},
        {"fusion": "one_to_one", "position_embedding": "learned"},
        {"level_gate": "softmax", "identity_map_reordering": True},
        {"cross_levels": [1], "key_dim": 7, "value_dim": 5, "num_attention_heads": 3},
        {"region_mask_rule": "zero_projected_sum", "token_mask_rule": "pad_id", "position_embedding": "noise"},
    ]
    changes = [
        {"fusion": "last"},
        {"fusion": "one_to_one"},
        {"level_gate": "softmax"},
        {"cross_levels": [1, 0]},
        {"memory_slots": 0},
        {"identity_map_reordering": True},
    ]
    dropouts = ["dropout"]

    def test_slots_are_never_hidden(self):
        """With every region hidden but one, attention is spread over that one and the slots."""
        model = self.make_model(attn_implementation="eager")
        mask = torch.zeros(IMAGES, REGIONS, dtype=torch.bool)
        mask[:, 0] = True
        encoded = model.model.encoder(**self.inputs("regions") | {"region_mask": mask}, output_attentions=True)
        weights = encoded.attentions[0]  # [B, H, R, R + 3]
        assert weights.shape[-1] == REGIONS + 3
        assert not weights[..., 1:REGIONS].any() and (weights[..., REGIONS:] > 0).all()

    @pytest.mark.parametrize("level_gate", ("sigmoid", "softmax"))
    def test_gates(self, level_gate):
        """Each layer, token and level has a gate in (0, 1); the gates of a softmax sum to 1."""
        model = self.make_model(level_gate=level_gate)
        out = model(**self.inputs("regions"), decoder_input_ids=self.captions(model), output_gates=True)
        assert len(out.gates) == 2
        for gates in out.gates:
            assert gates.shape == (IMAGES, TOKENS, 2, model.config.hidden_size)
            assert gates.min() > 0 and gates.max() < 1
            if level_gate == "softmax":
                assert_close(gates.sum(2), torch.ones_like(gates[:, :, 0]))

    def test_flex_attention_is_refused(self):
        model = self.make_model()
        with pytest.raises(ValueError, match="flex"):
            model.set_attn_implementation("flex_attention")


def test_choices_are_those_of_the_layers():
    assert get_args(M2TransformerConfig.__dataclass_fields__["position_embedding"].type) == PositionTable.KINDS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fusion": "mesh"}, "`fusion` is 'mesh'"),
        ({"cross_levels": [0, 3]}, "levels between 0 and 2"),
        ({"fusion": "last", "cross_levels": [0, 1]}, "reads 1 level"),
        ({"fusion": "one_to_one", "decoder_layers": 4}, "levels between 0 and 2"),
        ({"num_attention_heads": 7}, "not a multiple of `num_attention_heads=7`"),
        ({"memory_slots": -1}, "`memory_slots` is -1"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        M2TransformerConfig(**fields)

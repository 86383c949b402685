"""The AoA Transformer: the common checks and its own properties."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from hf_captioners.modeling.configuration_aoa_transformer import AoATransformerConfig
from hf_captioners.modeling.modeling_aoa_transformer import AoATransformerForConditionalGeneration
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_aoa_transformer import AoATransformerProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer

from .common import CaptionerChecks
from .common_case import FEATURE_SIZE, IMAGES, TOKENS
from .gpt2_parts import TEXT, tiny_gpt2_tokenizer


class TestAoATransformer(CaptionerChecks):
    """Two encoder levels, of which a GPT-2 of two layers reads the last."""

    options = [{"encoder_key_dim": 7}]
    changes = [{"cross_levels": [0]}, {"encoder_attention_heads": 3}]
    dropouts = ["encoder_dropout", "aoa_dropout", "cross_attention_dropout"]
    without_draws = {"text_config": TEXT | {"resid_pdrop": 0.0}}

    def make_config(self, **fields):
        special = {"bos_token_id": 28, "eos_token_id": 27, "pad_token_id": 29}
        return AoATransformerConfig(**{"text_config": dict(TEXT), "encoder_layers": 2} | special | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return AoATransformerProcessor(images, prepare_gpt2_tokenizer(tiny_gpt2_tokenizer()))

    def test_gates(self, model):
        """Each layer and token has a gate in (0, 1)."""
        out = model(**self.inputs("regions"), decoder_input_ids=self.captions(model), output_gates=True)
        assert len(out.gates) == 2
        for gate in out.gates:
            assert gate.shape == (IMAGES, TOKENS, model.config.hidden_size)
            assert gate.min() > 0 and gate.max() < 1

    def test_residual_dropout_on_changes_the_training_loss(self):
        """The same random numbers drop other values of the stream than of the branch."""
        fields, losses = dict.fromkeys(self.dropouts, 0.0) | {"text_config": TEXT | {"resid_pdrop": 0.5}}, []
        for where in ("stream", "branch"):
            model = self.make_model(**fields, residual_dropout_on=where)
            inputs = {**self.inputs("regions"), "labels": self.labels(model)}
            torch.manual_seed(0)
            losses.append(model.train()(**inputs).loss)
        assert (losses[0] - losses[1]).abs() > 1e-4


def test_starts_from_a_language_model():
    """Its feed-forward layers are left out; what it has beside them is used."""
    gpt2 = GPT2LMHeadModel(GPT2Config(**TEXT | {"bos_token_id": 0, "eos_token_id": 0}))
    model = AoATransformerForConditionalGeneration.from_pretrained_parts(
        gpt2, region_feature_size=FEATURE_SIZE, encoder_layers=1
    )
    weights = model.model.decoder.state_dict()
    assert torch.equal(weights["h.1.attn.c_attn.weight"], gpt2.transformer.h[1].attn.c_attn.weight)
    assert not any("mlp" in name or "ln_2" in name for name in weights)


def test_one_level_is_read():
    with pytest.raises(ValueError, match="The decoder reads one level"):
        AoATransformerConfig(cross_levels=[0, 1])

"""The captioning Transformer: the common checks and its own properties."""

from typing import get_args

import pytest
import torch
from torch import nn

from hf_captioners.modeling.configuration_transformer import CaptioningTransformerConfig
from hf_captioners.modeling.layers_regions import REGION_NORMS, RegionBatchNorm
from hf_captioners.modeling.layers_transformer import PositionTable, sinusoids
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_transformer import CaptioningTransformerProcessor

from .common import CaptionerChecks
from .common_case import CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer

# The settings of the M2 code without memory and mesh.
M2_STYLE = {
    "norm_first": False,
    "norm_type": "layer",
    "region_norm": "layer",
    "scale_embedding": False,
    "position_embedding": "noise",
    "first_position": 1,
    "output_bias": False,
}


class TransformerCase(CaptionerCase):
    """Two layers on either side."""

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "hidden_size": 20, "num_attention_heads": 2, "ffn_dim": 24}
        depth = {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 40}
        return CaptioningTransformerConfig(**sizes | depth | {"region_dropout": 0.1} | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return CaptioningTransformerProcessor(images, tiny_word_tokenizer())


class TestTransformer(TransformerCase, CaptionerChecks):
    """The common checks, and the fields."""

    options = [
        M2_STYLE,
        {"use_encoder": False},
        {"region_norm": "batch_input"},
        {"region_norm": "batch", "position_embedding": "learned"},
        {"norm_type": "layer", "key_dim": 7, "value_dim": 5, "num_attention_heads": 3},
    ]
    changes = [
        {"norm_first": False},
        {"norm_type": "layer"},
        {"norm_eps": 0.1},
        {"region_norm": "layer"},
        {"scale_embedding": False},
        {"first_position": 1},
        {"use_encoder": False},
    ]
    added = ("norm",)
    dropouts = ["dropout", "attention_dropout", "embedding_dropout", "region_dropout"]

    def logits(self, model):
        return model(**self.inputs("regions"), decoder_input_ids=self.captions(model)).logits

    def test_positions_are_saved_and_not_trained(self, tmp_path):
        """A table that was drawn or changed is that of the checkpoint."""
        model = self.make_model(**M2_STYLE)
        assert not any("decoder.position" in name for name, _ in model.named_parameters())
        model.model.decoder.position_embedding.weight.add_(0.5)
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path)
        assert torch.equal(
            again.model.decoder.position_embedding.weight, model.model.decoder.position_embedding.weight
        )

    def test_begin_token_takes_the_first_position(self):
        """With `first_position=1` the table has one place fewer, and row 0 is never read."""
        model = self.make_model(first_position=1, max_position_embeddings=8)
        before = self.logits(model)
        model.model.decoder.position_embedding.weight[0] = 9.0
        assert torch.equal(self.logits(model), before)
        with pytest.raises(ValueError, match="caption has 8 tokens, the decoder has 7 positions"):
            model(**self.inputs("regions"), decoder_input_ids=self.captions(model, length=8))

    def test_batch_norm_ignores_padding(self):
        """In training its statistics are those of the real regions."""
        norm = RegionBatchNorm(4).train()
        regions, mask = torch.randn(2, 3, 4), torch.tensor([[True] * 3, [True, False, False]])
        found = norm(regions, mask)
        assert_close(found[mask], nn.BatchNorm1d(4).train()(regions[mask]))
        assert_close(norm.running_mean, 0.1 * regions[mask].mean(0))
        assert not found[~mask].any()


def test_a_table_of_sinusoids():
    assert torch.equal(PositionTable(7, 6).weight, sinusoids(7, 6))


def test_choices_are_those_of_the_layers():
    fields = CaptioningTransformerConfig.__dataclass_fields__
    assert get_args(fields["region_norm"].type) == REGION_NORMS
    assert get_args(fields["position_embedding"].type) == PositionTable.KINDS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm_type": "rms"}, "`norm_type` is 'rms'"),
        ({"num_attention_heads": 7}, "not a multiple of `num_attention_heads=7`"),
        ({"encoder_layers": 0}, "`encoder_layers` is 0, expected at least 1"),
        ({"first_position": 2}, "`first_position` is 2, expected one of 0, 1"),
        ({"region_dropout": 1.0}, r"`region_dropout` is 1.0, expected a number in \[0.0, 1.0\)"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        CaptioningTransformerConfig(**fields)

"""ZoDIAC in AoANet: the common checks and its own fields."""

import pytest

from hf_captioners.modeling.configuration_zodiac_aoanet import ZodiacAoANetConfig
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_zodiac_aoanet import ZodiacAoANetProcessor

from .common import CaptionerChecks
from .common_case import IMAGES, CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer


class ZodiacAoANetCase(CaptionerCase):
    """Two refining layers."""

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "embedding_size": 20, "hidden_size": 20, "num_heads": 2}
        rates = {"dropout": 0.1, "context_dropout": 0.1}
        return ZodiacAoANetConfig(**sizes | rates | {"refiner_layers": 2} | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return ZodiacAoANetProcessor.for_config(self.make_config(), images, tiny_word_tokenizer())

    def make_cache(self):
        return RecurrentCache()


class TestZodiacAoANet(ZodiacAoANetCase, CaptionerChecks):
    """The common checks, and the fields."""

    options = [
        {"refiner": "attention", "refiner_ffn_dim": 16, "global_vector": "projected"},
        {"refiner": "none", "decoder_type": "lstm"},
        {"decoder_type": "base", "head_scale": 2, "region_norm": "batch"},
    ]
    changes = [
        {"intensity_gate": "tanh"},
        {"intensity_gate": "none"},
        {"zoneout_factor": 0.0},
        {"pre_gelu": False},
        {"gelu": False},
        {"intensity_pool": "sum"},
        {"intensity_pool": "released"},
        {"output_residual": True},
    ]
    min_change = 1e-5
    dropouts = ["dropout", "zodiac_dropout", "residual_dropout", "aoa_dropout", "context_dropout"]

    def logits(self, model, rows=slice(None)):
        inputs = {name: value[rows] for name, value in self.inputs("regions").items()}
        return model(**inputs, decoder_input_ids=self.captions(model)[rows]).logits

    @pytest.mark.parametrize("pool", ["mean", "sum"])
    def test_a_row_alone_equals_the_row_in_a_batch(self, pool):
        model = self.make_model(intensity_pool=pool)
        together = self.logits(model)
        for row in range(IMAGES):
            assert_close(self.logits(model, slice(row, row + 1)), together[row : row + 1])

    def test_released_pool_depends_on_the_batch(self):
        model = self.make_model(intensity_pool="released")
        assert model.captions_depend_on_batch
        assert (self.logits(model, slice(0, 1)) - self.logits(model)[:1]).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"intensity_pool": "batch"}, "`intensity_pool` is 'batch'"),
        ({"decoder_type": "gru"}, "`decoder_type` is 'gru'"),
        ({"num_heads": 7}, "expected a divisor"),
        ({"zodiac_dropout": 1.0}, r"`zodiac_dropout` is 1.0, expected a number in \[0.0, 1.0\)"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        ZodiacAoANetConfig(**fields)

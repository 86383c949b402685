"""ZoDIAC in AoANet: the common checks and its own fields."""

import pytest
import torch

from hf_captioners.modeling.configuration_zodiac_aoanet import ZodiacAoANetConfig
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_zodiac_aoanet import ZodiacAoANetProcessor

from .common import CaptionerChecks
from .common_case import IMAGES, CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer

SWITCHES = [
    {"intensity_gate": "tanh"},
    {"intensity_gate": "none"},
    {"zoneout_factor": 0.0},
    {"pre_gelu": False},
    {"gelu": False},
    {"intensity_pool": "sum"},
    {"intensity_pool": "released"},
    {"output_residual": True},
]
FORMS = [
    {"refiner": "attention", "refiner_ffn_dim": 16, "global_vector": "projected"},
    {"refiner": "none", "decoder_type": "lstm"},
    {"decoder_type": "base", "head_scale": 2, "region_norm": "batch"},
]


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

    def logits(self, model, rows=slice(None)):
        inputs = {name: value[rows] for name, value in self.inputs("regions").items()}
        return model(**inputs, decoder_input_ids=self.captions(model)[rows]).logits

    @pytest.mark.parametrize("fields", SWITCHES, ids=str)
    def test_every_switch_matters(self, fields):
        """The same weights give other logits."""
        usual, changed = self.make_model(), self.make_model(**fields)
        changed.load_state_dict(usual.state_dict())
        assert (self.logits(changed) - self.logits(usual)).abs().amax() > 1e-5

    @pytest.mark.parametrize("fields", FORMS, ids=str)
    def test_every_form_trains_and_writes(self, fields):
        model = self.make_model(**fields)
        model.train()(**self.inputs("regions"), labels=self.labels(model)).loss.backward()
        silent = {n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}
        assert not silent
        assert len(model.eval().generate(**self.inputs("regions"), num_beams=2, max_new_tokens=4)) == IMAGES

    @pytest.mark.parametrize(
        "name", ["dropout", "zodiac_dropout", "residual_dropout", "aoa_dropout", "context_dropout"]
    )
    def test_dropouts_change_the_training_loss(self, name):
        names = ("dropout", "zodiac_dropout", "residual_dropout", "aoa_dropout", "context_dropout")
        off = dict.fromkeys(names, 0.0)
        model = self.make_model(**off)
        inputs = {**self.inputs("regions"), "labels": self.labels(model)}
        plain = model.train()(**inputs).loss
        torch.manual_seed(0)
        assert (self.make_model(**off | {name: 0.5}).train()(**inputs).loss - plain).abs() > 1e-4

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

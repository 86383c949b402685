"""ZoDIAC: the common checks, and what its equations say."""

import pytest
import torch

from hf_captioners.modeling import layers_intensity
from hf_captioners.modeling.configuration_zodiac import ZodiacConfig
from hf_captioners.modeling.layers_intensity import RegionIntensityAttention
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_zodiac import ZodiacProcessor

from .common import CaptionerChecks
from .common_case import IMAGES, TOKENS, CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer

POOLS = pytest.mark.parametrize("pool", ["mean", "sum"])


class ZodiacCase(CaptionerCase):
    """Two layers on either side."""

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "hidden_size": 20, "num_attention_heads": 2, "ffn_dim": 24}
        depth = {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 40}
        return ZodiacConfig(**sizes | depth | {"region_dropout": 0.1} | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return ZodiacProcessor(images, tiny_word_tokenizer())


class TestZodiac(ZodiacCase, CaptionerChecks):
    """The common checks, and the fields."""

    changes = [
        {"intensity_gate": "tanh"},
        {"intensity_gate": "none"},
        {"zoneout_factor": 0.0},
        {"pre_gelu": False},
        {"gelu": False},
        {"intensity_pool": "sum"},
        {"intensity_pool": "released"},
        {"ffn_activation": "relu"},
        {"region_batch_norm": 1},
        {"region_batch_norm": 2},
    ]
    options = changes
    min_change = 1e-4
    added = ("norm",)
    dropouts = ["dropout", "zodiac_dropout", "region_dropout"]

    def logits(self, model, rows=slice(None), **changes):
        captions = changes.pop("captions", None)
        captions = self.captions(model) if captions is None else captions
        inputs = {name: value[rows] for name, value in self.inputs("regions").items()}
        return model(**inputs | changes, decoder_input_ids=captions[rows]).logits

    @POOLS
    def test_a_row_alone_equals_the_row_in_a_batch(self, pool):
        """A caption does not depend on other images, whatever the order of the batch."""
        model = self.make_model(intensity_pool=pool)
        together = self.logits(model)
        for row in range(IMAGES):
            assert_close(self.logits(model, slice(row, row + 1)), together[row : row + 1])
        assert_close(self.logits(model, [2, 0, 1]), together[[2, 0, 1]])

    def test_released_pool_depends_on_the_batch(self):
        model = self.make_model(intensity_pool="released")
        assert (self.logits(model, slice(0, 1)) - self.logits(model)[:1]).abs().max() > 1e-4

    @POOLS
    def test_later_words_do_not_change_earlier_ones(self, pool):
        model = self.make_model(intensity_pool=pool)
        captions = self.captions(model)
        changed = captions.clone()
        changed[:, TOKENS - 2] = captions[:, 1]
        difference = (self.logits(model, captions=changed) - self.logits(model)).abs().amax((0, 2))
        assert difference[: TOKENS - 2].max() < 1e-6 and difference[TOKENS - 2 :].min() > 1e-5

    @POOLS
    def test_padding_changes_nothing(self, pool):
        """Hidden regions, and hidden tokens on the left."""
        model = self.make_model(intensity_pool=pool)
        inputs, captions = self.inputs("regions"), self.captions(model)
        expected = model(**inputs, decoder_input_ids=captions).logits
        wider = {name: torch.cat((value, value[:, :2]), dim=1) for name, value in inputs.items()}
        wider["region_mask"][:, -2:] = False
        assert_close(model(**wider, decoder_input_ids=captions).logits, expected)
        left = torch.cat((torch.zeros_like(captions[:, :2]), captions), dim=1)
        mask = torch.ones_like(left)
        mask[:, :2] = 0
        found = model(**inputs, decoder_input_ids=left, decoder_attention_mask=mask).logits[:, 2:]
        assert_close(found, expected)

    @POOLS
    def test_sums_follow_the_cache(self, pool):
        """Word after word, in uneven pieces, as all at once (Eq. 7 over the visible part of the map)."""
        model = self.make_model(intensity_pool=pool)
        inputs, captions = self.inputs("regions"), self.captions(model)
        whole = model(**inputs, decoder_input_ids=captions, output_gates=True)
        encoded = model.get_encoder()(**inputs)
        cache, logits, gates = None, [], []
        for piece in captions.split([2, 1, TOKENS - 3], dim=1):
            out = model(
                encoder_outputs=encoded,
                decoder_input_ids=piece,
                cache=cache,
                use_cache=True,
                output_gates=True,
            )
            cache = out.cache
            logits.append(out.logits)
            gates.append(out.gates[-1])
        assert_close(torch.cat(logits, dim=1), whole.logits)
        assert_close(torch.cat(gates, dim=-1), whole.gates[-1])

    def test_pooled_intensities_are_means_of_the_map(self):
        """Eq. 4-7: the mean over visible pairs, per head; the sum over heads and query regions."""
        torch.manual_seed(0)
        regions, real = torch.randn(2, 4, 20), torch.tensor([[True] * 4, [True, True, False, False]])
        mask = torch.where(real, 0.0, torch.finfo(torch.float32).min)[:, None, None].expand(2, 1, 4, 4)
        found = {}
        for pool in ("mean", "sum"):
            attention = RegionIntensityAttention(self.make_config(intensity_pool=pool), 20, 2).eval()
            torch.manual_seed(1)
            for parameter in attention.parameters():
                torch.nn.init.normal_(parameter)
            found[pool] = attention(regions, regions, mask)[2]
        gelu = torch.nn.functional.gelu
        past, value = (
            gelu(proj(gelu(regions))).unflatten(-1, (2, 10)).transpose(1, 2)
            for proj in (attention.p_proj, attention.v_proj)
        )
        for image in range(2):
            count = int(real[image].sum())
            maps = gelu(past[image, :, :count] @ value[image, :, :count].mT / 10**0.5)
            assert_close(found["mean"][image], maps.mean((1, 2)))
            assert_close(found["sum"][image], maps.sum()[None] / count)

    def test_without_gate_and_factor_only_the_intensity_is_left(self):
        """zeta = 0 without a gate multiplies by rho; zeta = 1 with a zero rho leaves the refined attention."""
        attended = torch.randn(2, 3, 2, 10)
        bare = RegionIntensityAttention(self.make_config(intensity_gate="none", zoneout_factor=0.0), 20, 2)
        assert_close(bare.scaled(attended, torch.ones(2, 1, 1)), attended)
        assert_close(bare.scaled(attended, torch.full((2, 1, 1), 3.0)), 3 * attended)
        gated = RegionIntensityAttention(self.make_config(intensity_gate="tanh"), 20, 2)
        assert_close(gated.scaled(attended, torch.zeros(2, 1, 1)), attended)

    def test_released_pool_refuses_a_cache(self):
        model = self.make_model(intensity_pool="released")
        inputs = self.inputs("regions")
        with pytest.raises(ValueError, match="nothing can be cached"):
            model(**inputs, decoder_input_ids=self.captions(model), cache=self.make_cache(), use_cache=True)
        with pytest.raises(ValueError, match="nothing can be cached"):
            model.generate(**inputs, use_cache=True)
        for options in ({"num_beams": 1}, {"num_beams": 3}, {"num_beams": 3, "bookkeeping": "pool"}):
            assert model.generate(**inputs, max_new_tokens=4, **options).shape[0] == IMAGES

    def test_released_pool_warns_once(self, caplog):
        """`generate()` says that captions depend on the batch, once in a process; the other pools are silent."""
        logger = layers_intensity.logger
        type(logger).warning_once.cache_clear()
        for pool, expected in (("mean", 0), ("released", 1), ("released", 1)):
            self.make_model(intensity_pool=pool).generate(**self.inputs("regions"), max_new_tokens=2)
            assert caplog.text.count("a caption depends on the other images of its batch") == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"intensity_gate": "relu"}, "`intensity_gate` is 'relu'"),
        ({"intensity_pool": "batch"}, "`intensity_pool` is 'batch', expected one of 'mean', 'sum', 'released'"),
        ({"num_attention_heads": 7}, "not a multiple of `num_attention_heads=7`"),
        ({"encoder_layers": 0}, "`encoder_layers` is 0, expected at least 1"),
        ({"zodiac_dropout": 1.0}, r"`zodiac_dropout` is 1.0, expected a number in \[0.0, 1.0\)"),
        ({"region_batch_norm": 3}, "`region_batch_norm` is 3"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        ZodiacConfig(**fields)

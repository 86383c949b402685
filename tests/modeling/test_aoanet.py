"""AoANet: the common checks and its own properties."""

import pytest
import torch

from hf_captioners.modeling.configuration_aoanet import AoANetConfig
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_aoanet import AoANetProcessor

from .common import CaptionerChecks
from .common_case import IMAGES, REGIONS, TOKENS, CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer

WIDTH = 16


class AoANetCase(CaptionerCase):
    """Two refining layers; states as wide as the word embeddings, so that both can share a matrix."""

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "embedding_size": WIDTH, "hidden_size": WIDTH, "num_heads": 2}
        small = {"refiner_layers": 2, "attention_size": 12, "global_feature_size": 7}
        rates = {"dropout": 0.1, "context_dropout": 0.1}
        return AoANetConfig(**sizes | small | rates | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return AoANetProcessor(images, tiny_word_tokenizer())

    def make_cache(self):
        return RecurrentCache()


class TestAoANet(AoANetCase, CaptionerChecks):
    """The common checks, and the properties of AoANet."""

    options = [
        {"decoder_type": "lstm", "output_residual": True, "region_norm": "batch"},
        {"decoder_type": "base", "refiner": "attention", "refiner_ffn_dim": 24, "region_norm": "batch_input"},
        {"attention_type": "additive", "global_vector": "projected"},
        {"attention_type": "additive", "decoder_type": "lstm", "refiner": "none"},
        {"head_scale": 2, "query_norm": False, "global_vector": "given"},
        {"refiner": "none", "context_dropout": 0.0},
    ]
    changes = [{"output_residual": True}]
    dropouts = ["dropout", "attention_dropout", "residual_dropout", "aoa_dropout", "context_dropout"]

    def unread(self, model):
        return ("score.bias",)  # a constant of all scores leaves the softmax as it is

    def check_option(self, model, inputs, outputs):
        """Gates lie in (0, 1); the same captions with and without a cache: greedy, sampled and by beams."""
        gated = model.config.decoder_type == "aoa"
        assert (outputs.gates[0].context is not None) == gated
        if gated:
            assert outputs.gates[0].context.shape == (IMAGES, TOKENS, WIDTH)
            assert (outputs.gates[0].context > 0).all() and (outputs.gates[0].context < 1).all()
        refined = [gate for gate in outputs.encoder_gates if gate is not None]
        assert len(refined) == (model.config.refiner_layers if model.config.refiner == "aoa" else 0)
        for options in ({}, {"do_sample": True}, {"num_beams": 3}, {"num_beams": 3, "bookkeeping": "pool"}):
            captions = []
            for use_cache in (True, False):
                torch.manual_seed(0)
                given = {"max_new_tokens": 5, "min_new_tokens": 3, "use_cache": use_cache, **options}
                captions.append(model.generate(**inputs, **given))
            assert torch.equal(*captions), options

    @pytest.mark.parametrize("decoder_type", ["aoa", "lstm", "base"])
    def test_beams_carry_all_states(self, decoder_type):
        """The cache has the states of the attention LSTM and the context, and its memory if it is an LSTM."""
        model, cache = self.make_model(decoder_type=decoder_type), RecurrentCache()
        model.generate(**self.inputs("regions"), num_beams=3, max_new_tokens=5, cache=cache)
        states = {name: tuple(values.shape) for name, values in cache.layers[0].states.items()}
        names = ["hidden", "memory", "context", *(["context_memory"] if decoder_type == "lstm" else [])]
        assert states == dict.fromkeys(names, (3 * IMAGES, WIDTH))

    def test_permuted_regions(self):
        """They permute encoder states and attention maps, and leave the logits."""
        model, captions = self.make_model(attn_implementation="eager"), self.captions(self.make_model())
        inputs, order = self.inputs("regions"), torch.randperm(REGIONS, generator=torch.Generator().manual_seed(1))
        asked = {"decoder_input_ids": captions, "output_attentions": True, "output_gates": True}
        found = model(**inputs, **asked)
        permuted = model(**{name: values[:, order] for name, values in inputs.items()}, **asked)
        assert_close(permuted.logits, found.logits)
        assert_close(permuted.encoder_last_hidden_state, found.encoder_last_hidden_state[:, order])
        assert_close(permuted.cross_attentions[0], found.cross_attentions[0][..., order])
        for ours, theirs in zip(permuted.encoder_attentions, found.encoder_attentions, strict=True):
            assert_close(ours, theirs[:, :, order][..., order])
        assert (order != torch.arange(REGIONS)).any()

    def test_global_vectors_by_hand(self):
        """The mean of refined regions, and projections of the mean region and of a given vector."""
        inputs, given = self.inputs("regions"), torch.randn(IMAGES, 7, generator=torch.Generator().manual_seed(2))
        shares = inputs["region_mask"] / inputs["region_mask"].sum(1, keepdim=True)
        for rule in ("mean", "projected", "given"):
            encoder = self.make_model(global_vector=rule).get_encoder()
            vectors = {"global_features": given} if rule == "given" else {}
            encoded = encoder(**inputs, **vectors)
            if rule == "mean":
                expected = (shares[..., None] * encoded.last_hidden_state).sum(1)
            else:
                mean = (shares[..., None] * inputs["region_features"]).sum(1)
                layer = encoder.global_projection
                expected = torch.relu((given if rule == "given" else mean) @ layer.weight.T + layer.bias)
            assert_close(encoded.global_state, expected)

    def test_wrong_global_features(self):
        inputs, captions = self.inputs("regions"), self.captions(self.make_model())
        plain, reads = self.make_model(), self.make_model(global_vector="given")
        for model, features, message in (
            (plain, torch.zeros(IMAGES, 7), "`config.global_vector` is 'mean': omit them, or build the model"),
            (reads, None, r"`global_features` are missing: .* \[images, 7\]"),
            (reads, torch.zeros(IMAGES, 8), r"has the shape \(3, 8\), expected \(3, 7\)"),
            (reads, torch.zeros(2, 7), r"has the shape \(2, 7\), expected \(3,\)"),
        ):
            with pytest.raises(ValueError, match=message):
                model(**inputs, global_features=features, decoder_input_ids=captions)

    def test_batch_norm_counts_visible_regions(self):
        """In training, padding changes neither statistics nor results, whatever it holds."""
        inputs, found = self.inputs("regions"), []
        for extra in (0, 2):
            model = self.make_model(region_norm="batch", dropout=0.0).train()
            model.model.encoder.projection(
                torch.nn.functional.pad(inputs["region_features"], (0, 0, 0, extra), value=5.0),
                torch.nn.functional.pad(inputs["region_mask"], (0, extra)),
            )
            found.append([buffer.clone() for buffer in model.model.encoder.projection.buffers()])
        visible = inputs["region_features"][inputs["region_mask"]]
        assert_close(found[0][0], 0.1 * visible.mean(0))
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"refiner": "gated"}, "`refiner` is 'gated', expected one of 'aoa', 'attention', 'none'"),
        ({"decoder_type": "gru"}, "`decoder_type` is 'gru', expected one of 'aoa', 'lstm', 'base'"),
        ({"global_vector": "first"}, "`global_vector` is 'first'"),
        ({"num_heads": 7}, "`num_heads` is 7, expected a divisor of `hidden_size \\* head_scale` = 1024"),
        ({"refiner_layers": 0}, "`refiner_layers` is 0"),
        ({"context_dropout": 1.0}, "`context_dropout` is 1.0"),
        ({"region_mask_rule": "zero_projected_sum"}, "`region_mask_rule` is 'zero_projected_sum'"),
        ({"tie_word_embeddings": True, "hidden_size": 512}, "as wide as the word embeddings, got 512 and 1024"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        AoANetConfig(**fields)

"""Image Transformer: the common checks and its own properties."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_captioners.modeling.configuration_image_transformer import ImageTransformerConfig
from hf_captioners.modeling.layers_recurrent import RecurrentCache
from hf_captioners.modeling.modeling_image_transformer import relations_of_boxes
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_image_transformer import ImageTransformerProcessor

from .common import CaptionerChecks
from .common_case import IMAGES, REGIONS, TOKENS, CaptionerCase, assert_close
from .word_parts import VOCABULARY, tiny_word_tokenizer

WIDTH = 16


class ImageTransformerCase(CaptionerCase):
    """Two spatial layers; states as wide as the word embeddings, so that both can share a matrix."""

    def make_config(self, **fields):
        sizes = {"vocab_size": VOCABULARY, "embedding_size": WIDTH, "hidden_size": WIDTH, "num_heads": 2}
        small = {"encoder_layers": 2, "global_feature_size": 7, "dropout": 0.1, "context_dropout": 0.1}
        return ImageTransformerConfig(**sizes | small | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return ImageTransformerProcessor.for_config(self.make_config(), images, tiny_word_tokenizer())

    def make_cache(self):
        return RecurrentCache()

    def inputs(self, way_in, images=IMAGES, seed=0):
        """The first region contains all others, so that every relation occurs."""
        inputs = super().inputs(way_in, images, seed)
        if way_in == "regions":
            inputs["region_boxes"][:, 0] = torch.tensor([0.0, 0.0, 1.0, 1.0])
        return inputs


class TestImageTransformer(ImageTransformerCase, CaptionerChecks):
    """The common checks, and the properties of the graph."""

    options = [
        {"spatial_layers": [1], "num_sub_transformers": 1, "share_plain_attention": True},
        {"encoder_layers": 3, "spatial_layers": [1], "share_plain_attention": True, "encoder_ffn_dim": 12},
        {"relation_weights": "related_regions", "overlap_rule": "released", "num_sub_transformers": 4},
        {"relation_weights": "mean", "mask_decoder_attention": False, "encoder_attention_on_attention": False},
        {"spatial_relations": ["child", "neighbour"], "sub_transformer_mixture": "gates"},
        {"sub_transformer_mixture": "gates", "decoder_attention_on_attention": False, "global_vector": "projected"},
        {"share_queries": False, "global_vector": "given"},
    ]
    option_fields = {"attn_implementation": "eager", "dropout": 0.0, "context_dropout": 0.0}
    changes = [{"relation_weights": "related_regions"}, {"relation_weights": "mean"}]
    dropouts = ["dropout", "encoder_dropout", "aoa_dropout", "context_dropout"]

    def check_option(self, model, inputs, outputs):
        """Gates lie in (0, 1), and attention has an axis of sub-transformers or relations."""
        for gate in (*outputs.encoder_gates, *outputs.gates[0]):
            assert gate is None or (gate > 0).all() and (gate < 1).all()
        count = model.config.num_sub_transformers
        assert outputs.cross_attentions[0].shape == (IMAGES, count, 2, TOKENS, REGIONS)
        assert (outputs.gates[0].attention is None) == (model.config.sub_transformer_mixture == "mean")
        relations = len(model.config.spatial_relations)
        for layer, weights in enumerate(outputs.encoder_attentions):
            spatial = layer in model.config.spatial_layers
            assert weights.shape == (IMAGES, *((relations,) if spatial else ()), 2, REGIONS, REGIONS)

    @torch.no_grad()
    def test_permuted_regions_permute_the_graph(self, model):
        """States, gates, relations and maps follow their regions; logits and captions stay."""
        model = self.make_model(attn_implementation="eager")
        inputs, order = self.inputs("regions"), torch.tensor([3, 0, 4, 2, 1])
        moved = {name: values[:, order] for name, values in inputs.items()}
        asked = {"output_attentions": True, "output_hidden_states": True, "output_gates": True}
        plain, permuted = (model(**one, **asked, decoder_input_ids=self.captions(model)) for one in (inputs, moved))
        assert_close(permuted.logits, plain.logits)
        assert torch.equal(permuted.encoder_relations, plain.encoder_relations[:, order][:, :, order])
        for name in ("encoder_hidden_states", "encoder_gates"):
            for found, expected in zip(permuted[name], plain[name], strict=True):
                assert_close(found, expected[:, order])
        for found, expected in zip(permuted.encoder_attentions, plain.encoder_attentions, strict=True):
            assert_close(found, expected[..., order, :][..., order])
        assert_close(permuted.cross_attentions[0], plain.cross_attentions[0][..., order])
        assert torch.equal(*(model.generate(**one, num_beams=3, max_new_tokens=5) for one in (inputs, moved)))

    def test_relations_are_one_for_each_visible_pair(self, model):
        """Parents are children transposed; hidden regions and those of another view are not related."""
        inputs = self.inputs("regions")
        relations = model.get_encoder()(**inputs, output_gates=True).relations
        mask = inputs["region_mask"]
        visible = mask[:, None] & mask[:, :, None]
        assert torch.equal(relations > 0, visible) and relations.max() == 3
        assert torch.equal(relations == 3, (relations == 1).transpose(1, 2))
        assert (relations.diagonal(dim1=1, dim2=2)[mask] == 2).all()
        views = torch.tensor([0, 1, 0, 1, 1]).expand(IMAGES, -1)
        of_views = model.get_encoder()(**inputs, region_views=views, output_gates=True).relations
        assert torch.equal(of_views, relations * (views[:, None] == views[:, :, None]))
        assert model.get_encoder()(**inputs).relations is None

    def test_given_relations_replace_boxes(self, model):
        """The relations that boxes give, and others, in forward, search and processor."""
        inputs, captions = self.inputs("regions"), self.captions(model)
        out = model(**inputs, decoder_input_ids=captions, output_gates=True)
        boxes = inputs.pop("region_boxes")
        given = {**inputs, "region_relations": out.encoder_relations}
        assert_close(model(**given, decoder_input_ids=captions).logits, out.logits)
        others = {**inputs, "region_relations": torch.full((IMAGES, REGIONS, REGIONS), 2.0)}
        assert (model(**others, decoder_input_ids=captions).logits - out.logits).abs().max() > 1e-3
        options = {"num_beams": 2, "max_new_tokens": 4}
        assert torch.equal(model.generate(**given, **options), model.generate(**inputs, region_boxes=boxes, **options))
        processor, features = self.make_processor(), inputs["region_features"][2].numpy()
        with pytest.raises(ValueError, match="needs boxes: pass `regions` as .*or 'relations' instead of boxes"):
            processor(regions=features)
        batch = processor(regions={"features": features, "relations": np.full((REGIONS, REGIONS), 2)})
        assert batch["region_relations"].shape == (1, REGIONS, REGIONS)

    def test_relations_of_boxes_without_area_and_in_half_precision(self, model):
        """Logits are finite, and a model in bfloat16 has the graph of one in float32."""
        inputs, captions = self.inputs("regions"), self.captions(model)
        inputs["region_boxes"][:, 1] = torch.tensor([0.3, 0.2, 0.3, 0.7])
        inputs["region_boxes"][:, 2] = 0.5
        for overlap in ("clamped", "released"):
            model = self.make_model(overlap_rule=overlap)
            exact, half = (
                one(**inputs, decoder_input_ids=captions, output_gates=True)
                for one in (model, self.make_model(overlap_rule=overlap).to(torch.bfloat16))
            )
            assert torch.isfinite(exact.logits).all() and torch.isfinite(half.logits).all()
            assert torch.equal(half.encoder_relations, exact.encoder_relations)
        assert (self.make_model().get_encoder()(**inputs, output_gates=True).relations[0, 1] == 2).all()

    def test_every_relation_learns_from_pixels(self):
        """On a grid of several scales each relation has a gradient; on one grid there are neighbours only."""
        for grid, expected in (([1, 2, 4], {"child", "neighbour", "parent"}), (2, {"neighbour"})):
            model = self.make_model(vision_grid_size=grid)
            model(**self.inputs("pixels"), labels=self.labels(model)).loss.backward()
            for layer in model.model.encoder.layers:
                for part in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                    learns = {name for name, linear in part.items() if linear.weight.grad.any()}
                    assert learns == expected
        assert self.make_config().vision_grid_size == [1, 2, 4]

    def test_only_related_regions_are_read(self):
        """Without the rule that weighs all regions, the weights of a relation sum to 1 over related regions."""
        inputs = self.inputs("regions")
        model = self.make_model(relation_weights="related_regions")
        encoded = model.get_encoder()(**inputs, output_attentions=True, output_gates=True)
        names = dict(zip(model.config.spatial_relations, encoded.attentions[0].unbind(1), strict=True))
        related = {name: encoded.relations == number for number, name in enumerate(names, 1)}
        for name, weights in names.items():
            some = related[name].any(-1)
            shares = (weights * related[name][:, None]).sum(-1).transpose(1, 2)
            assert_close(shares[some], torch.ones_like(shares[some]))

    def test_missing_relations_count_as_neighbourhood(self):
        """A model without children is one in which all children are given as neighbours."""
        model, inputs = self.make_model(spatial_relations=["neighbour", "parent"]), self.inputs("regions")
        out = model(**inputs, decoder_input_ids=self.captions(model), output_gates=True)
        merged = out.encoder_relations.masked_fill(out.encoder_relations == 1, 2)
        again = model(**inputs, region_relations=merged, decoder_input_ids=self.captions(model))
        assert_close(again.logits, out.logits)

    def test_beams_carry_all_state(self, model):
        """State and context of every beam are rows of the cache; images have one row each."""
        cache = RecurrentCache()
        model.generate(**self.inputs("regions"), num_beams=3, max_new_tokens=5, cache=cache)
        shapes = {name: tuple(state.shape) for name, state in cache.layers[0].states.items()}
        assert shapes == dict.fromkeys(("hidden", "memory", "context"), (3 * IMAGES, WIDTH))
        encoded = model.get_encoder()(**self.inputs("regions"))
        assert encoded.level_states.shape == (IMAGES, 2, REGIONS, 3 * WIDTH)

    def test_boxes_and_relations_are_refused(self, model):
        """With the value, what was expected and what to type."""
        inputs, captions = self.inputs("regions"), self.captions(model)
        without = {name: values for name, values in inputs.items() if name != "region_boxes"}
        cases = {
            "graph of the boxes of the regions: pass `region_boxes` .*, or `region_relations`": {},
            r"`region_relations` has the shape \(3, 4, 4\), expected \(3, 5, 5\)": {
                "region_relations": torch.ones(IMAGES, 4, 4)
            },
            "`region_relations` holds 4, expected 0 .*, 1 .*, 2 .* or 3": {
                "region_relations": torch.full((IMAGES, REGIONS, REGIONS), 4)
            },
            "`global_features` are given": {"global_features": torch.ones(IMAGES, 7), **inputs},
            "`region_boxes` leaves the image": {"region_boxes": inputs["region_boxes"] * 480},
        }
        for message, more in cases.items():
            with pytest.raises(ValueError, match=message):
                model(**without | more, decoder_input_ids=captions)
        plain = self.make_model(spatial_layers=[])
        assert plain(**without, decoder_input_ids=captions, output_gates=True).encoder_relations is None


def distinct(boxes) -> bool:
    """Whether no share of a box in another one is so near the threshold that rounding decides."""
    low, high = np.maximum(boxes[:, None, :2], boxes[:, :2]), np.minimum(boxes[:, None, 2:], boxes[:, 2:])
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    shares = (high - low).clip(0).prod(-1) / area[:, None]
    return bool(
        (np.abs(shares - 0.9) > 1e-3).all()
        and (np.abs(area[:, None] / area - 1) > 1e-3)[~np.eye(len(area), dtype=bool)].all()
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 700), shift=st.tuples(*[st.floats(-3, 3)] * 2))
def test_relations_do_not_depend_on_the_place_of_the_image(seed, scale, shift):
    """Translated, scaled and mirrored boxes have the same relations; parents are children transposed."""
    random = np.random.default_rng(seed)
    sizes, corners = random.uniform(0.05, 0.9, (7, 2)), random.uniform(0, 1, (7, 2))
    low = corners * (1 - sizes)
    boxes = np.concatenate((low, low + sizes), axis=-1)
    assume(distinct(boxes))
    expected = relations_of_boxes(torch.tensor(boxes, dtype=torch.float32))
    mirrored = boxes.copy()
    mirrored[:, [0, 2]] = 1 - boxes[:, [2, 0]]
    for changed in ((boxes + np.tile(shift, 2)) * scale, mirrored):
        assert torch.equal(relations_of_boxes(torch.tensor(changed, dtype=torch.float32)), expected)
    assert torch.equal(expected == 3, (expected == 1).T)
    areas = torch.tensor((boxes[:, 2:] - boxes[:, :2]).prod(-1))
    assert (areas[None] > areas[:, None])[expected == 3].all(), "a parent is larger"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"spatial_layers": [3]}, r"`spatial_layers` is \[3\], expected layers between 0 and 2"),
        ({"spatial_relations": ["parents"]}, "`spatial_relations` is 'parents', expected one of 'child'"),
        ({"spatial_relations": ["parent"]}, "expected 'neighbour' among them"),
        ({"overlap_rule": "clipped"}, "`overlap_rule` is 'clipped', expected one of 'clamped', 'released'"),
        ({"overlap_threshold": 1.5}, "`overlap_threshold` is 1.5"),
        ({"num_sub_transformers": 0}, "`num_sub_transformers` is 0, expected at least 1"),
        ({"num_heads": 3}, "`hidden_size` is 1024, expected a multiple of 3 heads"),
        ({"tie_word_embeddings": True, "embedding_size": 8}, "as wide as the word embeddings, got 1024 and 8"),
        ({"vision_grid_size": [2, 2]}, r"`vision_grid_size` is \[2, 2\]"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        ImageTransformerConfig(**fields)

"""An architecture of another package: the common checks, and what only its declared inputs can show."""

from typing import Literal

import pytest
import torch

from hf_captioners.architectures import ARCHITECTURES, Architecture
from hf_captioners.modeling.configuration_captioning import rate, within
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.registration import register_architecture

from . import common_training
from .common import CaptionerChecks
from .common_case import IMAGES, REGIONS, CaptionerCase, assert_close
from .toy import TOY
from .toy.configuration_toy import ToyConfig
from .toy.processing_toy import ToyProcessor
from .word_parts import VOCABULARY, tiny_word_tokenizer


class ToyCase(CaptionerCase):
    """A toy captioner with a vocabulary of words."""

    package = "tests.modeling.toy"
    encoder_slots = 2

    def make_config(self, **fields):
        return ToyConfig(**{"vocab_size": VOCABULARY} | fields)

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return ToyProcessor.for_config(self.make_config(), images, tiny_word_tokenizer())


class TestToy(ToyCase, CaptionerChecks):
    """The common checks, and the declared inputs."""

    options = [{"num_layers": 3}]
    changes = [{"num_heads": 4}]

    def declared(self):
        """Attributes of each image, one image without any, and relations between regions."""
        return {
            "attribute_ids": torch.tensor([[1, 2, 3], [4, 0, 0], [0, 0, 0]]),
            "attribute_mask": torch.tensor([[True] * 3, [True, False, False], [True, False, False]]),
            "region_relations": torch.ones(IMAGES, REGIONS, REGIONS).tril(),
        }

    def test_declared_inputs_reach_the_model(self, model):
        """In one pass, in a search, and through encoder outputs; hidden attributes do not matter."""
        inputs, captions = self.inputs("regions"), self.captions(model)
        plain = model(**inputs, decoder_input_ids=captions).logits
        full = model(**inputs, **self.declared(), decoder_input_ids=captions, output_gates=True)
        for name in ("attribute_ids", "region_relations"):
            some = {key: value for key, value in self.declared().items() if key.split("_")[0] == name.split("_")[0]}
            changed = model(**inputs, **some, decoder_input_ids=captions).logits
            assert (changed - plain).abs().amax((1, 2)).min() > 1e-4, f"{name} does not matter"
        assert_close(full.encoder_relations[1], torch.ones(REGIONS, REGIONS).tril() * inputs["region_mask"][1])
        other = self.declared() | {"attribute_ids": torch.tensor([[1, 2, 3], [4, 5, 6], [0, 5, 6]])}
        assert_close(model(**inputs, **other, decoder_input_ids=captions).logits, full.logits)
        options = {"num_beams": 3, "max_new_tokens": 6}
        written = model.generate(**inputs, **self.declared(), **options)
        encoded = model.get_encoder()(**inputs, **self.declared())
        assert torch.equal(written, model.generate(encoder_outputs=encoded, **options))
        assert encoded.memory("attribute")[0].shape == (IMAGES, 3, model.config.hidden_size)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"attribute_ids": torch.zeros(1, 3, dtype=torch.long)}, r"`attribute_ids` has the shape \(1, 3\)"),
            ({"attribute_ids": torch.zeros(IMAGES, 3)}, "expected integer ids"),
            ({"region_relations": torch.zeros(IMAGES, 2, 2)}, r"`region_relations` has the shape \(3, 2, 2\)"),
        ],
    )
    def test_declared_inputs_are_checked(self, model, wrong, message):
        with pytest.raises(ValueError, match=message):
            model(**self.inputs("regions"), **wrong, decoder_input_ids=self.captions(model))

    def test_the_processor_pads_declared_inputs(self):
        """By their own names, and beside the features of an entry of regions."""
        processor = self.make_processor()
        batch = processor(regions=[torch.ones(2, 24), torch.ones(1, 24)], attribute_ids=[[3], []], return_tensors="pt")
        assert batch["attribute_ids"].tolist() == [[3], [0]] and batch["attribute_mask"].tolist() == [[True], [False]]
        entry = {"features": torch.ones(2, 24), "relations": torch.eye(2), "attribute_ids": [5, 6]}
        batch = processor(regions=[entry, entry | {"attribute_ids": [1]}], return_tensors="pt")
        assert batch["attribute_mask"].tolist() == [[True, True], [True, False]]
        assert batch["region_relations"].shape == (2, 2, 2)
        with pytest.raises(TypeError, match="attribut_ids"):
            processor(regions=[torch.ones(2, 24)], attribut_ids=[[3]])

    def test_boxes_of_different_views_are_not_related(self, model):
        """Nested boxes in two views: no relation; in one view: one inside of the other."""
        features = torch.randn(1, 2, 24, generator=torch.Generator().manual_seed(0))
        boxes = torch.tensor([[[0.0, 0.0, 1.0, 1.0], [0.2, 0.2, 0.6, 0.6]]])
        inputs = {"region_features": features, "region_boxes": boxes}
        captions = self.captions(model, rows=1)
        one = model(**inputs, decoder_input_ids=captions, output_gates=True).encoder_relations
        views = torch.tensor([[0, 1]])
        two = model(**inputs, region_views=views, decoder_input_ids=captions, output_gates=True).encoder_relations
        assert one[0].tolist() == [[1, 0], [1, 1]] and two[0].tolist() == [[1, 0], [0, 1]]


class TestJoinedParts:
    """The check of heads and gates, with matrices that the test class names, and without any."""

    def test_parts_without_a_gradient_are_named(self):
        """Rows of attributes that no image has get no gradient."""
        check = TestToy()
        check.joined_parts = {"model.encoder.attributes.weight": 8}
        with pytest.raises(AssertionError, match=r"attributes.weight: no gradient reaches parts \[0, 1, .*, 6\]"):
            check.test_every_head_and_gate_gets_a_gradient()

    def test_an_architecture_may_have_none(self, monkeypatch):
        monkeypatch.setattr(common_training, "parts_of", lambda model: {})
        with pytest.raises(pytest.skip.Exception, match="`joined_parts`"):
            TestToy().test_every_head_and_gate_gets_a_gradient()


class NarrowConfig(ToyConfig):
    """A configuration that declares more than its base class, and one field again."""

    model_type = "captioning_narrow"

    token_mask_rule: Literal["explicit"] = "explicit"
    num_heads: int = within(2)(default=2)
    dropout: float | int = rate(default=0.1)
    inner_size: int | None = within(2)(default=None)
    weight: float | int = within(0.5, 2.0)(default=0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"region_mask_rule": "guess"}, "`region_mask_rule` is 'guess', expected one of 'explicit', 'zero_projected"),
        ({"token_mask_rule": "pad_id"}, "`token_mask_rule` is 'pad_id', expected one of 'explicit'."),
        ({"label_smoothing": 1.0}, r"`label_smoothing` is 1.0, expected a number in \[0.0, 1.0\)"),
        ({"dropout": 1.0}, r"`dropout` is 1.0, expected a number in \[0.0, 1.0\)"),
        ({"num_layers": 0}, "`num_layers` is 0, expected at least 1."),
        ({"num_heads": 1}, "`num_heads` is 1, expected at least 2."),
        ({"inner_size": 1}, "`inner_size` is 1, expected at least 2."),
        ({"weight": 2.5}, r"`weight` is 2.5, expected a number in \[0.5, 2.0\]"),
    ],
)
def test_declared_fields_are_checked(fields, message):
    """Fields of base classes are checked too; a field that is declared again follows the last declaration."""
    assert NarrowConfig(weight=2.0).inner_size is None, "None, the default, is no size"
    with pytest.raises(ValueError, match=message):
        NarrowConfig(**fields)


def test_names_belong_to_one_architecture():
    register_architecture(TOY)  # again: the same row
    with pytest.raises(ValueError, match="belongs to Toy of tests.modeling.toy"):
        register_architecture(
            Architecture(name="toy", model_type="x", prefix="Other", tokenizer="words", paper="", package="other")
        )
    assert ARCHITECTURES["toy"] is TOY

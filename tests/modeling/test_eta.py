"""Entangled Transformer: the common checks, attributes, and every switch."""

import pytest
import torch
from PIL import Image
from transformers import pipeline

from hf_captioners.modeling.configuration_attribute_detector import AttributeDetectorConfig
from hf_captioners.modeling.configuration_eta import ETAConfig
from hf_captioners.modeling.modeling_attribute_detector import AttributeDetectorModel
from hf_captioners.modeling.modeling_eta import ETAForConditionalGeneration
from hf_captioners.processing.word_tokenizer import word_tokenizer

from .common import CaptionerChecks
from .common_case import FEATURE_SIZE, IMAGES, assert_close, disturb
from .common_deployment import CompilerChecks
from .common_forward import MaskChecks, OutputChecks
from .common_generation import CacheChecks, EncoderOnceChecks
from .eta_case import LAYERS, SIZES, WORDS, ETACase
from .word_parts import SPECIAL, VOCABULARY, tiny_word_tokenizer


class TestETA(ETACase, CaptionerChecks):
    """The common checks with detected attributes."""

    changes = [
        *({"fusion": name} for name in ("parallel", "stacked_v", "stacked_s", "visual_only", "semantic_only")),
        *({"gbc_activation": name} for name in ("relu", "tanh", "sigmoid")),
        {"gbc_residual": True},
        {"use_encoder": False},
        {"scale_embedding": False},
        {"encoder_positions": True},
        {"num_attributes": 2},
        {"attribute_threshold": 0.99},
    ]
    options = changes
    added = ("controller_norm",)
    dropouts = ["dropout"]

    def check_option(self, model, inputs, outputs):
        """The fusions with a gate return it, and score words with it."""
        gated = model.config.fusion in ("entangled", "parallel")
        assert (outputs.gates is not None) == model.has_visual_scores == gated
        if model.has_visual_scores:
            sequences = model.generate(**inputs, max_new_tokens=4)
            scores = model.visual_scores(sequences, **inputs)
            assert scores.shape == (IMAGES, sequences.shape[1] - 1) and scores.min() > 0 and scores.max() < 1


class TestETAWithGivenAttributes(ETACase, OutputChecks, MaskChecks, EncoderOnceChecks, CacheChecks, CompilerChecks):
    """The checks that read inputs, with attributes that are given: three images of three, one and no attribute."""

    def inputs(self, way_in, images=IMAGES, seed=0):
        """Return images or regions, and attributes."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(SPECIAL, VOCABULARY - 2, (images, 3), generator=generator)
        counts = torch.tensor([3, 1, 0] * images)[:images]
        mask = torch.arange(3) < counts[:, None]
        given = {"attribute_ids": ids.masked_fill(~mask, 0), "attribute_mask": mask}
        return super().inputs(way_in, images, seed) | given

    test_images_or_regions = None  # it passes the inputs of both ways, which share the attributes here

    def test_regions_of_images_may_be_computed_before(self, model):
        """Attributes go with the regions."""
        images, captions = self.inputs("pixels"), self.captions(model)
        regions = model.get_region_features(images["pixel_values"])
        given = {name: value for name, value in images.items() if name.startswith("attribute")}
        expected = model(**images, decoder_input_ids=captions).logits
        assert_close(model(**regions, **given, decoder_input_ids=captions).logits, expected)

    def test_given_attributes_replace_detected_ones(self, model):
        """Detected attributes, given, change nothing; others do. Their order and padding do not matter."""
        regions, captions = super().inputs("regions"), self.captions(model)
        found = model.get_encoder()(**regions)
        assert found.attribute_probabilities.shape == (IMAGES, 3)
        again = {"attribute_ids": found.attribute_ids.flip(1), "attribute_mask": found.attribute_mask.flip(1)}
        expected = model(**regions, decoder_input_ids=captions).logits
        assert_close(model(**regions, **again, decoder_input_ids=captions).logits, expected)
        given = self.inputs("regions")
        difference = model(**given, decoder_input_ids=captions).logits - expected
        assert difference.abs().amax((1, 2)).min() > 1e-3
        assert model.get_encoder()(**given).attribute_probabilities is None


@pytest.fixture(scope="module")
def case():
    return ETACase()


@pytest.fixture(scope="module")
def plain(case):
    return case.make_model()


def test_attention_over_attributes(case):
    """A distribution over the attributes of each image; regions have a map of their own."""
    model = case.make_model(attn_implementation="eager")
    inputs = case.inputs("regions")
    sequences = model.generate(**inputs, num_return_sequences=2, num_beams=2, max_new_tokens=4)
    maps = model.attribute_maps(sequences, **inputs)
    assert maps.ids.shape == (IMAGES, 3) and maps.weights.shape == (2 * IMAGES, sequences.shape[1] - 1, 3)
    assert_close(maps.weights.sum(-1), torch.ones(maps.weights.shape[:-1]))
    assert model.attention_maps(sequences, **inputs).shape[-1] == inputs["region_features"].shape[1]
    only = case.make_model(attn_implementation="eager", fusion="semantic_only")
    with pytest.raises(ValueError, match="attends to no regions; `attribute_maps`"):
        only.attention_maps(sequences, **inputs)
    with pytest.raises(ValueError, match="attends to no regions"):
        only.relevance_maps(sequences, **inputs)
    with pytest.raises(ValueError, match="reads no attributes"):
        case.make_model(fusion="visual_only").attribute_maps(sequences, **inputs)
    with pytest.raises(ValueError, match="has no gate, expected 'entangled'"):
        only.visual_scores(sequences, **inputs)
    with pytest.raises(ValueError, match=r"set_attn_implementation\(\"eager\"\)"):
        case.make_model().attribute_maps(sequences, **inputs)


def test_attributes_as_words(case, plain, caplog):
    """In the processor, in an entry of regions, and in the pipeline; unknown words are left out and counted."""
    processor = case.make_processor()
    images = [Image.linear_gradient("L").resize((32, 32)).convert("RGB")] * 2
    words = [["Dog", "grass", "unicorn"], []]
    batch = processor(images=images, attributes=words, return_tensors="pt")
    tokens = processor.tokenizer.convert_tokens_to_ids(["dog", "grass"])
    assert batch["attribute_ids"].tolist() == [tokens, [0, 0]]
    assert batch["attribute_mask"].tolist() == [[True, True], [False, False]]
    assert "1 of 3 words of `attributes` are not in the vocabulary and are left out: unicorn" in caplog.text
    regions = [{"features": torch.ones(2, FEATURE_SIZE), "attributes": ["dog"]}]
    assert processor(regions=regions, return_tensors="pt")["attribute_ids"].tolist() == [tokens[:1]]
    captioner = pipeline("image-captioning", model=plain, processor=processor)
    records = captioner([{"image": image, "attributes": ["dog", "car"]} for image in images], max_new_tokens=4)
    given = processor(images=images[:1], attributes=[["dog", "car"]], return_tensors="pt")
    expected = processor.batch_decode(plain.generate(**given, max_new_tokens=4))
    assert [record[0]["generated_text"] for record in records] == expected * 2
    for wrong, message in (
        ({"attribute_ids": [["dog"]]}, "`attribute_ids` holds words, expected ids of words. Pass words as"),
        ({"attributes": ["dog"]}, r"`attributes` of image 0 is 'dog', expected a list of words"),
        ({"attributes": [["dog"]], "attribute_ids": [[5]]}, "Both `attributes` and `attribute_ids` were given"),
        ({"attributes": [["dog"], ["cat"]]}, "has 2 entries for 1 images"),
    ):
        with pytest.raises(ValueError, match=message):
            processor(images=images[:1], **wrong)


def test_wrong_attributes(case, plain):
    """Refused with the value seen, what is expected and what to type."""
    inputs, captions = case.inputs("regions"), case.captions(plain)
    for wrong, message in (
        (torch.zeros(2, 3, dtype=torch.long), r"`attribute_ids` has the shape \(2, 3\), expected \(3,\) \(images\)"),
        (torch.full((3, 1), VOCABULARY), rf"has {VOCABULARY}, expected ids of words below {VOCABULARY} .* processor"),
        (torch.full((3, 1), -5), "has -5, expected ids of words below"),
        (torch.ones(3, 2), "expected integer ids"),
        ([["dog"]] * 3, r"`attribute_ids` is a list, expected a tensor. The processor makes it"),
    ):
        with pytest.raises(ValueError, match=message):
            plain(**inputs, attribute_ids=wrong, decoder_input_ids=captions)
    with pytest.raises(TypeError, match="did you mean `attribute_ids`"):
        plain(**inputs, atribute_ids=captions, decoder_input_ids=captions)
    blind = case.make_model(fusion="semantic_only", detector_config=None, attribute_token_ids=None)
    with pytest.raises(ValueError, match=r"reads attributes \(`fusion='semantic_only'`\) and has no detector: pass"):
        blind(**inputs, decoder_input_ids=captions)
    given = {"attribute_ids": torch.tensor([[5], [6], [7]])}
    assert blind(**inputs, **given, decoder_input_ids=captions).logits.isfinite().all()


def test_captioner_with_a_trained_detector(case, tmp_path):
    """It detects what the detector detects, among the words that its vocabulary has; others are refused."""
    torch.manual_seed(0)
    fields = {"words": WORDS, "region_feature_size": FEATURE_SIZE, "initial_bias": 0.0}
    detector = disturb(AttributeDetectorModel(AttributeDetectorConfig(**fields))).eval()
    detector.save_pretrained(tmp_path)
    sizes = SIZES | LAYERS | {"region_feature_size": FEATURE_SIZE, "num_attributes": 4}
    sizes.pop("vocab_size")
    tokenizer = tiny_word_tokenizer()
    model = ETAForConditionalGeneration.from_pretrained_parts(
        tokenizer=tokenizer, attribute_detector=str(tmp_path), **sizes
    )
    inputs = {name: value for name, value in case.inputs("regions").items() if name != "region_boxes"}
    probabilities = detector(**inputs).probabilities[:, :-1]  # the last word is not in the vocabulary
    best = probabilities.topk(4)
    found = model.get_encoder()(**inputs)
    assert_close(found.attribute_probabilities, best.values)
    words = [[WORDS[index] for index in row] for row in best.indices.tolist()]
    assert [tokenizer.convert_ids_to_tokens(row) for row in found.attribute_ids.tolist()] == words
    assert not any(parameter.requires_grad for parameter in model.model.encoder.detector.parameters())
    for wrong, message in (
        ({"region_feature_size": 7}, "reads other regions than the captioner: features per region 24 and 7"),
        ({"tokenizer": None, "vocab_size": 9}, "`attribute_detector` needs `tokenizer`"),
        (
            {"tokenizer": word_tokenizer(["dog", "zebra"])},
            "lacks 9 of the 10 words of the attribute detector .* Train",
        ),
    ):
        options = {"tokenizer": tokenizer, "attribute_detector": detector} | sizes | wrong
        with pytest.raises(ValueError, match=message):
            ETAForConditionalGeneration.from_pretrained_parts(**options)
    with pytest.raises(ValueError, match="is a 'captioning_eta' model, expected a 'captioning_attribute_detector'"):
        ETAForConditionalGeneration.from_pretrained_parts(tokenizer=tokenizer, attribute_detector=model, **sizes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fusion": "entangle"}, "`fusion` is 'entangle', expected one of 'entangled'"),
        ({"gbc_activation": "gelu"}, "`gbc_activation` is 'gelu'"),
        (
            {"hidden_size": 30, "num_attention_heads": 4},
            "`hidden_size=30` is not a multiple of `num_attention_heads=4",
        ),
        ({"dropout": 1.0}, "`dropout` is 1.0"),
        ({"decoder_layers": 0}, "`decoder_layers` is 0"),
        ({"attribute_threshold": 1.5}, "`attribute_threshold` is 1.5"),
        ({"detector_config": {"words": ["dog"]}}, "`attribute_token_ids` is None, expected one token for each"),
        ({"detector_config": {"words": ["dog"]}, "attribute_token_ids": [3, 4]}, "is 2 entries, expected"),
        ({"detector_config": {"words": ["dog"]}, "attribute_token_ids": [9999]}, "has 9999, .* another vocabulary"),
        ({"region_mask_rule": "zero_projected_sum"}, "`region_mask_rule` is 'zero_projected_sum'"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        ETAConfig(**fields)

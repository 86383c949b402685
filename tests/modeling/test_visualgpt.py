"""VisualGPT: the common checks and its own properties."""

import pytest
import torch
from transformers import AutoModelForImageTextToText, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.modeling_visualgpt import SRAUGates, VisualGPTForConditionalGeneration
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor

from .common import CaptionerChecks
from .common_case import FEATURE_SIZE, IMAGES, TOKENS, assert_close, disturb
from .gpt2_parts import TEXT, random_gpt2, tiny_gpt2_tokenizer

RANDOM_SIZES = [
    {"n_embd": 24, "n_layer": 1, "n_head": 3, "vocab_size": 41, "n_positions": 17},
    {"n_embd": 32, "n_layer": 3, "n_head": 2, "vocab_size": 97, "n_positions": 64, "n_inner": 50},
    {"n_embd": 40, "n_layer": 2, "n_head": 5, "vocab_size": 63, "n_positions": 24, "layer_norm_epsilon": 1e-3},
]
random_sizes = pytest.mark.parametrize("sizes", RANDOM_SIZES, ids=["one_layer", "three_layers", "five_heads"])


class TestVisualGPT(CaptionerChecks):
    """Two encoder levels, both read by a GPT-2 of two layers."""

    options = [
        {"fusion": "srau"},
        {"fusion": "srau", "srau_threshold": 0.45, "normalize_srau": True},
        {"fusion": "srau", "gate_input": "hidden", "gate_on": "visual"},
        {"fusion": "srau", "attention_on_attention": True, "cross_levels": [1]},
        {"fusion": "meshed"},
        {"fusion": "residual"},
        {"fusion": "residual", "attention_on_attention": True, "cross_levels": [0]},
        {"fusion": "add_norm", "residual_dropout_on": "branch"},
        {"fusion": "srau", "use_region_boxes": True, "identity_map_reordering": True},
        {"fusion": "srau", "encoder_key_dim": 7, "encoder_value_dim": 5, "encoder_attention_heads": 3},
        {"fusion": "srau", "region_mask_rule": "zero_projected_sum", "token_mask_rule": "pad_id"},
    ]
    changes = [{"srau_threshold": 0.45}, {"gate_on": "visual"}]
    dropouts = ["encoder_dropout", "cross_attention_dropout"]
    without_draws = {"text_config": TEXT | {"resid_pdrop": 0.0}}

    def make_config(self, **fields):
        special = {"bos_token_id": 28, "eos_token_id": 27, "pad_token_id": 29}
        return VisualGPTConfig(
            **{"text_config": dict(TEXT), "encoder_layers": 2, "encoder_ffn_dim": 32} | special | fields
        )

    def make_processor(self):
        images = CaptioningImageProcessor(size={"height": 32, "width": 32})
        return VisualGPTProcessor(images, prepare_gpt2_tokenizer(tiny_gpt2_tokenizer()))

    def check_option(self, model, inputs, outputs):
        """Gates of each layer, in [0, 1]."""
        assert len(outputs.gates) == model.config.text_config.n_layer
        for gates in outputs.gates:
            assert (gates is None) == (model.config.fusion in ("residual", "add_norm"))
            for values in gates if isinstance(gates, SRAUGates) else filter(torch.is_tensor, [gates]):
                levels, width = len(model.config.cross_levels), model.config.hidden_size
                assert values.shape == (IMAGES, TOKENS, levels, width)
                assert values.min() >= 0 and values.max() <= 1

    def test_layers_that_nothing_reads_are_not_built(self, tmp_path):
        """A checkpoint that has weights of such layers, as those of earlier versions, loads without them."""
        model = self.make_model(fusion="residual", cross_levels=[1])
        model.save_pretrained(tmp_path)
        loaded, report = type(model).from_pretrained(tmp_path, cross_levels=[0], output_loading_info=True)
        assert not any(report.values()), report
        assert len(model.model.encoder.layers) == 2 and len(loaded.model.encoder.layers) == 1
        inputs = {**self.inputs("regions"), "decoder_input_ids": self.captions(model)}
        expected = model.model.encoder(**self.inputs("regions")).level_states[:, :1]
        assert_close(loaded.model.encoder(**self.inputs("regions")).level_states, expected)
        assert torch.isfinite(loaded(**inputs).logits).all()

    def gates(self, **fields) -> SRAUGates:
        """Gates of the last layer."""
        model = self.make_model(**fields)
        out = model(**self.inputs("regions"), decoder_input_ids=self.captions(model), output_gates=True)
        return out.gates[-1]

    def test_gates_without_threshold_are_complementary(self):
        gates = self.gates(srau_threshold=0.0)
        assert_close(gates.language + gates.visual, torch.ones_like(gates.visual), atol=1e-6)

    def test_gates_below_the_threshold_are_closed(self):
        """Eq. 5: every gate is 0 or above tau, both kinds occur, and never are both gates closed."""
        threshold = 0.4
        gates = self.gates(srau_threshold=threshold)
        for gate in (gates.language, gates.visual):
            assert ((gate == 0) | (gate > threshold)).all()
            assert (gate == 0).any() and (gate > threshold).any()
        assert (gates.language + gates.visual).min() > threshold

    def test_normalised_gates_sum_to_one(self):
        gates = self.gates(srau_threshold=0.4, normalize_srau=True)
        assert_close(gates.language + gates.visual, torch.ones_like(gates.visual), atol=1e-6)
        assert (gates.visual == 0).any(), "no gate was closed"

    def test_more_tokens_than_positions(self, model):
        positions = model.config.text_config.n_positions
        captions = self.captions(model, length=positions + 1)
        with pytest.raises(ValueError, match=f"caption has {positions + 1} tokens.*{positions} positions"):
            model(**self.inputs("regions"), decoder_input_ids=captions)
        model(**self.inputs("regions"), decoder_input_ids=captions[:, :-1])

    def test_boxes_are_missing(self):
        model = self.make_model(use_region_boxes=True)
        inputs = self.inputs("regions") | {"region_boxes": None}
        with pytest.raises(ValueError, match="pass `region_boxes`"):
            model(**inputs, decoder_input_ids=self.captions(model))


@random_sizes
def test_equals_gpt2_without_cross_attention(sizes):
    """With plain cross-attention that adds nothing, VisualGPT is GPT-2."""
    gpt2 = random_gpt2(sizes)
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        gpt2, fusion="residual", region_feature_size=FEATURE_SIZE, encoder_layers=1, encoder_ffn_dim=16
    )
    for block in model.model.decoder.h:
        torch.nn.init.zeros_(block.crossattention.o_proj.weight)
        torch.nn.init.zeros_(block.crossattention.o_proj.bias)
    tokens = torch.randint(sizes["vocab_size"], (4, 15), generator=torch.Generator().manual_seed(0))
    features = torch.randn(4, 6, FEATURE_SIZE)
    found = model(region_features=features, decoder_input_ids=tokens).logits
    assert_close(found, gpt2(tokens).logits, atol=1e-5)


@random_sizes
def test_starts_from_a_gpt2_directory(sizes, tmp_path):
    """Every language weight is loaded; saving and loading keeps every weight of the captioner."""
    gpt2 = random_gpt2(sizes)
    gpt2.save_pretrained(tmp_path / "gpt2")
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        str(tmp_path / "gpt2"), region_feature_size=FEATURE_SIZE, encoder_layers=2, encoder_ffn_dim=16
    )
    decoder = model.model.decoder.state_dict()
    for name, weight in gpt2.transformer.state_dict().items():
        assert torch.equal(decoder[name], weight), name
    assert torch.equal(model.lm_head.weight, gpt2.lm_head.weight)
    disturb(model).save_pretrained(tmp_path / "captioner")
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "captioner")
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def test_starts_from_fewer_layers_and_more_tokens():
    """New begin and padding tokens get embeddings; upper layers can be omitted."""
    gpt2 = random_gpt2({**TEXT, "vocab_size": 28, "eos_token_id": 27})
    tokenizer = prepare_gpt2_tokenizer(tiny_gpt2_tokenizer())
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        gpt2, tokenizer=tokenizer, decoder_layers=1, region_feature_size=FEATURE_SIZE
    )
    config = model.config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.vocab_size) == (28, 27, 29, 30)
    assert len(model.model.decoder.h) == 1
    embedding = model.get_input_embeddings().weight
    assert torch.equal(embedding[:28], gpt2.transformer.wte.weight)
    assert torch.equal(embedding[28:], embedding[27:28].expand(2, -1))
    with pytest.raises(ValueError, match="`decoder_layers` is 3, the language model has 2"):
        VisualGPTForConditionalGeneration.from_pretrained_parts(gpt2, decoder_layers=3)


@pytest.mark.parametrize("threshold", [-0.01, 0.5, 1.0])
def test_threshold_out_of_range(threshold):
    with pytest.raises(ValueError, match=r"`srau_threshold` is .*\[0.0, 0.5\)"):
        VisualGPTConfig(srau_threshold=threshold)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fusion": "sum"}, "`fusion` is 'sum'"),
        ({"text_config": {"model_type": "bert"}}, "'bert' configuration, expected 'gpt2'"),
        ({"cross_levels": [0, 3]}, "levels between 0 and 2"),
        ({"fusion": "residual", "cross_levels": [0, 1]}, "reads one level"),
        ({"encoder_attention_heads": 5}, "not a multiple of `encoder_attention_heads=5`"),
        ({"encoder_layers": 0}, "expected at least 1"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        VisualGPTConfig(**fields)


def test_wrong_language_models(tmp_path):
    """A model that is not a GPT-2, by name or as an object, and a GPT-2 of different sizes."""
    bert = BertModel(BertConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    bert.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds a 'bert' model"):
        VisualGPTForConditionalGeneration.from_pretrained_parts(str(tmp_path))
    with pytest.raises(ValueError, match="is a BertModel, expected a GPT-2"):
        VisualGPTForConditionalGeneration.from_pretrained_parts(bert)
    model = TestVisualGPT().make_model()
    other = GPT2LMHeadModel(GPT2Config(**{**TEXT, "n_embd": 32}))
    with pytest.raises(ValueError, match=r"different sizes: `wte.weight` is \[30, 32\], expected \[30, 24\]"):
        model.load_language_weights(other.transformer)

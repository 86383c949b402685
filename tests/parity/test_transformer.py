"""The captioning Transformer equals the M2 code without mesh, and ZoDIAC's baseline of ImageCaptioning.pytorch."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_captioners.hub.convert import transformer as converter
from hf_captioners.hub.convert.key_maps import M2_DECODER, M2_STATE, KeyMap
from hf_captioners.modeling.configuration_transformer import CaptioningTransformerConfig
from hf_captioners.modeling.modeling_transformer import CaptioningTransformerForConditionalGeneration
from hf_captioners.modeling.search_captioning import TRIGRAM_PENALTY

from .figures import Comparison, Figures, variants
from .m2_code import CodeBase, compare_all, moved, slow_but_first, unnoticed_weights, unread

pytestmark = pytest.mark.parity

M2_STYLE = variants("transformer", start="m2_style")
BASELINE = variants("zodiac_transformer", start="baseline_transformer")
CANNOT_MATTER = {
    r".*\.k_proj\.bias": "a constant added to all scores of a query leaves the softmax as it is",
}


# Names and sizes of the decoder without a mesh in the M2 code (github.com/Vision-CAIR/VisualGPT at d4419be), of which
# no checkpoint was released.
M2_KEY_MAP = KeyMap(
    "the M2 code",
    (
        (r"encoder\.fc\.(\w+)", r"model.encoder.projection.linear.\1"),
        (r"encoder\.layer_norm\.(\w+)", r"model.encoder.projection.norm.\1"),
        (
            r"encoder\.layers\.(\d+)\.mhatt\.attention\.fc_([qkvo])\.(\w+)",
            r"model.encoder.layers.\1.self_attn.\2_proj.\3",
        ),
        (r"encoder\.layers\.(\d+)\.mhatt\.layer_norm\.(\w+)", r"model.encoder.layers.\1.self_attn_residual.norm.\2"),
        (r"encoder\.layers\.(\d+)\.pwff\.(fc[12])\.(\w+)", r"model.encoder.layers.\1.feed_forward.\2.\3"),
        (r"encoder\.layers\.(\d+)\.pwff\.layer_norm\.(\w+)", r"model.encoder.layers.\1.feed_forward_residual.norm.\2"),
        *M2_DECODER,
    ),
    unused=(*M2_STATE, r"decoder\.layers\.\d+\.(fc_alpha\d|Layer_norm)\.\w+"),
)


def convert_m2_style_config(sizes):
    """Build the configuration of a Transformer in the M2 code: no memory slots, last encoder level only.

    Args:
        sizes: `d_model`, `n_head`, `d_k`, `d_v`, `d_ff`, `d_in`, `encoder_layers`, `decoder_layers`, `vocab_size`,
            `decoder_max_len`, `bos_token_id`, `eos_token_id`, `pad_token_id`; optionally `layer_norm_epsilon`.
    """
    ids = {key: sizes[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return CaptioningTransformerConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["n_head"],
        key_dim=sizes["d_k"],
        value_dim=sizes["d_v"],
        ffn_dim=sizes["d_ff"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        region_feature_size=sizes["d_in"],
        max_position_embeddings=sizes["decoder_max_len"] + 1,
        norm_first=False,
        norm_type="layer",
        norm_eps=sizes.get("layer_norm_epsilon", 1e-5),
        region_norm="layer",
        region_dropout=0.1,
        attention_dropout=0.0,
        embedding_dropout=0.0,
        scale_embedding=False,
        position_embedding="noise",
        first_position=1,
        output_bias=False,
        region_mask_rule="zero_projected_sum",
        token_mask_rule="pad_id",
        **ids,
    )


def load(config, weights, may_lack=frozenset()):
    """Build a captioner from a configuration, with converted weights."""
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    assert type(model) is CaptioningTransformerForConditionalGeneration
    loaded = model.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys and set(loaded.missing_keys) <= may_lack, loaded
    return model.eval()


def build_m2_style(figures: Figures):
    config = convert_m2_style_config(figures.config)
    return load(config, M2_KEY_MAP.rename(figures.weights))


M2_CODE = CodeBase(build_m2_style, M2_KEY_MAP.rename, M2_KEY_MAP, cannot_matter=CANNOT_MATTER)


@pytest.mark.parametrize("folder", M2_STYLE)
def test_equals_m2_code(folder, report_compared):
    figures = Figures.load(folder)
    comparison = compare_all(M2_CODE, figures)
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    missing = unread(figures, comparison)
    assert not missing, f"expected tensors that nothing was compared with: {missing}"


@pytest.mark.parametrize("folder", slow_but_first(M2_STYLE))
def test_every_weight_of_m2_code_matters(folder):
    unnoticed, tried = unnoticed_weights(M2_CODE, Figures.load(folder))
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 20, f"only {tried} weights were tried"


# The baseline of ImageCaptioning.pytorch -----------------------------------------------------------------------------


def build_baseline(figures: Figures):
    config = converter.convert_config(figures.config)
    state = converter.convert_state_dict(figures.weights, figures.config["use_bn"])
    return load(config, state, {"model.decoder.position_embedding.weight"})


def image_inputs(figures: Figures) -> dict:
    return {
        "region_features": figures.inputs["att_feats"],
        "region_mask": figures.inputs["att_masks"].bool(),
    }


def captions_and_labels(figures: Figures):
    """Inputs `[N, L + 1]` and targets, -100 after the end token."""
    captions = figures.inputs["labels"].flatten(0, 1).long()
    mask = figures.inputs["masks"].flatten(0, 1).bool()
    return captions[:, :-1], captions[:, 1:].masked_fill(~mask[:, 1:], -100)


@torch.no_grad()
def compare_baseline_forward(comparison: Comparison, figures: Figures, model) -> None:
    captions, labels = captions_and_labels(figures)
    inputs, real = image_inputs(figures), figures.inputs["att_masks"].bool()
    spoken = labels != -100  # the release hides the end token at its own position, where nothing is predicted
    encoded = model.model.encoder(**inputs, output_attentions=True)
    out = model(encoder_outputs=encoded, decoder_input_ids=captions, output_attentions=True)
    comparison.close("memory", encoded.last_hidden_state, where=real)
    for layer, weights in enumerate(encoded.attentions):
        comparison.close(f"map.enc.{layer}", weights, where=real[:, None].expand(weights.shape[:3]))
    for layer, weights in enumerate(out.decoder_attentions):
        comparison.close(f"map.dec_self.{layer}", weights, where=spoken[:, None].expand(weights.shape[:3]))
    for layer, weights in enumerate(out.cross_attentions):
        comparison.close(
            f"map.dec_cross.{layer}", weights[:, 0], where=spoken[:, None].expand(weights[:, 0].shape[:3])
        )
    comparison.close("logprobs", out.logits.log_softmax(-1), atol=1e-4, where=spoken)
    losses = {"xe": 0.0, "ls0.1": 0.1, "ls0.2": 0.2}
    for name, smoothing in losses.items():
        model.config.label_smoothing = smoothing
        comparison.close(f"loss.{name}", model(encoder_outputs=encoded, labels=labels).loss, atol=1e-5)
    model.config.label_smoothing = 0.0


def compare_baseline_gradients(comparison: Comparison, figures: Figures, model) -> None:
    """Norms of the gradients of the cross-entropy, by the released order of the parameters."""
    _, labels = captions_and_labels(figures)
    model(**image_inputs(figures), labels=labels).loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    norms = torch.stack([gradients[converter.key_map()(key)].norm() for key in figures.config["parameter_order"]])
    comparison.close("gradnorm.xe", norms, atol=1e-6, rtol=1e-3)


def compare_baseline_alone(comparison: Comparison, figures: Figures, model) -> None:
    """Each caption without the others, its image without padded regions."""
    captions, labels = captions_and_labels(figures)
    alone = []
    for index, caption in enumerate(captions):
        real = figures.inputs["att_masks"][index].bool()
        features = figures.inputs["att_feats"][index : index + 1, real]
        alone.append(model(region_features=features, decoder_input_ids=caption[None]).logits.log_softmax(-1))
    comparison.close("alone.logprobs", torch.cat(alone), atol=1e-4, where=labels != -100)


def constraints(figures: Figures) -> dict:
    """Decoding options that the released evaluation switches on."""
    return {"no_immediate_repetition": True, "bad_ending_ids": figures.config["bad_endings_ids"]}


def compare_baseline_greedy(comparison: Comparison, figures: Figures, model) -> None:
    length = figures.config["max_length"]
    inputs = image_inputs(figures)

    def greedy(images, **options):
        out = model.generate(
            **images, num_beams=1, max_new_tokens=length, return_dict_in_generate=True, output_scores=True, **options
        )
        found = torch.zeros(len(out.sequences), length, dtype=torch.int32)
        found[:, : out.sequences.shape[1] - 1] = out.sequences[:, 1:]
        return found, out.scores

    found, scores = greedy(inputs)
    comparison.equal("greedy.seq", found, figures.expected["greedy.seq"])
    steps = torch.zeros_like(figures.expected["greedy.step_logprobs"])
    steps[:, : len(scores)] = torch.stack(scores, 1).log_softmax(-1)
    running = (found == 0).cumsum(1) - (found == 0).int() == 0  # up to the end token
    comparison.close("greedy.step_logprobs", steps, atol=1e-4, where=running)
    found, _ = greedy(inputs, **constraints(figures), trigram_penalty=TRIGRAM_PENALTY)
    comparison.equal("greedy_constrained.seq", found, figures.expected["greedy_constrained.seq"])
    alone = [greedy({name: value[i : i + 1] for name, value in inputs.items()})[0] for i in range(len(found))]
    comparison.equal("greedy_alone.seq", torch.cat(alone), figures.expected["greedy_alone.seq"])


def compare_baseline_search(comparison: Comparison, figures: Figures, model) -> None:
    """All beams; the constrained search never chooses the unknown word."""
    length, unknown = figures.config["max_length"], figures.config["unk_id"]
    for name, options in {
        "beam3": {},
        "beam5": {},
        "beam3_constrained": constraints(figures) | {"suppress_tokens": [unknown]},
    }.items():
        beams = int(name[4])
        out = model.generate(
            **image_inputs(figures),
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=length,
            bookkeeping="pool",
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        expected = figures.expected[f"{name}.seq"]
        ids = torch.zeros(expected.shape, dtype=torch.int32).flatten(0, 1)
        ids[:, : out.sequences.shape[1] - 1] = out.sequences[:, 1:]
        logprobs = torch.zeros(ids.shape)
        logprobs[:, : out.token_logprobs.shape[1]] = out.token_logprobs
        comparison.equal(f"{name}.seq", ids.view_as(expected), expected)
        comparison.close(f"{name}.score", out.sequences_scores, atol=1e-4)
        comparison.close(f"{name}.token_logprob", logprobs, atol=1e-4)
        lengths = (out.beam_indices >= 0).sum(-1).int().view_as(figures.expected[f"{name}.length"])
        comparison.equal(f"{name}.length", lengths, figures.expected[f"{name}.length"])


@pytest.mark.parametrize("folder", BASELINE)
def test_equals_baseline(folder, report_compared):
    figures = Figures.load(folder)
    comparison, model = Comparison(figures.expected), build_baseline(figures)
    for part in (
        compare_baseline_forward,
        compare_baseline_gradients,
        compare_baseline_alone,
        compare_baseline_greedy,
        compare_baseline_search,
    ):
        part(comparison, figures, model)
    report_compared(comparison.compared)
    assert not comparison.differences, "\n".join(comparison.differences)
    missing = sorted(set(figures.expected) - comparison.names)
    assert not missing, f"expected tensors that nothing was compared with: {missing}"


@pytest.mark.parametrize("folder", BASELINE)
def test_every_weight_of_baseline_matters(folder):
    figures = Figures.load(folder)
    code = CodeBase(build_baseline, converter.convert_state_dict, converter.key_map())
    original, changed = build_baseline(figures), build_baseline(figures)
    compare_baseline_gradients(Comparison(figures.expected), figures, original)  # leaves the gradients
    unnoticed, tried = [], 0
    for key in figures.weights:
        if converter.key_map()(key).endswith("k_proj.bias"):  # see CANNOT_MATTER
            continue
        changed.load_state_dict(converter.convert_state_dict(moved(code, figures, original, key)), strict=False)
        comparison, tried = Comparison(figures.expected), tried + 1
        compare_baseline_forward(comparison, figures, changed)
        if not comparison.differences:
            unnoticed.append(key)
    assert not unnoticed, f"moving these went unnoticed: {unnoticed}"
    assert tried > 20, f"only {tried} weights were tried"

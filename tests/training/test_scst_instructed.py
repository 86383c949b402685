"""Self-critical training of models that caption by an instruction: samples, their log-probabilities, and runs."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from hf_captioners.data.scenes import draw_example
from hf_captioners.loading import load_captioner
from hf_captioners.pipelines.image_captioning import IMAGE_CAPTIONERS
from hf_captioners.training.adapters import AdapterArguments, add_adapter
from hf_captioners.training.collator import CaptionCollator
from hf_captioners.training.evaluation import generating_by
from hf_captioners.training.scst import sampling as scst_sampling
from hf_captioners.training.scst import token_scores
from hf_captioners.training.scst.loss import chosen_logprobs, token_divergence, token_entropy
from hf_captioners.training.scst.sampling import CaptionSamples
from tests.tiny_families import FAMILIES, FAST, write_family
from tests.variants import slow_unless

from .scst_settings import log_of, scst_trainer

INSTRUCTED = slow_unless(FAST.__contains__, [name for name in FAMILIES if name not in IMAGE_CAPTIONERS])
SIZES = [(40, 56), (64, 48), (33, 90)]
NUMBER, LENGTH = 3, 5  # captions of an image, tokens of a caption
EVERY = pytest.mark.parametrize("model_type", INSTRUCTED)
TILES = {"internvl": 12}  # more tiles of each image than one


@pytest.fixture(scope="module")
def folder_of(once_a_run):
    return lambda name: once_a_run(f"family_{name}", partial(write_family, model_type=name))


@pytest.fixture
def rewarded(folder_of, scenes, tmp_path):
    """A function that builds a self-critical trainer of a family."""

    def build(name, *, adapter=False, **options):
        model, processor = load_captioner(str(folder_of(name)))
        if adapter:
            torch.manual_seed(0)
            model = add_adapter(model, AdapterArguments(use_peft=True, lora_r=4, lora_dropout=0.0))
        options.setdefault("generation_max_new_tokens", LENGTH)
        trainer = scst_trainer(model, processor, scenes, options.pop("output_dir", tmp_path / "run"), **options)
        trainer.model.eval()
        return trainer

    return build


@pytest.fixture(scope="module")
def images():
    """Images of several sizes."""
    return [draw_example(0, index, "train", 32)[1].resize(size) for index, size in enumerate(SIZES)]


def inputs_of(trainer, images):
    return trainer.encoder.encode_images([{"image": image} for image in images])


@torch.no_grad()
def alone(trainer, image, tokens):
    """Return the log-probabilities of the tokens of one caption of one image, from a pass of its own."""
    inputs = inputs_of(trainer, [image])
    read = torch.tensor([tokens])
    batch = trainer.encoder.with_tokens(inputs, read, torch.ones_like(read, dtype=torch.bool))
    batch.pop("labels")
    logits = trainer.base_model(**batch).logits[0]
    logits = logits[:-1] if not trainer.encoder.inputs.is_encoder_decoder else logits
    logits = logits[-len(tokens) :].clone()
    logits[:, trainer.sampling.suppressed] = -torch.inf
    return logits.log_softmax(-1), torch.tensor(tokens)


@EVERY
def test_log_probabilities_equal_a_separate_pass(model_type, rewarded, images, monkeypatch):
    """Of each caption, in one piece and in several, with entropies and the divergence from a reference."""
    trainer = rewarded(model_type)
    batch = inputs_of(trainer, images)
    samples = trainer.sampling.multinomial(batch, nullcontext(), NUMBER, 1.0, False)
    assert samples.tokens.shape[0] == len(images) * NUMBER and len(set(map(tuple, samples.tokens.tolist()))) > NUMBER
    scores, _ = trainer.sampling.scores(trainer.model, batch, samples, with_entropy=True)
    assert trainer.sampling._has_plain_logits
    for row, (tokens, real) in enumerate(zip(samples.tokens, samples.real, strict=True)):
        logprobs, chosen = alone(trainer, images[row // NUMBER], tokens[real].tolist())
        expected = logprobs.gather(-1, chosen[:, None])[:, 0]
        torch.testing.assert_close(scores.logprobs[row][real].detach(), expected, atol=1e-5, rtol=1e-5)
        entropies = token_entropy(logprobs.clamp(min=-1e4))
        torch.testing.assert_close(scores.entropies[row][real].detach(), entropies, atol=1e-4, rtol=1e-4)
        assert not scores.logprobs[row][~real].any()
    whole, _ = trainer.sampling.logits(trainer.model, batch, samples)
    found = chosen_logprobs(whole, samples.tokens[samples.real])
    torch.testing.assert_close(scores.logprobs[samples.real], found, atol=1e-5, rtol=1e-5)
    one = gradients(trainer, scores)
    monkeypatch.setattr(token_scores, "LOGITS_AT_A_TIME", 1000)  # two tokens
    other = rewarded(model_type).base_model
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    options = {"with_entropy": True, "reference": other, "temperature": 0.7}
    pieces, _ = trainer.sampling.scores(trainer.model, batch, samples, **options)
    compared = trainer.sampling.logits(other, batch, samples)[0] / 0.7
    expected = token_divergence(whole / 0.7, compared)
    torch.testing.assert_close(pieces.divergences[samples.real], expected, atol=1e-5, rtol=1e-4)
    pieces, _ = trainer.sampling.scores(trainer.model, batch, samples, with_entropy=True)
    torch.testing.assert_close(pieces.logprobs, scores.logprobs, atol=1e-5, rtol=1e-5)
    for name, gradient in gradients(trainer, pieces).items():
        atol = 1e-5 * max(1.0, float(one[name].abs().max()))
        torch.testing.assert_close(gradient, one[name], atol=atol, rtol=1e-4, msg=name)


def gradients(trainer, scores):
    """Return the gradients of the mean log-probability, and forget them."""
    trainer.model.zero_grad()
    scores.logprobs.mean().backward(retain_graph=True)
    return {name: one.grad.clone() for name, one in trainer.model.named_parameters() if one.grad is not None}


@EVERY
def test_samples_are_drawn_from_the_scored_distribution(model_type, rewarded, images, monkeypatch):
    """The distribution at each step of `generate()`, also where an image has several tiles, is that of the scores."""
    trainer = rewarded(model_type)
    if model_type in TILES:
        images_processor = trainer.encoder.inputs.processor.image_processor
        images_processor.max_patches, images_processor.min_patches = TILES[model_type], 2
    batch, kept = inputs_of(trainer, images), []
    generate = type(trainer.model).generate

    def keep(self, *arguments, **options):
        output = generate(self, *arguments, **options, return_dict_in_generate=True, output_scores=True)
        kept.append(torch.stack(output.scores, 1).log_softmax(-1))
        return output.sequences

    monkeypatch.setattr(type(trainer.model), "generate", keep)
    samples = trainer.sampling.multinomial(batch, nullcontext(), NUMBER, 1.0, False)
    drawn = kept[0][:, -samples.tokens.shape[1] :].gather(-1, samples.tokens[..., None])[..., 0]
    scores, _ = trainer.sampling.scores(trainer.model, batch, samples)
    torch.testing.assert_close(scores.logprobs[samples.real], drawn[samples.real], atol=1e-5, rtol=1e-5)
    if model_type in TILES:
        assert len(batch["pixel_values"]) > len(images)


@EVERY
def test_beams_have_the_scores_of_their_search(model_type, rewarded, images, monkeypatch):
    trainer = rewarded(model_type, sampling="beams")
    batch, kept = inputs_of(trainer, images), []
    generate = type(trainer.model).generate

    def keep(self, *arguments, **options):
        output = generate(self, *arguments, **options, return_dict_in_generate=True, output_scores=True)
        kept.append(output.sequences_scores)
        return output.sequences

    monkeypatch.setattr(type(trainer.model), "generate", keep)
    samples = trainer.sampling.beams(batch, nullcontext(), NUMBER, False)
    # A search does not divide the probabilities by the share of the tokens that it leaves out.
    monkeypatch.setattr(type(trainer.sampling), "suppressed", [])
    scores, _ = trainer.sampling.scores(trainer.model, batch, samples)
    torch.testing.assert_close(scores.logprobs.sum(1), kept[0], atol=1e-4, rtol=1e-4)


@EVERY
def test_greedy_tokens_are_the_most_probable(model_type, rewarded, images):
    trainer = rewarded(model_type)
    batch = inputs_of(trainer, images)
    samples = trainer.sampling.greedy(batch, nullcontext())
    logits, _ = trainer.sampling.logits(trainer.model, batch, samples)
    assert torch.equal(logits.argmax(-1), samples.tokens[samples.real])


@EVERY
def test_placeholders_are_neither_sampled_nor_scored(model_type, rewarded, images):
    """Not even by a model that prefers them."""
    trainer = rewarded(model_type)
    never = trainer.sampling.suppressed
    own = trainer.encoder.inputs.placeholders
    assert own <= set(never) and (own or model_type in ("kosmos-2", "pix2struct"))
    layer = token_scores.output_layer(trainer.base_model)
    layer.bias = torch.nn.Parameter(torch.zeros(len(layer.weight)))
    with torch.no_grad():
        layer.bias[never] = 50.0
    batch = inputs_of(trainer, images)
    samples = trainer.sampling.multinomial(batch, nullcontext(), NUMBER, 1.0, False)
    assert not torch.isin(samples.tokens[samples.real], torch.tensor(never, dtype=torch.long)).any()
    scores, _ = trainer.sampling.scores(trainer.model, batch, samples)
    assert scores.logprobs.min() > -40


def test_captions_end_at_any_end_token(rewarded, images):
    trainer = rewarded("gemma3")
    ends = trainer.sampling.ends
    assert len(ends) == 2
    tokens = torch.tensor([[9, ends[0], 8, 8], [9, ends[1], 8, 8], [9, 9, 8, 8]])
    samples = CaptionSamples.of(tokens, ends, padding=0, begin=0)
    assert samples.real.sum(1).tolist() == [2, 2, 4] and samples.ended.tolist() == [True, True, False]
    assert samples.tokens.tolist() == [[9, ends[0], 0, 0], [9, ends[1], 0, 0], [9, 9, 8, 8]]


@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "florence2"])
def test_inputs_are_copied_only_along_the_batch(model_type, rewarded, images):
    """Patches of all images lie in one axis of Qwen-VL: each pass reads the images once."""
    trainer = rewarded(model_type)
    batch = inputs_of(trainer, images)
    samples = trainer.sampling.multinomial(batch, nullcontext(), NUMBER, 1.0, False)
    passes = list(trainer.sampling._passes(batch, samples))
    pixels = [inputs["pixel_values"] for _, inputs in passes]
    if model_type == "florence2":
        assert len(pixels) == 1 and len(pixels[0]) == NUMBER * len(images)
    else:
        assert len(pixels) == NUMBER and all(one is batch["pixel_values"] for one in pixels)


def test_logits_that_a_model_changes_are_computed_whole(rewarded, images, monkeypatch):
    """Such as those that PaliGemma 2 limits."""
    trainer = rewarded("paligemma")
    batch = inputs_of(trainer, images)
    samples = trainer.sampling.multinomial(batch, nullcontext(), NUMBER, 1.0, False)
    plain, _ = trainer.sampling.scores(trainer.model, batch, samples)
    trainer.base_model.config.get_text_config().final_logit_softcapping = 2.0
    trainer.sampling._has_plain_logits = None
    scores, _ = trainer.sampling.scores(trainer.model, batch, samples)
    assert trainer.sampling._has_plain_logits is False
    expected = chosen_logprobs(trainer.sampling.logits(trainer.model, batch, samples)[0], samples.tokens[samples.real])
    torch.testing.assert_close(scores.logprobs[samples.real], expected)
    assert not torch.allclose(scores.logprobs, plain.logprobs, atol=1e-2)


def test_no_more_logits_are_held_than_a_piece(rewarded, images, monkeypatch):
    """Nor are those of the prompt computed."""
    trainer = rewarded("qwen2_5_vl")
    batch, seen = inputs_of(trainer, images), []
    samples = trainer.sampling.multinomial(batch, nullcontext(), NUMBER, 1.0, False)
    layer = token_scores.output_layer(trainer.base_model)
    own = layer.forward
    monkeypatch.setattr(layer, "forward", lambda states: seen.append(states.shape[:-1].numel()) or own(states))
    trainer.sampling.scores(trainer.model, batch, samples)
    assert sum(seen) == int(samples.real.sum())
    monkeypatch.setattr(token_scores, "LOGITS_AT_A_TIME", 4 * len(layer.weight))
    seen.clear()
    scores, _ = trainer.sampling.scores(trainer.model, batch, samples)
    assert max(seen) <= 4 and sum(seen) == int(samples.real.sum())
    scores.logprobs.sum().backward()
    assert max(seen) <= 4 and sum(seen) == 2 * int(samples.real.sum())  # once more for the gradient


def letters(completions, references, **columns):
    """A reward that differs from caption to caption."""
    return [sum(map(ord, text)) % 17 / 17 for text in completions]


@EVERY
@pytest.mark.parametrize("adapter", [False, True])
def test_trains_on_rewards(model_type, adapter, rewarded, tmp_path):
    """Steps with several rewards, baselines and terms; the result loads, and weights have changed."""
    options = {
        "eval_strategy": "no",
        "save_strategy": "no",
        "max_steps": 2,
        "baseline": "greedy",
        "kl_weight": 0.1,
        "entropy_weight": 0.01,
    }
    options["learning_rate"] = 1e-2
    trainer = rewarded(model_type, adapter=adapter, reward_funcs=["cider_d", letters, "self_retrieval"], **options)
    start = {name: one.detach().clone() for name, one in trainer.model.named_parameters() if one.requires_grad}
    trainer.train()
    assert len(log_of(trainer, "reward")) == 2 and max(map(abs, log_of(trainer, "loss"))) > 0
    names = dict(trainer.model.named_parameters())
    assert any(not torch.equal(one, names[name]) for name, one in start.items())
    for reward in log_of(trainer, "reward_self_retrieval"):
        assert 0 < reward < 1
    trainer.save_model(tmp_path / "saved")
    model, processor = load_captioner(str(tmp_path / "saved"))
    batch = CaptionCollator(trainer.encoder)([{"image": row["image"]} for row in trainer.eval_dataset])
    config = trainer.base_model.generation_config
    with torch.no_grad(), generating_by(trainer.model.eval(), config):
        expected = trainer.model.generate(**batch, max_new_tokens=4, do_sample=False)
    assert torch.equal(model.eval().generate(**batch, max_new_tokens=4, do_sample=False), expected)


def test_thoughts_without_a_caption_are_empty(rewarded, monkeypatch):
    trainer = rewarded("qwen2_5_vl")

    def think(row, beginning=""):
        raise trainer.encoder.inputs.unfinished("The model thinks aloud")

    monkeypatch.setattr(trainer.encoder.inputs, "decode", think)
    assert trainer.encoder.decode(torch.zeros(2, 3, dtype=torch.long)) == ["", ""]


def test_values_that_change_the_distribution_are_left_out(rewarded):
    """The settings of a checkpoint that forbid or prefer tokens change neither samples nor scores."""
    trainer = rewarded("qwen2_5_vl")
    changed = {"bad_words_ids": [[5]], "begin_suppress_tokens": [6], "repetition_penalty": 3.0, "top_k": 2}
    trainer.base_model.generation_config.update(**changed)
    seen = []
    generate = trainer.model.generate
    trainer.model.generate = lambda **options: seen.append(options["generation_config"]) or generate(**options)
    batch = trainer.encoder.encode_images([{"image": trainer.eval_dataset[0]["image"]}])
    trainer.sampling.multinomial(batch, nullcontext(), 2, 1.0, False)
    (config,) = seen
    assert config.bad_words_ids is None and config.begin_suppress_tokens is None
    assert config.repetition_penalty == 1.0 and config.top_k == 0
    assert set(scst_sampling.UNSET) >= {"bad_words_ids", "sequence_bias", "guidance_scale"}

"""Checks of `generate()`: every mode equals that of transformers on the same weights, with images encoded once."""

from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer

from .common_case import IMAGES, CaptionerCase, assert_close, both_inputs, row
from .stock import stock_generate

NEW_TOKENS = 8
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 0},
    "nucleus": {"do_sample": True, "top_p": 0.8, "temperature": 0.7},
    "samples": {"do_sample": True, "top_k": 5, "num_return_sequences": 3},
    "beams": {"num_beams": 3},
    "beams_to_the_end": {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.0},
    "beams_stopped_early": {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0},
    "n_best": {"num_beams": 4, "num_return_sequences": 4},
    "beam_sampling": {"num_beams": 3, "do_sample": True, "top_k": 0, "num_return_sequences": 2},
    "no_repeats": {"num_beams": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    "length_limits": {"num_beams": 2, "min_new_tokens": 4, "max_length": 7, "max_new_tokens": None},
    "min_length": {"min_length": 6},
    "bad_words": {"num_beams": 2, "bad_words_ids": [[3], [5, 6]], "suppress_tokens": [7]},
    "two_ends": {"num_beams": 3, "eos_token_id": [27, 4]},
    "ends_soon": {"num_beams": 4, "num_return_sequences": 4, "sequence_bias": [[[27], 4.0]]},
    "static_cache": {"cache_implementation": "static"},
    "static_cache_beams": {"num_beams": 3, "cache_implementation": "static"},
    "no_cache": {"use_cache": False},
    "no_cache_beams": {"num_beams": 3, "use_cache": False},
    "chunked_prompt": {"prefill_chunk_size": 2},
}
PROMPTED_MODES = ("greedy", "samples", "n_best", "beam_sampling", "static_cache_beams", "no_cache", "chunked_prompt")
modes = pytest.mark.parametrize("mode", MODES)


def assert_same_generation(ours: Any, theirs: Any) -> None:
    """Assert equal tokens and beam indices, and scores within rounding."""
    assert torch.equal(ours.sequences, theirs.sequences)
    for name in ("sequences_scores", "beam_indices"):
        if theirs.get(name) is not None:
            assert_close(ours[name], theirs[name])
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(theirs[name])
        for step, (actual, expected) in enumerate(zip(ours[name], theirs[name], strict=True)):
            assert torch.equal(actual.isinf(), expected.isinf()), f"{name} of step {step}"
            assert_close(actual.nan_to_num(neginf=0.0), expected.nan_to_num(neginf=0.0), atol=1e-4)


class Recorder(BaseStreamer):
    """Streamer that records its tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


class Favour(LogitsProcessor):
    """Processor that raises the score of one token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, self.token] += 2.0
        return scores


class EndsAfter(StoppingCriteria):
    """Criterion that ends a row at a token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] == self.token


class StockChecks(CaptionerCase):
    """Checks 32 to 36 of the common suite: equal to stock `generate()` in every mode."""

    def both(self, model: Any, inputs: dict[str, torch.Tensor], seed: int = 0, **options: Any) -> tuple[Any, Any]:
        """Return the outputs of our and transformers' `generate()` with the same random numbers."""
        options = {"max_new_tokens": NEW_TOKENS, "return_dict_in_generate": True} | options
        options |= {"output_scores": True, "output_logits": True}
        torch.manual_seed(seed)
        ours = model.generate(**inputs, **options)
        if model._is_stateful:  # transformers creates no cache for it, and chunks a prompt only with one
            options.pop("prefill_chunk_size", None)
        torch.manual_seed(seed)
        return ours, stock_generate(model, inputs, **options)

    @both_inputs
    @modes
    def test_generate_equals_stock(self, model, mode, way_in):
        for seed in range(2):
            inputs = self.inputs(way_in, images=4, seed=seed)
            assert_same_generation(*self.both(model, inputs, seed=seed, **MODES[mode]))

    @pytest.mark.parametrize(
        "mode", ["greedy", "samples", "n_best", "beam_sampling", "static_cache_beams", "no_cache"]
    )
    def test_prompted_generate_equals_stock(self, model, mode):
        """Prompts of different lengths, padded on the left."""
        prompt = self.captions(model, length=4)
        mask = torch.ones_like(prompt)
        mask[0, :2] = mask[2, :1] = 0
        prompt = prompt.masked_fill(mask == 0, model.config.decoder_start_token_id)
        options = MODES[mode] | {"decoder_input_ids": prompt, "decoder_attention_mask": mask}
        ours, theirs = self.both(model, self.inputs("regions"), **options)
        assert_same_generation(ours, theirs)
        assert torch.equal(ours.sequences[:: len(ours.sequences) // IMAGES, :4], prompt)

    @pytest.mark.parametrize("mode", ["greedy", "beams", "samples"])
    def test_processors_and_criteria_equal_stock(self, model, mode):
        ours, theirs = self.both(
            model,
            self.inputs("regions"),
            **MODES[mode],
            logits_processor=LogitsProcessorList([Favour(9)]),
            stopping_criteria=StoppingCriteriaList([EndsAfter(12)]),
            prefix_allowed_tokens_fn=lambda image, tokens: list(range(image, 28)),
        )
        assert_same_generation(ours, theirs)
        assert (ours.sequences == 9).any()

    def test_generation_config_equals_arguments(self, model):
        config = GenerationConfig(num_beams=3, max_new_tokens=NEW_TOKENS, length_penalty=0.5)
        inputs = self.inputs("regions")
        expected = model.generate(**inputs, num_beams=3, max_new_tokens=NEW_TOKENS, length_penalty=0.5)
        assert torch.equal(model.generate(**inputs, generation_config=config), expected)

    @pytest.mark.parametrize("mode", ["greedy", "n_best"])
    def test_recorded_states_equal_stock(self, mode):
        """Attentions and hidden states of every step, in their shapes, and of the encoder for B images."""
        model = self.make_model(attn_implementation="eager")
        asked = {"output_attentions": True, "output_hidden_states": True}
        ours, theirs = self.both(model, self.inputs("regions"), **MODES[mode], **asked)
        for name in ("decoder_attentions", "cross_attentions", "decoder_hidden_states"):
            for actual, expected in zip(ours[name], theirs[name], strict=True):
                assert [state.shape for state in actual or ()] == [state.shape for state in expected or ()]
                for state, other in zip(actual or (), expected or (), strict=True):
                    assert_close(state, other, atol=1e-4)
        assert {state.shape[0] for state in ours.encoder_hidden_states} == {IMAGES}

    @pytest.mark.parametrize("weights", ["float32", "int8"])
    def test_packed_weights(self, weights):
        """Packed float32 weights give the same captions; plain weights are not needed any more."""
        model, inputs, options = self.make_model(), self.inputs("pixels"), MODES["n_best"]
        asked = {"max_new_tokens": NEW_TOKENS, "return_dict_in_generate": True, "output_scores": True} | options
        plain = model.generate(**inputs, **asked)
        model.optimize_for_generation(weights)
        packed = model.generate(**inputs, **asked)
        if model.packed_weights == "float32":
            assert torch.equal(packed.sequences, plain.sequences)
            assert_close(packed.sequences_scores, plain.sequences_scores)
        model.optimize_for_generation(weights, drop_plain=True)
        alone = model.generate(**inputs, **asked)
        assert torch.equal(alone.sequences, packed.sequences)
        assert torch.equal(alone.sequences_scores, packed.sequences_scores)

    def test_streamer(self, model):
        recorder, inputs = Recorder(), self.inputs("regions", images=1)
        sequences = model.generate(**inputs, max_new_tokens=NEW_TOKENS, streamer=recorder)
        assert recorder.tokens == sequences[0].tolist() and recorder.ended
        with pytest.raises(ValueError, match="beam"):
            model.generate(**inputs, num_beams=2, streamer=Recorder())

    def test_refused_options_of_stock(self, model):
        inputs = self.inputs("regions")
        with pytest.raises(ValueError, match="low_memory"):
            model.generate(**inputs, num_beams=2, low_memory=True)
        with pytest.raises(ValueError, match="max_new_token'"):
            model.generate(**inputs, max_new_token=3)
        with pytest.raises(ValueError, match="num_return_sequences"):
            model.generate(**inputs, num_beams=2, num_return_sequences=3)

    def test_sampling_is_seeded(self, model):
        inputs, options = self.inputs("regions"), {"do_sample": True, "top_k": 0, "max_new_tokens": NEW_TOKENS}
        runs = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            runs.append(model.generate(**inputs, **options))
        assert torch.equal(runs[0], runs[1])
        assert runs[0].shape != runs[2].shape or not torch.equal(runs[0], runs[2])


class EncoderOnceChecks(CaptionerCase):
    """Checks that the encoder reads the user's tensors once, and that its outputs are not repeated for beams."""

    @both_inputs
    @pytest.mark.parametrize("mode", ["greedy", "samples", "n_best", "beam_sampling", "live", "pool"])
    def test_encoder_runs_once_per_image(self, way_in, mode):
        model, inputs = self.make_model(), self.inputs(way_in)
        options = MODES.get(mode) or ({"num_beams": 3, "bookkeeping": mode} if mode in ("live", "pool") else {})
        received: list[dict[str, Any]] = []
        encoded: list[tuple[int, int]] = []
        model.get_encoder().register_forward_pre_hook(
            lambda module, args, kwargs: received.append(kwargs), with_kwargs=True
        )
        model.register_forward_pre_hook(
            lambda module, args, kwargs: encoded.append(
                (len(kwargs["encoder_outputs"].last_hidden_state), len(kwargs["decoder_input_ids"]))
            ),
            with_kwargs=True,
        )
        model.generate(**inputs, **options, max_new_tokens=3)
        assert len(received) == 1
        given = {name: value for name, value in received[0].items() if isinstance(value, torch.Tensor)}
        assert given.keys() == inputs.keys()
        assert all(given[name] is tensor for name, tensor in inputs.items())
        copies = max(options.get("num_beams", 1), options.get("num_return_sequences", 1))
        assert encoded[0] == (IMAGES, IMAGES), "the first step has one row for each image, whose rows are equal"
        assert (IMAGES, IMAGES * copies) in encoded[1:]
        assert all(rows == images * copies for images, rows in encoded[1:]), "images that are done may have left"

    def test_ways_to_give_images(self, model):
        """By position, by name, or encoded."""
        pixels = self.inputs("pixels")["pixel_values"]
        expected = model.generate(pixel_values=pixels, max_new_tokens=NEW_TOKENS, num_beams=2)
        encoded = model.get_encoder()(pixels)
        for inputs in ({"inputs": pixels}, {"encoder_outputs": encoded}):
            assert torch.equal(model.generate(**inputs, max_new_tokens=NEW_TOKENS, num_beams=2), expected)

    def test_images_or_regions(self, model):
        pixels, regions = self.inputs("pixels"), self.inputs("regions")
        with pytest.raises(ValueError, match="not both"):
            model.generate(**pixels, **regions)
        with pytest.raises(ValueError, match="got none"):
            model.generate(max_new_tokens=3)

    @both_inputs
    def test_caption_alone_equals_caption_in_batch(self, model, way_in):
        inputs = self.inputs(way_in)
        options = {
            "num_beams": 3,
            "max_new_tokens": NEW_TOKENS,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        together = model.generate(**inputs, **options)
        for index in range(IMAGES):
            alone = model.generate(**row(inputs, index), **options)
            length = alone.sequences.shape[1]
            assert torch.equal(alone.sequences[0], together.sequences[index, :length])
            assert_close(alone.sequences_scores[0], together.sequences_scores[index])


class CacheChecks(CaptionerCase):
    """Checks 37 to 39 of the common suite."""

    def skip_stateful(self, model: Any) -> None:
        if model._is_stateful:
            pytest.skip("recurrent states cannot be cropped: assisted decoding raises")

    @pytest.mark.parametrize("mode", ["greedy", "beams", "samples"])
    def test_user_supplied_cache(self, model, mode):
        """`generate()` fills the user's cache."""
        inputs, options = self.inputs("regions"), MODES[mode] | {"max_new_tokens": NEW_TOKENS}
        torch.manual_seed(0)
        expected = model.generate(**inputs, **options)
        cache = self.make_cache()
        torch.manual_seed(0)
        assert torch.equal(model.generate(**inputs, **options, cache=cache), expected)
        assert cache.get_seq_length() >= expected.shape[1] - 1

    def test_continue_with_a_supplied_cache(self, model):
        inputs, cache = self.inputs("regions"), self.make_cache()
        sequences = model.generate(**inputs, min_new_tokens=4, max_new_tokens=4, cache=cache)
        assert cache.get_seq_length() == sequences.shape[1] - 1
        stepped = model(**inputs, decoder_input_ids=sequences[:, -1:], cache=cache, use_cache=True)
        assert_close(stepped.logits[:, -1], model(**inputs, decoder_input_ids=sequences).logits[:, -1])

    @both_inputs
    def test_continue_from_past(self, model, way_in):
        """3 tokens and then 5 more = 8 at once."""
        inputs, options = self.inputs(way_in), {"return_dict_in_generate": True, "eos_token_id": None}
        expected = model.generate(**inputs, **options, max_new_tokens=8).sequences
        first = model.generate(**inputs, **options, max_new_tokens=3)
        second = model.generate(
            **inputs,
            **options,
            max_new_tokens=5,
            decoder_input_ids=first.sequences,
            decoder_attention_mask=torch.ones_like(first.sequences),
            cache=first.cache,
        )
        assert torch.equal(second.sequences, expected)

    @pytest.mark.parametrize("mode", ["greedy", "samples", "n_best", "no_repeats"])
    @both_inputs
    def test_cached_equals_uncached(self, model, mode, way_in):
        inputs, options = self.inputs(way_in), MODES[mode] | {"max_new_tokens": NEW_TOKENS}
        options |= {"return_dict_in_generate": True, "output_scores": True}
        found = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            found.append(model.generate(**inputs, **options, use_cache=use_cache))
        cached, uncached = found
        assert torch.equal(cached.sequences, uncached.sequences)
        for one, other in zip(cached.scores, uncached.scores, strict=True):
            assert_close(one.nan_to_num(neginf=0.0), other.nan_to_num(neginf=0.0), atol=1e-4)

    @both_inputs
    def test_prompt_lookup_equals_greedy(self, model, way_in):
        self.skip_stateful(model)
        for index in range(IMAGES):
            inputs = row(self.inputs(way_in), index)
            prompt = {"decoder_input_ids": self.captions(model, rows=1).repeat(1, 2)}
            expected = model.generate(**inputs, **prompt, max_new_tokens=NEW_TOKENS)
            found = model.generate(**inputs, **prompt, max_new_tokens=NEW_TOKENS, prompt_lookup_num_tokens=3)
            assert torch.equal(found, expected)

    @both_inputs
    @pytest.mark.parametrize("assistant", ["itself", "different"])
    def test_assisted_decoding_equals_greedy(self, model, way_in, assistant):
        self.skip_stateful(model)
        helper = model if assistant == "itself" else self.make_model(seed=1)
        for index in range(IMAGES):
            inputs = {name: tensor[index : index + 1] for name, tensor in self.inputs(way_in).items()}
            expected = model.generate(**inputs, max_new_tokens=NEW_TOKENS)
            assert torch.equal(model.generate(**inputs, max_new_tokens=NEW_TOKENS, assistant_model=helper), expected)

    def test_assistant_reads_the_same_regions(self, model):
        """The assistant encodes the same regions and mask."""
        self.skip_stateful(model)
        helper, received = self.make_model(), []
        helper.get_encoder().register_forward_pre_hook(
            lambda module, args, kwargs: received.append(kwargs), with_kwargs=True
        )
        inputs = {name: tensor[1:2] for name, tensor in self.inputs("regions").items()}
        model.generate(**inputs, max_new_tokens=3, assistant_model=helper)
        for name, tensor in inputs.items():
            assert torch.equal(received[0][name], tensor), name


class ScoreChecks(CaptionerCase):
    """Checks that scores are log-probabilities of the model."""

    @pytest.mark.parametrize("mode", ["greedy", "sampling", "n_best"])
    def test_transition_scores_equal_teacher_forcing(self, model, mode):
        inputs = self.inputs("regions")
        options = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": NEW_TOKENS}
        torch.manual_seed(0)
        out = model.generate(**inputs, **MODES[mode], **options)
        found = model.compute_transition_scores(
            out.sequences, out.scores, out.get("beam_indices"), normalize_logits=out.get("beam_indices") is None
        )
        expected, real = rescored(model, inputs, out.sequences)
        assert_close(found[real], expected[real], atol=1e-4)
        if mode == "n_best":
            assert_close((found * real).sum(-1) / real.sum(-1), out.sequences_scores, atol=1e-4)

    @pytest.mark.parametrize("mode", ["greedy", "samples", "n_best", "no_repeats", "live", "beam_sampling"])
    def test_model_logprobs(self, model, mode):
        """Every search returns log-probabilities before processors and temperature, and keeps no logits for them."""
        inputs = self.inputs("regions")
        searching = {"num_beams": 3, "num_return_sequences": 3, "bookkeeping": mode}
        options = MODES.get(mode, searching)
        options = options | {"max_new_tokens": NEW_TOKENS, "return_dict_in_generate": True}
        torch.manual_seed(0)
        out = model.generate(**inputs, **options, logits_processor=LogitsProcessorList([Favour(9)]))
        assert out.logits is None and out.scores is None
        if mode == "beam_sampling":  # the search of transformers
            return
        expected, real = rescored(model, inputs, out.sequences)
        assert_close(out.model_logprobs, expected.where(real, 0.0), atol=1e-4)


@torch.no_grad()
def rescored(
    model: Any, inputs: dict[str, torch.Tensor], sequences: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities `[rows, L]` of generated tokens in one parallel pass, and a mask of the caption."""
    targets = sequences[:, 1:]
    logprobs = model(**inputs, decoder_input_ids=sequences[:, :-1]).logits.log_softmax(-1)
    ended = (targets == model.config.eos_token_id).long()
    return logprobs.gather(-1, targets[..., None])[..., 0], ended.cumsum(-1) - ended == 0

"""Checks of the beam searches of captioning papers with a model; test_search_captioning.py tests them alone."""

from typing import Any

import pytest
import torch

from .common_case import IMAGES, CaptionerCase, assert_close, both_inputs, row
from .common_generation import Favour, rescored

BEAMS, NEW_TOKENS = 4, 8
LEAVING = [
    {"bookkeeping": "transformers"},
    {"bookkeeping": "transformers", "early_stopping": True, "num_return_sequences": 4},
    {"bookkeeping": "transformers", "early_stopping": "never", "length_penalty": 0.0},
    {"bookkeeping": "live", "num_return_sequences": BEAMS},
    {"bookkeeping": "live", "no_immediate_repetition": True},
    {"bookkeeping": "pool", "length_penalty": 0.0},
    {"bookkeeping": "shrinking_finished", "num_return_sequences": 4},
]
bookkeepings = pytest.mark.parametrize("bookkeeping", ["live", "pool", "shrinking", "shrinking_finished"])


class SearchChecks(CaptionerCase):
    """Checks of `generate(bookkeeping=...)`."""

    def search(self, model: Any, inputs: dict[str, torch.Tensor], bookkeeping: str, **options: Any) -> Any:
        """Return all beams, ranked by the plain sum of their log-probabilities."""
        options = {"num_beams": BEAMS, "num_return_sequences": BEAMS, "max_new_tokens": NEW_TOKENS} | options
        return model.generate(
            **inputs,
            **options,
            bookkeeping=bookkeeping,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
        )

    @both_inputs
    @bookkeepings
    def test_scores_equal_teacher_forcing(self, model, bookkeeping, way_in):
        """The score of a caption = the sum of its tokens' log-probabilities = those of one parallel pass."""
        inputs = self.inputs(way_in)
        out = self.search(model, inputs, bookkeeping)
        expected, real = rescored(model, inputs, out.sequences)
        assert out.sequences.shape == (IMAGES * BEAMS, 1 + out.token_logprobs.shape[1])
        assert_close(out.token_logprobs, expected.where(real, 0.0), atol=1e-4)
        assert_close(out.token_logprobs.sum(-1), out.sequences_scores, atol=1e-4)
        assert (out.sequences[:, 1:][~real] == model.config.pad_token_id).all()
        ranked = out.sequences_scores
        if bookkeeping == "shrinking_finished":  # what was cut comes last, whatever its score
            ranked = ranked - 1000.0 * ~(out.sequences == model.config.eos_token_id).any(-1)
        by_image = ranked.view(IMAGES, BEAMS)
        assert torch.equal(by_image, by_image.sort(descending=True).values)

    @bookkeepings
    def test_ancestry_can_be_followed(self, model, bookkeeping):
        """`beam_indices` name the row of each step whose scores gave the token; rows stay within their image."""
        out = self.search(model, self.inputs("regions"), bookkeeping)
        generated = out.sequences[:, 1:]
        for caption in range(IMAGES * BEAMS):
            for step, parent in enumerate(out.beam_indices[caption].tolist()):
                if parent == -1:
                    assert out.token_logprobs[caption, step] == 0
                    continue
                assert parent // BEAMS == caption // BEAMS
                logprob = out.scores[step][parent, generated[caption, step]]
                assert_close(out.token_logprobs[caption, step], logprob)

    @bookkeepings
    def test_search_options(self, model, bookkeeping):
        """Fewer captions are the best of all; a tensor is returned by default; logits processors apply."""
        inputs = self.inputs("regions")
        every = self.search(model, inputs, bookkeeping)
        best = self.search(model, inputs, bookkeeping, num_return_sequences=1)
        assert_close(best.sequences_scores, every.sequences_scores[::BEAMS])
        plain = model.generate(**inputs, num_beams=BEAMS, max_new_tokens=NEW_TOKENS, bookkeeping=bookkeeping)
        assert plain.shape[0] == IMAGES
        favoured = self.search(model, inputs, bookkeeping, logits_processor=[Favour(9)])
        assert (favoured.sequences == 9).sum() > (every.sequences == 9).sum()

    @pytest.mark.parametrize("options", LEAVING, ids=lambda options: "-".join(map(str, options.values())))
    def test_images_leave_when_their_captions_are_known(self, options):
        """The same captions and scores as with all images until the end, in fewer rows."""
        model, inputs, rows = self.make_model(), self.inputs("regions", images=6), []
        model.register_forward_pre_hook(
            lambda module, args, kwargs: rows.append(len(kwargs["decoder_input_ids"])), with_kwargs=True
        )
        ends = [*range(0, 12, 2), model.config.eos_token_id]  # several words end a caption, so that lengths differ
        options = {"num_beams": BEAMS, "max_new_tokens": 16, "eos_token_id": ends} | options
        options |= {"return_dict_in_generate": True, "output_scores": False}
        whole = model.generate(**inputs, **options)
        before, rows[:] = list(rows), []
        left = model.generate(**inputs, **options, return_cache=False)
        assert left.cache is None and whole.cache is not None
        length = left.sequences.shape[1]
        assert torch.equal(left.sequences, whole.sequences[:, :length])
        assert (whole.sequences[:, length:] == model.config.pad_token_id).all()
        assert_close(left.model_logprobs, whole.model_logprobs[:, : length - 1], atol=1e-4)
        assert torch.equal(left.beam_indices, whole.beam_indices[:, : length - 1])
        if whole.sequences_scores is not None:
            assert_close(left.sequences_scores, whole.sequences_scores, atol=1e-4)
        assert sum(rows) <= sum(before) and rows[0] == before[0]
        if options.get("num_return_sequences") == BEAMS and options["bookkeeping"] == "live":
            lengths = (left.beam_indices >= 0).sum(1).view(6, BEAMS).amax(1)  # of the longest caption of each image
            assert model.captions_depend_on_batch or lengths.unique().numel() == 1 or sum(rows) < sum(before)
        assert torch.equal(model.generate(**inputs, **options | {"return_dict_in_generate": False}), left.sequences)

    def test_groups_of_beams(self, model):
        """Groups that do not avoid others find what a search with fewer beams finds; with diversity they differ."""
        inputs, options = self.inputs("regions"), {"num_beams": 2, "num_return_sequences": 2}
        alone = self.search(model, inputs, "pool", **options)
        out = self.search(model, inputs, "pool", pool_groups=2, pool_diversity=0.0)
        length = alone.sequences.shape[1]
        for group in out.sequences.view(IMAGES, 2, 2, -1).unbind(1):
            assert torch.equal(group.flatten(0, 1)[:, :length], alone.sequences)
        logprobs, _ = rescored(model, inputs, out.sequences)
        assert_close(out.token_logprobs, logprobs.where(out.beam_indices >= 0, 0.0), atol=1e-4)
        assert {scores.shape[0] for scores in out.scores} == {IMAGES * BEAMS}
        # Without an early end: a beam that has ended leaves its group, so that a later group may find it again.
        strict = {"pool_diversity": 100.0, "min_new_tokens": NEW_TOKENS}
        diverse = self.search(model, inputs, "pool", pool_groups=2, **strict).sequences[:, 1:]
        first, second = diverse.view(IMAGES, 2, 2, -1).unbind(1)
        assert (first[:, :, None] != second[:, None]).all()

    @bookkeepings
    def test_search_alone_equals_in_batch(self, model, bookkeeping):
        inputs = self.inputs("regions")
        together = self.search(model, inputs, bookkeeping)
        for index in range(IMAGES):
            alone = self.search(model, row(inputs, index), bookkeeping)
            rows = slice(index * BEAMS, (index + 1) * BEAMS)
            length = alone.sequences.shape[1]
            assert torch.equal(alone.sequences, together.sequences[rows, :length])
            assert_close(alone.sequences_scores, together.sequences_scores[rows])

    @bookkeepings
    @pytest.mark.parametrize("option", [{"use_cache": False}, {"cache_implementation": "static"}], ids=str)
    def test_search_with_other_caches(self, model, bookkeeping, option):
        inputs = self.inputs("regions")
        expected, found = (self.search(model, inputs, bookkeeping, **options) for options in ({}, option))
        assert torch.equal(found.sequences, expected.sequences)
        assert_close(found.sequences_scores, expected.sequences_scores, atol=1e-4)

    @bookkeepings
    def test_search_continues_a_prompt(self, model, bookkeeping):
        """Prompts padded on the left: the same continuation as without the padding."""
        inputs, prompt = self.inputs("regions"), self.captions(model, length=3)
        expected = self.search(model, inputs, bookkeeping, decoder_input_ids=prompt)
        padding = torch.full((IMAGES, 2), model.config.decoder_start_token_id)
        mask = torch.cat((torch.zeros_like(padding), torch.ones_like(prompt)), dim=1)
        padded = {"decoder_input_ids": torch.cat((padding, prompt), dim=1), "decoder_attention_mask": mask}
        found = self.search(model, inputs, bookkeeping, **padded)
        assert torch.equal(found.sequences[:, 2:], expected.sequences)
        assert_close(found.sequences_scores, expected.sequences_scores, atol=1e-4)

    def test_bookkeeping_of_the_generation_config(self, place, tmp_path):
        """A value of the generation configuration applies to every call and is saved."""
        model, inputs = self.make_model(), self.inputs("regions")
        options = {"num_beams": BEAMS, "max_new_tokens": NEW_TOKENS}
        expected = model.generate(**inputs, **options, bookkeeping="live")
        model.generation_config.bookkeeping = "live"
        model.save_pretrained(tmp_path)
        for one in (model, type(model).from_pretrained(tmp_path)):
            assert torch.equal(one.generate(**inputs, **options), expected)
        assert type(one.generate(**inputs, **options, return_dict_in_generate=True)).__name__ == "CaptionBeamOutput"

    def test_bookkeepings_that_cannot_be(self, model):
        inputs = self.inputs("regions")
        with pytest.raises(ValueError, match="`bookkeeping` is 'dead'"):
            model.generate(**inputs, bookkeeping="dead")
        with pytest.raises(ValueError, match="deterministic"):
            model.generate(**inputs, bookkeeping="live", num_beams=2, do_sample=True)

"""The bookkeepings against plain Python, on random tables of log-probabilities instead of a model."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    TemperatureLogitsWarper,
)

from hf_captioners.modeling.generation_captioning import SEARCH_OPTIONS, only_lower_scores
from hf_captioners.modeling.search_captioning import (
    BOOKKEEPINGS,
    CaptionBeams,
    GroupPoolBeams,
    Hypotheses,
    NextTokens,
    NoBadEndings,
    NoEarlyEnd,
    NoImmediateRepetition,
    TrigramPenalty,
    best_of_groups,
    with_one_min_length,
)

END, PAD, BEGIN, WORDS = 0, 1, 2, 7
Scorer = Callable[[int, tuple[int, ...]], np.ndarray]


def random_scorer(seed: int, end_bias: float) -> Scorer:
    """Log-probabilities `[V]` that depend on the image and on all tokens so far."""

    def score(image: int, tokens: tuple[int, ...]) -> np.ndarray:
        logits = np.random.default_rng([seed, image, *tokens]).normal(size=WORDS).astype(np.float32)
        logits[END] += end_bias
        return logits - np.log(np.exp(logits).sum())

    return score


def search(
    kind: str, score: Scorer, images: int, beams: int, steps: int, length_penalty: float, **options: Any
) -> Hypotheses:
    """The loop of `generate()` around a bookkeeping."""
    config = search_config(beams, steps, length_penalty, **options)
    if config.pool_groups == 1:
        held = BOOKKEEPINGS[kind](torch.full((images * beams, 1), BEGIN), config)
        advance(held, score, beams, steps)
        return held.finish(beams)
    groups: list[GroupPoolBeams] = []
    for _ in range(config.pool_groups):
        width = beams // config.pool_groups
        groups.append(GroupPoolBeams(torch.full((images * width, 1), BEGIN), config, list(groups)))
        advance(groups[-1], score, width, steps)
    return best_of_groups(groups, beams)


def search_config(beams: int, steps: int, length_penalty: float, **options: Any) -> SimpleNamespace:
    """Return what bookkeepings read of a generation configuration."""
    return SimpleNamespace(
        num_beams=beams,
        length_penalty=length_penalty,
        max_length=1 + steps,
        _pad_token_tensor=torch.tensor(PAD),
        _eos_token_tensor=torch.tensor([END]),
        **(SEARCH_OPTIONS | {"num_return_sequences": beams, "early_stopping": False} | options),
    )


def advance(held: CaptionBeams, score: Scorer, beams: int, steps: int) -> None:
    """Run a search until it is done."""
    for _ in range(steps):
        rows = held.rows()[:, 1:].tolist()
        scores = [score(index // beams, tuple(tokens)) for index, tokens in enumerate(rows)]
        held.step(torch.from_numpy(np.stack(scores)))
        rows = held.rows()
        held.end_rows((rows[:, -1] == END) | (rows.shape[1] == 1 + steps))
        if held.read_done()[0]:
            break


def live_reference(score: Scorer, image: int, beams: int, steps: int, length_penalty: float) -> list:
    """M2's search: K hypotheses at any time, the finished ones among them; `(tokens, score)`, best first."""
    held: list[tuple[tuple[int, ...], float, bool]] = [((), 0.0, True)]
    for _ in range(steps):
        candidates = [one for one in held if not one[2]]
        for tokens, total, alive in held:
            if alive:
                logprobs = score(image, tokens)
                candidates += [((*tokens, word), total + logprobs[word], word != END) for word in range(WORDS)]
        held = sorted(candidates, key=lambda one: -one[1])[:beams]
    return [(tokens, total) for tokens, total, _ in held]


def pool_reference(score: Scorer, image: int, beams: int, steps: int, length_penalty: float) -> list:
    """The search of ImageCaptioning.pytorch: finished rows are recorded and continue from -1000."""
    held: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    recorded = []
    for step in range(1, steps + 1):
        candidates = []
        for tokens, total in held:
            logprobs = score(image, tokens)
            best = sorted(range(WORDS), key=lambda word: -logprobs[word])[:beams]
            candidates += [((*tokens, word), total + logprobs[word]) for word in best]
        held = sorted(candidates, key=lambda one: -one[1])[:beams]
        for index, (tokens, total) in enumerate(held):
            if tokens[-1] == END or step == steps:
                recorded.append((tokens, total / step**length_penalty))
                held[index] = (tokens, -1000.0)
    return sorted(recorded, key=lambda one: -one[1])[:beams]


def shrinking_reference(
    score: Scorer, image: int, beams: int, steps: int, length_penalty: float, keep_cut: bool = True
) -> list:
    """The search of arctic-captions: finished rows leave, and the search continues with one hypothesis fewer."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done = []
    for _ in range(steps):
        candidates = [
            ((*tokens, word), total + logprob)
            for tokens, total in live
            for word, logprob in enumerate(score(image, tokens))
        ]
        best = sorted(candidates, key=lambda one: -one[1])[: beams - len(done)]
        done += [one for one in best if one[0][-1] == END]
        live = [one for one in best if one[0][-1] != END]
        if not live or len(done) >= beams:
            break
    ranked = [(tokens, total / len(tokens) ** length_penalty) for tokens, total in done + live]
    return sorted(ranked, key=lambda one: (not keep_cut and one[0][-1] != END, -one[1]))


def shrinking_finished_reference(*arguments: Any) -> list:
    """The search of the re-implementation: captions that were cut come last."""
    return shrinking_reference(*arguments, keep_cut=False)


def caption(tokens: list[int]) -> tuple[int, ...]:
    """Tokens up to and including the first end token."""
    return tuple(tokens[: tokens.index(END) + 1]) if END in tokens else tuple(tokens)


REFERENCES = {
    "live": live_reference,
    "pool": pool_reference,
    "shrinking": shrinking_reference,
    "shrinking_finished": shrinking_finished_reference,
}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(sorted(REFERENCES)),
    seed=st.integers(0, 10**6),
    end_bias=st.floats(-2.0, 3.0),
    images=st.integers(1, 2),
    beams=st.integers(1, 4),
    steps=st.integers(1, 6),
    length_penalty=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_search_equals_plain_python(kind, seed, end_bias, images, beams, steps, length_penalty):
    """Tokens and scores of all beams; ours may stop early, the reference never does."""
    score = random_scorer(seed, end_bias)
    found = search(kind, score, images, beams, steps, length_penalty)
    for image in range(images):
        rows = slice(image * beams, (image + 1) * beams)
        expected = REFERENCES[kind](score, image, beams, steps, length_penalty)
        assert [caption(tokens) for tokens in found.tokens[rows, 1:].tolist()] == [
            caption(list(tokens)) for tokens, _ in expected
        ]
        np.testing.assert_allclose(found.scores[rows], [total for _, total in expected], atol=1e-4)


def test_one_beam_is_greedy():
    score = random_scorer(3, -1.0)
    expected: tuple[int, ...] = ()
    while len(expected) < 5 and END not in expected:
        expected = (*expected, int(score(0, expected).argmax()))
    for kind in REFERENCES:
        assert caption(search(kind, score, 1, 1, 5, 0.0).tokens[0, 1:].tolist()) == expected


def test_all_beams_find_the_best_caption():
    """With as many beams as words, two steps are searched completely."""
    for seed in range(20):
        score = random_scorer(seed, 0.5)
        totals = {(END,): score(0, ())[END]}
        for first in range(1, WORDS):
            after = score(0, (first,))
            totals |= {(first, second): score(0, ())[first] + after[second] for second in range(WORDS)}
        best = max(totals, key=lambda tokens: totals[tokens])
        for kind in REFERENCES.keys() - {"shrinking_finished"}:  # which puts captions of two words last
            assert caption(search(kind, score, 1, WORDS, 2, 0.0).tokens[0, 1:].tolist()) == best


def released_penalty(kind: str | None, alpha: float, length: int, total: float) -> float:
    """Length penalties of ImageCaptioning.pytorch."""
    return {None: total, "avg": total / length, "wu": total / ((5 + length) ** alpha / 6**alpha)}[kind]


def groups_reference(
    score: Scorer, image: int, beams: int, steps: int, groups: int, diversity: float, kind: str | None, alpha: float
) -> list:
    """Groups of beams, each one step after the one before; `(tokens, score, log-probabilities)`, group after group.

    A group reads the words of the earlier ones off the beams that those have kept by then.
    """
    width = beams // groups
    held = [[((), 0.0, ())] for _ in range(groups)]
    recorded: list[list] = [[] for _ in range(groups)]
    for time in range(1, steps + groups):
        for group in range(groups):
            step = time - group
            if not 1 <= step <= steps:
                continue
            chosen = [tokens[step - 1] for earlier in held[:group] for tokens, _, _ in earlier]
            candidates = []
            for tokens, total, logprobs in held[group]:
                own = score(image, tokens)
                lowered = own - diversity * np.bincount(chosen, minlength=WORDS)
                best = sorted(range(WORDS), key=lambda word, values=lowered: -values[word])[:width]
                candidates += [((*tokens, word), total + lowered[word], (*logprobs, own[word])) for word in best]
            held[group] = sorted(candidates, key=lambda one: -one[1])[:width]
            for index, (tokens, total, logprobs) in enumerate(held[group]):
                if tokens[-1] == END or step == steps:
                    recorded[group].append((tokens, released_penalty(kind, alpha, step, total), logprobs))
                    held[group][index] = (tokens, -1000.0, logprobs)
    return [one for group in recorded for one in sorted(group, key=lambda one: -one[1])[:width]]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    end_bias=st.floats(-2.0, 3.0),
    images=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 3]),
    width=st.integers(1, 3),
    steps=st.integers(1, 6),
    diversity=st.sampled_from([0.0, 0.5, 2.0]),
    kind=st.sampled_from([None, "avg", "wu"]),
    alpha=st.sampled_from([0.5, 0.9]),
)
def test_groups_and_penalties_equal_plain_python(seed, end_bias, images, groups, width, steps, diversity, kind, alpha):
    score, beams = random_scorer(seed, end_bias), groups * width
    options = {"pool_groups": groups, "pool_diversity": diversity}
    options |= {"pool_length_penalty": kind, "pool_length_alpha": alpha}
    found = search("pool", score, images, beams, steps, 0.0, **options)
    for image in range(images):
        rows = slice(image * beams, (image + 1) * beams)
        expected = groups_reference(score, image, beams, steps, groups, diversity, kind, alpha)
        assert [caption(tokens) for tokens in found.tokens[rows, 1:].tolist()] == [one[0] for one in expected]
        np.testing.assert_allclose(found.scores[rows], [one[1] for one in expected], atol=1e-4)
        for own, (tokens, _, logprobs) in zip(found.token_logprobs[rows], expected, strict=True):
            np.testing.assert_allclose(own[: len(tokens)], logprobs, atol=1e-5)
            assert (own[len(tokens) :] == 0).all()
        parents = found.parents[rows]
        assert ((parents == -1) | (parents // beams == image)).all(), "rows stay within their image"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(sorted(BOOKKEEPINGS)),
    seed=st.integers(0, 10**6),
    end_bias=st.floats(-1.0, 3.0),
    images=st.integers(1, 4),
    beams=st.integers(1, 3),
    kept=st.integers(1, 3),
    steps=st.integers(1, 8),
    length_penalty=st.sampled_from([0.0, 1.0, 2.0, -1.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
)
def test_images_that_leave_change_nothing(
    kind, seed, end_bias, images, beams, kept, steps, length_penalty, early_stopping
):
    """Captions, scores and ancestry are those of a search with all images until the end, from logits as well."""
    score = random_scorer(seed, end_bias)
    options = {"num_return_sequences": min(kept, beams), "early_stopping": early_stopping}
    config = search_config(beams, steps, length_penalty, **options)
    results = []
    for leaving in (False, True):
        held = BOOKKEEPINGS[kind](torch.full((images * beams, 1), BEGIN), config)
        held.may_leave = leaving
        for _ in range(steps):
            numbers = held.images.repeat_interleave(beams).tolist()
            rows = held.rows()[:, 1:].tolist()
            scores = torch.from_numpy(np.stack([score(*one) for one in zip(numbers, map(tuple, rows), strict=True)]))
            held.step(NextTokens(scores + 2, torch.full((len(rows), 1), 2.0)) if leaving else scores)
            rows = held.candidate_rows()
            held.end_rows((rows[:, -1] == END) | (rows.shape[1] == 1 + steps))
            if held.read_done()[0]:
                break
            if leaving and bool((done := held.done_images()).any()):
                held.drop_images(done)
        results.append(held.finish_all())
    whole, left = results
    length = left.parents.shape[1]
    assert torch.equal(left.tokens, whole.tokens[:, : 1 + length]) and (whole.parents[:, length:] == -1).all()
    assert torch.equal(left.parents, whole.parents[:, :length])
    for name in ("scores", "token_logprobs", "model_logprobs"):
        expected = getattr(whole, name)
        expected = expected if name == "scores" else expected[:, :length]
        torch.testing.assert_close(getattr(left, name), expected, atol=1e-4, rtol=1e-4)


def test_no_immediate_repetition():
    processor, scores = NoImmediateRepetition(1), torch.zeros(2, WORDS)
    assert torch.equal(processor(torch.tensor([[3], [4]]), scores), scores), "the prompt is not looked at"
    found = processor(torch.tensor([[BEGIN, 3], [BEGIN, 4]]), scores)
    assert found.isinf().nonzero().tolist() == [[0, 3], [1, 4]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    min_length=st.integers(0, 6),
    new_tokens=st.integers(0, 6),
    ends=st.lists(st.sampled_from([END, 3, WORDS + 5]), min_size=1, max_size=2, unique=True),
)
def test_one_min_length_equals_the_two_of_transformers(min_length, new_tokens, ends):
    """Also with an end token outside of the vocabulary, at the place of the first of the two."""
    other, end = TemperatureLogitsWarper(2.0), torch.tensor(ends)
    limits = [MinLengthLogitsProcessor(min_length, end), MinNewTokensLengthLogitsProcessor(2, new_tokens, end)]
    stock = LogitsProcessorList([other, *limits, other])
    found = with_one_min_length(stock)
    assert [type(one) for one in found] == [type(other), NoEarlyEnd, type(other)]
    assert only_lower_scores([one for one in found if one is not other])
    scores = torch.randn(3, WORDS, generator=torch.Generator().manual_seed(0))
    for length in range(1, 10):
        ids = torch.full((3, length), BEGIN)
        assert torch.equal(found(ids, scores.clone()), stock(ids, scores.clone()))
    assert with_one_min_length(LogitsProcessorList([other])) == [other]


def test_no_bad_endings():
    processor, scores = NoBadEndings([3, 5], [END, 6], 1), torch.zeros(3, WORDS)
    assert torch.equal(processor(torch.tensor([[3], [5], [4]]), scores), scores)
    found = processor(torch.tensor([[BEGIN, 3], [BEGIN, 4], [BEGIN, 5]]), scores)
    assert found.isinf().nonzero().tolist() == [[0, END], [0, 6], [2, END], [2, 6]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows=st.lists(st.lists(st.integers(0, 3), min_size=9, max_size=9), min_size=1, max_size=3))
def test_trigram_penalty_equals_plain_python(rows):
    """A word loses the penalty for each earlier trigram that it would complete again."""
    scores = torch.randn(len(rows), WORDS, generator=torch.Generator().manual_seed(0))
    for length in range(10):
        tokens = [row[:length] for row in rows]
        expected = scores.clone()
        for index, row in enumerate(tokens):
            for first in range(len(row) - 2):
                if row[first : first + 2] == row[-2:]:
                    expected[index, row[first + 2]] -= 1.5
        ids = torch.tensor([[BEGIN, *row] for row in tokens])
        torch.testing.assert_close(TrigramPenalty(1.5, 1)(ids, scores), expected)

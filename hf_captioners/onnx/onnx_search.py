"""Decoding of exported captioners: states, logits rules, and caption search.

This file is part of every exported folder, see `onnx_captioner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from .onnx_facts import GenerationOptions
else:  # in an exported folder
    from onnx_facts import GenerationOptions

PAST, PRESENT = "past_key_values.", "present."
# Axes of the graphs whose size is free.
IMAGES, ROWS, LENGTH = "images", "rows", "past"
EXCLUDED = np.float32(-1e9)  # added to the score of a hypothesis that must not be chosen, as in transformers


CHUNK, MIN_CHUNKED = 64, 4096  # values; see `best`


class TooLongError(ValueError):
    """A caption has more tokens than the decoder has positions."""


@dataclass
class Hypotheses:
    """Decoded captions of B images, n each.

    Args:
        tokens: `[B, n, L]`, generated tokens without prompt, padded after the end token.
        logprobs: `[B, n, L]`, log-probability of every token before processing of the logits.
    """

    tokens: np.ndarray
    logprobs: np.ndarray

    def pick(self, index: np.ndarray) -> Hypotheses:
        """Return, for each image, the hypotheses at positions `index` `[B, n]`."""
        return Hypotheses(take(self.tokens, index), take(self.logprobs, index))

    def of(self, images: np.ndarray) -> Hypotheses:
        """Return the hypotheses of the images at positions `images`."""
        return Hypotheses(self.tokens[images], self.logprobs[images])

    def put(self, images: np.ndarray, other: Hypotheses) -> None:
        """Write the hypotheses `other` to the images at positions `images`, in place."""
        self.tokens[images], self.logprobs[images] = other.tokens, other.logprobs

    def join(self, other: Hypotheses) -> Hypotheses:
        """Return the hypotheses of both objects, concatenated for each image."""
        return Hypotheses(
            np.concatenate((self.tokens, other.tokens), 1), np.concatenate((self.logprobs, other.logprobs), 1)
        )


def take(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Gather the entries `index` `[B, n]` along the second axis of values `[B, N, ...]`."""
    return values[np.arange(len(values))[:, None], index]


class DecoderStates:
    """Inputs of the decoder graph at every step: encoder outputs of the images, and cached states of the text rows.

    An input of the decoder graph that the encoder returns starts with that value, a state of the text rows that it
    does not return starts empty. The names of the axes say which inputs have one entry per text row.

    Args:
        session: of the decoder graph.
        encoded: outputs of the encoder graph for B images; there is one text row for each.
        reads_all_tokens: whether the graph reads all tokens so far instead of the last.
        positions: largest number of tokens that it reads; None: unlimited, or unknown.
    """

    def __init__(
        self,
        session: Any,
        encoded: Mapping[str, np.ndarray],
        reads_all_tokens: bool,
        positions: int | None = None,
    ) -> None:
        self.session, self.reads_all_tokens, self.positions = session, reads_all_tokens, positions
        self.values: dict[str, np.ndarray] = {}
        self.of_rows: list[str] = []
        self.of_images: list[str] = []
        images = len(next(iter(encoded.values())))
        for node in session.get_inputs():
            if node.name == "input_ids":
                continue
            if node.shape[0] == ROWS:
                self.of_rows.append(node.name)
            elif node.shape[0] == IMAGES:
                self.of_images.append(node.name)
            if node.name in encoded:
                self.values[node.name] = encoded[node.name]
            else:
                sizes = {ROWS: images, LENGTH: 0}
                shape = [sizes.get(size, size) for size in node.shape]
                self.values[node.name] = np.zeros(shape, np.float32)
        self.outputs = [node.name for node in session.get_outputs()]

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Run the decoder graph on the last token of rows `[rows, T]`; return the next token's logits `[rows, V]`.

        Raises:
            TooLongError: the decoder has fewer positions.
            ValueError: logits are not finite, or the graph returns arrays of other shapes.
        """
        rows, length = tokens.shape
        if self.positions is not None and length > self.positions:
            raise TooLongError(
                f"The caption has {length} tokens, the decoder has {self.positions} positions. Shorten the prompt, or "
                "lower `max_new_tokens`."
            )
        read = tokens if self.reads_all_tokens else tokens[:, -1:]
        found = self.session.run(self.outputs, {"input_ids": np.ascontiguousarray(read), **self.values})
        for name, value in zip(self.outputs, found, strict=True):
            if name.startswith(PRESENT):
                state = PAST + name.removeprefix(PRESENT)
                if state in self.of_rows and len(value) != rows:
                    raise ValueError(f"the state {name} has {len(value)} rows, expected {rows}")
                self.values[state] = value
        logits = found[self.outputs.index("logits")]
        if logits.ndim != 3 or len(logits) != rows or not logits.shape[1]:
            raise ValueError(f"the logits have the shape {list(logits.shape)}, expected [{rows}, 1, tokens]")
        logits = logits[:, -1]
        if not np.isfinite(logits.sum(dtype=np.float64)):  # float64 holds the sum of all float32 that are finite
            raise ValueError("its logits are not finite (NaN or infinite)")
        return logits

    def reorder(self, rows: np.ndarray) -> None:
        """Select the decoder states of text rows by index, in place; beams that branch repeat an index."""
        for name in self.of_rows:
            self.values[name] = self.values[name][rows]

    def keep_images(self, images: np.ndarray) -> None:
        """Keep only the encoder outputs of the images at `images`; `reorder` must follow for the text rows."""
        for name in self.of_images:
            self.values[name] = self.values[name][images]


class LogitsRules:
    """Logits processors, such as repetition penalty and minimum length, in the order of transformers.

    Args:
        options: see `GenerationOptions`.
        end_ids: ids of the end tokens.
        prompt: length of the rows before the first generated token.
    """

    def __init__(self, options: GenerationOptions, end_ids: Sequence[int], prompt: int) -> None:
        self.options, self.end_ids, self.prompt = options, list(end_ids), prompt
        ends = [[token] for token in end_ids]
        self.bad_words = [list(words) for words in options.bad_words_ids if list(words) not in ends]

    def __call__(self, tokens: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the processed logits `[rows, V]` of the tokens that follow `tokens` `[rows, T]`."""
        options, scores = self.options, scores.copy()
        length, generated = tokens.shape[1], tokens.shape[1] - self.prompt
        if options.repetition_penalty != 1.0:
            old = np.take_along_axis(scores, tokens, 1)
            changed = np.where(old < 0, old * options.repetition_penalty, old / options.repetition_penalty)
            np.put_along_axis(scores, tokens, changed.astype(scores.dtype), 1)
        if options.no_repeat_ngram_size:
            self._forbid_repeated_ngrams(tokens, scores, options.no_repeat_ngram_size)
        for words in self.bad_words:
            *before, last = words
            if length >= len(before):
                fits = (tokens[:, length - len(before) :] == np.array(before, np.int64)).all(1)
                scores[fits, last] = -np.inf
        if length < options.min_length or generated < options.min_new_tokens:
            scores[:, self.end_ids] = -np.inf
        scores[:, options.suppress_tokens] = -np.inf
        if not generated:
            scores[:, options.begin_suppress_tokens] = -np.inf
        self._apply_caption_rules(tokens[:, self.prompt :], scores)
        return scores

    @staticmethod
    def _forbid_repeated_ngrams(tokens: np.ndarray, scores: np.ndarray, size: int) -> None:
        """Set the logits of tokens that would repeat an n-gram of their row to minus infinity, in place."""
        for row, before in zip(scores, tokens, strict=True):
            start = tuple(before[len(before) - size + 1 :]) if len(before) >= size - 1 else None
            for first in range(len(before) - size + 1):
                if tuple(before[first : first + size - 1]) == start:
                    row[before[first + size - 1]] = -np.inf

    def _apply_caption_rules(self, generated: np.ndarray, scores: np.ndarray) -> None:
        """Apply the logits rules of authors' captioning code, see `hf_captioners.modeling.search_captioning`."""
        options = self.options
        if not generated.shape[1]:
            return
        if options.no_immediate_repetition:
            np.put_along_axis(scores, generated[:, -1:], -np.inf, 1)
        if options.bad_ending_ids:
            bad = np.flatnonzero(np.isin(generated[:, -1], options.bad_ending_ids))
            scores[bad[:, None], self.end_ids] = -np.inf
        if options.trigram_penalty and generated.shape[1] > 2:
            pairs = np.stack((generated[:, :-2], generated[:, 1:-1]), -1)  # [rows, t - 2, 2]
            repeated = (pairs == generated[:, None, -2:]).all(-1)
            for row, followers, counted in zip(scores, generated[:, 2:], repeated, strict=True):
                np.add.at(row, followers[counted], np.float32(-options.trigram_penalty))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of logits `[rows, V]`."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def best(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices `[B, count]` of the largest values `[B, N]` in descending order; ties keep their order."""
    if count >= values.shape[-1]:
        return np.argsort(-values, axis=-1, kind="stable")[:, :count]
    images, size = values.shape
    if size >= MIN_CHUNKED:
        # The largest values are in the chunks with the largest maxima, which are found much faster.
        chunks = size // CHUNK
        maxima = values[:, : chunks * CHUNK].reshape(images, chunks, CHUNK).max(-1)
        chosen = np.sort(np.argpartition(-maxima, count - 1, axis=-1)[:, :count], axis=-1)
        inside = (chosen[..., None] * CHUNK + np.arange(CHUNK)).reshape(images, -1)
        remaining = np.arange(chunks * CHUNK, size)[None].repeat(images, 0)
        places = np.concatenate((inside, remaining), 1)
        return take(places, best(take(values, places), count))
    found = np.sort(np.argpartition(-values, count - 1, axis=-1)[:, :count], axis=-1)
    order = np.argsort(-take(values, found), axis=-1, kind="stable")
    return take(found, order)


def draw(scores: np.ndarray, options: GenerationOptions, generator: np.random.Generator) -> np.ndarray:
    """Sample one token for each row of logits `[rows, V]`, after temperature, top k and top p."""
    scores = (scores - scores.max(-1, keepdims=True)) / options.temperature  # a small temperature makes none infinite
    if options.top_k:
        threshold = np.sort(scores, axis=-1)[:, -min(options.top_k, scores.shape[-1])]
        scores = np.where(scores < threshold[:, None], -np.inf, scores)
    if options.top_p < 1:
        order = np.argsort(scores, axis=-1, kind="stable")
        summed = np.exp(log_softmax(np.take_along_axis(scores, order, -1))).cumsum(-1)
        dropped = summed <= 1 - options.top_p
        dropped[:, -1] = False
        kept = np.take_along_axis(scores, order, -1)
        np.put_along_axis(scores, order, np.where(dropped, -np.inf, kept), -1)
    chances = np.exp(log_softmax(scores).astype(np.float64)).cumsum(-1)
    drawn = generator.random((len(scores), 1)) * chances[:, -1:]
    return (chances <= drawn).sum(-1)


@dataclass
class Search:
    """Decoding of the captions of one batch: greedy, sampling or beam search.

    Args:
        states: of B rows, before the first token.
        prompt: `[B, T]`, begin token and prompt.
        options: see `GenerationOptions`.
        end_ids, pad_id: ids of the end tokens and of the padding.
    """

    states: DecoderStates
    prompt: np.ndarray
    options: GenerationOptions
    end_ids: Sequence[int]
    pad_id: int

    def run(self) -> Hypotheses:
        """Process the prompt, decode, and return the captions of each image, best first.

        Raises:
            ValueError: a logit or a log-probability is not finite, see also `DecoderStates.step`.
        """
        for place in range(1, self.prompt.shape[1]):
            self.states.step(self.prompt[:, :place])
        found = self.by_beams() if self.options.num_beams > 1 else self.by_rows()
        if not np.isfinite(found.logprobs).all():
            raise ValueError("the log-probabilities of its tokens are not finite (NaN or infinite)")
        return found

    def first_step(self, copies: int) -> tuple[np.ndarray, np.ndarray]:
        """Process the end of the prompt once per image; return tokens and logits of `copies` rows per image."""
        rows = np.arange(len(self.prompt)).repeat(copies)
        logits = self.states.step(self.prompt)[rows]
        self.states.reorder(rows)
        return self.prompt[rows], logits

    def by_rows(self) -> Hypotheses:
        """Decode greedily or by sampling, `num_return_sequences` captions per image."""
        options, images = self.options, len(self.prompt)
        generator = np.random.default_rng(options.seed)
        rules = LogitsRules(options, self.end_ids, self.prompt.shape[1])
        tokens, logits = self.first_step(options.num_return_sequences)
        running, logprobs = np.ones(len(tokens), bool), []
        while True:
            scores = rules(tokens, logits)
            chosen = draw(scores, options, generator) if options.do_sample else scores.argmax(-1)
            chosen = np.where(running, chosen, self.pad_id)
            logprobs.append(np.take_along_axis(log_softmax(logits), chosen[:, None], -1))
            tokens = np.concatenate((tokens, chosen[:, None]), 1)
            running &= ~np.isin(chosen, self.end_ids)
            if not running.any() or len(logprobs) >= options.max_new_tokens:
                break
            logits = self.states.step(tokens)
        shape = (images, options.num_return_sequences, -1)
        generated = tokens[:, self.prompt.shape[1] :].reshape(shape)
        return Hypotheses(generated, np.concatenate(logprobs, 1).reshape(shape))

    def by_beams(self) -> Hypotheses:
        """Decode by beam search as transformers does: K running and K finished hypotheses of each image.

        Images whose K finished hypotheses cannot change any more are not computed further.
        """
        options, (images, prompt), beams = self.options, self.prompt.shape, self.options.num_beams
        rules, width = LogitsRules(options, self.end_ids, prompt), options.max_new_tokens
        tokens, logits = self.first_step(beams)
        state = Beams.begin(images, beams, width, self.pad_id)
        result = state.finished.pick(np.arange(beams)[None].repeat(images, 0))
        for step in range(width):
            raw = log_softmax(logits)
            parents, ends = self._extend(state, rules(tokens, raw), raw, step)
            is_over = ~state.may_improve[:, 0] | ends.all()
            if options.early_stopping is True:
                is_over |= state.is_finished.all(-1)
            result.put(state.places[is_over], state.finished.of(is_over))
            if is_over.all():
                break
            rows = parents + np.arange(len(parents))[:, None] * beams
            if is_over.any():
                running = np.flatnonzero(~is_over)
                state, rows = state.keep(running), rows[running]
                self.states.keep_images(running)
            self.states.reorder(rows.reshape(-1))
            written = state.running.tokens[..., : step + 1].reshape(-1, step + 1)
            tokens = np.concatenate((self.prompt[state.places].repeat(beams, 0), written), 1)
            logits = self.states.step(tokens)
        return result.pick(np.arange(options.num_return_sequences)[None].repeat(images, 0))

    def _extend(self, state: Beams, changed: np.ndarray, raw: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Extend each running hypothesis by one token and update the state of the beam search.

        Args:
            state: is changed.
            changed: log-probabilities `[B * K, V]` after the rules.
            raw: log-probabilities `[B * K, V]` of the captioner.
            step: number of tokens that are generated already.

        Returns:
            The hypotheses `[B, K]` which the new ones continue, and whether each candidate `[B, n]` has ended.
        """
        options, (images, beams), vocabulary = self.options, state.scores.shape, raw.shape[-1]
        kept, width = max(2, 1 + len(self.end_ids)) * beams, options.max_new_tokens
        summed = (changed.reshape(images, beams, vocabulary) + state.scores[..., None]).reshape(images, -1)
        flat = best(summed, kept)  # [B, kept]
        parents, chosen = flat // vocabulary, flat % vocabulary
        candidates = state.running.pick(parents)
        candidates.tokens[..., step] = chosen
        candidates.logprobs[..., step] = take(raw.reshape(images, -1), flat)
        found = take(summed, flat)
        ends = (chosen[..., None] == np.array(self.end_ids)).any(-1) | (step + 1 >= width)
        going_on = found + ends * EXCLUDED
        order = best(going_on, beams)
        state.running, state.scores = candidates.pick(order), take(going_on, order)
        # Only the best K candidates may finish; the others replace them among the running ones.
        ending = ends & (np.arange(kept) < beams)
        ranked = found / np.float32((step + 1) ** options.length_penalty)
        ranked = ranked + ~ending * EXCLUDED + ~state.may_improve * EXCLUDED
        if options.early_stopping is True:
            ranked = ranked + state.is_finished.all(-1, keepdims=True) * EXCLUDED
        both = np.concatenate((state.finished_scores, ranked), 1)
        order_finished = best(both, beams)
        state.finished = state.finished.join(candidates).pick(order_finished)
        state.finished_scores = take(both, order_finished)
        state.is_finished = take(np.concatenate((state.is_finished, ending), 1), order_finished)
        longest = width if options.early_stopping == "never" and options.length_penalty > 0 else step + 1
        reachable = state.scores[:, :1] / np.float32(longest**options.length_penalty)
        worst = np.where(state.is_finished, state.finished_scores.min(1, keepdims=True), EXCLUDED)
        state.may_improve = state.may_improve & (reachable > worst).any(-1, keepdims=True)
        return take(parents, order), ends


@dataclass
class Beams:
    """State of a beam search for the captions of B images.

    Args:
        places: `[B]`, of the images in their batch.
        running, finished: K hypotheses of each image.
        scores, finished_scores: `[B, K]`.
        is_finished: `[B, K]`, whether a finished hypothesis is one.
        may_improve: `[B, 1]`, whether finished hypotheses may change.
    """

    places: np.ndarray
    running: Hypotheses
    scores: np.ndarray
    finished: Hypotheses
    finished_scores: np.ndarray
    is_finished: np.ndarray
    may_improve: np.ndarray

    @classmethod
    def begin(cls, images: int, beams: int, width: int, pad_id: int) -> Beams:
        """Return the initial state of a beam search for captions of at most `width` tokens."""
        empty = Hypotheses(np.full((images, beams, width), pad_id), np.zeros((images, beams, width), np.float32))
        scores = np.where(np.arange(beams) > 0, EXCLUDED, np.float32(0))[None].repeat(images, 0)
        return cls(
            places=np.arange(images),
            running=empty,
            scores=scores,
            finished=empty,
            finished_scores=np.full((images, beams), EXCLUDED),
            is_finished=np.zeros((images, beams), bool),
            may_improve=np.ones((images, 1), bool),
        )

    def keep(self, images: np.ndarray) -> Beams:
        """Return the beam search state of the images at positions `images`."""
        return Beams(
            places=self.places[images],
            running=self.running.of(images),
            scores=self.scores[images],
            finished=self.finished.of(images),
            finished_scores=self.finished_scores[images],
            is_finished=self.is_finished[images],
            may_improve=self.may_improve[images],
        )

"""Hypotheses of beam search, kept and ranked as in the code of captioning papers; independent of the model."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
)

# The released penalty of a token that would complete a trigram again: twice log 2, to three digits.
TRIGRAM_PENALTY = 2 * 0.693


@dataclass
class Hypotheses:
    """Tokens, scores and log-probabilities of K hypotheses for each of B images.

    Args:
        tokens: `[B, K, prompt + L]`.
        scores: `[B, K]`, ranking scores.
        token_logprobs: `[B, K, L]`, what the tokens were chosen by.
        model_logprobs: `[B, K, L]`, before processors of logits and temperature.
        parents: `[B, K, L]`, row of B * K that each token extended, -1 = no token.
    """

    tokens: Tensor
    scores: Tensor
    token_logprobs: Tensor
    model_logprobs: Tensor
    parents: Tensor

    def select(self, index: Tensor) -> "Hypotheses":
        """Return the hypotheses numbered `index` `[B, n]` of each image."""
        return Hypotheses(*(_gather(tensor, index) for tensor in vars(self).values()))

    def join(self, other: "Hypotheses") -> "Hypotheses":
        """Concatenate the hypotheses of two sets with the same length L."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def images(self, index: Tensor) -> "Hypotheses":
        """Return the hypotheses of the images numbered `index`."""
        return Hypotheses(*(tensor[index] for tensor in vars(self).values()))

    def scored(self, scores: Tensor) -> "Hypotheses":
        """Return a copy with these ranking scores."""
        return replace(self, scores=scores)

    def padded(self, length: int, fill: int) -> "Hypotheses":
        """Pad the hypotheses with the token `fill` to `length` generated tokens."""
        missing = length - self.parents.shape[-1]
        values = {"tokens": fill, "token_logprobs": 0.0, "model_logprobs": 0.0, "parents": -1}
        return replace(
            self, **{name: pad(getattr(self, name), (0, missing), value=value) for name, value in values.items()}
        )

    def flatten(self) -> "Hypotheses":
        """Merge the axes of images and hypotheses, `[B, K, ...]` to `[B * K, ...]`."""
        return Hypotheses(*(tensor.flatten(0, 1) for tensor in vars(self).values()))


def _gather(tensor: Tensor, index: Tensor) -> Tensor:
    """Return entries `[B, n, ...]` of `[B, K, ...]` by indices `[B, n]`."""
    index = index[(...,) + (None,) * (tensor.ndim - 2)]  # [B, n, 1, ...]
    return torch.take_along_dim(tensor, index, dim=1)


def _append(tensor: Tensor, column: Tensor) -> Tensor:
    return torch.cat((tensor, column[..., None].to(tensor.dtype)), dim=-1)


class CaptionBeams:
    """Beam search over B images with K beams each. Subclasses define how finished hypotheses are treated.

    Args:
        input_ids: `[B * K, prompt]`; the K rows of an image are consecutive.
        generation_config: configuration with `num_beams`, `length_penalty`, `max_length` and the pad and end ids.
    """

    # Attributes with one row per image.
    OF_IMAGES = ("rows_held", "alive", "images")

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        self.num_beams = generation_config.num_beams
        self.num_return_sequences = generation_config.num_return_sequences
        self.length_penalty = generation_config.length_penalty
        self.max_new_tokens = generation_config.max_length - input_ids.shape[1]
        pad, eos = generation_config._pad_token_tensor, generation_config._eos_token_tensor
        self.pad_token_id = int(pad) if pad is not None else int(eos.flatten()[0])
        tokens = input_ids.unflatten(0, (-1, self.num_beams))  # [B, K, prompt]
        shape, device = tokens.shape[:2], input_ids.device
        self.rows_held = Hypotheses(
            tokens=tokens,
            scores=torch.zeros(shape, device=device),
            token_logprobs=torch.zeros(*shape, 0, device=device),
            model_logprobs=torch.zeros(*shape, 0, device=device),
            parents=torch.zeros(*shape, 0, dtype=torch.long, device=device),
        )
        self.alive = torch.ones(shape, dtype=torch.bool, device=device)
        self.images = torch.arange(shape[0], device=device)  # [B], number of each image in the batch
        self.parents = torch.arange(len(input_ids), device=device)
        # Whether the search of an image may end before all beams have, without the rest of the batch: no processor
        # raises scores, and nobody asked for records of every step.
        self.may_leave = False
        self.left: list[tuple[Tensor, Hypotheses]] = []  # images that have left, and what was found for them

    def rows(self) -> Tensor:
        """Return the tokens of all beams, `[B * K, prompt + t]`."""
        return self.rows_held.tokens.flatten(0, 1)

    def candidate_rows(self) -> Tensor:
        """Return the token rows that stopping criteria judge at this step."""
        return self.rows()

    def propose(self, next_tokens: "NextTokens", width: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and ids of the `width` best next tokens of every row, `[B, K, width]`."""
        proposed, tokens = next_tokens.scores.topk(min(width, next_tokens.scores.shape[-1]), dim=-1)
        if next_tokens.normalizer is not None:
            proposed = proposed - next_tokens.normalizer
        return proposed.unflatten(0, (-1, self.num_beams)), tokens.unflatten(0, (-1, self.num_beams))

    def step(self, next_tokens: "Tensor | NextTokens", reported: Tensor | None = None) -> Tensor:
        """Extend the hypotheses by one token: keep the best K of each image.

        Every row proposes its K best tokens; the K best of these K x K candidates are kept.

        Args:
            next_tokens: what the rows choose from, or log-probabilities `[B * K, V]`.
            reported: `[B * K, V]`, the log-probabilities to report for the chosen tokens, where they are different.

        Returns:
            The row of B * K that each kept row extends, `[B * K]`.
        """
        next_tokens = next_tokens if isinstance(next_tokens, NextTokens) else NextTokens(next_tokens)
        proposed, tokens = self.propose(next_tokens, self.num_beams)  # [B, K, width]
        width = tokens.shape[-1]
        candidates, proposed, tokens = self.candidates(proposed, tokens)
        if reported is not None:
            proposed = reported.unflatten(0, (-1, self.num_beams)).gather(-1, tokens)
        of_model = next_tokens.of_model(tokens)
        if self.rows_held.parents.shape[-1] == 0:
            candidates[:, 1:] = -torch.inf  # all rows hold the same prompt, so one is enough
        scores, chosen = candidates.flatten(1).topk(self.num_beams, dim=-1)  # [B, K * width] to [B, K]
        beam = chosen // width  # [B, K], the row that each chosen candidate extends
        kept = self.rows_held.select(beam)
        self.alive = _gather(self.alive, beam)
        self.rows_held = Hypotheses(
            tokens=_append(kept.tokens, tokens.flatten(1).gather(1, chosen)),
            scores=scores,
            token_logprobs=_append(kept.token_logprobs, proposed.flatten(1).gather(1, chosen)),
            model_logprobs=_append(
                kept.model_logprobs, of_model.flatten(1).gather(1, chosen).masked_fill(~self.alive, 0.0)
            ),
            parents=_append(kept.parents, torch.where(self.alive, self.rows_of(self.images, beam), -1)),
        )
        self.parents = self.rows_of(torch.arange(len(beam), device=beam.device), beam).flatten()
        return self.parents

    def rows_of(self, images: Tensor, beam: Tensor) -> Tensor:
        """Return the row numbers of beams `[B, n]` of images `[B]`."""
        return images[:, None] * self.num_beams + beam

    def candidates(self, proposed: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, log-probabilities and tokens of the K x K candidates of each image, `[B, K, K]` each."""
        return self.rows_held.scores[..., None] + proposed, proposed, tokens

    def end_rows(self, ended: Tensor) -> None:
        """Handle the rows `[B * K]` that ended at this step."""
        raise NotImplementedError

    def done_images(self) -> Tensor:
        """Return True for each image whose result no further step can change, `[B]`."""
        raise NotImplementedError

    def ended(self) -> Tensor:
        """Return True if no further step can change any result, a scalar tensor."""
        return self.done_images().all()

    def read_done(self) -> tuple[bool, Tensor]:
        """Copy `ended` and `done_images` to the CPU: the only point at which a step waits for a GPU."""
        flags = torch.cat((self.ended()[None], self.done_images())).cpu()
        return bool(flags[0]), flags[1:]

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the best hypotheses of every image, best first, as rows `[B * n, ...]`."""
        raise NotImplementedError

    def selected(self, index: Tensor) -> "CaptionBeams":
        """Return a copy of the search with the images numbered `index`."""
        part = copy.copy(self)
        for name in self.OF_IMAGES:
            value = getattr(self, name)
            setattr(part, name, value.images(index) if isinstance(value, Hypotheses) else value[index])
        return part

    def drop_images(self, done: Tensor) -> Tensor:
        """Store the results of finished images (`done` `[B]`), and continue the search without them.

        Returns:
            The images that stay, as indices.
        """
        leaving, staying = (mask.nonzero()[:, 0].to(self.alive.device) for mask in (done, ~done))
        self.left.append((self.images[leaving], self.selected(leaving).finish(self.num_return_sequences)))
        vars(self).update(vars(self.selected(staying)))
        return staying

    def finish_all(self) -> Hypotheses:
        """Return the best hypotheses of all images, dropped ones included."""
        running = self.finish(self.num_return_sequences)
        if not self.left:
            return running
        parts = [*self.left, (self.images, running)]
        length = max(part.parents.shape[-1] for _, part in parts)
        padded = [part.padded(length, self.pad_token_id) for _, part in parts]
        joined = Hypotheses(
            *(torch.cat(values) for values in zip(*(vars(part).values() for part in padded), strict=True))
        )
        order = torch.cat([images for images, _ in parts]).argsort()  # [B]
        count = self.num_return_sequences
        rows = order[:, None] * count + torch.arange(count, device=order.device)
        return joined.images(rows.flatten())


@dataclass
class NextTokens:
    """Scores of the next token of every row; log-probabilities are scores minus normalizer.

    Args:
        scores: `[rows, V]`, what hypotheses are ranked by.
        normalizer: `[rows, 1]`, what turns `scores` into log-probabilities; None: they are.
        model_scores: `[rows, V]` before processors of logits; None: there are none.
        model_normalizer: as `normalizer`, for `model_scores`.
    """

    scores: Tensor
    normalizer: Tensor | None = None
    model_scores: Tensor | None = None
    model_normalizer: Tensor | None = None

    def log_probs(self) -> Tensor:
        """Return the log-probabilities `[rows, V]` by which hypotheses are ranked."""
        return self.scores if self.normalizer is None else self.scores - self.normalizer

    def of_model(self, tokens: Tensor) -> Tensor:
        """Return the model's log-probabilities of tokens `[B, K, n]`, before logits processors."""
        processed = self.model_scores is None
        scores = self.scores if self.model_scores is None else self.model_scores
        normalizer = self.normalizer if processed else self.model_normalizer
        rows = tokens.flatten(0, -2).clamp(max=scores.shape[-1] - 1)  # the padding token may be no word
        chosen_scores = scores.gather(-1, rows)
        return (chosen_scores if normalizer is None else chosen_scores - normalizer).view_as(tokens)


class LiveBeams(CaptionBeams):
    """Beam search of M2 and VisualGPT: a finished beam stays among the K and competes with its unchanged score.

    There is no length normalisation (`length_penalty` is ignored) and no pool. The search of an image stops when its K
    beams have ended. Rows are padded after the end token (released code: with id 0).
    """

    def candidates(self, proposed: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the candidates; a finished row has one, the pad token at log-probability 0."""
        ended = ~self.alive[..., None]
        scores = self.rows_held.scores[..., None]
        nothing = torch.full_like(proposed, -torch.inf)
        nothing[..., 0] = 0.0
        added = torch.where(ended, nothing, proposed)
        return scores + added, torch.where(ended, 0.0, proposed), torch.where(ended, self.pad_token_id, tokens)

    def end_rows(self, ended: Tensor) -> None:
        """Mark rows as finished; they keep their beams."""
        self.alive &= ~ended.view_as(self.alive)

    def done_images(self) -> Tensor:
        """Return True for each image whose beams have all ended, or whose returned beams cannot be overtaken."""
        if not self.may_leave:
            return ~self.alive.any(-1)
        best = self.rows_held.scores.topk(self.num_return_sequences, dim=-1).indices
        return ~_gather(self.alive, best).any(-1)

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the beams by decreasing score."""
        order = self.rows_held.scores.argsort(dim=-1, descending=True, stable=True)
        return self.rows_held.select(order[:, :num_return_sequences]).flatten()


class RecordingBeams(CaptionBeams):
    """Beam search that collects the K best finished hypotheses. Subclasses define what replaces a finished beam.

    Recorded hypotheses are ranked by `sum / length ** length_penalty`: 0 is the plain sum, 1 the mean.
    """

    OF_IMAGES = (*CaptionBeams.OF_IMAGES, "record")

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        self.record = self.rows_held.scored(torch.full_like(self.rows_held.scores, -torch.inf))

    def rank(self, summed: Tensor, length: int) -> Tensor:
        """Return the ranking score of hypotheses of `length` tokens, from their summed log-probability."""
        return summed / length**self.length_penalty

    def record_rows(self, ended: Tensor) -> None:
        """Add the rows `[B, K]` that end at this step to the record, which stays sorted and keeps K."""
        rows, length = self.rows_held, self.rows_held.parents.shape[-1]
        ranked = torch.where(ended, self.rank(rows.scores, length), -torch.inf)
        both = self.record.padded(length, self.pad_token_id).join(rows.scored(ranked))
        self.record = both.select(both.scores.topk(self.num_beams, dim=-1).indices)

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the best recorded hypotheses of every image, best first."""
        return self.record.select(
            torch.arange(num_return_sequences, device=self.alive.device).expand(len(self.alive), -1)
        ).flatten()


class PoolBeams(RecordingBeams):
    """Beam search of the ImageCaptioning.pytorch family (AoANet, Image Transformer).

    `pool_length_penalty` ranks the record: None by `length_penalty` (0: the sum, the released default), `"avg"` by the
    mean, `"wu"` by sum / ((5 + length) / 6) ** `pool_length_alpha` (Wu et al., 2016, Eq. 14). The length counts the
    end token. The search ends when no running row can reach the K best of the record any more, which is exact since
    log-probabilities are never positive.
    """

    ENDED = -1000.0  # the released value

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        self.pool_length_penalty = generation_config.pool_length_penalty
        self.alpha = generation_config.pool_length_alpha

    def rank(self, summed: Tensor, length: int) -> Tensor:
        """Return the ranking score of hypotheses of `length` tokens, by `pool_length_penalty`."""
        if self.pool_length_penalty == "avg":
            return summed / length
        if self.pool_length_penalty == "wu":
            return summed / ((5 + length) / 6) ** self.alpha
        return super().rank(summed, length)

    def end_rows(self, ended: Tensor) -> None:
        """Record finished rows, and lower their running score so that they are not extended."""
        ended = ended.view_as(self.alive)
        self.record_rows(ended)
        self.rows_held.scores = torch.where(ended, self.ENDED, self.rows_held.scores)

    def done_images(self) -> Tensor:
        """Return True for each image none of whose running rows can enter the record."""
        length = self.rows_held.parents.shape[-1]
        if length >= self.max_new_tokens:
            return torch.ones_like(self.alive[:, 0])
        highest = self.rows_held.scores.max(dim=-1).values
        reachable = torch.maximum(self.rank(highest, self.max_new_tokens), self.rank(highest, length))
        needed = self.num_return_sequences if self.may_leave else self.num_beams
        return self.record.scores[:, needed - 1] >= reachable


class GroupPoolBeams(PoolBeams):
    """Beam group of the diverse beam search of the ImageCaptioning.pytorch family (Vijayakumar et al., 2018).

    The `pool_groups` groups have K / groups beams each and search one after the other. Later groups avoid the words of
    the earlier ones: a word loses `pool_diversity` for each beam of an earlier group that has it at the same step. As
    in the released code, in which each group follows the one before it at a distance of one step, these are the beams
    that the earlier group keeps later: one step later for the group before, two for the one before that.

    Args:
        input_ids: `[B * K / groups, prompt]`, rows of this group.
        generation_config: see `CaptionBeams`; `num_beams` is K, over all groups.
        earlier: the groups before this one, when they are done.
    """

    def __init__(self, input_ids: Tensor, generation_config: Any, earlier: list["GroupPoolBeams"]) -> None:
        group_config = copy.copy(generation_config)
        group_config.num_beams = generation_config.num_beams // generation_config.pool_groups
        super().__init__(input_ids, group_config)
        self.diversity = generation_config.pool_diversity
        self.earlier = earlier
        self.history: list[Tensor] = []  # tokens of the rows after each step, [B, K / groups, prompt + t]

    def step(self, next_tokens: Tensor | NextTokens, reported: Tensor | None = None) -> Tensor:
        """Extend the group's hypotheses by one token, with a penalty on words of earlier groups."""
        next_tokens = next_tokens if isinstance(next_tokens, NextTokens) else NextTokens(next_tokens)
        log_probs = next_tokens.log_probs()
        position, images = self.rows_held.tokens.shape[-1], self.rows_held.tokens.shape[0]
        chosen = log_probs.new_zeros(images, log_probs.shape[-1])  # how many beams have a word at this step, [B, V]
        for distance, group in enumerate(reversed(self.earlier), 1):
            kept = group.history[min(len(self.history) + distance, len(group.history) - 1)]
            words = kept[..., position]  # [B, K / groups]
            chosen = chosen.scatter_add(1, words, torch.ones_like(words, dtype=chosen.dtype))
        lowered = log_probs - self.diversity * chosen.repeat_interleave(self.num_beams, dim=0)
        unprocessed = (next_tokens.model_scores, next_tokens.model_normalizer)
        if next_tokens.model_scores is None:
            unprocessed = (log_probs, None)
        parents = super().step(NextTokens(lowered, None, *unprocessed), log_probs)
        self.history.append(self.rows_held.tokens)
        return parents

    def done_images(self) -> Tensor:
        """Return True once captions have their maximal length, up to which later groups read this one."""
        return torch.full_like(self.alive[:, 0], self.rows_held.parents.shape[-1] >= self.max_new_tokens)


def best_of_groups(groups: list[GroupPoolBeams], num_return_sequences: int) -> Hypotheses:
    """Join the hypotheses of diverse beam search: each image's first group best first, then its second.

    Args:
        groups: the groups, in the order in which they searched.
        num_return_sequences: hypotheses per image.
    """
    images, width = groups[0].alive.shape
    first = torch.arange(images, device=groups[0].alive.device)[:, None, None]
    parts = []
    for index, group in enumerate(groups):
        hypotheses = group.finish(width)
        by_image = Hypotheses(*(values.unflatten(0, (images, width)) for values in vars(hypotheses).values()))
        # Rows of all groups instead of the group's own.
        parent_rows = by_image.parents % width + index * width + first * width * len(groups)
        by_image.parents = torch.where(by_image.parents < 0, -1, parent_rows)
        parts.append(by_image)
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.join(part)
    kept = torch.arange(num_return_sequences, device=first.device).expand(images, -1)
    return joined.select(kept).flatten()


class ShrinkingBeams(RecordingBeams):
    """Beam search of Show, Attend and Tell's program, with one beam fewer after each finished one.

    It ends when K beams have finished. Captions cut at the longest length compete with the finished ones.
    """

    def end_rows(self, ended: Tensor) -> None:
        """Record finished rows, and reduce the number of running beams by theirs."""
        budget = self.record.scores.isinf().sum(-1, keepdim=True)  # [B, 1], beams that have not finished
        place = torch.arange(self.num_beams, device=self.alive.device)
        self.alive = (place < budget) & self.rows_held.scores.isfinite()
        ended = ended.view_as(self.alive) & self.alive
        self.record_rows(ended)
        self.alive &= ~ended
        self.rows_held.scores = self.rows_held.scores.masked_fill(~self.alive, -torch.inf)

    def done_images(self) -> Tensor:
        """Return True for each image whose beams have all finished."""
        return ~self.alive.any(-1)


class ShrinkingFinishedBeams(ShrinkingBeams):
    """Beam search of the re-implementation of Show, Attend and Tell: `ShrinkingBeams` that prefers finished captions.

    Captions cut at the longest length rank after all finished ones. The released code drops them, and raises an error
    if no caption has finished.
    """

    CUT = -1000.0

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        self.eos_token_ids = generation_config._eos_token_tensor

    def rank(self, summed: Tensor, length: int) -> Tensor:
        """Return the ranking score, lowered by 1000 for hypotheses without an end token."""
        ranked = super().rank(summed, length)
        if self.eos_token_ids is None:
            return ranked
        return ranked + self.CUT * ~torch.isin(self.rows_held.tokens[..., -1], self.eos_token_ids)

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the best recorded hypotheses, with scores free of the penalty of unfinished captions."""
        hypotheses = super().finish(num_return_sequences)
        lengths = (hypotheses.parents >= 0).sum(-1)
        hypotheses.scores = hypotheses.token_logprobs.sum(-1) / lengths**self.length_penalty
        return hypotheses


class TransformersBeams(RecordingBeams):
    """Beam search of transformers, with the results of `GenerationMixin._beam_search`.

    2 K candidates (more with several end tokens) are selected, so that K can go on whatever ends. Finished ones are
    ranked by `sum / length ** length_penalty`, and count only among the K best candidates of their step.
    """

    EXCLUDED = -1e9  # as in transformers, whose sums with it are part of the result
    OF_IMAGES = (*RecordingBeams.OF_IMAGES, "proposed", "finished", "improvable", "all_ended")

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        ends = generation_config._eos_token_tensor
        # In transformers, a padding token with the id 0 is replaced by the end token.
        self.pad_token_id = -1 if ends is None else self.pad_token_id or int(ends.flatten()[0])
        self.early_stopping = generation_config.early_stopping
        self.width = max(2, 1 + (0 if ends is None else len(ends))) * self.num_beams
        self.record = self.rows_held.scored(torch.full_like(self.rows_held.scores, self.EXCLUDED))
        self.rows_held.scores[:, 1:] = self.EXCLUDED  # all rows hold the same prompt, so one is enough
        self.proposed = self.rows_held
        self.finished = torch.zeros_like(self.alive)  # [B, K], whether an entry of the record has ended
        self.improvable = torch.ones_like(self.alive[:, :1])  # [B, 1]
        self.all_ended = torch.zeros_like(self.alive[:, 0])  # [B]

    def candidate_rows(self) -> Tensor:
        """Return the tokens of all candidates of this step, `[B * 2 K, prompt + t]`."""
        return self.proposed.tokens.flatten(0, 1)

    def step(self, next_tokens: Tensor | NextTokens, reported: Tensor | None = None) -> Tensor:
        """Select the 2 K best candidates of each image; `end_rows` selects the K that continue."""
        next_tokens = next_tokens if isinstance(next_tokens, NextTokens) else NextTokens(next_tokens)
        rows = self.rows_held
        if next_tokens.normalizer is None:  # any processor: as in transformers, from all candidates
            vocabulary = next_tokens.scores.shape[-1]
            added = next_tokens.scores.unflatten(0, (-1, self.num_beams)) + rows.scores[..., None]
            scores, chosen = added.flatten(1).topk(self.width, dim=-1)  # [B, K * V] to [B, 2 K]
            beam, tokens = chosen // vocabulary, chosen % vocabulary
            proposed = next_tokens.scores[self._local_rows(beam).flatten(), tokens.flatten()].view_as(scores)
        else:
            best, ids = self.propose(next_tokens, self.width)  # [B, K, 2 K]
            scores, chosen = (best + rows.scores[..., None]).flatten(1).topk(self.width, dim=-1)
            beam = chosen // best.shape[-1]
            tokens, proposed = ids.flatten(1).gather(1, chosen), best.flatten(1).gather(1, chosen)
        of_model = proposed
        if next_tokens.model_scores is not None:
            places = self._local_rows(beam)
            of_model = next_tokens.model_scores[places, tokens]
            if next_tokens.model_normalizer is not None:
                of_model = of_model - next_tokens.model_normalizer[places, 0]
        kept = rows.select(beam)
        self.proposed = Hypotheses(
            tokens=_append(kept.tokens, tokens),
            scores=scores,
            token_logprobs=_append(kept.token_logprobs, proposed),
            model_logprobs=_append(kept.model_logprobs, of_model),
            parents=_append(kept.parents, self.rows_of(self.images, beam)),
        )
        self.beam = beam
        return self.parents

    def _local_rows(self, beam: Tensor) -> Tensor:
        """Return the row numbers of beams `[B, n]` among the images that are still searched."""
        return self.rows_of(torch.arange(len(beam), device=beam.device), beam)

    def end_rows(self, ended: Tensor) -> None:
        """Record candidates that ended, and select the K that continue."""
        candidates, length = self.proposed, self.proposed.parents.shape[-1]
        ended = ended.view_as(candidates.scores)
        going_on = candidates.scores + ended.float() * self.EXCLUDED
        chosen = going_on.topk(self.num_beams, dim=-1).indices  # [B, K]
        self.rows_held = candidates.scored(going_on).select(chosen)
        self.parents = self._local_rows(_gather(self.beam, chosen)).flatten()
        counts = ended & (torch.arange(self.width, device=ended.device) < self.num_beams)
        ranked = candidates.scores / length**self.length_penalty
        full = self.finished.all(-1, keepdim=True) & (self.early_stopping is True)
        for excluded in (full, ~self.improvable, ~counts):
            ranked = ranked + excluded.float() * self.EXCLUDED
        both = self.record.padded(length, self.pad_token_id).join(candidates.scored(ranked))
        best = both.scores.topk(self.num_beams, dim=-1).indices
        self.record = both.select(best)
        self.finished = _gather(torch.cat((self.finished, counts), dim=1), best)
        self.all_ended = ended.all(-1)
        longest = self.early_stopping == "never" and self.length_penalty > 0
        reachable = self.rows_held.scores[:, :1] / (self.max_new_tokens if longest else length) ** self.length_penalty
        worst = torch.where(self.finished, self.record.scores.min(dim=1, keepdim=True).values, self.EXCLUDED)
        self.improvable = self.improvable & (reachable > worst).any(-1, keepdim=True)

    def done_images(self) -> Tensor:
        """Return True for each image whose record cannot improve any more."""
        return ~self.improvable[:, 0] | (self.finished.all(-1) & (self.early_stopping is True))

    def ended(self) -> Tensor:
        """Return True if transformers would end the search here, a scalar tensor."""
        ends_early = self.finished.all() & (self.early_stopping is True)
        return ~self.improvable.any() | ends_early | self.all_ended.all()

    def finish_all(self) -> Hypotheses:
        """Return the best hypotheses of all images, cut to the length of the longest one."""
        hypotheses = super().finish_all()
        length = int((hypotheses.parents >= 0).sum(1).max())
        cut = hypotheses.padded(length, self.pad_token_id)  # a negative padding
        return replace(cut, parents=cut.parents.int())


BOOKKEEPINGS: dict[str, type[CaptionBeams]] = {
    "transformers": TransformersBeams,
    "live": LiveBeams,
    "pool": PoolBeams,
    "shrinking": ShrinkingBeams,
    "shrinking_finished": ShrinkingFinishedBeams,
}


class NoImmediateRepetition(LogitsProcessor):
    """Logits processor that forbids repeating the last token ("decoding_constraint" of the released code).

    Args:
        prompt_length: length of the rows before the first generated token; the prompt is not looked at.
    """

    def __init__(self, prompt_length: int) -> None:
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Return `scores` `[rows, V]` with -inf at the last token of each row of `input_ids` `[rows, T]`."""
        if input_ids.shape[1] <= self.prompt_length:
            return scores
        return scores.scatter(1, input_ids[:, -1:], -torch.inf)


class NoEarlyEnd(LogitsProcessor):
    """Logits processor that forbids end tokens before the minimal length (`min_length`, `min_new_tokens`).

    The two processors of transformers make a mask of the vocabulary and a copy of the scores in every step, also when
    the length is reached.

    Args:
        min_length: of rows with their prompt.
        eos_token_ids: `[E]`, ids that end a caption.
    """

    def __init__(self, min_length: int, eos_token_ids: Tensor) -> None:
        self.min_length, self.eos_token_ids = min_length, eos_token_ids
        self.inside: tuple[int, Tensor] | None = None  # size of the vocabulary, and its end tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Return `scores` `[rows, V]`, with -inf at the end tokens while rows of `input_ids` are too short."""
        if input_ids.shape[1] >= self.min_length:
            return scores
        if self.inside is None or self.inside[0] != scores.shape[-1]:  # selected once: a GPU waits for their number
            self.inside = scores.shape[-1], self.eos_token_ids[self.eos_token_ids < scores.shape[-1]]
        return scores.index_fill(1, self.inside[1], -torch.inf)


def with_one_min_length(processors: LogitsProcessorList) -> LogitsProcessorList:
    """Replace the minimal-length processors of transformers by a single `NoEarlyEnd`, at the place of the first."""
    kept = LogitsProcessorList()
    joined: NoEarlyEnd | None = None
    for processor in processors:
        if type(processor) is MinLengthLogitsProcessor:
            min_length = processor.min_length
        elif type(processor) is MinNewTokensLengthLogitsProcessor:
            min_length = processor.prompt_length_to_skip + processor.min_new_tokens
        else:
            kept.append(processor)
            continue
        if joined is None:
            joined = NoEarlyEnd(min_length, processor.eos_token_id)
            kept.append(joined)
        joined.min_length = max(joined.min_length, min_length)
    return kept


class NoBadEndings(LogitsProcessor):
    """Logits processor that forbids ending on words like "a" or "with" ("remove_bad_endings" of the released code).

    Args:
        bad_ending_ids: ids of such words (a, the, in, with ...).
        eos_token_ids: ids that end a caption.
        prompt_length: length of the rows before the first generated token.
    """

    def __init__(self, bad_ending_ids: list[int], eos_token_ids: list[int], prompt_length: int) -> None:
        self.bad_ending_ids, self.eos_token_ids = torch.tensor(bad_ending_ids), torch.tensor(eos_token_ids)
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Return `scores` `[rows, V]` with -inf at the end tokens of rows that end with a bad ending."""
        if input_ids.shape[1] <= self.prompt_length:
            return scores
        is_bad = torch.isin(input_ids[:, -1], self.bad_ending_ids.to(input_ids.device))
        ends = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
        ends[self.eos_token_ids.to(scores.device)] = True
        return scores.masked_fill(is_bad[:, None] & ends, -torch.inf)


class TrigramPenalty(LogitsProcessor):
    """Logits processor that lowers tokens which would repeat a trigram ("block_trigrams" of the released code).

    Args:
        penalty: what is subtracted for each earlier occurrence.
        prompt_length: length of the rows before the first generated token; only generated tokens count.
    """

    def __init__(self, penalty: float, prompt_length: int) -> None:
        self.penalty, self.prompt_length = penalty, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Return `scores` `[rows, V]`, lowered by `penalty` for each earlier occurrence of the trigram."""
        tokens = input_ids[:, self.prompt_length :]
        if tokens.shape[1] < 3:
            return scores
        pairs = tokens.unfold(1, 2, 1)[:, :-1]  # [rows, T - 2, 2], each followed by the token of `followers`
        followers = tokens[:, 2:]  # [rows, T - 2]
        repeats = (pairs == tokens[:, None, -2:]).all(-1).to(scores.dtype)  # [rows, T - 2]
        return scores.scatter_add(1, followers, -self.penalty * repeats)

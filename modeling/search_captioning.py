"""Bookkeeping of beam search hypotheses as in the code of captioning papers, independent of the model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Hypotheses:
    """Set of K hypotheses for each of B images.

    Args:
        tokens: `[B, K, prompt + L]`.
        scores: `[B, K]`, ranking scores.
        token_logprobs: `[B, K, L]`.
        parents: `[B, K, L]`, row of B * K that each token extended, -1 = no token.
    """

    tokens: Tensor
    scores: Tensor
    token_logprobs: Tensor
    parents: Tensor

    def select(self, index: Tensor) -> "Hypotheses":
        """Return the hypotheses `index` `[B, n]` of every image."""
        return Hypotheses(*(_gather(tensor, index) for tensor in vars(self).values()))

    def join(self, other: "Hypotheses") -> "Hypotheses":
        """Concatenate two sets of the same length L."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def flatten(self) -> "Hypotheses":
        """Merge the axes of images and hypotheses, `[B, K, ...]` to `[B * K, ...]`."""
        return Hypotheses(*(tensor.flatten(0, 1) for tensor in vars(self).values()))

    @property
    def sequences(self) -> Tensor:
        """Tokens, under the name that `generate()` uses."""
        return self.tokens


def _gather(tensor: Tensor, index: Tensor) -> Tensor:
    """Select entries `[B, n, ...]` of `[B, K, ...]` by an index `[B, n]`."""
    index = index[(...,) + (None,) * (tensor.ndim - 2)]  # [B, n, 1, ...]
    return torch.take_along_dim(tensor, index, dim=1)


def _append(tensor: Tensor, column: Tensor) -> Tensor:
    return torch.cat((tensor, column[..., None].to(tensor.dtype)), dim=-1)


class CaptionBeams:
    """Running hypotheses of B images, K each. Subclasses define how finished hypotheses are treated.

    Args:
        input_ids: `[B * K, prompt]`; the K rows of an image are consecutive.
        generation_config: configuration with `num_beams`, `length_penalty`, `max_length` and the pad and end ids.
    """

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        self.num_beams = generation_config.num_beams
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
            parents=torch.zeros(*shape, 0, dtype=torch.long, device=device),
        )
        self.alive = torch.ones(shape, dtype=torch.bool, device=device)
        self.first_row = torch.arange(shape[0], device=device)[:, None] * self.num_beams  # [B, 1]

    def rows(self) -> Tensor:
        """Return all running rows `[B * K, prompt + t]`."""
        return self.rows_held.tokens.flatten(0, 1)

    def step(self, log_probs: Tensor) -> Tensor:
        """Select the next K hypotheses of every image.

        Every row proposes its K best tokens; the K best of these K x K candidates are kept.

        Args:
            log_probs: `[B * K, V]`.

        Returns:
            The row of B * K that each kept row extends, `[B * K]`.
        """
        width = min(self.num_beams, log_probs.shape[-1])
        proposed, tokens = log_probs.unflatten(0, (-1, self.num_beams)).topk(width, dim=-1)  # [B, K, width]
        candidates, proposed, tokens = self.candidates(proposed, tokens)
        if self.rows_held.parents.shape[-1] == 0:
            candidates[:, 1:] = -torch.inf  # all rows hold the same prompt, so one is enough
        scores, chosen = candidates.flatten(1).topk(self.num_beams, dim=-1)  # [B, K * width] to [B, K]
        beam = chosen // width  # [B, K], the row that each chosen candidate extends
        parents = self.first_row + beam
        kept = self.rows_held.select(beam)
        self.alive = _gather(self.alive, beam)
        self.rows_held = Hypotheses(
            tokens=_append(kept.tokens, tokens.flatten(1).gather(1, chosen)),
            scores=scores,
            token_logprobs=_append(kept.token_logprobs, proposed.flatten(1).gather(1, chosen)),
            parents=_append(kept.parents, torch.where(self.alive, parents, -1)),
        )
        return parents.flatten()

    def candidates(self, proposed: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, log-probabilities and tokens of the candidates, each `[B, K, K]`."""
        return self.rows_held.scores[..., None] + proposed, proposed, tokens

    def end_rows(self, ended: Tensor) -> None:
        """Process the rows `[B * K]` that end at this step."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Return whether no further step can change the result."""
        raise NotImplementedError

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the best hypotheses of every image on one axis, best first."""
        raise NotImplementedError


class LiveBeams(CaptionBeams):
    """Search of M2 and VisualGPT: a finished beam remains among the K and competes with its unchanged score.

    There is no length normalisation (`length_penalty` is ignored) and no pool. The search stops when all K beams of
    every image have ended. Rows are padded after the end token (released code: with id 0).
    """

    def candidates(self, proposed: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return one candidate for a finished row: the pad token, at log-probability 0."""
        ended = ~self.alive[..., None]
        scores = self.rows_held.scores[..., None]
        nothing = torch.full_like(proposed, -torch.inf)
        nothing[..., 0] = 0.0
        added = torch.where(ended, nothing, proposed)
        return scores + added, torch.where(ended, 0.0, proposed), torch.where(ended, self.pad_token_id, tokens)

    def end_rows(self, ended: Tensor) -> None:
        """Mark rows as finished; they keep their places."""
        self.alive &= ~ended.view_as(self.alive)

    def is_done(self) -> bool:
        """Return whether all rows have ended."""
        return not bool(self.alive.any())

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the rows by decreasing score."""
        order = self.rows_held.scores.argsort(dim=-1, descending=True, stable=True)
        return self.rows_held.select(order[:, :num_return_sequences]).flatten()


class RecordingBeams(CaptionBeams):
    """Search that records at most K finished beams. Subclasses define what happens to the row of a finished beam.

    Recorded hypotheses are ranked by `sum / length ** length_penalty`: 0 is the plain sum, 1 the mean.
    """

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        empty = self.rows_held
        self.record = Hypotheses(
            empty.tokens, torch.full_like(empty.scores, -torch.inf), empty.token_logprobs, empty.parents
        )

    def rank(self, summed: Tensor, length: int) -> Tensor:
        """Return the ranking score of hypotheses of `length` tokens."""
        return summed / length**self.length_penalty

    def record_rows(self, ended: Tensor) -> None:
        """Record the rows `[B, K]` that end at this step; the record stays sorted."""
        rows, length = self.rows_held, self.rows_held.parents.shape[-1]
        ranked = torch.where(ended, self.rank(rows.scores, length), -torch.inf)
        new = Hypotheses(rows.tokens, ranked, rows.token_logprobs, rows.parents)
        both = self._pad_record().join(new)
        self.record = both.select(both.scores.topk(self.num_beams, dim=-1).indices)

    def _pad_record(self) -> Hypotheses:
        """Return the record, padded by one token."""
        fill = torch.full_like(self.record.scores, self.pad_token_id)
        return Hypotheses(
            _append(self.record.tokens, fill),
            self.record.scores,
            _append(self.record.token_logprobs, torch.zeros_like(fill)),
            _append(self.record.parents, torch.full_like(fill, -1)),
        )

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the best hypotheses of the record."""
        return self.record.select(
            torch.arange(num_return_sequences, device=self.alive.device).expand(len(self.alive), -1)
        ).flatten()


class PoolBeams(RecordingBeams):
    """Search of the ImageCaptioning.pytorch family (AoANet, Image Transformer).

    The row of a finished beam continues with a score so low that only descendants of finished rows rank below it.
    `length_penalty` is 0 for the released default and 1 for its "avg". The search ends when no running row can reach
    the K best of the record, which is exact because log-probabilities are never positive.
    """

    ENDED = -1000.0  # the released value

    def end_rows(self, ended: Tensor) -> None:
        """Record finished rows and lower their running score."""
        ended = ended.view_as(self.alive)
        self.record_rows(ended)
        self.rows_held.scores = torch.where(ended, self.ENDED, self.rows_held.scores)

    def is_done(self) -> bool:
        """Return whether no running row can enter the record."""
        length = self.rows_held.parents.shape[-1]
        if length >= self.max_new_tokens:
            return True
        # A negative sum divided by a longer length is larger, so the longest caption bounds the score.
        best_length = self.max_new_tokens if self.length_penalty > 0 else length
        reachable = self.rank(self.rows_held.scores.max(dim=-1).values, best_length)
        return bool((self.record.scores.min(dim=-1).values >= reachable).all())


class ShrinkingBeams(RecordingBeams):
    """Search of Show, Attend and Tell's program: it continues with one beam fewer after each finished beam.

    It ends when K beams have finished. Captions cut at the longest length compete with the finished ones.
    """

    def end_rows(self, ended: Tensor) -> None:
        """Record finished rows among the remaining beams, and drop the other rows."""
        budget = self.record.scores.isinf().sum(-1, keepdim=True)  # [B, 1], beams that have not finished
        place = torch.arange(self.num_beams, device=self.alive.device)
        self.alive = (place < budget) & self.rows_held.scores.isfinite()
        ended = ended.view_as(self.alive) & self.alive
        self.record_rows(ended)
        self.alive &= ~ended
        self.rows_held.scores = self.rows_held.scores.masked_fill(~self.alive, -torch.inf)

    def is_done(self) -> bool:
        """Return whether every beam has finished."""
        return not bool(self.alive.any())


class ShrinkingFinishedBeams(ShrinkingBeams):
    """Search of the re-implementation of Show, Attend and Tell: `ShrinkingBeams` that prefers finished captions.

    Captions cut at the longest length rank after all finished ones. The released code drops them, and raises an error
    if no caption has finished.
    """

    CUT = -1000.0

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        self.eos_token_ids = generation_config._eos_token_tensor

    def rank(self, summed: Tensor, length: int) -> Tensor:
        """Return the ranking score, lowered for hypotheses without an end token."""
        ranked = super().rank(summed, length)
        if self.eos_token_ids is None:
            return ranked
        return ranked + self.CUT * ~torch.isin(self.rows_held.tokens[..., -1], self.eos_token_ids)

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """Return the best hypotheses of the record, with their scores before lowering."""
        found = super().finish(num_return_sequences)
        lengths = (found.parents >= 0).sum(-1)
        found.scores = found.token_logprobs.sum(-1) / lengths**self.length_penalty
        return found


BOOKKEEPINGS: dict[str, type[CaptionBeams]] = {
    "live": LiveBeams,
    "pool": PoolBeams,
    "shrinking": ShrinkingBeams,
    "shrinking_finished": ShrinkingFinishedBeams,
}

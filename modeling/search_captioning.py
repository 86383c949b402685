"""How captioning code bases keep finished hypotheses in a beam search, without the model that scores them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Hypotheses:
    """K hypotheses of each of B images.

    Args:
        tokens: `[B, K, prompt + L]`; scores: `[B, K]`, what they are ranked by.
        token_logprobs: `[B, K, L]`; parents: `[B, K, L]`, row of B * K that each token extended, -1 = no token.
    """

    tokens: Tensor
    scores: Tensor
    token_logprobs: Tensor
    parents: Tensor

    def select(self, index: Tensor) -> "Hypotheses":
        """The hypotheses `index` `[B, n]` of every image."""
        return Hypotheses(*(_gather(tensor, index) for tensor in vars(self).values()))

    def join(self, other: "Hypotheses") -> "Hypotheses":
        """Both sets side by side; they must have the same length."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def flatten(self) -> "Hypotheses":
        """Images and hypotheses on one axis."""
        return Hypotheses(*(tensor.flatten(0, 1) for tensor in vars(self).values()))

    @property
    def sequences(self) -> Tensor:
        """The tokens, under the name that `generate()` gives them."""
        return self.tokens


def _gather(tensor: Tensor, index: Tensor) -> Tensor:
    """`[B, K, ...]` and `[B, n]` to `[B, n, ...]`."""
    index = index[(...,) + (None,) * (tensor.ndim - 2)]
    return torch.take_along_dim(tensor, index, dim=1)


def _append(tensor: Tensor, column: Tensor) -> Tensor:
    return torch.cat((tensor, column[..., None].to(tensor.dtype)), dim=-1)


class CaptionBeams:
    """Running hypotheses of B images, K each; a subclass says what happens to those that end.

    Args:
        input_ids: `[B * K, prompt]`, the rows of an image next to each other.
        generation_config: read are `num_beams`, `length_penalty`, `max_length` and the pad and end ids.
    """

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        self.num_beams = generation_config.num_beams
        self.length_penalty = generation_config.length_penalty
        self.max_new_tokens = generation_config.max_length - input_ids.shape[1]
        pad, eos = generation_config._pad_token_tensor, generation_config._eos_token_tensor
        self.pad_token_id = int(pad) if pad is not None else int(eos.flatten()[0])
        tokens = input_ids.unflatten(0, (-1, self.num_beams))
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
        """All running rows `[B * K, prompt + t]`."""
        return self.rows_held.tokens.flatten(0, 1)

    def step(self, log_probs: Tensor) -> Tensor:
        """Choose the next K hypotheses of every image.

        Every row proposes its K best tokens first; the K best of these K x K are kept.

        Args:
            log_probs: `[B * K, V]`.

        Returns:
            The row of B * K that each kept row extends, `[B * K]`.
        """
        width = min(self.num_beams, log_probs.shape[-1])
        proposed, tokens = log_probs.unflatten(0, (-1, self.num_beams)).topk(width, dim=-1)  # [B, K, width]
        candidates, proposed, tokens = self.candidates(proposed, tokens)
        if self.rows_held.parents.shape[-1] == 0:
            candidates[:, 1:] = -torch.inf  # all rows are the same prompt: one of them speaks
        scores, chosen = candidates.flatten(1).topk(self.num_beams, dim=-1)
        beam = chosen // width
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
        """Scores, log-probabilities and tokens of the proposals, each `[B, K, K]`."""
        return self.rows_held.scores[..., None] + proposed, proposed, tokens

    def end_rows(self, ended: Tensor) -> None:
        """Note the rows `[B * K]` that a stopping criterion ends here."""
        raise NotImplementedError

    def is_done(self) -> bool:
        """Whether further steps can change the answer."""
        raise NotImplementedError

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """The best hypotheses of every image on one axis, best first."""
        raise NotImplementedError


class LiveBeams(CaptionBeams):
    """M2 and VisualGPT: a finished beam stays among the K and competes with its unchanged score.

    No length normalisation (`length_penalty` is not read), no pool. Once all K beams of every image have ended,
    nothing can change, so the search stops there. After the end token rows hold the pad token (released code: id 0).
    """

    def candidates(self, proposed: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A finished row has one candidate: nothing, at log-probability 0."""
        ended = ~self.alive[..., None]
        scores = self.rows_held.scores[..., None]
        nothing = torch.full_like(proposed, -torch.inf)
        nothing[..., 0] = 0.0
        added = torch.where(ended, nothing, proposed)
        return scores + added, torch.where(ended, 0.0, proposed), torch.where(ended, self.pad_token_id, tokens)

    def end_rows(self, ended: Tensor) -> None:
        """Finished rows keep their places."""
        self.alive &= ~ended.view_as(self.alive)

    def is_done(self) -> bool:
        """All rows have ended."""
        return not bool(self.alive.any())

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """The K rows by falling score."""
        order = self.rows_held.scores.argsort(dim=-1, descending=True, stable=True)
        return self.rows_held.select(order[:, :num_return_sequences]).flatten()


class RecordingBeams(CaptionBeams):
    """A finished beam is recorded, at most K of them; a subclass says what becomes of its row.

    Recorded hypotheses are ranked by `sum / length ** length_penalty`: 0 is the plain sum, 1 the mean.
    """

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        empty = self.rows_held
        self.record = Hypotheses(
            empty.tokens, torch.full_like(empty.scores, -torch.inf), empty.token_logprobs, empty.parents
        )

    def rank(self, summed: Tensor, length: int) -> Tensor:
        """What a hypothesis of `length` tokens is ranked by."""
        return summed / length**self.length_penalty

    def record_rows(self, ended: Tensor) -> None:
        """Record the rows `[B, K]` that end here; the record stays sorted."""
        rows, length = self.rows_held, self.rows_held.parents.shape[-1]
        ranked = torch.where(ended, self.rank(rows.scores, length), -torch.inf)
        new = Hypotheses(rows.tokens, ranked, rows.token_logprobs, rows.parents)
        both = self._pad_record().join(new)
        self.record = both.select(both.scores.topk(self.num_beams, dim=-1).indices)

    def _pad_record(self) -> Hypotheses:
        """The record, one token longer."""
        fill = torch.full_like(self.record.scores, self.pad_token_id)
        return Hypotheses(
            _append(self.record.tokens, fill),
            self.record.scores,
            _append(self.record.token_logprobs, torch.zeros_like(fill)),
            _append(self.record.parents, torch.full_like(fill, -1)),
        )

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """The best of the record."""
        return self.record.select(
            torch.arange(num_return_sequences, device=self.alive.device).expand(len(self.alive), -1)
        ).flatten()


class PoolBeams(RecordingBeams):
    """The ImageCaptioning.pytorch family (AoANet, Image Transformer): the row of a finished beam goes on with a score
    so low that only descendants of finished rows follow it.

    `length_penalty` is 0 for the released default and 1 for its "avg". The search ends when no running row can reach
    the K best of the record any more, which is exact since log-probabilities are never positive.
    """

    ENDED = -1000.0

    def end_rows(self, ended: Tensor) -> None:
        """Record what ended."""
        ended = ended.view_as(self.alive)
        self.record_rows(ended)
        self.rows_held.scores = torch.where(ended, self.ENDED, self.rows_held.scores)

    def is_done(self) -> bool:
        """No running row can enter the record."""
        length = self.rows_held.parents.shape[-1]
        if length >= self.max_new_tokens:
            return True
        best_length = self.max_new_tokens if self.length_penalty > 0 else length
        reachable = self.rank(self.rows_held.scores.max(dim=-1).values, best_length)
        return bool((self.record.scores.min(dim=-1).values >= reachable).all())


class ShrinkingBeams(RecordingBeams):
    """Show, Attend and Tell's program: a finished beam leaves, and the search goes on with one beam fewer.

    It ends when K have finished. Captions that have not ended by then, or at the longest length, compete with them.
    """

    def end_rows(self, ended: Tensor) -> None:
        """Record what ended among the beams that are left, and drop the rest."""
        budget = self.record.scores.isinf().sum(-1, keepdim=True)  # beams that have not left
        place = torch.arange(self.num_beams, device=self.alive.device)
        self.alive = (place < budget) & self.rows_held.scores.isfinite()
        ended = ended.view_as(self.alive) & self.alive
        self.record_rows(ended)
        self.alive &= ~ended
        self.rows_held.scores = self.rows_held.scores.masked_fill(~self.alive, -torch.inf)

    def is_done(self) -> bool:
        """Every beam has left."""
        return not bool(self.alive.any())


class ShrinkingFinishedBeams(ShrinkingBeams):
    """The re-implementation of Show, Attend and Tell: as `ShrinkingBeams`, but a caption that was cut at the longest
    length comes behind all that ended by themselves (released code: it is lost, and none is an error)."""

    CUT = -1000.0

    def __init__(self, input_ids: Tensor, generation_config: Any) -> None:
        super().__init__(input_ids, generation_config)
        self.eos_token_ids = generation_config._eos_token_tensor

    def rank(self, summed: Tensor, length: int) -> Tensor:
        """Lower for hypotheses that have not ended."""
        ranked = super().rank(summed, length)
        if self.eos_token_ids is None:
            return ranked
        return ranked + self.CUT * ~torch.isin(self.rows_held.tokens[..., -1], self.eos_token_ids)

    def finish(self, num_return_sequences: int) -> Hypotheses:
        """The best of the record, with their true scores."""
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

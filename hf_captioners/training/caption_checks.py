"""Checks of training captions before the first step: unknown words, missing spaces, and too long captions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils import logging

from hf_captioners.metrics.caption_tokenizers import require_blanks

logger = logging.get_logger(__name__)

MAX_UNKNOWN = 0.2
"""Largest share of unknown tokens."""
MAX_STRANGE_CAPTIONS = 0.1
"""Largest share of captions without a known word."""
MIN_REPORTED_SHARE = 0.05
"""Share of unknown tokens, and of captions that are too long, above which there is a warning."""
SHOWN = 10  # unknown words in a message
COUNTED = 20_000  # captions; of more, this number at equal distances is counted
AT_ONCE = 1000


@dataclass(frozen=True)
class CaptionCounts:
    """Counts of known and unknown tokens in captions.

    Args:
        captions: counted captions.
        tokens: their tokens, without special ones.
        unknown: tokens that the vocabulary lacks.
        strange: captions with tokens, none of which is known.
        long: captions with more tokens than are generated, end token included.
        unknown_words: unknown words with their numbers, the most frequent first.
    """

    captions: int
    tokens: int
    unknown: int
    strange: int
    long: int
    unknown_words: Sequence[tuple[str, int]]

    @property
    def unknown_share(self) -> float:
        """Share of unknown tokens among all tokens."""
        return self.unknown / max(1, self.tokens)

    @property
    def line(self) -> str | None:
        """Sentence about the share of unknown tokens; None if all are known."""
        if not self.unknown:
            return None
        words = ", ".join(f"{word!r} ({count:,})" for word, count in self.unknown_words[:SHOWN])
        return (
            f"{self.unknown:,} of {self.tokens:,} tokens of {self.captions:,} training captions "
            f"({self.unknown_share:.1%}) are unknown; most frequent: {words}."
        )


def count_tokens(captions: Sequence[str], processor: Any, max_new_tokens: int) -> CaptionCounts:
    """Count the known and unknown tokens of captions.

    Args:
        captions: texts; of more than 20,000, about this number at equal distances is counted.
        processor: the captioner's processor.
        max_new_tokens: number of tokens that are generated.

    Example:

    ```python
    from hf_captioners.training.caption_checks import count_tokens

    counts = count_tokens(["ein Hund läuft", "a dog"], processor, max_new_tokens=20)
    print(counts.unknown_share, counts.unknown_words)
    ```
    """
    step = max(1, len(captions) // COUNTED)
    texts = [text_for_tokenizer(caption, processor) for caption in captions[::step]]
    tokenizer = processor.tokenizer
    unknown_id = _unknown_id(tokenizer)
    words: Counter[str] = Counter()
    tokens = unknown = strange = long = 0
    for first in range(0, len(texts), AT_ONCE):
        batch = texts[first : first + AT_ONCE]
        encoded = tokenizer(batch, add_special_tokens=False, return_offsets_mapping=bool(tokenizer.is_fast))
        for row, ids in enumerate(encoded["input_ids"]):
            places = [place for place, token in enumerate(ids) if token == unknown_id]
            tokens, unknown = tokens + len(ids), unknown + len(places)
            strange += bool(ids) and len(places) == len(ids)
            long += len(ids) + 1 > max_new_tokens
            if places and "offset_mapping" in encoded:
                offsets = encoded["offset_mapping"][row]
                words.update(batch[row][slice(*offsets[place])] for place in places)
    return CaptionCounts(len(texts), tokens, unknown, strange, long, words.most_common())


def text_for_tokenizer(caption: str, processor: Any) -> str:
    """Return a caption as the processor passes it to its tokenizer."""
    normalise = getattr(processor, "normalise_caption", None)
    return caption if normalise is None else processor.text_for_tokenizer(normalise(caption))


def _unknown_id(tokenizer: Any) -> int | None:
    """Return the id of the unknown token; None for tokenizers without one, such as byte-level BPE."""
    unknown = tokenizer.unk_token_id
    return None if unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) else unknown


def check_training_captions(captions: Sequence[str], processor: Any, args: Any, is_new: bool) -> CaptionCounts:
    """Check that a captioner can learn the training captions; warn about captions that it cannot learn.

    Args:
        captions: all training captions.
        processor: the captioner's processor.
        args: the training arguments.
        is_new: whether the captioner is built from parts, so that its vocabulary can be another one.

    Raises:
        ValueError: more than 20 % of the tokens are unknown to a given captioner, more than 10 % of the captions have
            no known word, or the PTB tokenizer of evaluations would read captions without blanks.
    """
    require_blanks(captions, args.caption_tokenizer, "caption_tokenizer")
    counts = count_tokens(captions, processor, args.generation_max_new_tokens)
    strange_share = counts.strange / max(1, counts.captions)
    # Rare words are left out of a new vocabulary by a rule, such as a paper's on few images: that is no fault.
    if (counts.unknown_share > MAX_UNKNOWN and not is_new) or strange_share > MAX_STRANGE_CAPTIONS:
        raise ValueError(
            f"{counts.line} {counts.strange:,} captions have no known word. The captioner cannot learn these words: "
            f"{remedy(is_new)}"
        )
    if counts.unknown_share > MIN_REPORTED_SHARE:
        logger.warning_once(f"{counts.line} The captioner cannot learn these words: {remedy(is_new)}")
    if counts.long > MIN_REPORTED_SHARE * counts.captions:
        logger.warning_once(
            f"{counts.long:,} of {counts.captions:,} training captions have more tokens, with the end token, than "
            f"`generation_max_new_tokens={args.generation_max_new_tokens}`: generated captions will be shorter than "
            "they are. Pass a larger number."
        )
    return counts


def remedy(is_new: bool) -> str:
    """Return advice on unknown words."""
    if is_new:
        return (
            "pass a smaller `min_word_count` or a larger `vocabulary_size`; for another language, see whether "
            "`caption_tokenizer` fits it."
        )
    return (
        "pass `new_words=5` to add words of the captioner's language that occur five times; or leave "
        "`model` out and train a captioner with a vocabulary of its own (`architecture=transformer`), or from a "
        "language model of this language (`language_model`), see docs/languages.md; or leave out captions of another "
        "language."
    )

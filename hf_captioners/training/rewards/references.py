"""Tokenised captions of a training set and their document frequencies, for metric rewards."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_captioners.metrics import DocumentFrequency
from hf_captioners.metrics.caption_tokenizers import CaptionTokenizer, caption_tokenizer

END_WORD = "<end>"
"""Word for the end token; no tokenizer of captions produces it."""
FREQUENCIES = ("per_image", "per_caption")
MIN_FOUND_SHARE = 0.5
"""Smallest share of the words of the training captions that a file of document frequencies must contain."""


class TrainingReferences:
    """Captions of all training images, tokenised as in the COCO evaluation.

    Args:
        captions: for each image its captions. None: nothing is prepared, and references are tokenised when they come.
        count_end: whether n-grams include the end of a caption: `<end>` is appended to every reference, and to every
            completion that has an end token.
        tokenizer: a tokenizer of captions to reuse; default: a new PTB tokenizer.

    Attributes:
        tokenizer: the tokenizer of captions; PTB's remembers the words that it has split.
        words: the tokenised captions of each image.
        with_end: the same, with `<end>` where ends count.

    Raises:
        ValueError: an image has no caption.

    Example:

    ```python
    from hf_captioners.training.rewards.references import TrainingReferences

    references = TrainingReferences([["A red circle.", "One circle."], ["Two stars."]], count_end=True)
    assert references.words[0] == ["a red circle", "one circle"]
    assert references.tokenize(["Two stars.", "A"], ended=[True, False]) == ["two stars <end>", "a"]
    assert references.row_of(["Two stars."]) == 1 and references.row_of(["Three stars."]) is None
    ```
    """

    def __init__(
        self,
        captions: Sequence[Sequence[str]] | None = None,
        count_end: bool = False,
        tokenizer: CaptionTokenizer | None = None,
    ) -> None:
        captions = [] if captions is None else captions
        empty = [row for row, texts in enumerate(captions) if not texts]
        if empty:
            raise ValueError(
                f"{len(empty)} training images have no caption to be compared with, among them row {empty[0]}. "
                f"Leave them out: rows.filter(lambda row: len(row['captions']) > 0)."
            )
        self.count_end = count_end
        self.tokenizer = caption_tokenizer("ptb") if tokenizer is None else tokenizer
        self.words = [self.tokenizer(texts) for texts in captions]
        self.with_end = self._ended(self.words)
        # Images with the same captions share a row, which changes no score.
        self._row_of = {tuple(texts): row for row, texts in reversed(list(enumerate(captions)))}

    def row_of(self, references: Sequence[str]) -> int | None:
        """Return the row of the training image with these captions; None for other captions."""
        return self._row_of.get(tuple(references))

    def words_of(self, references: Sequence[str], with_end: bool = False) -> list[str]:
        """Return the tokenised references of an image, with `<end>` if requested and if ends count."""
        row = self.row_of(references)
        if row is not None:
            return (self.with_end if with_end else self.words)[row]
        words = self.tokenizer(references)
        return self._ended([words])[0] if with_end else words

    def _ended(self, words: list[list[str]]) -> list[list[str]]:
        return [[f"{text} {END_WORD}" for text in texts] for texts in words] if self.count_end else words

    def tokenize(
        self,
        completions: Sequence[str],
        ended: Sequence[bool] | None = None,
        words: Sequence[str] | None = None,
    ) -> list[str]:
        """Tokenise completions; return their words joined by spaces.

        Args:
            completions: N captions.
            ended: whether each has an end token; where ends count, `<end>` is appended to those. None appends nothing.
            words: the completions as they were tokenised before; None tokenises them here.
        """
        split = self.tokenizer(completions) if words is None else list(words)
        if not self.count_end or ended is None:
            return split
        return [f"{text} {END_WORD}" if has_end else text for text, has_end in zip(split, ended, strict=True)]

    def frequency(self, source: str) -> DocumentFrequency:
        """Count the document frequencies of CIDEr-D, or load them.

        Args:
            source: `"per_image"` or `"per_caption"`, counted in the training captions, or a file, see
                `load_frequency`.

        Raises:
            ValueError: they cannot be counted without training captions, or see `load_frequency`.
            FileNotFoundError: there is no such file.
        """
        if source in FREQUENCIES and not self.words:
            raise ValueError(
                "CIDEr-D needs document frequencies: pass the captions of the training images as `captions`, or a "
                "file of `DocumentFrequency.save` as `document_frequency`."
            )
        if source == "per_image":
            return DocumentFrequency.per_image(self.with_end)
        if source == "per_caption":
            return DocumentFrequency.per_caption([text for texts in self.with_end for text in texts])
        return load_frequency(source, self)


def load_frequency(path: str, references: TrainingReferences) -> DocumentFrequency:
    """Load document frequencies from a file and check them against the training captions.

    Args:
        path: a file of `DocumentFrequency.save`.
        references: the training captions.

    Raises:
        ValueError: the file was counted with other words than those of the training captions, or without end tokens
            although they count.
        FileNotFoundError: there is no such file.

    Example:

    ```python
    from hf_captioners.metrics import DocumentFrequency
    from hf_captioners.training.rewards.references import TrainingReferences, load_frequency

    references = TrainingReferences([["a red circle"], ["two blue stars"]], count_end=False)
    DocumentFrequency.per_image(references.words).save("frequencies.npz")
    frequency = load_frequency("frequencies.npz", references)
    ```
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"`document_frequency` is {path!r}, which is neither a file nor one of {', '.join(FREQUENCIES)}."
        )
    frequency = DocumentFrequency.load(path)
    tokens: list[Any] = [word for texts in references.words for text in texts for word in text.split()]
    share = float(np.mean(frequency.table.find_words(tokens) >= 0)) if tokens else 0.0
    if references.words and share < MIN_FOUND_SHARE:
        raise ValueError(
            f"The document frequencies in {path} ({frequency.source}) contain {share:.0%} of the words of the "
            "training captions: they were counted in a different vocabulary (token ids, a different language, or "
            "untokenised text). Count them in PTB-tokenised captions, or pass `document_frequency='per_image'`."
        )
    if references.count_end != (frequency.end_token is not None):
        raise ValueError(
            f"The document frequencies in {path} were counted {'with' if frequency.end_token else 'without'} end "
            f"tokens, and `end_token_in_reward` is {references.count_end}. Set it to {not references.count_end}, or "
            "count them again."
        )
    if references.count_end and frequency.end_token != END_WORD:
        raise ValueError(
            f"The end token of the document frequencies in {path} is {frequency.end_token!r}, expected {END_WORD!r}. "
            f"Count them with `DocumentFrequency.per_image(references, end_token={END_WORD!r})`."
        )
    frequency = copy.copy(frequency)
    frequency.end_token = None  # `TrainingReferences` appends it, and only to captions that end
    return frequency

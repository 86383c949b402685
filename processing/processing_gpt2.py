"""Processor of captioners with a GPT-2 decoder: captions in its word pieces.

The functions `released_*` reproduce the text processing of the released code of VisualGPT exactly, with the defects
that the published figures contain: the width of a batch is counted in words but applied to word pieces, so that long
captions lose their end token and their last pieces, depending on the other captions of the batch; begin and padding
tokens are ordinary word pieces. Source: Vision-CAIR/VisualGPT, `data/field.py` (`TextField.preprocess`, `pad`,
`numericalize`, `decode`) and the decoding of transformers 3.1.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .processing_captioning import IGNORED_LABEL, CaptioningProcessor, without_repetitions

BEGIN_TOKEN = "<|bos|>"
PADDING_TOKEN = "<|pad|>"
# Tokens that are dropped from captions. ".." is not among them in the released settings, and the bracket names have no
# effect, because they are compared with lower-case words.
DROPPED_TOKENS = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)
# transformers 3.1 removes the space before these, in this order.
JOINED_TO_THE_LEFT = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class GPT2CaptioningProcessor(CaptioningProcessor):
    """Processor of captioners whose decoder is a GPT-2.

    The tokenizer is that of the language model, prepared by `prepare_gpt2_tokenizer`. A caption is encoded with a
    space before its first word: in GPT-2's vocabulary `man` and ` man` are two word pieces. With the space a word has
    the same form everywhere in a caption, the one that GPT-2 knows from the middle of sentences.

    Args:
        image_processor: see `CaptioningProcessor`, as for the other arguments.
        tokenizer: GPT-2's, with begin, end and padding tokens.
        chat_template: a Jinja template.
        lowercase: convert captions and prompts to lower case.
        drop_final_punctuation: remove punctuation at the end of a caption.
        drop_punctuation: remove punctuation between spaces from a caption.
        merge_repeated_words: merge equal adjacent words when decoding, as the released evaluation does.
        released_text: encode captions and decode tokens exactly as the released code does, with its defects (see
            `released_rows`): the longest captions of a batch are truncated and lose their end token. `lowercase` and
            the two settings of punctuation then have no effect on captions. Default False; set True to reproduce the
            published training and evaluation.
        declared_inputs, requires_region_boxes: see `CaptioningProcessor`.
    """

    def __init__(
        self,
        image_processor: Any,
        tokenizer: Any,
        chat_template: str | None = None,
        lowercase: bool = True,
        drop_final_punctuation: bool = True,
        drop_punctuation: bool = False,
        merge_repeated_words: bool = False,
        released_text: bool = False,
        declared_inputs: Mapping[str, str] | None = None,
        requires_region_boxes: bool = False,
    ) -> None:
        super().__init__(
            image_processor,
            tokenizer,
            chat_template=chat_template,
            lowercase=lowercase,
            drop_final_punctuation=drop_final_punctuation,
            drop_punctuation=drop_punctuation,
            merge_repeated_words=merge_repeated_words,
            declared_inputs=declared_inputs,
            requires_region_boxes=requires_region_boxes,
        )
        self.released_text = released_text

    def text_for_tokenizer(self, text: str) -> str:
        """Return the text with a space before its first word, which is part of GPT-2's word pieces."""
        return f" {text}"

    def encode_captions(self, captions: Sequence[str], max_length: int | None = None) -> np.ndarray:
        """Encode training captions, see `CaptioningProcessor.encode_captions`.

        With `released_text`, rows have the released width, `max_length` must be None, and rows that the released rule
        truncates have no end token.
        """
        if not self.released_text:
            return super().encode_captions(captions, max_length)
        if max_length is not None:
            raise ValueError(f"max_length={max_length} cannot be used with `released_text`, which has its own rule.")
        tokenizer = self.tokenizer
        ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        rows = [row[1:] for row in released_rows(captions, tokenizer, *ids)[1]]
        labels = np.full((len(rows), max(len(row) for row in rows)), IGNORED_LABEL, dtype=np.int64)
        for index, row in enumerate(rows):
            labels[index, : len(row)] = row
        return np.where(labels == tokenizer.pad_token_id, IGNORED_LABEL, labels)

    def tokens_of_captions(self, captions: Iterable[str]) -> set[int]:
        """Return the set of token ids that occur in captions, see `CaptioningProcessor.tokens_of_captions`."""
        if not self.released_text:
            return super().tokens_of_captions(captions)
        ids = [getattr(self.tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")]
        rows, _ = released_rows(list(captions), self.tokenizer, *ids)
        return set().union(*rows)

    def caption_of(self, tokens: Sequence[int], **kwargs: Any) -> str:
        """Decode the tokens after a begin token, see `CaptioningProcessor.caption_of`."""
        if not self.released_text:
            return super().caption_of(tokens, **kwargs)
        tokenizer = self.tokenizer
        words = released_caption_words(tokens, tokenizer, tokenizer.eos_token_id, tokenizer.pad_token_id)
        return " ".join(without_repetitions(words) if self.merge_repeated_words else words)


def prepare_gpt2_tokenizer(
    tokenizer: Any,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> Any:
    """Return a GPT-2 tokenizer with begin, end and padding tokens for a captioner.

    GPT-2 has `<|endoftext|>` only. It remains the end token; begin and padding tokens that are missing, or equal to
    the end token, are appended to the vocabulary as `<|bos|>` and `<|pad|>`. The model's embeddings then need
    `len(tokenizer)` rows.

    Args:
        tokenizer: GPT-2's; it is copied.
        bos_token_id, eos_token_id, pad_token_id: ids of the vocabulary to use instead, such as those of a
            converted checkpoint (the released VisualGPT has 47934, 50256 and 47932 and adds no token). Two of them may
            be equal.

    Returns:
        A tokenizer with all three tokens.

    Raises:
        ValueError: an id is outside the vocabulary, or there is no end token.
    """
    tokenizer = copy.deepcopy(tokenizer)
    special_ids = {"bos_token": bos_token_id, "eos_token": eos_token_id, "pad_token": pad_token_id}
    for name, token_id in special_ids.items():
        if token_id is not None and not 0 <= token_id < len(tokenizer):
            raise ValueError(f"{name}_id={token_id} is outside the tokenizer's vocabulary of {len(tokenizer)} tokens.")
    tokens = {
        name: tokenizer.convert_ids_to_tokens(token_id)
        for name, token_id in special_ids.items()
        if token_id is not None
    }
    eos = tokens.setdefault("eos_token", tokenizer.eos_token)
    if eos is None:
        raise ValueError("The tokenizer has no end token; pass `eos_token_id`.")
    if tokenizer.bos_token in (None, eos):
        tokens.setdefault("bos_token", BEGIN_TOKEN)
    if tokenizer.pad_token in (None, eos, tokenizer.bos_token):
        tokens.setdefault("pad_token", PADDING_TOKEN)
    tokenizer.add_special_tokens(tokens)
    return tokenizer


def released_words(caption: str) -> list[str]:
    """Split a caption at spaces into lower-case words, without the punctuation that the released code drops.

    The released code splits with spaCy 2.0.11, which also separates `'s` and punctuation from words: pass captions
    split in this way, with spaces between the tokens.
    """
    return [word for word in caption.rstrip("\n").lower().split() if word not in DROPPED_TOKENS]


def released_rows(
    captions: Sequence[str], tokenizer: Any, bos_token_id: int, eos_token_id: int, pad_token_id: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Encode a batch of captions to rows of ids as the released code does.

    Args:
        captions: texts with spaces between tokens.
        tokenizer: GPT-2's.
        bos_token_id, eos_token_id, pad_token_id: the released code has 47934 (`<?`), 50256 and 47932 (`+=`).

    Returns:
        Rows before and after truncation to the largest number of words plus 2.
    """
    bos, eos, pad = tokenizer.convert_ids_to_tokens([bos_token_id, eos_token_id, pad_token_id])
    words = [released_words(caption) for caption in captions]
    longest = max(len(row) for row in words)
    texts = [f"{bos} {' '.join(row)}{eos}{pad * (longest - len(row))}" for row in words]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return rows, [row[: longest + 2] for row in rows]


def released_caption_words(row: Sequence[int], tokenizer: Any, eos_token_id: int, pad_token_id: int) -> list[str]:
    """Decode a row of ids to words as the released code does, which cuts the text at the end token, not the ids.

    Words are kept up to the first that contains the end or the padding text; of that word, the part before the end
    text is kept.
    """
    eos, pad = tokenizer.convert_ids_to_tokens([eos_token_id, pad_token_id])
    words = []
    for word in released_text(row, tokenizer).split():
        if eos in word or pad in word:
            words.append(word.split(eos)[0])
            break
        words.append(word)
    return words


def released_text(row: Sequence[int], tokenizer: Any) -> str:
    """Decode ids as transformers 3.1 did: no spaces before punctuation and within English contractions."""
    text = tokenizer.decode(list(row), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for joined in JOINED_TO_THE_LEFT:
        text = text.replace(joined, joined.strip())
    return text

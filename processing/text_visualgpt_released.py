"""VisualGPT's text side exactly as its authors released it, with the defects that its published figures contain.

Only for checkpoints and comparisons that need it. The defects: the width of a batch is counted in words but cut in
word pieces, so that long captions lose their end token and their last pieces, depending on what else is in the batch;
begin and padding tokens are ordinary word pieces.
Source: Vision-CAIR/VisualGPT, `data/field.py` (`TextField.preprocess`, `pad`, `numericalize`, `decode`) and the
decoding of transformers 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Tokens that are dropped from captions. ".." is not among them in the released settings, and the bracket names have no
# effect, because they are compared with lower-case words.
DROPPED_TOKENS = frozenset(
    ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)
# What transformers 3.1 removes blanks before, in this order.
JOINED_TO_THE_LEFT = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def released_words(caption: str) -> list[str]:
    """Split a caption at blanks into the words that are kept: lower case, without the dropped tokens.

    The released code splits with spaCy 2.0.11, which also parts `'s` and punctuation from words: give captions split
    in this way, with blanks between the tokens.
    """
    return [word for word in caption.rstrip("\n").lower().split() if word not in DROPPED_TOKENS]


def released_rows(
    captions: Sequence[str], tokenizer: Any, bos_token_id: int, eos_token_id: int, pad_token_id: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Encode a batch of captions as the released code does.

    Args:
        captions: texts, split at blanks.
        tokenizer: GPT-2's.
        bos_token_id, eos_token_id, pad_token_id: the released code has 47934 (`<?`), 50256 and 47932 (`+=`).

    Returns:
        Rows before and rows after the cut to the longest number of words plus 2.
    """
    bos, eos, pad = tokenizer.convert_ids_to_tokens([bos_token_id, eos_token_id, pad_token_id])
    words = [released_words(caption) for caption in captions]
    longest = max(len(row) for row in words)
    texts = [f"{bos} {' '.join(row)}{eos}{pad * (longest - len(row))}" for row in words]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return rows, [row[: longest + 2] for row in rows]


def released_caption_words(row: Sequence[int], tokenizer: Any, eos_token_id: int, pad_token_id: int) -> list[str]:
    """Decode a row of ids to words as the released code does: the text is cut, not the ids.

    Words are kept up to the first that contains the end or the padding text; of that one, what stands before the end
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
    """Decode ids as transformers 3.1 did, blanks before punctuation and English contractions removed."""
    text = tokenizer.decode(list(row), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for joined in JOINED_TO_THE_LEFT:
        text = text.replace(joined, joined.strip())
    return text

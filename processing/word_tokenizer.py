"""Word-level tokenizers, built from captions; AutoTokenizer loads them without code of this library.

| layout | ids | used by |
|---|---|---|
| `"default"` | `<pad>`, `<bos>`, `<eos>`, `<unk>`, words | this library |
| `"arctic"` | `<eos>` (also padding), `UNK`, words, `<bos>` | arctic-captions, which begins with a zero vector |
| `"start_end"` | `<pad>`, words, `<unk>`, `<start>`, `<end>` | the re-implementation of Show, Attend and Tell |
| `"zero"` | `<eos>` (also begin and padding), words, `UNK` | AoANet, Image Transformer and their family |
| `"m2"` | `<unk>`, `<pad>`, `<bos>`, `<eos>`, words | M2 |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .vocabulary import count_words, karpathy_words, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class IdLayout:
    """Positions of the special tokens, `before` and `after` the words; two roles may share a token."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    bos: str
    eos: str
    pad: str
    unk: str


LAYOUTS = {
    "default": IdLayout(("<pad>", "<bos>", "<eos>", "<unk>"), (), "<bos>", "<eos>", "<pad>", "<unk>"),
    "arctic": IdLayout(("<eos>", "UNK"), ("<bos>",), "<bos>", "<eos>", "<eos>", "UNK"),
    "start_end": IdLayout(("<pad>",), ("<unk>", "<start>", "<end>"), "<start>", "<end>", "<pad>", "<unk>"),
    "m2": IdLayout(("<unk>", "<pad>", "<bos>", "<eos>"), (), "<bos>", "<eos>", "<pad>", "<unk>"),
    "zero": IdLayout(("<eos>",), ("UNK",), "<eos>", "<eos>", "<eos>", "UNK"),
}


def word_tokenizer(words: Sequence[str], layout: str = "default", lowercase: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the given words.

    Captions are split by the rule of Karpathy's files (`karpathy_words`).

    Args:
        words: the vocabulary in the order of its ids, without special tokens.
        layout: positions of the special tokens, see the table above.
        lowercase: convert captions to lower case.

    Raises:
        ValueError: the layout is unknown, or a word occurs twice or equals a special token.
    """
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase, Replace
    from tokenizers.normalizers import Sequence as InOrder
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    chosen = _layout(layout)
    tokens = [*chosen.before, *words, *chosen.after]
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        double = next(token for token in tokens if tokens.count(token) > 1)
        raise ValueError(f"{double!r} occurs twice among the words and the special tokens of the layout {layout!r}.")
    tokenizer = Tokenizer(WordLevel(ids, unk_token=chosen.unk))
    steps: list[Any] = [Lowercase()] if lowercase else []
    tokenizer.normalizer = InOrder([*steps, Replace(Regex("['.]"), ""), Replace(Regex(r'[,;!?"()\-/\r\n]'), " ")])
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=chosen.bos,
        eos_token=chosen.eos,
        pad_token=chosen.pad,
        unk_token=chosen.unk,
    )


def build_word_tokenizer(
    captions: Iterable[str], at_least: int = 5, size: int | None = None, layout: str = "default"
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the words of captions.

    Rules of the papers: Show, Attend and Tell `at_least=1, size=10000` (section 5.1); its re-implementation
    `at_least=6` ("more than 5"); AoANet and Image Transformer `at_least=6` with the captions of all splits; M2 and
    Transformer `at_least=5` with those of train and restval.

    Args:
        captions: training captions.
        at_least: a word that occurs less often becomes the unknown token.
        size: largest number of tokens, special ones included; the most frequent words are kept.
        layout: see `word_tokenizer`.

    Raises:
        ValueError: no word is left.

    Examples:
        >>> from hf_captioners.processing.word_tokenizer import build_word_tokenizer
        >>> tokenizer = build_word_tokenizer(["A dog runs.", "A cat sits."], at_least=1)
        >>> tokenizer.tokenize("A dog sits.")
        ['a', 'dog', 'sits']
    """
    words = vocabulary(count_words(karpathy_words(caption) for caption in captions), at_least)
    if size is not None:
        chosen = _layout(layout)
        special = len(chosen.before) + len(chosen.after)
        if size <= special:
            raise ValueError(f"`size` is {size}, expected more than the {special} special tokens.")
        words = words[: size - special]
    return word_tokenizer(words, layout)


def _layout(name: str) -> IdLayout:
    if name not in LAYOUTS:
        raise ValueError(f"`layout` is {name!r}, expected one of {', '.join(LAYOUTS)}.")
    return LAYOUTS[name]

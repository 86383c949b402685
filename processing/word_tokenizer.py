"""Word-level tokenizers built from captions, which AutoTokenizer loads without code of this library.

| layout | ids | used by |
|---|---|---|
| `"default"` | `<pad>`, `<bos>`, `<eos>`, `<unk>`, words | this library |
| `"arctic"` | `<eos>` (also padding), `UNK`, words, `<bos>` | arctic-captions, which begins with a zero vector |
| `"start_end"` | `<pad>`, words, `<unk>`, `<start>`, `<end>` | the re-implementation of Show, Attend and Tell |
| `"zero"` | `<eos>` (also begin and padding), words, `UNK` | AoANet, Image Transformer and their family |
| `"m2"` | `<unk>`, `<pad>`, `<bos>`, `<eos>`, words | M2 |

| rule of words | tokens | for |
|---|---|---|
| `"karpathy"` | what stands between blanks, without punctuation, see `karpathy_words` | English, and the papers |
| `"unicode"` | words by the rules of Unicode (UAX #29) | Korean, Arabic, Hindi, German |
| `"characters"` | characters as readers see them, and blanks; captions are joined without blanks | Chinese, Thai |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .vocabulary import composed, count_words, karpathy_words, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class IdLayout:
    """Order of ids: special tokens before and after the words, and their roles (two roles may share a token)."""

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


RULES = ("karpathy", "unicode", "characters")
"""The rules by which captions are split into words."""
# In the dialect of `tokenizers`: pieces of text that are tokens, and those of them that are none.
_PIECES = {"unicode": r"(?y{w})\X", "characters": r"\X"}
_NO_WORDS = {"unicode": r"^[^\p{L}\p{N}]+$", "characters": r"^[\p{P}\r\n]+$"}


def word_tokenizer(
    words: Sequence[str], layout: str = "default", lowercase: bool = True, rule: str = "karpathy"
) -> PreTrainedTokenizerFast:
    """Build a word-level tokenizer of a list of words.

    Args:
        words: the vocabulary in the order of its ids, without special tokens.
        layout: positions of the special tokens, see the table above.
        lowercase: convert captions to lower case.
        rule: how captions are split into words, see the table above.

    Raises:
        ValueError: the layout or the rule is unknown, or a word occurs twice or equals a special token.
    """
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    chosen = _layout(layout)
    tokens = [*chosen.before, *words, *chosen.after]
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        double = next(token for token in tokens if tokens.count(token) > 1)
        raise ValueError(f"{double!r} occurs twice among the words and the special tokens of the layout {layout!r}.")
    tokenizer = Tokenizer(WordLevel(ids, unk_token=chosen.unk))
    tokenizer.normalizer, tokenizer.pre_tokenizer = _splitting(rule, lowercase)
    if rule == "characters":
        tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=chosen.bos,
        eos_token=chosen.eos,
        pad_token=chosen.pad,
        unk_token=chosen.unk,
    )


def _splitting(rule: str, lowercase: bool) -> tuple[Any, Any]:
    """Return the normalizer and the pre-tokenizer that split captions into words by `rule`."""
    from tokenizers import Regex
    from tokenizers.normalizers import Lowercase, Replace
    from tokenizers.normalizers import Sequence as InOrder
    from tokenizers.pre_tokenizers import Sequence as Pieces
    from tokenizers.pre_tokenizers import Split, WhitespaceSplit

    if rule not in RULES:
        raise ValueError(f"`rule` is {rule!r}, expected one of {', '.join(RULES)}.")
    steps: list[Any] = [Lowercase()] if lowercase else []
    if rule == "karpathy":
        steps += [Replace(Regex("['.]"), ""), Replace(Regex(r'[,;!?"()\-/\r\n]'), " ")]
        return InOrder(steps), WhitespaceSplit()
    pieces = [Split(Regex(_PIECES[rule]), "isolated"), Split(Regex(_NO_WORDS[rule]), "removed")]
    return InOrder(steps), Pieces(pieces)


def _words_of(captions: Iterable[str], rule: str) -> Iterable[list[str]]:
    """Split captions into words by `rule`."""
    if rule == "karpathy":
        return (karpathy_words(composed(caption)) for caption in captions)
    normalizer, pieces = _splitting(rule, lowercase=True)
    texts = (normalizer.normalize_str(composed(caption)) for caption in captions)
    return ([word for word, _ in pieces.pre_tokenize_str(text)] for text in texts)


def build_word_tokenizer(
    captions: Iterable[str],
    at_least: int = 5,
    size: int | None = None,
    layout: str = "default",
    rule: str = "karpathy",
) -> PreTrainedTokenizerFast:
    """Build a word-level tokenizer of the words that captions have.

    Rules of the papers: Show, Attend and Tell `at_least=1, size=10000` (section 5.1); its re-implementation
    `at_least=6` ("more than 5"); AoANet and Image Transformer `at_least=6` with the captions of all splits; M2 and
    Transformer `at_least=5` with those of train and restval.

    Args:
        captions: training captions.
        at_least: a word that occurs less often becomes the unknown token.
        size: largest number of tokens, special ones included; the most frequent words are kept.
        layout, rule: see `word_tokenizer`.

    Raises:
        ValueError: no word is left, or a name is unknown.

    Examples:
        >>> from hf_captioners.processing.word_tokenizer import build_word_tokenizer
        >>> tokenizer = build_word_tokenizer(["A dog runs.", "A cat sits."], at_least=1)
        >>> tokenizer.tokenize("A dog sits.")
        ['a', 'dog', 'sits']
    """
    words = vocabulary(count_words(_words_of(captions, rule)), at_least)
    if size is not None:
        chosen = _layout(layout)
        special = len(chosen.before) + len(chosen.after)
        if size <= special:
            raise ValueError(f"`size` is {size}, expected more than the {special} special tokens.")
        words = words[: size - special]
    return word_tokenizer(words, layout, rule=rule)


def _layout(name: str) -> IdLayout:
    if name not in LAYOUTS:
        raise ValueError(f"`layout` is {name!r}, expected one of {', '.join(LAYOUTS)}.")
    return LAYOUTS[name]

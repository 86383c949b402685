import pytest

from hf_captioners.metrics import PTBTokenizer
from hf_captioners.metrics.ptb_lexer import lex
from hf_captioners.metrics.ptb_tokenizer import DROPPED_TOKENS


def wrong_rows(rows):
    """Return the rows whose tokens differ from those in a batch and from those of the caption alone."""
    tokens = PTBTokenizer()([row["text"] for row in rows])
    pairs = zip(rows, tokens, strict=True)
    return [(row["text"], row["tokens"], got) for row, got in pairs if got not in _accepted(row)]


def _accepted(row):
    return (row["tokens"], row.get("tokens_alone", row["tokens"]))


def test_ordinary_captions_have_the_original_tokens(truth_rows):
    rows = truth_rows("ptb/ordinary.jsonl.gz")
    wrong = wrong_rows(rows)
    assert len(rows) > 5_000
    assert len(wrong) <= 0.0002 * len(rows), f"{len(wrong)} of {len(rows)} rows differ, first {wrong[:5]}"


def test_odd_strings_have_the_original_tokens(truth_rows):
    rows = truth_rows("ptb/nasty.jsonl.gz")
    wrong = wrong_rows(rows)
    assert len(rows) >= 1_000
    assert len(wrong) <= 8 * len(rows) / 1_500, f"{len(wrong)} of {len(rows)} rows differ, first {wrong[:9]}"


def test_one_by_one_is_as_together(truth_rows):
    rows = truth_rows("ptb/nasty.jsonl.gz")
    texts = [row["text"] for row in rows]
    tokenizer = PTBTokenizer()
    assert [tokenizer.tokenize(text) for text in texts] == PTBTokenizer()(texts)


def test_examples_have_the_original_tokens_before_dropping(truth_json):
    examples = truth_json("ptb/examples.json")
    wrong = [
        (row["text"], row["raw"], raw)
        for row in examples
        if (raw := [token.lower() for token in lex(row["text"] + "\n")]) != row["raw"]
    ]
    assert len(examples) > 100
    assert not wrong


def test_examples_after_dropping(truth_json):
    assert not [
        row for row in truth_json("ptb/examples.json") if PTBTokenizer().tokenize(row["text"]) != row["tokens"]
    ]


def test_shortcut_for_pieces_gives_what_the_rules_give(truth_rows):
    """The tokenizer joins cached pieces; the lexer reads whole captions."""
    texts = [row["text"] for row in truth_rows("ptb/nasty.jsonl.gz") + truth_rows("ptb/ordinary.jsonl.gz")]
    for text, tokens in zip(texts, PTBTokenizer()(texts), strict=True):
        for line_break in "\n\r\v\f\u2028\u2029":
            text = text.replace(line_break, " ")
        whole = [token.lower() for token in lex(text + "\n")]
        assert tokens == " ".join(token for token in whole if token not in DROPPED_TOKENS)


def test_line_breaks_are_blanks_and_move_nothing(truth_rows):
    """The Java program shifts the captions after a line break; here the lines of a caption stay together."""
    rows = truth_rows("ptb/linebreaks.jsonl.gz")
    tokens = PTBTokenizer()([text for row in rows for text in (row["text"], "no dogs")])
    assert tokens[1::2] == ["no dogs"] * len(rows)
    for row, got in zip(rows, tokens[::2], strict=True):
        # Token borders are not compared: a tag with a line break is one token here.
        assert "".join(got.split()) == "".join("".join(row["lines"]).split())


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("", ""),
        (" ", ""),
        ("\n", ""),
        (".", ""),
        ("A man (left) can't ride.", "a man -lrb- left -rrb- ca n't ride"),
        ("letter K. The man", "letter k the man"),
        ("letter K. the man", "letter k. the man"),
        ("no. 5 and no. five", "no. 5 and no five"),
        ("a \U0001f600 b", "a b"),
        ("\0 a", "a"),
        ("\ud800", ""),
    ],
)
def test_captions(caption, tokens):
    assert PTBTokenizer().tokenize(caption) == tokens


def test_no_captions():
    assert PTBTokenizer()([]) == []


def test_one_caption_is_not_taken_for_a_list_of_letters():
    with pytest.raises(TypeError, match="`captions` is the string 'a dog', expected a list"):
        PTBTokenizer()("a dog")

"""The lexing rules of the Stanford PTBTokenizer 3.4.1 with the options of the COCO caption evaluation.

A rule is a regular expression whose first group is the token. What follows the group is required context that is not
consumed. At each position the rule with the longest match *including its context* applies; of several, the first one.
This is the behaviour of lex and differs from that of alternatives in `re`. Characters without a matching rule are
deleted and separate their neighbours.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from string import ascii_lowercase, digits
from typing import NamedTuple

from .ptb_characters import ANY_DIGIT, ANY_LETTER, is_symbol, shape

# Rules are matched on the shape of a text, in which one character replaces all non-ASCII letters.
_PLAIN_LETTERS = f"A-Za-z{ANY_LETTER}"
_LETTERS = rf"{_PLAIN_LETTERS}\u00AD"
_DIGITS = f"0-9{ANY_DIGIT}"
_ENTITY = "&[aeiou](?:acute|grave|uml);"
_LETTER = f"(?:[{_LETTERS}]|{_ENTITY})"
_DIGIT = f"[{_DIGITS}]"
_ALNUM = f"(?:[{_LETTERS}{_DIGITS}]|{_ENTITY})"
BLANKS = r" \t\u00A0\u2000-\u200A\u3000"
_BLANK = f"[{BLANKS}]"
_BLANK_OR_END = rf"[{BLANKS}\n\u0085]"  # U+0085 is an ellipsis in other rules
_QUOTE = r"(?:['\u2019\u0092]|&apos;)"
_ANY_QUOTE = r"(?:['\u2019\u0092`\u2018\u201B\u0091]|&apos;)"
_HYPHEN = r"[-_\u058A\u2010\u2011]"
_INSIDE_SENTENCE = r"[,;:\u3001]"
_ACRONYM = r"(?:[a-z](?:\.[a-z])*|(?:canada|sino|korean|eu|japan|non)-u\.s|u\.s\.-(?:u\.k|u\.s\.s\.r))"
_WORD = rf"{_LETTER}{_ALNUM}*(?:[.!?]{_LETTER}{_ALNUM}*)*"
# `(?-i:...)` marks the case-sensitive parts of the original.
_SENTENCE_STARTS = (
    "(?-i:About|According|Additionally|After|An|As|At|A|But|Earlier|He|Her|Here|However|If|In|It|Last|Many|More|Mr\\.|"
    "Ms\\.|Now|Once|One|Other|Our|She|Since|So|Some|Such|That|The|Their|Then|There|These|They|This|We|When|While|What|"
    "Yet|You)"
)
_ATTRIBUTE = r"[a-z][a-z0-9_:.\-]*"
_TAG = (
    r"<(?:[!?][a-z\-][^>\n]*"
    rf"|{_ATTRIBUTE}(?: +(?:{_ATTRIBUTE}(?: *= *(?:'[^']*'|\"[^\"]*\"))?))* */? *"
    rf"|/{_ATTRIBUTE} *)>"
)
_ABBREVIATIONS = (  # months, days, states, companies and the like; `(?-i:...)` where a capital is needed
    r"jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tues?|wed|thu|thurs|fri"
    r"|ala|ariz|calif|colo|conn|ct|dak|fla|ga|ind|kans?|ky|md|mich|minn|mo|mont|neb|nev|okla|penn|tenn|va|vt|wisc?|wyo"
    r"|(?-i:A)(?:z|rk)|(?-i:D)el|(?-i:I)ll|(?-i:L)a|(?-i:M)(?:a|i)ss|(?-i:O)re|(?-i:P)a|(?-i:T)ex|(?-i:W)ash"
    r"|inc|cos?|corp|pp?t[ye]s?|ltd|plc|rt|bancorp|bhd|assn|univ|intl|sys|tel|est|ext|sq"
    r"|jr|sr|bros|ed\.d|ph\.d|blvd|rd|esq|etc|al|seq|bldg"
)
_TITLES = (  # titles, some more words, and single letters with stops between them
    r"mr|mrs|ms|drs?|profs?|sens?|reps?|attys?|lt|col|gen|messrs|govs?|adm|rev|maj|sgt|cpl|pvt|capt|ste?"
    r"|ave|pres|lieut|hon|brig|co?mdr|pfc|spc|supts?|det|mt|ft|adj|adv|asst|assoc|ens|insp|mlle|mme|msgr|sfc"
    rf"|vs|alex|wm|jos|cie|a\.k\.a|cf|treas|ph|{_ACRONYM}|invt|elec|natl|mfg|mtg|dept"
)
ABBREVIATION = re.compile(rf"(?:{_ABBREVIATIONS}|{_TITLES})\.", re.IGNORECASE)
"""A word that keeps its full stop, with the stop."""

NUMBERED_ABBREVIATIONS = "ca|figs?|prop|nos?|art|bldg|pp|op"
"""Alternatives of a regular expression: words that keep their full stop if a digit follows."""

_FILE_TYPES = (
    "bat|bmp|c|class|cgi|cpp|dll|docx?|exe|gif|gz|h|html?|jar|java|jpe?g|mov|mp3|pdf|php|pl|png|pptx?|ps|py|sql|tar|txt"
    "|wav|x|xml|zip"
)
_HOST = r"[^ \t\n\r\f\"<>|.!?(){},]+\."
_PLAIN_HOST = r"(?-i:[^ \t\n\r\f\"`'<>|.!?(){},-_$]+\.)"  # `,-_` is a range there: no capitals, digits, hyphens
_PATH = r"/[^ \t\n\r\f\"<>|()]+[^ \t\n\r\f\"<>|.!?(){},\-]"
_SITE = rf"(?:www\.(?:{_HOST})+[a-z]{{2,4}}|(?:{_PLAIN_HOST})+(?:com|net|org|edu))"
_MAIL_PART = r"[^ \t\n\r\f\"<>|(){}.\u00A0]+"
_MAIL = (
    r"(?:&lt;|<)?[a-z0-9][^ \t\n\r\f\"<>|(){}\u00A0]*@"
    rf"(?:{_MAIL_PART}\.)*{_MAIL_PART}(?:&gt;|>)?"
)
_CLITIC = r"(?:[msd]|re|ve|ll)"
_PART = rf"(?:[dol]{_ANY_QUOTE})?[{_PLAIN_LETTERS}{_DIGITS}]+"
_JOINED = rf"{_PART}(?:{_HYPHEN}(?:{_PART}))*"
_HYPHENATED = r"[a-z0-9][a-z0-9.,\u00AD]*(?:-(?:[a-z](?:\.[a-z])+\.|[a-z0-9\u00AD]+))+"
_CAPITALS = r"(?-i:[A-Z]+)(?:(?:&amp;|[+&])(?-i:[A-Z]+))+"
_DOUBLE_QUOTE = '(?:"|&quot;)'
_ODD_QUOTE = r"[`\u0091-\u0094\u2018\u2019\u201B-\u201D\u00AB\u00BB\u2039\u203A]"
_SLASH_PART = r"[a-z0-9]+(?:-[a-z]+){0,2}"


def _in_brackets_names(token: str) -> str:
    return token.replace("(", "-lrb-").replace(")", "-rrb-")


def _hard_blanks(token: str) -> str:
    return token.replace(" ", "\u00a0")


def _phone(token: str) -> str:
    return _in_brackets_names(_hard_blanks(token))


def _plain_quote(token: str) -> str:
    return re.sub(_QUOTE, "'", token)


def _plain_quotes(token: str) -> str:
    return "".join(_QUOTES[character] for character in token)


def _ampersand(token: str) -> str:
    return re.sub("&amp;", "&", token, flags=re.IGNORECASE)


def _without_soft_hyphens(token: str) -> str:
    return token.replace("\u00ad", "") or "-"


def _dashes(token: str) -> str:
    return "--" if len(token) in (3, 4) else token


_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_CURRENCIES = {"\u00a2": "cents", "\u00a3": "#", "\u0080": "$", "\u00a4": "$", "\u20a0": "$", "\u20ac": "$"}
_FRACTIONS = {"\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3"}
_QUOTES = (
    dict.fromkeys("`\u0091\u2018\u201b\u2039", "`")
    | dict.fromkeys("\u0092\u2019\u203a", "'")
    | dict.fromkeys("\u0093\u00ab\u201c", "``")
    | dict.fromkeys("\u0094\u00bb\u201d", "''")
)


def _renamed(names: dict[str, str]) -> Callable[[str], str]:
    return lambda token: names.get(token, token)


def _constant(text: str) -> Callable[[str], str]:
    return lambda token: text


class _Rule(NamedTuple):
    """A rule of the PTB lexer: the pattern of a token, its first characters, and how the token is written."""

    starts: str  # first characters of possible matches, in lower case; empty for any
    pattern: str
    write: Callable[[str], str] | None = None  # rewrites the token; None keeps it


_AZ = ascii_lowercase
_L = ascii_lowercase + ANY_LETTER + "\u00ad&"  # `&` begins entities of letters
_D = digits + ANY_DIGIT
_Q = "'\u2019\u0092&"
_ODD_QUOTES = "".join(_QUOTES)

_RULES = (
    _Rule("c", r"(c\+\+)"),
    _Rule("cf", r"([cf]#)"),
    _Rule("c", r"(can)not"),
    _Rule("'", r"('t)(?:is|was)"),
    _Rule("g", r"(gon)na|(got)ta|(gim)me"),
    _Rule("lw", r"(lem)me|(wan)na"),
    _Rule("<", rf"({_TAG})", _hard_blanks),
    _Rule("&\u0096\u0097\u2013\u2014\u2015", r"(&(?:mdash|ndash|MD);|[\u0096\u0097\u2013-\u2015])", _constant("--")),
    _Rule("&", "(&amp;)", _constant("&")),
    _Rule("&", r"(&(?:HT|TL|UR|LR|QC|QL|QR|odq|cdq|#[0-9]+);)"),
    _Rule(_AZ, rf"((?:{_ABBREVIATIONS})\.)-?(?:.|\n)"),
    _Rule(_L, rf"({_WORD}){_QUOTE}{_CLITIC}", _without_soft_hyphens),
    _Rule(_AZ + "\u00ad", rf"([a-z\u00AD]*[a-mo-z\u00AD])n{_ANY_QUOTE}t", _without_soft_hyphens),
    _Rule(_L, f"({_WORD})", _without_soft_hyphens),
    _Rule(_Q, rf"({_QUOTE}n{_QUOTE}?)"),
    _Rule("ldj", rf"([ldj]{_QUOTE})"),
    _Rule("dso", rf"(dunkin{_QUOTE}|somethin{_QUOTE}|ol{_QUOTE})"),
    _Rule(_Q, rf"({_QUOTE}em|{_QUOTE}[2-9]0s|{_QUOTE}till?|{_QUOTE}cause)"),
    _Rule(_AZ, rf"((?-i:[A-HJ-XZn]){_ANY_QUOTE}[{_PLAIN_LETTERS}]{{2,}})"),
    _Rule(_L, rf"([{_PLAIN_LETTERS}]+[aeiouy]{_ANY_QUOTE}(?-i:[aeiouA-Z])[{_PLAIN_LETTERS}]*)"),
    _Rule("cnesl", r"(cont'd\.?|nor'easter|c'mon|e'er|s'mores|ev'ry|li'l|nat'l)"),
    _Rule("o", rf"(o{_ANY_QUOTE}o)"),
    _Rule("y", rf"(y{_QUOTE}){_LETTER}"),
    _Rule("h", r"(https?://[^ \t\n\r\f\"<>|(){}]+[^ \t\n\r\f\"<>|.!?(){},\-])"),
    _Rule("", f"({_SITE})"),
    _Rule("", f"({_SITE}{_PATH})"),
    _Rule(_AZ + digits + "<&", f"({_MAIL})"),
    _Rule("@\uff20", r"([@\uFF20][a-z_][a-z_0-9]*)"),
    _Rule("#", f"(#{_LETTER}+)"),
    _Rule(_Q, rf"({_QUOTE}{_CLITIC})[^a-z]", _plain_quote),
    _Rule("n", rf"(n{_ANY_QUOTE}t)[^a-z]", _plain_quote),
    _Rule(_D, rf"({_DIGIT}{{1,2}}[-/]{_DIGIT}{{1,2}}[-/]{_DIGIT}{{2,4}})"),
    _Rule(
        _D + "+-.:,\u00ad\u066b\u066c",
        rf"([-+]?{_DIGIT}*(?:[.:,\u00AD\u066B\u066C]{_DIGIT}+)+)",
        _without_soft_hyphens,
    ),
    _Rule(_D + "+-", rf"([-+]?{_DIGIT}+)"),
    _Rule(
        "\u207a\u207b\u208a\u208b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
        "\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089",
        r"([\u207A\u207B\u208A\u208B]?(?:[\u2070\u00B9\u00B2\u00B3\u2074-\u2079]+|[\u2080-\u2089]+))",
    ),
    _Rule(_D, rf"((?:{_DIGIT}{{1,4}}[- \u00A0])?{_DIGIT}{{1,4}}(?:\\?/|\u2044){_DIGIT}{{1,4}})", _hard_blanks),
    _Rule("".join(_FRACTIONS), r"([\u00BC-\u00BE\u2153\u2154])", _renamed(_FRACTIONS)),
    _Rule("-", "(-[lr][rsc]b-)"),
    _Rule("cpas", r"(c\.d\.s|pro-|anti-|s(?:&|&amp;)p-500|s(?:&|&amp;)ls|c'est)", _ampersand),
    _Rule("c", rf"(cap{_QUOTE}n)"),
    _Rule(_AZ + digits, rf"({_SLASH_PART}(?:\\?/{_SLASH_PART}){{1,2}})"),
    _Rule("$#" + _AZ, r"((?-i:[A-Z]*\$)|#)"),
    _Rule("".join(_CURRENCIES), r"([\u00A2-\u00A4\u0080\u20A0\u20AC])", _renamed(_CURRENCIES)),
    _Rule(_AZ, rf"([a-z])\.{_BLANK_OR_END}+(?:{_SENTENCE_STARTS}|{_TAG}){_BLANK_OR_END}"),
    _Rule("cfpnabo", rf"((?:{NUMBERED_ABBREVIATIONS})\.){_BLANK_OR_END}?{_DIGIT}"),
    _Rule("pc", rf"((?:pt[ye]|co)\.){_BLANK}(?:ltd|lim)"),
    _Rule(_AZ, rf"((?:{_TITLES})\.)"),
    _Rule(_Q, rf"({_QUOTE}{_DIGIT}{{2}}){_BLANK_OR_END}"),
    _Rule(_L + _D, rf"({_ALNUM}+(?:\.{_ALNUM}+)*\.(?:{_FILE_TYPES}))[{BLANKS}\n.?!,]"),
    _Rule(_L, rf"({_WORD}\.){_INSIDE_SENTENCE}", _without_soft_hyphens),
    _Rule(_L + _D, rf"((?:{_HYPHENATED}|{_CAPITALS}|{_JOINED})\.){_INSIDE_SENTENCE}", _without_soft_hyphens),
    _Rule(
        digits + "+(",
        r"((?:\([0-9]{2,3}\)[ \u00A0]?|(?:\+\+?)?(?:[0-9]{2,4}[- \u00A0])?[0-9]{2,4}[- \u00A0])"
        r"[0-9]{3,4}[- \u00A0]?[0-9]{3,5})",
        _phone,
    ),
    _Rule(digits + "+", r"((?:(?:\+\+?)?[0-9]{2,4}\.)?[0-9]{2,4}\.[0-9]{3,4}\.[0-9]{3,5})"),
    _Rule('"&', rf"({_DOUBLE_QUOTE})[a-z0-9$]", _constant("``")),
    _Rule('"&', rf"({_DOUBLE_QUOTE})", _constant("''")),
    _Rule("<&", "(<|&lt;)", _constant("<")),
    _Rule(">&", "(>|&gt;)", _constant(">")),
    _Rule("<>:;=", r"([<>]?[:;=](?-i:[-o*']?[()DPdpO\\{@|\[\]]))[^a-z0-9]", _in_brackets_names),
    _Rule("(^x=~<>'-", r"([-^x=~<>']_[-^x=~<>']|\([-^x=~<>'][_.\-]?[-^x=~<>']\))", _in_brackets_names),
    _Rule("(){}[]", r"([(){}\[\]])", _renamed(_BRACKETS)),
    _Rule("-", "(-+)", _dashes),
    _Rule(".\u2026\u0085", r"(\.{3,5}|(?:\.[ \u00A0]){2,4}\.|[\u2026\u0085])", _constant("...")),
    _Rule("@#_", "(@+|#+|_+)"),
    _Rule("*\\", r"(\*+|(?:\\\*){1,3})"),
    _Rule("?!", "([?!]+)"),
    _Rule(_AZ + digits, f"({_HYPHENATED})", _without_soft_hyphens),
    _Rule(_L + _D, f"({_JOINED})", _without_soft_hyphens),
    _Rule(_AZ, f"({_CAPITALS})", _ampersand),
    _Rule("'", rf"(')[a-z][^{BLANKS}\n]", _constant("`")),
    _Rule(_Q, rf"({_QUOTE}{_CLITIC})", _plain_quote),
    _Rule("'`", "(''|``)"),
    _Rule("&", "(&apos;)", _constant("'")),
    _Rule(_ODD_QUOTES, rf"({_ODD_QUOTE}{{1,2}})", _plain_quotes),
    _Rule("<>", "(<<|>>)"),
    _Rule(" \t\u00a0\u3000" + "".join(map(chr, range(0x2000, 0x200B))), f"({_BLANK}+)", _constant("")),
    _Rule("&", "(&nbsp;)", _constant("")),
)


SPLIT_WORDS = frozenset(["cannot", "gonna", "gotta", "lemme", "gimme", "wanna"])
"""Plain words that are split into two tokens."""

_PLAIN_WORD = re.compile(" *([A-Za-z]{2,})(?=[ \n])").match  # a shortcut with the same result as the rules


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@lru_cache(maxsize=1 << 12)
def _rules_for(character: str) -> list[tuple[Callable[[str, int], re.Match[str] | None], Callable[[str], str] | None]]:
    """Return the match and write functions of the rules that can begin with a character."""
    rules = [rule for rule in _RULES if character.lower() in rule.starts or not rule.starts]
    return [(_compiled(rule.pattern).match, rule.write) for rule in rules]


def lex(text: str) -> Iterator[str]:
    """Split one line into tokens, before lower-casing and before tokens are dropped.

    Args:
        text: the line. It ends in `\\n` and contains no other line break.

    Yields:
        The tokens in order. In numbers, telephone numbers and tags, U+00A0 replaces a blank.

    Source: behaviour of `edu.stanford.nlp.process.PTBTokenizer` 3.4.1.
    """
    shapes = shape(text)
    position, end = 0, len(text)
    while position < end:
        if (plain := _PLAIN_WORD(text, position)) and plain[1].lower() not in SPLIT_WORDS:
            yield plain[1]
            position = plain.end()
            continue
        longest, stop, write = position, position + 1, None
        for match_rule, write_rule in _rules_for(shapes[position]):
            match = match_rule(shapes, position)
            if match is not None and match.end() > longest:
                longest, stop, write = match.end(), match.end(match.lastindex or 0), write_rule
        token = text[position:stop]
        if longest > position:
            token = write(token) if write else token
        elif not is_symbol(token):
            token = ""
        if token:
            yield token
        position = stop

"""The lexing rules of the Stanford PTBTokenizer 3.4.1, as the COCO caption evaluation runs it.

A rule is a regular expression whose first group is the token; what follows the group is context that must be there but
stays in the text. At each position the rule with the longest match *including its context* wins, the earlier rule
among equals: this is how lex decides, and not how the alternatives of `re` do. Characters that no rule takes are
deleted and separate their neighbours.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from .ptb_characters import DIGITS, LETTERS, SYMBOLS

_LETTER = rf"(?:[{LETTERS}]|&[aeiou](?:acute|grave|uml);)"
_DIGIT = rf"[{DIGITS}]"
_ALNUM = rf"(?:[{LETTERS}{DIGITS}]|&[aeiou](?:acute|grave|uml);)"
_BLANKS = r" \t\u00A0\u2000-\u200A\u3000"
_BLANK = f"[{_BLANKS}]"
_BLANK_OR_END = rf"[{_BLANKS}\n]"
_QUOTE = r"(?:['\u2019\u0092]|&apos;)"
_ANY_QUOTE = r"(?:['\u2019\u0092`\u2018\u201B\u0091]|&apos;)"
_HYPHEN = r"[-_\u058A\u2010\u2011]"
_INSIDE_SENTENCE = r"[,;:\u3001]"
_ACRONYM = r"(?:[a-z](?:\.[a-z])*|(?:canada|sino|korean|eu|japan|non)-u\.s|u\.s\.-(?:u\.k|u\.s\.s\.r))"
_WORD = rf"{_LETTER}{_ALNUM}*(?:[.!?]{_LETTER}{_ALNUM}*)*"
# `(?-i:...)` marks what the original compares with case.
_SENTENCE_STARTS = (
    "(?-i:About|According|Additionally|After|An|As|At|A|But|Earlier|He|Her|Here|However|If|In|It|Last|Many|More|Mr\\.|"
    "Ms\\.|Now|Once|One|Other|Our|She|Since|So|Some|Such|That|The|Their|Then|There|These|They|This|We|When|While|What|"
    "Yet|You)"
)
_ATTRIBUTE = r"[a-z][a-z0-9_:.\-]*"
_TAG = (
    r"<(?:[!?][a-z\-][^>\n]*"
    rf"|{_ATTRIBUTE}(?: +(?:{_ATTRIBUTE}(?: *= *(?:'[^']*'|\"[^\"]*\"|{_ATTRIBUTE}))?))* */? *"
    rf"|/{_ATTRIBUTE} *)>"
)
_ABBREVIATIONS = (  # keep their stop; the months, days, states, companies and other words of the original
    r"jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tues?|wed|thu|thurs|fri"
    r"|ala|ariz|calif|colo|conn|ct|dak|fla|ga|ind|kans?|ky|md|mich|minn|mo|mont|neb|nev|okla|penn|tenn|va|vt|wisc?|wyo"
    r"|(?-i:Az|Ark|Del|Ill|La|Mass|Miss|Ore|Pa|Tex|Wash)"
    r"|inc|cos?|corp|pp?t[ye]s?|ltd|plc|rt|bancorp|bhd|assn|univ|intl|sys|tel|est|ext|sq"
    r"|jr|sr|bros|ed\.d|ph\.d|blvd|rd|esq|etc|al|seq|bldg"
    r"|mr|mrs|ms|(?-i:Miss)|drs?|profs?|sens?|reps?|attys?|lt|col|gen|messrs|govs?|adm|rev|maj|sgt|cpl|pvt|capt|ste?"
    r"|ave|pres|lieut|hon|brig|co?mdr|pfc|spc|supts?|det|mt|ft|adj|adv|asst|assoc|ens|insp|mlle|mme|msgr|sfc"
    rf"|vs|alex|wm|jos|cie|a\.k\.a|cf|treas|ph|{_ACRONYM}|invt|elec|natl|mfg|mtg|dept"
)
ABBREVIATION = re.compile(rf"(?:{_ABBREVIATIONS})\.", re.IGNORECASE)
"""A word that keeps its stop, with the stop."""

NUMBERED_ABBREVIATIONS = "ca|figs?|prop|nos?|art|bldg|pp|op"
"""Alternatives of a regular expression: words that keep their stop if a digit follows."""

_FILE_TYPES = (
    "bat|bmp|c|class|cgi|cpp|dll|docx?|exe|gif|gz|h|html?|jar|java|jpe?g|mov|mp3|pdf|php|pl|png|pptx?|ps|py|sql|tar|txt"
    "|wav|x|xml|zip"
)
_HOST = r"[^ \t\n\r\f\"<>|.!?(){},]+\."
_PLAIN_HOST = r"[^ \t\n\r\f\"`'<>|.!?(){},-_$]+\."  # `,-_` is a range in the original: no capitals, digits or hyphens
_PATH = r"/[^ \t\n\r\f\"<>|()]+[^ \t\n\r\f\"<>|.!?(){},\-]"
_SITE = rf"(?:www\.(?:{_HOST})+[a-z]{{2,4}}|(?:{_PLAIN_HOST})+(?:com|net|org|edu))"
_MAIL = (
    r"(?:&lt;|<)?[a-z0-9][^ \t\n\r\f\"<>|(){}\u00A0]*@(?:[^ \t\n\r\f\"<>|(){}.\u00A0]+\.)*[^ \t\n\r\f\"<>|(){}.\u00A0]+"
    r"(?:&gt;|>)?"
)
_CLITIC = r"(?:[msd]|re|ve|ll)"
_PART = rf"(?:[dol]{_ANY_QUOTE}{_ALNUM})?{_ALNUM}+"
_JOINED = rf"{_PART}(?:{_HYPHEN}(?:{_PART}))*"
_HYPHENATED = rf"[a-z0-9][a-z0-9.,\u00AD]*(?:-(?:[a-z0-9\u00AD]+|{_ACRONYM}\.))+"
_SLASH_PART = r"[a-z0-9]+(?:-[a-z]+){0,2}"


def _in_brackets_names(token: str) -> str:
    return token.replace("(", "-lrb-").replace(")", "-rrb-")


def _hard_blanks(token: str) -> str:
    return token.replace(" ", "\u00a0")


def _phone(token: str) -> str:
    return _in_brackets_names(_hard_blanks(token))


def _plain_quote(token: str) -> str:
    return re.sub(_QUOTE, "'", token)


def _ampersand(token: str) -> str:
    return re.sub("&amp;", "&", token, flags=re.IGNORECASE)


def _without_soft_hyphens(token: str) -> str:
    return token.replace("\u00ad", "") or "-"


def _dashes(token: str) -> str:
    return "--" if len(token) in (3, 4) else token


_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_CURRENCIES = {"\u00a2": "cents", "\u00a3": "#", "\u0080": "$", "\u00a4": "$", "\u20a0": "$", "\u20ac": "$"}
_FRACTIONS = {"\u00bc": "1/4", "\u00bd": "1/2", "\u00be": "3/4", "\u2153": "1/3", "\u2154": "2/3"}


def _renamed(names: dict[str, str]) -> Callable[[str], str]:
    return lambda token: names.get(token, token)


def _constant(text: str) -> Callable[[str], str]:
    return lambda token: text


class _Rule(NamedTuple):
    match: Callable[[str, int], re.Match[str] | None]
    starts: re.Pattern[str]  # the characters with which a match can begin
    write: Callable[[str], str] | None  # the token as it is printed; None prints it unchanged


def _rule(starts: str, pattern: str, write: Callable[[str], str] | None = None) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE).match, re.compile(f"[{starts}]", re.IGNORECASE), write)


_L = LETTERS + "&"  # `&` for entities that stand for letters
_LD = LETTERS + DIGITS + "&"
_Q = r"'\u2019\u0092&"
_AQ = r"'\u2019\u0092`\u2018\u201B\u0091&"

_RULES = (
    _rule("c", r"(c\+\+)"),
    _rule("cf", r"([cf]#)"),
    _rule("c", r"(can)not"),
    _rule("'", r"('t)(?:is|was)"),
    _rule("g", r"(gon)na|(got)ta|(gim)me"),
    _rule("lw", r"(lem)me|(wan)na"),
    _rule("<", rf"({_TAG})", _hard_blanks),
    _rule(r"&\u0096\u0097\u2013-\u2015", r"(&(?:mdash|ndash|MD);|[\u0096\u0097\u2013-\u2015])", _constant("--")),
    _rule("&", "(&amp;)", _constant("&")),
    _rule("&", r"(&(?:HT|TL|UR|LR|QC|QL|QR|odq|cdq|#12);)"),
    _rule(_L, rf"({_WORD}){_QUOTE}{_CLITIC}", _without_soft_hyphens),
    _rule("a-z", rf"([a-z]*[a-mo-z])n{_ANY_QUOTE}t"),
    _rule(_L, f"({_WORD})", _without_soft_hyphens),
    _rule(_Q, rf"({_QUOTE}n{_QUOTE}?)"),
    _rule("ldj", rf"([ldj]{_QUOTE})"),
    _rule("dso", rf"(dunkin{_QUOTE}|somethin{_QUOTE}|ol{_QUOTE})"),
    _rule(_Q, rf"({_QUOTE}em|{_QUOTE}[2-9]0s|{_QUOTE}till?|{_QUOTE}cause)"),
    _rule("a-z", rf"((?-i:[A-HJ-XZn]){_ANY_QUOTE}{_LETTER}{{2,}})"),
    _rule(_L, rf"({_LETTER}*(?-i:[aeiouyA-Z]){_ANY_QUOTE}(?-i:[aeiouA-Z]){_LETTER}*)"),
    _rule("cnesl", r"(cont'd\.?|nor'easter|c'mon|e'er|s'mores|ev'ry|li'l|nat'l)"),
    _rule("o", rf"(o{_ANY_QUOTE}o)"),
    _rule("y", rf"(y{_QUOTE}){_LETTER}"),
    _rule("h", r"(https?://[^ \t\n\r\f\"<>|(){}]+[^ \t\n\r\f\"<>|.!?(){},\-])"),
    _rule(r"^ \t\n", f"({_SITE})"),
    _rule(r"^ \t\n", f"({_SITE}{_PATH})"),
    _rule("a-z0-9<&", f"({_MAIL})"),
    _rule("@\uff20", r"([@\uFF20][a-z_][a-z_0-9]*)"),
    _rule("#", f"(#{_LETTER}+)"),
    _rule(_Q, rf"({_QUOTE}{_CLITIC})[^a-z]", _plain_quote),
    _rule("n", rf"(n{_QUOTE}t)[^a-z]", _plain_quote),
    _rule(DIGITS, rf"({_DIGIT}{{1,2}}[-/]{_DIGIT}{{1,2}}[-/]{_DIGIT}{{2,4}})"),
    _rule(rf"{DIGITS}+\-.:,\u00AD\u066B\u066C", rf"([-+]?{_DIGIT}*(?:[.:,\u00AD\u066B\u066C]{_DIGIT}+)+)"),
    _rule(rf"{DIGITS}+\-", rf"([-+]?{_DIGIT}+)"),
    _rule(
        r"\u207A\u207B\u208A\u208B\u2070\u00B9\u00B2\u00B3\u2074-\u2079\u2080-\u2089",
        r"([\u207A\u207B\u208A\u208B]?(?:[\u2070\u00B9\u00B2\u00B3\u2074-\u2079]+|[\u2080-\u2089]+))",
    ),
    _rule(DIGITS, rf"((?:{_DIGIT}{{1,4}}[- \u00A0])?{_DIGIT}{{1,4}}(?:\\?/|\u2044){_DIGIT}{{1,4}})", _hard_blanks),
    _rule(r"\u00BC-\u00BE\u2153-\u215E", r"([\u00BC-\u00BE\u2153-\u215E])", _renamed(_FRACTIONS)),
    _rule(r"\-", "(-[lr][rsc]b-)"),
    _rule("cpas", r"(c\.d\.s|pro-|anti-|s(?:&|&amp;)p-500|s(?:&|&amp;)ls|cap'n|c'est)", _ampersand),
    _rule("a-z0-9", rf"({_SLASH_PART}(?:\\?/{_SLASH_PART}){{1,2}})"),
    _rule(r"$#a-z", r"((?-i:[A-Z]*\$)|#)"),
    _rule(
        r"\u00A2-\u00A5\u0080\u20A0\u20AC\u060B\u0E3F\u20A4\uFFE0\uFFE1\uFFE5\uFFE6",
        r"([\u00A2-\u00A5\u0080\u20A0\u20AC\u060B\u0E3F\u20A4\uFFE0\uFFE1\uFFE5\uFFE6])",
        _renamed(_CURRENCIES),
    ),
    _rule("a-z", rf"([a-z])\.{_BLANK_OR_END}+(?:{_SENTENCE_STARTS}{_BLANK_OR_END}|{_TAG})"),
    _rule("cfpnabo", rf"((?:{NUMBERED_ABBREVIATIONS})\.){_BLANK_OR_END}?{_DIGIT}"),
    _rule("pc", rf"((?:pt[ye]|co)\.){_BLANK}(?:ltd|lim)"),
    _rule("a-z", rf"((?:{_ABBREVIATIONS})\.)"),
    _rule(_Q, rf"({_QUOTE}{_DIGIT}{{2}}){_BLANK_OR_END}"),
    _rule(_LD, rf"({_ALNUM}+(?:[-._/]{_ALNUM}+)*\.(?:{_FILE_TYPES}))[{_BLANKS}\n.?!,]"),
    _rule(_L, rf"({_WORD}\.){_INSIDE_SENTENCE}", _without_soft_hyphens),
    _rule(_LD, rf"((?:{_HYPHENATED}|{_JOINED})\.){_INSIDE_SENTENCE}", _without_soft_hyphens),
    _rule(
        r"0-9+(",
        r"((?:\([0-9]{2,3}\)[ \u00A0]?|(?:\+\+?)?(?:[0-9]{2,4}[- \u00A0])?[0-9]{2,4}[- \u00A0])"
        r"[0-9]{3,4}[- \u00A0]?[0-9]{3,5})",
        _phone,
    ),
    _rule(r"0-9+", r"((?:(?:\+\+?)?[0-9]{2,4}\.)?[0-9]{2,4}\.[0-9]{3,4}\.[0-9]{3,5})"),
    _rule('"', r'(")[a-z0-9$]', _constant("``")),
    _rule('"', r'(")', _constant("''")),
    _rule("<&", "(<|&lt;)", _constant("<")),
    _rule(">&", "(>|&gt;)", _constant(">")),
    _rule("<>:;=", r"([<>]?[:;=][-o*']?[()DPdpO\\{@|\[\]])[^a-z0-9]", _in_brackets_names),
    _rule(
        r"(^x=~<>'\-",
        r"([\^x=~<>]\.[\^x=~<>]|[-^x=~<>']_[-^x=~<>']|\([-^x=~<>'][_.]?[-^x=~<>']\))",
        _in_brackets_names,
    ),
    _rule(r"(){}\[\]", r"([(){}\[\]])", _renamed(_BRACKETS)),
    _rule(r"\-", "(-+)", _dashes),
    _rule(r".\u2026\u0085", r"(\.{3,5}|(?:\.[ \u00A0]){2,4}\.|[\u2026\u0085])", _constant("...")),
    _rule("@#_", "(@+|#+|_+)"),
    _rule(r"*\\", r"(\*+|(?:\\\*){1,3})"),
    _rule(",;:\u3001", "([,;:\u3001])"),
    _rule("?!", "([?!]+)"),
    _rule(
        r".\u00A1\u00BF\u037E\u0589\u061F\u06D4\u0700-\u0702\u07FA\u3002",
        r"([.\u00A1\u00BF\u037E\u0589\u061F\u06D4\u0700-\u0702\u07FA\u3002])",
    ),
    _rule("=", "(=)"),
    _rule("/", "(/)"),
    _rule("a-z0-9", f"({_HYPHENATED})", _without_soft_hyphens),
    _rule(_LD, f"({_JOINED})", _without_soft_hyphens),
    _rule("a-z", r"((?-i:[A-Z]+(?:(?:[+&]|&amp;)[A-Z]+)+))", _ampersand),
    _rule("'", rf"(')[a-z][^{_BLANKS}\n]", _constant("`")),
    _rule(_Q, rf"({_QUOTE}{_CLITIC})", _plain_quote),
    _rule(
        _AQ + r"\u0093\u0094\u201C\u201D\u00AB\u00BB\u2039\u203A",
        "((?:''|``|[`'\u2018\u2019\u201b\u0091\u0092\u0093\u0094\u201c\u201d\u00ab\u00bb\u2039\u203a]|&apos;))",
        _constant("'"),
    ),
    _rule("<>", "(<<|>>)"),
    _rule(SYMBOLS, f"([{SYMBOLS}])"),
    _rule("&", "(&nbsp;)", _constant("")),
)


@lru_cache(maxsize=65536)
def _rules_for(character: str) -> tuple[_Rule, ...]:
    return tuple(rule for rule in _RULES if rule.starts.match(character))


def lex(text: str) -> Iterator[str]:
    """Split one line into tokens, before lower-casing and before any token is dropped.

    Args:
        text: the line; it must end in `\\n` and hold no other line break.

    Yields:
        The tokens in order. A token may hold U+00A0 where the text had a blank inside a number, telephone number or tag.

    Source: behaviour of `edu.stanford.nlp.process.PTBTokenizer` 3.4.1.
    """
    position, end = 0, len(text)
    while position < end:
        longest, token, write = position, "", None
        for rule in _rules_for(text[position]):
            match = rule.match(text, position)
            if match is not None and match.end() > longest:
                longest, token, write = match.end(), match[match.lastindex or 1], rule.write
        if longest == position:
            position += 1
            continue
        position += len(token)
        token = write(token) if write else token
        if token:
            yield token

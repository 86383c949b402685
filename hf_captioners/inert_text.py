"""Escaping of untrusted text in Markdown: no tags, links, images or metadata."""

import re

LINKS = re.compile(r"://|@|\b(?=www\.)", re.IGNORECASE)
LINK_PARTS = {"://": "&#58;//", "@": "&#64;", "": "&#8203;"}


def inert_text(text: object, links: bool = False) -> str:
    """Escape a text for one line of Markdown and HTML, also in table cells.

    Args:
        text: the text; None is empty.
        links: leave addresses that begin with `http://` or `https://` clickable.
    """
    line = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "&#96;")
    line = re.sub(r"([\\|\[\]])", r"\\\1", line)
    return line if links else LINKS.sub(lambda match: LINK_PARTS[match[0]], line)


def one_line(text: object) -> str:
    """Return a text with white space collapsed to spaces, and lone surrogates replaced."""
    content = "" if text is None else str(text)
    return " ".join(content.encode("utf-8", "replace").decode("utf-8").split())


def code_span(text: object) -> str:
    """Return a text as Markdown code, also for table cells."""
    line = one_line(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}" if line else ""

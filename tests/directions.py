"""Directions of the texts of a page: Arabic runs from right to left where an element lets its text decide."""

from html.parser import HTMLParser

VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


class DirectionParser(HTMLParser):
    """Collects the texts of a page, each with the direction of the nearest element that has one, or None."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("dir", "auto" if tag == "bdi" else None)))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if data.strip() and "style" not in [tag for tag, _ in self.open]:
            self.texts.append((data.strip(), next((value for _, value in reversed(self.open) if value), None)))


def directions(page):
    """Return the set of directions of each text of a page: `auto`, `ltr`, `rtl` or None."""
    parser = DirectionParser()
    parser.feed(page)
    found = {}
    for text, direction in parser.texts:
        found.setdefault(text, set()).add(direction)
    return found

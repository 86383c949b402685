"""Reviews in a real browser: random leaving, undo, kills of the server; no word that was typed is lost."""

import json
import random

import pytest
from PIL import Image

from hf_captioners.data.generated_captions import record_generated, text_digest
from tests.browser import open_browser

pytest.importorskip("selenium", reason="selenium belongs to the extra `test`")
from selenium.webdriver.common.keys import Keys  # noqa: E402

from tests.review.review_page import ReviewPage, Server, wait_for  # noqa: E402

LOOKS = [(390, "dark"), (1280, "light"), (390, "light"), (1280, "dark")]
SENTENCES = [
    "a brown dog runs on the beach",
    "Ein Hund läuft über die Straße.",
    "كلب بني يركض على الشاطئ",
    "一只狗在海滩上奔跑。",
    "שני ילדים משחקים בכדור 🏐",
    'she said "no" \\ {x} <b>&amp;</b>',
]
LEAVE = {
    "next": lambda page: page.alt(Keys.ARROW_RIGHT),
    "previous": lambda page: page.alt(Keys.ARROW_LEFT),
    "skip": lambda page: page.press(Keys.ESCAPE),
    "overview": lambda page: page.alt("o"),
    "filter": lambda page: (page.alt("l"), page.press("k", Keys.ENTER), page.alt("l"), page.press("a", Keys.ENTER)),
    "reload": lambda page: page.browser.refresh(),
    "another page": lambda page: page.leave(),
}


@pytest.mark.parametrize("images, kills", [(12, 1), pytest.param(300, 5, marks=pytest.mark.slow)])
def test_no_word_is_lost(tmp_path, images, kills):
    digests = {}
    for number in range(images):
        Image.new("RGB", (60, 40), (number % 256, 90, 120)).save(tmp_path / f"{number:03}.png")
        (tmp_path / f"{number:03}.txt").write_text(f"generated {number}\n")
        digests[f"{number:03}.txt"] = text_digest(f"generated {number}")
    record_generated(tmp_path, digests)
    server = Server(tmp_path)
    try:
        with open_browser(waits="none") as browser:
            session = Session(ReviewPage(browser, server.address), server, images)
            session.review(kills)
            session.keep_drafts()
        printed = server.end()
    finally:
        server.process.kill()
    kept, rejected = session.kept, session.rejected
    rows = [json.loads(line) for line in (tmp_path / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["file_name"]: row["captions"] for row in rows if "rejected" not in row} == {
        f"{number:03}.png": captions for number, captions in kept.items()
    }
    assert {row["file_name"]: row["captions"] for row in rows if row.get("rejected")} == {
        f"{number:03}.png": captions for number, captions in rejected.items()
    }
    assert len(rows) == images
    for number in range(images):
        text = (tmp_path / f"{number:03}.txt").read_text(encoding="utf-8")
        assert text == "".join(f"{line}\n" for line in kept.get(number, [f"generated {number}"]))
    assert f"{len(kept)} of {images} images have captions" in printed and "drafts" not in printed
    print(f"{images} images, {kills} kills: {len(kept)} kept, {len(rejected)} rejected, {session.counts}")


class Session:
    """Actions of a person at the keyboard, and the captions that should be there afterwards."""

    def __init__(self, page, server, images):
        self.page, self.server, self.images = page, server, images
        self.random = random.Random(17)
        self.kept, self.rejected, self.drafts, self.counts = {}, {}, {}, {}

    def review(self, kills):
        order = self.random.sample(range(self.images), self.images)
        killed = set(order[self.images // (2 * kills) :: self.images // kills][:kills])
        quarter = -(-self.images // len(LOOKS))
        self.page.open(order[0])
        for place, number in enumerate(order):
            if place % quarter == 0:
                self.page.look(*LOOKS[place // quarter])
            if not self.page.is_shown:
                self.page.open(number)
            else:
                self.page.jump(number)
            self.one(number, number in killed)
            assert not self.page.is_wide

    def one(self, number, is_killed):
        page, captions = self.page, self.sentences(number)
        if is_killed:
            captions = captions[:1]  # stored as a whole or not at all
        page.type(*captions)
        assert not page.is_covered
        if is_killed:
            return self.kill(number, captions)
        action = self.random.choice(["keep", "keep", "keep and undo", "reject", *LEAVE])
        self.counts[action] = self.counts.get(action, 0) + 1
        if action.startswith("keep"):
            self.decide(number, captions, self.kept, lambda: page.press(Keys.ENTER))
            if action == "keep and undo":
                page.alt("z")
                self.wait_for_draft(number, self.kept.pop(number))
        elif action == "reject":
            self.decide(number, captions, self.rejected, lambda: page.alt("r"))
        else:
            LEAVE[action](page)
            self.wait_for_draft(number, captions)

    def sentences(self, number):
        chosen = self.random.sample(SENTENCES, self.random.choice([1, 1, 2, 3]))
        return [f"{sentence} {number}" for sentence in chosen]

    def decide(self, number, captions, decided, press):
        """Keep or reject, and agree where the page asks."""
        page, is_kept = self.page, decided is self.kept
        press()
        word = "kept" if is_kept else "rejected"
        wait_for(lambda: page.is_asking or f"{number:03}.png is {word}" in page.text("message"))
        if page.is_asking:
            page.press(Keys.ENTER)
            wait_for(lambda: f"{number:03}.png is {word}" in page.text("message"))
        decided[number] = captions
        self.drafts.pop(number, None)
        self.wait_for_state(number, captions, draft=False)

    def wait_for_draft(self, number, captions):
        self.drafts[number] = captions
        self.wait_for_state(number, captions, draft=True)

    def wait_for_state(self, number, captions, draft):
        """Wait until the server has what was typed; another page asks it once it is back."""
        if not self.page.is_there:
            self.page.open(number)
        found = {}

        def is_stored():
            found.update(self.page.ask(f"captions/{number}"))
            return found["captions"] == captions and found["draft"] is draft

        wait_for(is_stored, 20)

    def kill(self, number, captions):
        """Kill the server while captions are typed or kept; what the page says is not stored is typed again."""
        page, is_keeping = self.page, self.random.random() < 0.5
        if is_keeping:
            page.press(Keys.ENTER)
        self.server.kill()
        if not page.is_asking:
            page.type_at_end("!")
            wait_for(lambda: page.is_error, 20)
            assert "not stored yet" in page.text("message") and page.captions == [*captions[:-1], captions[-1] + "!"]
        self.server.start()
        page.open(number, self.server.address)
        if page.captions == captions:
            assert page.text("source") in ("(draft, not kept yet)", "(kept already)")
        else:  # killed before the request came: only the page before had these words, and said so
            assert page.captions == [f"generated {number}"]
            page.type(*captions)
            self.counts["typed again"] = self.counts.get("typed again", 0) + 1
        self.decide(number, captions, self.kept, lambda: page.press(Keys.ENTER))
        self.counts["kill"] = self.counts.get("kill", 0) + 1

    def keep_drafts(self):
        """Keep each draft, one after the other, with the filter of drafts."""
        page = self.page
        page.open()
        folder = page.ask("folder")
        found = [sorted(folder[name]) for name in ("kept", "rejected", "drafts")]
        assert found == [sorted(self.kept), sorted(self.rejected), sorted(self.drafts)]
        for number, captions in sorted(self.drafts.items()):
            page.jump(number)
            assert page.captions == captions and page.text("source") == "(draft, not kept yet)"
            self.decide(number, captions, self.kept, lambda: page.press(Keys.ENTER))

"""The review page in a real browser: keys, the question before the first write, text that is no HTML, width."""

import pytest
from PIL import Image

from hf_captioners.review.table import ReviewTable
from tests.browser import open_browser

pytest.importorskip("selenium", reason="selenium belongs to the extra `test`")
from selenium.webdriver.common.keys import Keys  # noqa: E402

from tests.review.review_page import ReviewPage, Server, wait_for  # noqa: E402

HOSTILE = "<img src=x onerror=\"document.title='run'\">"


@pytest.fixture
def table(tmp_path):
    for name, colour in (("a.png", "red"), ("b.png", "blue"), ("d.png", "green")):
        Image.new("RGB", (300, 200), colour).save(tmp_path / name)
        (tmp_path / name).with_suffix(".txt").write_text(f"{HOSTILE} {name}\n")
    (tmp_path / "c.png").write_bytes(b"no image")
    return ReviewTable(tmp_path)


@pytest.fixture
def address(table):
    server = Server(table.folder)
    yield server.address
    server.kill()


def test_captions_are_corrected_kept_and_skipped_by_keyboard(table, address):
    with open_browser(width=390, height=844) as browser:
        page = ReviewPage(browser, address)
        page.open()
        wait_for(lambda: page.part("image").get_property("naturalWidth") == 300)
        assert page.text("name") == "a.png" and page.captions == [f"{HOSTILE} a.png"] and not page.is_wide
        page.press(" and more", Keys.ENTER)
        wait_for(lambda: page.part("ask").get_property("open"))
        assert not table.path.exists()
        page.part("no").send_keys(Keys.ENTER)
        wait_for(lambda: page.text("message") == "Nothing was written.")
        page.part("keep").click()
        wait_for(lambda: page.part("ask").get_property("open"))
        page.press(Keys.ENTER)  # the answer yes has the keyboard
        page.wait_shown(1)
        assert table.rows() == {"a.png": [f"{HOSTILE} a.png and more"]}
        page.press(Keys.ESCAPE)  # skipped
        wait_for(lambda: "c.png" in page.part("fault").text)
        assert not page.part("image").is_displayed()
        page.press(Keys.ESCAPE)
        page.wait_shown(3)
        page.press(Keys.SHIFT, Keys.ENTER, Keys.NULL, "second", Keys.ENTER)
        page.wait_shown(1)
        assert table.rows()["d.png"] == [f"{HOSTILE} d.png", "second"] and "b.png" not in table.rows()
        page.alt(Keys.ARROW_LEFT)
        page.wait_shown(0)
        assert page.text("source") == "(kept already)" and page.text("kept") == "2 kept"
        assert browser.title == "Review captions"
        faults = [entry["message"] for entry in browser.get_log("browser") if "images/2" not in entry["message"]]
        assert [fault for fault in faults if "409" not in fault] == []

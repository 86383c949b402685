"""The review page in a real browser: keys, the question before the first write, text that is no HTML, width."""

import json

import pytest
from PIL import Image

from hf_captioners.data.generated_captions import record_generated, text_digest
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
    with open_browser(width=390, height=844, waits="none") as browser:
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
        page.press(Keys.SHIFT, Keys.ENTER)
        page.press("second", Keys.ENTER)
        page.wait_shown(1)
        assert table.rows()["d.png"] == [f"{HOSTILE} d.png", "second"] and "b.png" not in table.rows()
        page.alt(Keys.ARROW_LEFT)
        page.wait_shown(0)
        assert page.text("source") == "(kept already)" and page.text("kept") == "2 kept"
        assert browser.title == "Review captions"
        faults = [entry["message"] for entry in browser.get_log("browser") if "images/2" not in entry["message"]]
        assert [fault for fault in faults if "409" not in fault] == []


LEAVING = {
    "Alt+arrow": lambda page: page.alt(Keys.ARROW_RIGHT),
    "Esc": lambda page: page.press(Keys.ESCAPE),
    "button": lambda page: page.part("next").click(),
    "jump": lambda page: page.jump(3),
    "filter": lambda page: (page.alt("l"), page.press("r", Keys.ENTER)),
    "overview": lambda page: (page.alt("o"), page.press(Keys.ARROW_RIGHT, Keys.ENTER)),
    "reload": lambda page: page.browser.refresh(),
    "another page": lambda page: page.leave(),
}


def test_a_caption_that_is_not_kept_is_a_draft_however_the_image_is_left(table, address):
    with open_browser(waits="none") as browser:
        page = ReviewPage(browser, address)
        for number, (way, leave) in enumerate(LEAVING.items()):
            page.open(1)
            page.type(f"typed before {way}")
            leave(page)
            page.open(1)
            assert page.captions == [f"typed before {way}"] and page.text("source") == "(draft, not kept yet)", way
            assert page.text("drafts") == "1 draft"
            if number % 2:
                page.alt("z")
                wait_for(lambda: "Undone: the change of the text of b.png." in page.text("message"))
                wait_for(lambda typed=f"typed before {way}": page.captions != [typed])
        page.type(f"{HOSTILE} b.png")  # as it was proposed
        wait_for(lambda: page.text("drafts") == "0 drafts")
    assert not table.path.exists() and (table.folder / "b.txt").read_text() == f"{HOSTILE} b.png\n"


def test_images_are_kept_rejected_found_and_brought_back_by_keyboard(table, address):
    record_generated(table.folder, {"a.txt": text_digest(f"{HOSTILE} a.png")})
    with open_browser(width=390, height=844, waits="none") as browser:
        page = ReviewPage(browser, address)
        page.open(0)
        page.type("ein Hund", "كلب يجري", "一只狗在海滩上奔跑。")
        page.press(Keys.ENTER)
        wait_for(lambda: page.part("ask").get_property("open"))
        assert "in 1 text file(s)." in page.text("question")
        page.press(Keys.ENTER)
        page.wait_shown(1)
        kept = ["ein Hund", "كلب يجري", "一只狗在海滩上奔跑。"]
        assert table.rows() == {"a.png": kept}
        assert (table.folder / "a.txt").read_text(encoding="utf-8").splitlines() == kept
        page.alt("r")
        page.wait_shown(2)
        assert table.stored()["b.png"].rejected and page.text("rejected") == "1 rejected"
        page.alt("g")
        page.press("D.PNG", Keys.ENTER)  # by name
        page.wait_shown(3)
        page.alt("l")
        page.press("r", Keys.ENTER)  # the filter: rejected
        page.wait_shown(1)
        page.alt("o")
        badges = (
            "return [...document.querySelectorAll('#grid button')].map((one) => one.innerText.split('\\n').at(-1))"
        )
        wait_for(lambda: browser.execute_script(badges) == ["Rejected"])
        assert not page.is_wide
        page.alt("z")
        wait_for(lambda: "Undone: rejecting the image of b.png." in page.text("message"))
        page.alt("z")
        wait_for(lambda: "Undone: keeping the captions of a.png." in page.text("message"))
        page.wait_shown(0)
        assert page.captions == kept and page.text("source") == "(draft, not kept yet)"
        assert not table.path.exists() and (table.folder / "a.txt").read_text() == f"{HOSTILE} a.png\n"
        page.press(Keys.ALT, Keys.SHIFT, "z")
        wait_for(lambda: "Done again" in page.text("message"))
        assert [json.loads(line)["captions"] for line in table.path.read_text().splitlines()] == [kept]
        assert page.browser.execute_script("return getComputedStyle(document.querySelector('kbd')).display") == "none"

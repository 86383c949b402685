"""The review page in a real browser: keys, the question before the first write, text that is no HTML, width."""

import socket
import threading
import time

import pytest
from PIL import Image

from hf_captioners.review.server import review_app
from hf_captioners.review.table import ReviewTable
from tests.browser import open_browser

TOKEN = "token"
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
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(review_app(table, host, TOKEN), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://{host}/{TOKEN}/"
        finally:
            server.should_exit = True
            thread.join()


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.05)


def test_captions_are_corrected_kept_and_skipped_by_keyboard(table, address):
    with open_browser(width=390, height=844) as browser:
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        def part(name):
            return browser.find_element(By.ID, name)

        def shown(name):
            return lambda: part("name").text == name and part("captions").is_displayed()

        browser.get(address)
        wait_for(shown("a.png"))
        wait_for(lambda: part("image").get_property("naturalWidth") == 300)
        assert part("captions").get_property("value") == f"{HOSTILE} a.png"
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        part("captions").send_keys(" and more", Keys.ENTER)
        wait_for(lambda: part("ask").get_property("open"))
        assert not table.path.exists()
        part("no").click()
        wait_for(lambda: part("message").text == "Nothing was written.")
        part("keep").click()
        wait_for(lambda: part("ask").get_property("open"))
        part("yes").click()
        wait_for(shown("b.png"))
        assert table.rows() == {"a.png": [f"{HOSTILE} a.png and more"]}
        part("captions").send_keys(Keys.ESCAPE)  # skipped
        wait_for(lambda: "c.png" in part("fault").text)
        assert not part("image").is_displayed()
        part("captions").send_keys(Keys.ESCAPE)
        wait_for(shown("d.png"))
        part("captions").send_keys(Keys.SHIFT + Keys.ENTER + Keys.NULL, "second", Keys.ENTER)
        wait_for(shown("b.png"))
        assert table.rows()["d.png"] == [f"{HOSTILE} d.png", "second"] and "b.png" not in table.rows()
        part("captions").send_keys(Keys.ALT + Keys.ARROW_LEFT + Keys.NULL)
        wait_for(shown("a.png"))
        assert part("source").text == "(kept already)" and part("kept").text == "2 kept"
        assert browser.title == "Review captions"
        faults = [entry["message"] for entry in browser.get_log("browser") if "images/2" not in entry["message"]]
        assert [fault for fault in faults if "409" not in fault] == []

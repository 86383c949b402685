"""The review page in a browser, operated by keyboard, and its server as a process that can be killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser import TOO_WIDE

MODIFIERS = (Keys.ALT, Keys.CONTROL, Keys.SHIFT)


def wait_for(condition, seconds=60):
    """Wait until a condition holds, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.02)
    return value


class Server:
    """`hf-captioners review` of a folder."""

    def __init__(self, folder):
        self.command = [sys.executable, "-u", "-m", "hf_captioners.cli", "review", str(folder)]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        printed = ""
        while (found := re.search(r"Open (\S+) in", printed)) is None:
            line = self.process.stdout.readline()
            assert line, printed
            printed += line
        self.address = found[1]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        printed = self.process.communicate(timeout=60)[0]
        assert self.process.returncode == 0
        return printed


class ReviewPage:
    """The page as a person at the keyboard sees it.

    Args:
        browser: see `tests.browser.open_browser`.
        address: URL of the page.
    """

    def __init__(self, browser, address):
        self.browser, self.address = browser, address

    def open(self, number=None, address=None):
        """Open the page anew, at an image or at the first one that is not reviewed."""
        self.address = address or self.address
        self.leave()
        self.browser.get(self.address + ("" if number is None else f"#{number + 1}"))
        self.wait_shown(number)

    def leave(self):
        """Go to another page."""
        self.browser.get("about:blank")
        wait_for(lambda: self.browser.execute_script("return location.href") == "about:blank")

    def look(self, width, scheme):
        """Set the width and the colours of the page."""
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def part(self, name):
        return self.browser.find_element(By.ID, name)

    def text(self, name):
        script = "return document.getElementById(arguments[0])?.textContent ?? ''"  # none while the page loads
        return self.browser.execute_script(script, name)

    @property
    def captions(self):
        script = "return [...document.querySelectorAll('#captions textarea')].map((field) => field.value)"
        return self.browser.execute_script(script)

    @property
    def number(self):
        return int(re.search(r"Image (\d+)", self.text("place"))[1]) - 1

    @property
    def is_error(self):
        return self.browser.execute_script("return document.getElementById('message')?.className === 'error'")

    @property
    def is_there(self):
        """Whether the browser shows the page."""
        return self.browser.execute_script("return document.getElementById('place')?.textContent.startsWith('Image')")

    @property
    def is_shown(self):
        """Whether an image is shown, not another page or the overview."""
        script = "return document.getElementById('one')?.hidden === false"
        return self.is_there and self.browser.execute_script(script)

    @property
    def is_asking(self):
        return self.browser.execute_script("return document.getElementById('ask')?.open === true")

    @property
    def is_wide(self):
        return self.browser.execute_script(TOO_WIDE)

    @property
    def is_covered(self):
        """Whether another part of the page, such as the buttons, covers the field with the keyboard."""
        script = """const field = document.activeElement, box = field.getBoundingClientRect();
        return field.tagName === 'TEXTAREA' && document.elementFromPoint(box.left + 4, box.bottom - 4) !== field"""
        return self.browser.execute_script(script)

    def wait_shown(self, number=None):
        """Wait until an image is shown, and the keyboard is in its first field."""
        script = """const place = document.getElementById('place')?.textContent ?? "";
        const at = place.startsWith(arguments[0] === null ? "Image " : `Image ${arguments[0]} `);
        return at && document.activeElement?.tagName === 'TEXTAREA'"""
        wait_for(lambda: self.browser.execute_script(script, None if number is None else number + 1))

    def press(self, *keys):
        """Press keys; modifiers are held down until the end."""
        actions = ActionChains(self.browser)
        held = [key for key in keys if key in MODIFIERS]
        for key in held:
            actions.key_down(key)
        actions.send_keys(*(key for key in keys if key not in MODIFIERS))
        for key in held:
            actions.key_up(key)
        actions.perform()

    def alt(self, key):
        self.press(Keys.ALT, key)

    def type(self, *captions):
        """Replace the caption in the first field, and add the others with Shift+Enter."""
        self.press(Keys.CONTROL, "a")
        for place, caption in enumerate(captions):
            if place:
                self.press(Keys.SHIFT, Keys.ENTER)
            self.browser.execute_cdp_cmd("Input.insertText", {"text": caption})

    def type_at_end(self, text):
        self.browser.execute_cdp_cmd("Input.insertText", {"text": text})

    def jump(self, number):
        self.alt("g")
        self.press(str(number + 1), Keys.ENTER)
        self.wait_shown(number)

    def ask(self, path):
        """Return the answer of the server to a request of the page."""
        script = "const [path, end] = arguments; fetch(path).then((answer) => answer.text()).then(end)"
        return json.loads(self.browser.execute_async_script(script, path))

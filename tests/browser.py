"""A real browser for tests of pages: Debian's Chromium with its driver, without a window."""

import shutil
from contextlib import contextmanager

import pytest

PROGRAMS = ("chromium", "chromedriver")


@contextmanager
def open_browser(width=1200, height=900):
    """Yield a browser, see `selenium.webdriver.Chrome`; the test is skipped where there is none.

    Args:
        width: of the page in pixels; Chromium's windows have at least 500, so that it is set by emulation.
        height: of the page in pixels.
    """
    paths = [shutil.which(name) for name in PROGRAMS]
    if None in paths:
        pytest.skip("no Chromium with its driver: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, Service(paths[1]))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield browser
    finally:
        browser.quit()

"""Browser for tests of web pages: Debian's Chromium with its driver, headless."""

import shutil
from contextlib import contextmanager

import pytest

PROGRAMS = ("chromium", "chromedriver")


@contextmanager
def open_browser(width=1200, height=900, waits="normal"):
    """Yield a `selenium.webdriver.Chrome` browser; skip the test if none is installed.

    Args:
        width: of the page in pixels; Chromium's windows have at least 500, so that it is set by emulation.
        height: of the page in pixels.
        waits: strategy for pages that load, see `selenium.webdriver.ChromeOptions.page_load_strategy`.
    """
    paths = [shutil.which(name) for name in PROGRAMS]
    if None in paths:
        pytest.skip("no Chromium with its driver: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium belongs to the extra `test`")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.page_load_strategy = waits
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


LOADED = """
const [ended] = arguments, wait = (image) => image.decode().then(() => null, () => image.alt || image.src);
const nested = [...document.querySelectorAll("svg image")].map((one) => {
  const image = new Image();
  image.src = one.href.baseVal;
  return image;
});
Promise.all([...document.images, ...nested].map(wait)).then((found) => ended(found.filter((one) => one !== null)));
"""
TOO_WIDE = """
if (!document.body) return [];
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= width) return [];
const scrolls = (one) => one && (getComputedStyle(one).overflowX !== "visible" || scrolls(one.parentElement));
const wide = [...document.body.querySelectorAll("*")].filter((one) => one.getBoundingClientRect().right > width + 1);
return wide.filter((one) => !scrolls(one)).slice(0, 5).map((one) => one.outerHTML.slice(0, 100));
"""


def look_at(browser, address):
    """Open a page; check that it fits the window, its images load, and no script fails.

    Args:
        browser: see `open_browser`.
        address: URL of the page, or a path.

    Returns:
        The visible text of the page.
    """
    browser.get(address.absolute().as_uri() if hasattr(address, "as_uri") else address)
    assert browser.execute_script("return document.readyState") == "complete"
    broken = browser.execute_async_script(LOADED)
    assert not broken, f"images of {address} do not load: {[one[:100] for one in broken]}"
    wide = browser.execute_script(TOO_WIDE)
    assert not wide, f"{address} is wider than the window: {wide}"
    faults = [entry["message"] for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
    assert not faults, f"messages of {address}: {faults}"
    return browser.execute_script("return document.body.innerText")

"""Compare captions of photographs in headless Chromium with those of `OnnxCaptioner`.

    python benchmarks/browser_captions.py my_captioner_onnx $HF_CAPTIONERS_DATA_DIR/flickr8k/validation \
        --output benchmarks/results/browser_captions.json

It needs npm, Chromium and its driver (Debian: apt-get install chromium chromium-driver).
"""

import argparse
import functools
import http.server
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provenance import write_results

PAGE = Path(__file__).parents[1] / "examples" / "browser_captioner"
SECONDS = 300  # for loading, and for one caption


def install_page(folder: Path, exported: Path) -> None:
    """Copy the page and an exported captioner into a new folder, and install onnxruntime-web there.

    Raises:
        subprocess.CalledProcessError: npm fails.
    """
    shutil.copytree(PAGE, folder, ignore=shutil.ignore_patterns("node_modules", "captioner"), dirs_exist_ok=True)
    shutil.copytree(exported, folder / "captioner")
    command = ["npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Context that serves a folder on 127.0.0.1 and yields its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *values: Any) -> None:
            """Suppress the request log."""

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def open_page(browser: Any, address: str) -> None:
    """Open the page, and wait until the captioner is loaded.

    Raises:
        RuntimeError: it cannot be loaded; the message is that of the page.
    """
    browser.set_script_timeout(SECONDS)
    browser.get(f"{address}/index.html")
    wait_for(browser, "return document.body.dataset.state")
    if browser.execute_script("return document.body.dataset.state") != "ready":
        raise RuntimeError(browser.execute_script("return document.getElementById('status').textContent"))


def caption_in_page(browser: Any, path: Path) -> str:
    """Choose a file on the page and return its caption."""
    before = browser.execute_script("return document.getElementById('photo').src")
    browser.find_element("id", "file").send_keys(str(path.resolve()))
    status = "document.getElementById('status').textContent"
    changed = f"return document.getElementById('photo').src !== arguments[0] && /this machine/.test({status})"
    wait_for(browser, changed, before)
    return browser.execute_script("return document.getElementById('caption').textContent")


def wait_for(browser: Any, script: str, *values: Any) -> None:
    """Poll the page until a script returns a value.

    Raises:
        TimeoutError: it does not.
    """
    end = time.monotonic() + SECONDS
    while not browser.execute_script(script, *values):
        if time.monotonic() > end:
            status = browser.execute_script("return document.getElementById('status').textContent")
            raise TimeoutError(f"the page says {status!r}; its log: {browser.get_log('browser')}")
        time.sleep(0.05)


def requested_hosts(browser: Any) -> set[str]:
    """Return the hosts from which the page loaded any resource."""
    script = "return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).hostname)"
    return set(browser.execute_script(script))


@contextmanager
def headless_browser() -> Iterator[Any]:
    """Context that yields Chromium without a window."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


def main() -> None:
    """Caption photographs in the browser and in Python, and write how many captions are equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exported", type=Path, help="exported captioner of images")
    parser.add_argument("photographs", type=Path, help="folder of JPEG files")
    parser.add_argument("--count", type=int, default=20, help="the first photographs by name; default: 20")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()

    from hf_captioners.onnx import OnnxCaptioner

    captioner = OnnxCaptioner(arguments.exported, threads=1)
    rows = []
    with tempfile.TemporaryDirectory() as folder, headless_browser() as browser:
        install_page(Path(folder), arguments.exported)
        with serving(Path(folder)) as address:
            open_page(browser, address)
            for path in sorted(arguments.photographs.glob("*.jpg"))[: arguments.count]:
                start = time.perf_counter()
                caption = caption_in_page(browser, path)
                seconds = time.perf_counter() - start
                expected = captioner(str(path))[0]["generated_text"]
                rows.append({"image": path.name, "browser": caption, "onnx_captioner": expected, "seconds": seconds})
                print(f"{path.name}\t{caption == expected}\t{caption}")
            hosts = requested_hosts(browser)
            version = browser.capabilities["browserVersion"]
    result = {
        "architecture": captioner.facts["architecture"],
        "weights": captioner.facts["weights"],
        "options": captioner.facts["generation"],
        "images": len(rows),
        "equal": sum(row["browser"] == row["onnx_captioner"] for row in rows),
        "median_seconds": sorted(row["seconds"] for row in rows)[len(rows) // 2],
        "hosts": sorted(hosts),
        "chromium": version,
        "onnxruntime_web": json.loads((PAGE / "package.json").read_text())["dependencies"]["onnxruntime-web"],
        "different": [row for row in rows if row["browser"] != row["onnx_captioner"]],
    }
    print(json.dumps(result, indent=2))
    if arguments.output:
        write_results(arguments.output, result)


if __name__ == "__main__":
    main()

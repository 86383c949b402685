"""The page of a Space and the one of docs/pipelines.md: served by Gradio, and used in a real browser."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from transformers import pipeline

import hf_captioners  # noqa: F401
from hf_captioners.cli import main
from hf_captioners.pipelines.image_captioning import bundle_pipeline
from tests.browser import open_browser

from .captioner_cases import save_captioner

gradio = pytest.importorskip("gradio", reason="tested in an environment of its own: make test-extra-space")
PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
IMAGE = Image.linear_gradient("L").resize((40, 30)).convert("RGB")
SECONDS = 300


@pytest.fixture
def my_captioner(tmp_path):
    """The folder of a tiny captioner, and its pipeline."""
    save_captioner("visualgpt", tmp_path / "my_captioner")
    return pipeline("image-captioning", model=str(tmp_path / "my_captioner"))


def wait_for(condition, process):
    end = time.monotonic() + SECONDS
    while not (value := condition()):
        assert process.poll() is None, f"the page ended: {process.stdout.read()}"
        assert time.monotonic() < end, "the page did not get there"
        time.sleep(0.2)
    return value


def accepts(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def caption_on_page(script, folder, environment):
    """Run a script that serves a page, caption an image there, and return the caption and the text of the page."""
    IMAGE.save(folder / "photo.png")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, **environment, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: accepts(port), process)
        with open_browser(width=390, height=844) as browser:
            browser.get(f"http://127.0.0.1:{port}")
            (chooser, *_) = wait_for(lambda: browser.find_elements("css selector", "input[type=file]"), process)
            chooser.send_keys(str(folder / "photo.png"))
            wait_for(
                lambda: browser.find_elements("css selector", "[data-testid=image] img, .image-frame img"), process
            )
            buttons = browser.find_elements("css selector", "button.primary")
            buttons[0].click()
            caption = wait_for(lambda: browser.find_element("css selector", "textarea").get_property("value"), process)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
            return caption, browser.execute_script("return document.body.innerText")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_page_of_a_space(hub, my_captioner, tmp_path):
    """The files of the Space as they were pushed; the captioner comes from the Hub."""
    assert main(["push", str(tmp_path / "my_captioner"), "captioner", "--space"]) == 0
    folder = tmp_path / "space"
    folder.mkdir()
    for name, content in hub.repository("tester/captioner", "space").files().items():
        (folder / name).write_bytes(content)
    environment = {**hub.environment(tmp_path / "space_home"), "HF_HUB_OFFLINE": "0"}
    caption, text = caption_on_page(folder / "app.py", folder, environment)
    assert caption == my_captioner(IMAGE)[0]["generated_text"]
    assert "Captions by tester/captioner. They may name objects that are not in the image." in text


@pytest.mark.slow
def test_the_page_of_the_documentation(my_captioner, tmp_path):
    """Typed as printed; and the function that the text says does not take the pipeline does not take it."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    (block,) = (block for block in blocks if "import gradio" in block)
    (tmp_path / "page.py").write_text(block, encoding="utf-8")
    bundle_pipeline(str(tmp_path / "my_captioner"))
    caption, _ = caption_on_page(tmp_path / "page.py", tmp_path, {})
    assert caption == my_captioner(IMAGE)[0]["generated_text"]
    with pytest.raises(ValueError, match=r"transformers\.pipeline"):
        gradio.Interface.from_pipeline(my_captioner)

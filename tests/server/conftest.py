"""Fixtures: images and captioner from the tests of the command line, and a server thread."""

import asyncio
import os
import threading
import time
from contextlib import contextmanager

import pytest
from aiohttp import web

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.image_list import find_images
from hf_captioners.server.application import make_application
from tests.cli.conftest import captioner, images, language_model, offline, scenes, vision_model  # noqa: F401


@pytest.fixture(scope="session")
def caption(captioner):  # noqa: F811
    """A captioner that records the sizes of its batches."""

    class Noted(CaptionBatches):
        sizes: list[int] = []

        def caption(self, prepared, options=None):
            self.sizes.append(len(prepared.items))
            return super().caption(prepared, options)

    return Noted(load_pipeline(captioner, device="cpu"), num_beams=1, max_new_tokens=8)


@pytest.fixture(scope="session")
def contents(images):  # noqa: F811
    """The bytes of the images."""
    return [open(path, "rb").read() for path in find_images([str(images)])]


def port_of(server, log):
    """Wait until a server process listens, and return its port."""
    deadline = time.monotonic() + 300
    while "Running on http://127.0.0.1:" not in (text := log.read_text()):
        assert server.poll() is None and time.monotonic() < deadline, text[-3000:]
        time.sleep(0.1)
    return int(text.partition("127.0.0.1:")[2].split()[0])


@contextmanager
def command_serves(fork_server, captioner, folder, *typed):  # noqa: F811
    """Run the `serve` command in a folder; yield its process and port."""
    command = ["-m", "hf_captioners.cli", "serve", captioner, "--port", "0", "--device", "cpu", "--num_beams", "1"]
    with open(folder / "log.txt", "w") as log:
        server = fork_server.start([*command, *typed], log, log, cwd=folder, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        yield server, port_of(server, folder / "log.txt")
    finally:
        server.terminate()
        server.wait()


@contextmanager
def served(caption, **options):
    """Context manager that serves a captioner in a thread; yields the port."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    ports = []

    async def start():
        runner = web.AppRunner(make_application(caption, **options), access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ports.append(site._server.sockets[0].getsockname()[1])
        started.set()
        return runner

    def run():
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(60)
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)

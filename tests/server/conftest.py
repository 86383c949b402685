"""The images and the captioner of the tests of the command line, and a server in a thread of this process."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
from aiohttp import web

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.server.application import make_application
from tests.cli.conftest import captioner, images, language_model, offline, scenes, vision_model  # noqa: F401


@pytest.fixture(scope="session")
def caption(captioner):  # noqa: F811
    """A captioner that notes the sizes of its batches."""

    class Noted(CaptionBatches):
        sizes: list[int] = []

        def caption(self, prepared):
            self.sizes.append(len(prepared.items))
            return super().caption(prepared)

    return Noted(load_pipeline(captioner, device="cpu"), num_beams=1, max_new_tokens=8)


@contextmanager
def served(caption, **options):
    """Serve a captioner as the command does, and return the port."""
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

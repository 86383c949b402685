"""The application of the server: its addresses, and the requests that it refuses."""

import asyncio
import ipaddress
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from hf_captioners.captioning.columns import CaptionBatches

from .request_batches import CaptioningFailedError, RequestBatches, UnreadableImageError

logger = logging.getLogger(__name__)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
RETRY_SECONDS = 1  # after which a refused client may try again
NO_DESCRIPTORS = "socket.accept() out of system resource"  # message of asyncio
REPORT_SECONDS = 60  # between two reports of it


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Args:
        max_bytes: largest body in bytes.
        max_requests: requests that are received, wait or are captioned at the same time; more are refused. Their
            bodies need up to `max_requests * max_bytes` bytes of memory.
        timeout: seconds until a request is answered, from its first line.

    Raises:
        ValueError: one of them is not above 0.
    """

    max_bytes: int = 20 * 2**20
    max_requests: int = 64
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"`{name}` is {value}, expected more than 0.")


@dataclass
class CaptionServer:
    """Answers requests with captions.

    Args:
        batches: what captions the images.
        limits: of requests.
        hosts: names in the header `Host` that are answered, without the port.
    """

    batches: RequestBatches
    limits: Limits
    hosts: frozenset[str]
    requests: int = field(default=0, init=False)

    async def health(self, request: web.Request) -> web.Response:
        """Answer `GET /health`: the server runs, and this many requests are being answered."""
        return web.json_response({"status": "ok", "requests": self.requests})

    async def caption(self, request: web.Request) -> web.Response:
        """Answer `POST /caption`, whose body is the bytes of an image; `?instruction=` is an instruction."""
        if not request.content_type.startswith("image/"):
            return refusal(
                415,
                f"The content type is {request.content_type}, expected that of an image, for example: "
                "curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg",
            )
        if (request.content_length or 0) > self.limits.max_bytes:
            return self._too_large()
        if self.requests >= self.limits.max_requests:
            return refusal(503, f"{self.requests} requests are waiting. Try again later.", retry=True)
        self.requests += 1
        try:
            return await self._captioned(request)
        finally:
            self.requests -= 1

    async def _captioned(self, request: web.Request) -> web.Response:
        content = None
        try:
            async with asyncio.timeout(self.limits.timeout):
                content = await request.read()
                return web.json_response(await self.batches.caption(content, request.query.get("instruction")))
        except web.HTTPRequestEntityTooLarge:
            return self._too_large()
        except (HttpProcessingError, web.RequestPayloadError) as error:  # not compressed as its header states
            return refusal(400, f"The body cannot be read: {error}.")
        except UnreadableImageError as error:
            return refusal(422, str(error))
        except TimeoutError:
            seconds = f"{self.limits.timeout:g} seconds"
            if content is None:
                return refusal(408, f"The body did not arrive within {seconds}.")
            return refusal(503, f"There was no caption within {seconds}. Try again later.", retry=True)
        except CaptioningFailedError:
            logger.exception("A batch could not be captioned")
            return refusal(500, "The captioner failed; the log of the server has the reason.")

    def _too_large(self) -> web.Response:
        return refusal(413, f"The body has more than {self.limits.max_bytes:,} bytes.")

    @web.middleware
    async def check_host(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse names of other hosts: a web page can make its own name point to this server (DNS rebinding)."""
        if host_name(request.headers.get("Host", "")) not in self.hosts:
            return refusal(421, "The server does not answer to this name of a host; see `allowed_hosts`.")
        return await handler(request)

    async def run_batches(self, _application: web.Application) -> AsyncIterator[None]:
        """Caption batches while the application runs."""
        report_shortage_rarely(asyncio.get_running_loop())
        running = asyncio.create_task(self.batches.run())
        yield
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        self.batches.close()


def make_application(
    captioner: CaptionBatches,
    batch_size: int = 16,
    limits: Limits | None = None,
    hosts: Iterable[str] = (),
) -> web.Application:
    """Make the application of a captioner, which `aiohttp.web.run_app` runs.

    Args:
        captioner: what captions the images; its options are those of all requests.
        batch_size: images per batch.
        limits: of requests. None: the default ones.
        hosts: further names of the server, besides those of the loopback interface.

    Raises:
        ValueError: `batch_size` is below 1.
    """
    limits = limits or Limits()
    names = frozenset(host_name(name) for name in (*LOOPBACK_NAMES, *hosts))
    server = CaptionServer(RequestBatches(captioner, batch_size), limits, names)
    application = web.Application(client_max_size=limits.max_bytes, middlewares=[server.check_host])
    application.router.add_get("/health", server.health)
    application.router.add_post("/caption", server.caption)
    application.cleanup_ctx.append(server.run_batches)
    return application


def report_shortage_rarely(loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop report at most once a minute that there are no descriptors; asyncio does so 100 times a second."""
    reported = -math.inf

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal reported
        if context.get("message") != NO_DESCRIPTORS:
            loop.default_exception_handler(context)
        elif loop.time() - reported >= REPORT_SECONDS:
            reported = loop.time()
            logger.error(
                "No more connections can be accepted: %s. Raise the limit of open files (ulimit -n), or put the "
                "server after a proxy that limits idle connections.",
                context.get("exception"),
            )

    loop.set_exception_handler(report)


def host_name(text: str) -> str:
    """Return the name of a host in lower case, without the port and the brackets of an IPv6 address."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(text))
    name, _, port = text.rpartition(":")
    name = name if name and port.isdigit() else text
    return name.strip("[]").rstrip(".").lower()


def refusal(status: int, reason: str, retry: bool = False) -> web.Response:
    """Return an answer with `{"error": reason}`."""
    headers: dict[str, Any] = {"Retry-After": str(RETRY_SECONDS)} if retry else {}
    return web.json_response({"error": reason}, status=status, headers=headers)

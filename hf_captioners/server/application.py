"""Web application of the server: endpoints and checks of requests."""

import asyncio
import ipaddress
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from aiohttp import web

from hf_captioners._version import __version__
from hf_captioners.captioning.columns import CaptionBatches
from hf_captioners.names import did_you_mean, listed

from .description import describe
from .forms import FORM, UnreadableBodyError, read_body
from .metrics import CLIENT_GONE, CONTENT_TYPE
from .parameters import PARAMETERS, read_parameters
from .request_batches import CaptioningFailedError, RequestBatches

logger = logging.getLogger(__name__)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
RETRY_SECONDS = 1  # after which a refused client may try again
NO_DESCRIPTORS = "socket.accept() out of system resource"  # message of asyncio
REPORT_SECONDS = 60  # between two reports of it
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
PAGE_FILES = {
    "/": ("try_it.html", "text/html"),
    "/try_it.css": ("try_it.css", "text/css"),
    "/try_it.js": ("try_it.js", "text/javascript"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src blob: data:; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
PATHS = ("/caption", "/health", "/metrics", "/openapi.json", *PAGE_FILES)


@dataclass(frozen=True)
class Limits:
    """Limits on the size and number of requests.

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
    """Request handlers that answer with captions.

    Args:
        batches: what captions the images.
        limits: of requests.
        hosts: names in the header `Host` that are answered, without the port.
        name: of the captioner.
    """

    batches: RequestBatches
    limits: Limits
    hosts: frozenset[str]
    name: str
    requests: int = field(default=0, init=False)

    async def health(self, request: web.Request) -> web.Response:
        """Answer `GET /health`: the server is up; with the number of requests in progress."""
        return web.json_response({"status": "ok", "requests": self.requests})

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer `GET /metrics` in the text format of Prometheus."""
        text = self.batches.metrics.text(self.requests, len(self.batches.waiting), __version__)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def description(self, request: web.Request) -> web.Response:
        """Answer `GET /openapi.json`."""
        instructed = getattr(self.batches.captioner.pipeline, "instructed", None)
        takes_instruction = instructed is not None and instructed.takes_instruction
        names = [name for name in PARAMETERS if name != "instruction" or takes_instruction]
        return web.json_response(describe(self.name, names, self.batches.captioner.confidence is not None))

    async def caption(self, request: web.Request) -> web.Response:
        """Answer `POST /caption`: the body is an image file or a form; see `PARAMETERS`."""
        if not (request.content_type.startswith("image/") or request.content_type == FORM):
            return refusal(
                415,
                f"The content type is {request.content_type}, expected that of an image or a form, for example: "
                "curl -H 'Content-Type: image/jpeg' --data-binary @photo.jpg, or curl -F image=@photo.jpg",
            )
        if request.content_type == FORM and is_foreign(request):
            return refusal(403, "The form comes from a web page of another origin.")
        if (request.content_length or 0) > self.limits.max_bytes:
            return self._too_large()
        if self.requests >= self.limits.max_requests:
            return refusal(503, f"{self.requests} requests are waiting. Try again later.", retry=True)
        self.requests += 1
        begin = time.perf_counter()
        try:
            response = await self._captioned(request)
        finally:
            self.requests -= 1
        if response.status == 200:
            self.batches.metrics.caption_seconds.add(time.perf_counter() - begin)
        return response

    async def _captioned(self, request: web.Request) -> web.Response:
        body, options = None, dict[str, Any]()
        try:
            options = read_parameters(request.query.items())
            async with asyncio.timeout(self.limits.timeout):
                body = await read_body(request, self.limits.max_bytes)
                options = read_parameters([*request.query.items(), *body.parameters])
                return web.json_response(await self.batches.caption(body.image, options))
        except web.HTTPRequestEntityTooLarge:
            return self._too_large()
        except UnreadableBodyError as error:
            return refusal(400, str(error))
        except TimeoutError:
            seconds = f"{self.limits.timeout:g} seconds"
            if body is None:
                return refusal(408, f"The body did not arrive within {seconds}.")
            return refusal(503, f"There was no caption within {seconds}. Try again later.", retry=True)
        except CaptioningFailedError as error:
            logger.exception("A batch could not be captioned")
            if options and is_fault_of_values(error):
                return refusal(
                    422, f"The captioner failed with {listed(options)} of the request; the log of the server has why."
                )
            return refusal(500, "The captioner failed; the log of the server has the reason.")
        except ValueError as error:  # of the image or the parameters, with a message for the client
            return refusal(422, str(error))

    def _too_large(self) -> web.Response:
        return refusal(413, f"The body has more than {self.limits.max_bytes:,} bytes.")

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that counts responses by method, address and status."""
        path = request.path if request.path in PATHS else "other"
        method = request.method if request.method in METHODS else "other"
        status = CLIENT_GONE
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            self.batches.metrics.responses[method, path, status] += 1

    @web.middleware
    async def refuse_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that turns errors, and unknown addresses and methods, into `{"error": reason}`."""
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return refusal(404, f"There is no address {request.path!r:.80}.{did_you_mean(request.path[:80], PATHS)}")
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            refused = refusal(405, f"{request.path} does not answer {request.method:.20}, expected {allowed}.")
            refused.headers["Allow"] = allowed
            return refused
        except web.HTTPException as error:
            return refusal(error.status, error.reason)
        except Exception:
            logger.exception("A request could not be answered")
            return refusal(500, "The server failed; its log has the reason.")

    @web.middleware
    async def check_host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that refuses requests for other host names, against DNS rebinding."""
        if host_name(request.headers.get("Host", "")) not in self.hosts:
            return refusal(421, "The server does not answer to this name of a host; see `allowed_hosts`.")
        return await handler(request)

    async def log_end(self, _application: web.Application) -> None:
        """Log that the server stops after the requests in progress."""
        logger.warning("The server ends; requests that are answered first: %s", self.requests)

    async def run_batches(self, _application: web.Application) -> AsyncIterator[None]:
        """Run the batching of requests while the application runs."""
        limit_shortage_reports(asyncio.get_running_loop())
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
    name: str | None = None,
) -> web.Application:
    """Make the web application for a captioner, which `aiohttp.web.run_app` runs.

    Args:
        captioner: what captions the images; its options are those of requests that state no others.
        batch_size: images per batch.
        limits: of requests. None: the default ones.
        hosts: further names of the server, besides those of the loopback interface.
        name: of the captioner, for the description. None: that of its folder.

    Raises:
        ValueError: `batch_size` is below 1.
    """
    limits = limits or Limits()
    names = frozenset(host_name(name) for name in (*LOOPBACK_NAMES, *hosts))
    title = name or PurePath(str(captioner.pipeline.model.name_or_path)).name or "without a name"
    server = CaptionServer(RequestBatches(captioner, batch_size), limits, names, title)
    middlewares = [server.count, server.refuse_as_json, server.check_host]
    application = web.Application(client_max_size=limits.max_bytes, middlewares=middlewares)
    application.router.add_post("/caption", server.caption)
    application.router.add_get("/health", server.health)
    application.router.add_get("/metrics", server.metrics)
    application.router.add_get("/openapi.json", server.description)
    for path in PAGE_FILES:
        application.router.add_get(path, page_file)
    application.on_shutdown.append(server.log_end)
    application.cleanup_ctx.append(server.run_batches)
    return application


async def page_file(request: web.Request) -> web.Response:
    """Return a handler for a file of the page on which the server can be tried."""
    name, kind = PAGE_FILES[request.path]
    content = (Path(__file__).parent / name).read_bytes()
    return web.Response(body=content, headers={"Content-Type": f"{kind}; charset=utf-8", **PAGE_HEADERS})


def is_foreign(request: web.Request) -> bool:
    """Return whether a request comes from a web page of another origin (cross-origin form)."""
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2].lower() != request.headers.get("Host", "").lower()


def is_fault_of_values(error: BaseException) -> bool:
    """Return whether an error was first caused by a `ValueError`, which means invalid options."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, ValueError)


def limit_shortage_reports(loop: asyncio.AbstractEventLoop) -> None:
    """Limit an event loop's messages about missing file descriptors to one a minute; asyncio sends 100 a second."""
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
    """Return a host name in lower case, without port or the brackets of an IPv6 address."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(text))
    name, _, port = text.rpartition(":")
    name = name if name and port.isdigit() else text
    return name.strip("[]").rstrip(".").lower()


def refusal(status: int, reason: str, retry: bool = False) -> web.Response:
    """Return a response with `{"error": reason}`."""
    headers: dict[str, Any] = {"Retry-After": str(RETRY_SECONDS)} if retry else {}
    return web.json_response({"error": reason}, status=status, headers=headers)

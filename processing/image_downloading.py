"""Downloads of images with limits of size and of time."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from functools import partial
from typing import Any

DOWNLOAD_SECONDS = 60.0
DOWNLOAD_BYTES = 64 * 2**20
USER_AGENT = "hf-captioners"


class TooLargeError(ValueError):
    """A server sends more bytes than the limit."""


class TimedStream(io.RawIOBase):
    """The bytes of a connection until a deadline, however slowly they arrive.

    Args:
        connection: an open connection.
        deadline: value of `time.monotonic()` after which reading raises TimeoutError.
    """

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline
        self.stream = connection.makefile("rb", buffering=0)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the buffered stream; `http.client` calls it."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what has arrived, and wait at most until the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.connection.settimeout(left)
        return self.stream.readinto(buffer)

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()
        super().close()


def web_opener(deadline: float) -> urllib.request.OpenerDirector:
    """Return an opener of `http(s)` addresses, also after redirects, that reads until a deadline."""

    def connect(kind: Any, host: str, **options: Any) -> http.client.HTTPConnection:
        options["timeout"] = max(deadline - time.monotonic(), 1e-3)
        connection = kind(host, **options)
        connection.response_class = lambda sock, *more, **named: http.client.HTTPResponse(
            TimedStream(sock, deadline),  # type: ignore[arg-type]
            *more,
            **named,
        )
        return connection

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(connect, http.client.HTTPConnection), req)  # type: ignore[arg-type]

    class Encrypted(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(partial(connect, http.client.HTTPSConnection), req)  # type: ignore[arg-type]

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,  # refuses file:, data: and ftp:
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        Plain,
        Encrypted,
    ):
        opener.add_handler(handler())
    return opener


def web_content(url: str, seconds: float, max_bytes: float, user_agent: str = USER_AGENT) -> bytes:
    """Return the bytes at an `http(s)` address.

    Args:
        url: the address.
        seconds: limit of the whole download.
        max_bytes: limit of the size.
        user_agent: the `User-Agent` header.

    Raises:
        TooLargeError: the content is larger than `max_bytes`.
        TimeoutError: the download takes longer than `seconds`; it may be the reason of an URLError.
        OSError, http.client.HTTPException, ValueError: other errors of `urllib`.
    """
    deadline = time.monotonic() + min(seconds, 1e6)  # sockets do not take infinity
    request = urllib.request.Request(url, headers={"User-Agent": user_agent})
    with web_opener(deadline).open(request, timeout=min(seconds, 1e6)) as response:
        parts, size = [], 0
        # read1 returns what has arrived, so a slow server cannot exceed the deadline.
        while (response.length or 0) <= max_bytes and (part := response.read1(2**16)):
            size += len(part)
            if size > max_bytes:
                break
            parts.append(part)
        if max(size, response.length or 0) > max_bytes:
            raise TooLargeError(f"it is larger than {max_bytes:,.0f} bytes")
        return b"".join(parts)


def download_image(url: str, timeout: float | None = None, max_bytes: float | None = None) -> bytes:
    """Return the bytes at an `http(s)` address, or an error that names it.

    Args:
        url: the address.
        timeout: seconds for the whole download; None: 60; `float("inf")`: no limit.
        max_bytes: limit of the size; None: 64 MiB; `float("inf")`: no limit.

    Raises:
        FileNotFoundError: the server answers with an error.
        TimeoutError: the download takes longer.
        ConnectionError: the server cannot be reached, or the connection breaks.
        ValueError: the content is too large, or this is no address.
    """
    seconds = DOWNLOAD_SECONDS if timeout is None else timeout
    limit = DOWNLOAD_BYTES if max_bytes is None else max_bytes
    if not (seconds > 0 and limit > 0):
        raise ValueError(f"`timeout` is {seconds} and `max_bytes` {limit}, expected more than 0.")
    what = f"The image {url} cannot be downloaded"
    try:
        return web_content(url, seconds, limit)
    except TooLargeError as error:
        raise ValueError(f"{what}: {error}. Pass a larger `max_bytes`, or leave it out.") from error
    except urllib.error.HTTPError as error:
        raise FileNotFoundError(f"{what}: the server answers {error.code} {error.reason}.") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
            reason = f"timed out after {seconds:g} seconds. Pass a larger `timeout`, or leave it out"
            raise TimeoutError(f"{what}: {reason}.") from error
        raise ConnectionError(f"{what}: {getattr(error, 'reason', error)}. Try again, or leave it out.") from error
    except ValueError as error:
        raise ValueError(f"{what}: it is no address ({error}). Correct it, or leave it out.") from error

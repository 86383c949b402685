"""The server of the review page: on this machine only, for whoever has the address with its token."""

import io
import json
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

from hf_captioners.processing.image_reading import read_image

from .table import ChangedCaptionsError, ReviewTable

ADDRESS = "127.0.0.1"
LONGEST_SIDE = 1280  # pixels of the images that are sent
MOST_BYTES = 200_000  # of a request
MOST_DIGITS = 12  # of the number of an image
PAGE = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class OnlyFromPage:
    """ASGI middleware that lets through what the page of this server asks for, and nothing else.

    The token is the first part of every path. A request for another host (DNS rebinding), without the token, or that
    writes without the page's own origin (another site's page) is answered with 403.

    Args:
        app: the application.
        host: `127.0.0.1:PORT`.
        token: the token.
    """

    def __init__(self, app: Any, host: str, token: str) -> None:
        self.app, self.host, self.token = app, host, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        fault = self.fault(scope)
        if fault is not None:
            return await PlainTextResponse(fault, 403, HEADERS)(scope, receive, send)
        return await self.app(scope, receive, send)

    def fault(self, scope: Any) -> str | None:
        """Return why a request is refused, or None."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        if headers.get(b"host") != [self.host.encode()]:
            return f"This server answers as {self.host} only."
        given = scope["path"].partition("/")[2].partition("/")[0]
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return "Open the address that `hf-captioners review` printed: it has the token."
        origin = f"http://{self.host}".encode()
        if scope["method"] not in ("GET", "HEAD") and headers.get(b"origin") != [origin]:
            return "Only the page of this server may write."
        return None


def number_in(request: Any, table: ReviewTable) -> int:
    """Return the number of the image that a request names, or the number of images if it names none."""
    text = request.path_params["number"]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < MOST_DIGITS else len(table.images)


def review_app(table: ReviewTable, host: str, token: str) -> Any:
    """Return the ASGI application of the page.

    Args:
        table: the images and their captions.
        host: `127.0.0.1:PORT`, where it is served.
        token: what every path begins with.

    Raises:
        ImportError: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Mount, Route
    except ImportError as error:
        raise ImportError("The page needs starlette and uvicorn: pip install 'hf-captioners[app]'.") from error

    agreed = False
    absent = f"There are {len(table.images)} images, numbered from 0."

    def fault(status: int, reason: str) -> Any:
        return JSONResponse({"error": reason}, status, HEADERS)

    def page(request: Any) -> Any:
        name, media_type = PAGE[request.url.path.rpartition("/")[2]]
        text = files(__package__).joinpath(name).read_text(encoding="utf-8")
        return Response(text, media_type=media_type, headers=HEADERS)

    def folder(request: Any) -> Any:
        kept = table.rows()
        done = [number for number, name in enumerate(table.names) if name in kept]
        answer = {"folder": shown_name(str(table.folder)), "images": len(table.images), "kept": done}
        return JSONResponse(answer, headers=HEADERS)

    def item(request: Any) -> Any:
        number = number_in(request, table)
        if number >= len(table.images):
            return fault(404, absent)
        captions, source = table.captions(number)
        name = shown_name(table.names[number])
        return JSONResponse({"name": name, "captions": captions, "source": source}, headers=HEADERS)

    def image(request: Any) -> Any:
        number = number_in(request, table)
        if number >= len(table.images):
            return fault(404, absent)
        try:
            shown = read_image(str(table.images[number]))
        except (OSError, ValueError) as error:
            return fault(422, str(error))
        shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        buffer = io.BytesIO()
        shown.save(buffer, "JPEG", quality=90)
        return Response(buffer.getvalue(), media_type="image/jpeg", headers=HEADERS)

    async def keep(request: Any) -> Any:
        nonlocal agreed
        number, body = number_in(request, table), b""
        if number >= len(table.images):
            return fault(404, absent)
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return fault(413, f"A request may have {MOST_BYTES:,} bytes.")
        try:
            asked = json.loads(body)
            if not isinstance(asked, dict):
                raise ValueError("The request is no JSON object.")
            agreed = agreed or asked.get("agreed") is True
            if not agreed:
                return JSONResponse({"ask": question(table)}, 409, HEADERS)
            shown = asked.get("shown") if isinstance(asked.get("shown"), list) else None
            table.keep(number, asked.get("captions"), shown)  # type: ignore[arg-type]
        except ChangedCaptionsError as error:
            answer = {"ask": replacement_question(table, error.captions), "changed": error.captions}
            return JSONResponse(answer, 409, HEADERS)
        except (ValueError, RecursionError) as error:
            return fault(400, str(error))
        except BlockingIOError as error:
            return fault(423, str(error))
        except OSError as error:
            return fault(507, f"{table.path} cannot be written: {error}")
        return JSONResponse({"kept": len(table.rows())}, headers=HEADERS)

    routes = [*(Route(f"/{name}", page) for name in PAGE), Route("/folder", folder)]
    routes += [Route("/images/{number}", image), Route("/captions/{number}", item)]
    routes.append(Route("/captions/{number}", keep, methods=["POST"]))
    middleware = [Middleware(OnlyFromPage, host=host, token=token)]
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], middleware=middleware)


def replacement_question(table: ReviewTable, captions: Sequence[str]) -> str:
    """Return what is asked before captions that another program wrote meanwhile are replaced."""
    there = "; ".join(captions) or "none any more"
    return f"{table.path} was changed meanwhile, and has other captions of this image: {there}. Replace them?"


def question(table: ReviewTable) -> str:
    """Return what is asked before the first change."""
    if table.path.is_file():
        return f"Change {table.path}? It has captions of {len(table.rows()):,} images. Other rows stay as they are."
    return f"Write the captions that you keep into {table.path}? Nothing else in the folder is changed."


def shown_name(name: str) -> str:
    """Return the name of a file for a page: bytes that are no UTF-8 become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")


def serve(table: ReviewTable, port: int = 0) -> None:
    """Serve the page until it is interrupted; the address is printed.

    Args:
        table: the images and their captions.
        port: port on 127.0.0.1; 0: a free one.

    Raises:
        ImportError: starlette or uvicorn is not installed.
        BlockingIOError: another program writes the table, such as a second page of this folder.
        OSError: the port is in use.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("The page needs starlette and uvicorn: pip install 'hf-captioners[app]'.") from error

    with table.only_writer(patience=0), socket.create_server((ADDRESS, port)) as listener:
        host, token = f"{ADDRESS}:{listener.getsockname()[1]}", secrets.token_urlsafe(24)
        app = review_app(table, host, token)
        print(f"Open http://{host}/{token}/ in your browser. Ctrl+C ends it.", flush=True)  # noqa: T201
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])

"""Request guard: the server answers requests of its own page only."""

import secrets
from typing import Any

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class OnlyFromPage:
    """ASGI middleware that answers only requests that the server's own page makes.

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
        """Answer or refuse a request."""
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        fault = self.fault(scope)
        if fault is not None:
            return await PlainTextResponse(fault, 403, HEADERS)(scope, receive, send)
        return await self.app(scope, receive, send)

    def fault(self, scope: Any) -> str | None:
        """Return why a request is refused; None if it is allowed."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        if headers.get(b"host") != [self.host.encode()]:
            return f"This server answers as {self.host} only."
        token = scope["path"].partition("/")[2].partition("/")[0]
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            return "Open the address that `hf-captioners review` printed: it has the token."
        origin = f"http://{self.host}".encode()
        if scope["method"] not in ("GET", "HEAD") and headers.get(b"origin") != [origin]:
            return "Only the page of this server may write."
        return None

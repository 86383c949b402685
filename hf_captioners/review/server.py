"""Server of the review page: reachable on this machine only, with the token in its URL."""

import secrets
import socket
from contextlib import suppress
from typing import Any

from .corrections import Corrections
from .guard import OnlyFromPage
from .table import ReviewTable
from .text_files import TextFiles

ADDRESS = "127.0.0.1"
SECONDS_TO_END = 2  # for requests that are answered when the server is interrupted
ADVICE = "The page needs starlette and uvicorn: pip install 'hf-captioners[app]'."


def review_app(table: ReviewTable, host: str, token: str, text_files: bool = True) -> Any:
    """Return the ASGI application of the review page.

    Args:
        table: the images and their captions.
        host: `127.0.0.1:PORT`, where it is served.
        token: what every path begins with.
        text_files: whether kept captions replace those of a captioner in the text files beside the images.

    Raises:
        ImportError: starlette is not installed.
        UnsafeFileError: the file of drafts is a link or no plain file.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Mount, Route

        from .endpoints import PAGE, Endpoints
    except ImportError as error:
        raise ImportError(ADVICE) from error

    answers = Endpoints(Corrections(table, TextFiles(table) if text_files else None))
    routes = [*(Route(f"/{name}", answers.page) for name in PAGE), Route("/folder", answers.folder)]
    routes += [Route("/images/{number}", answers.image), Route("/thumbnails/{number}", answers.thumbnail)]
    routes += [Route("/captions/{number}", answers.captions)]
    routes += [
        Route(path, answer, methods=["POST"])
        for path, answer in (
            ("/captions/{number}", answers.keep),
            ("/drafts/{number}", answers.draft),
            ("/rejected/{number}", answers.reject),
            ("/undo", answers.undo),
            ("/redo", answers.redo),
        )
    ]
    middleware = [Middleware(OnlyFromPage, host=host, token=token)]
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], middleware=middleware)


def serve(table: ReviewTable, port: int = 0, text_files: bool = True) -> None:
    """Print the page's URL and serve until interrupted.

    Args:
        table: the images and their captions.
        port: port on 127.0.0.1; 0: a free one.
        text_files: whether kept captions replace those of a captioner in the text files beside the images.

    Raises:
        ImportError: starlette or uvicorn is not installed.
        BlockingIOError: another program writes the table, such as a second page of this folder.
        OSError: the port is in use.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError(ADVICE) from error

    with table.only_writer(patience=0), socket.create_server((ADDRESS, port)) as listener:
        host, token = f"{ADDRESS}:{listener.getsockname()[1]}", secrets.token_urlsafe(24)
        app = review_app(table, host, token, text_files)
        print(f"Open http://{host}/{token}/ in your browser. Ctrl+C ends it.", flush=True)  # noqa: T201
        settings = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": SECONDS_TO_END}
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, **settings)).run(sockets=[listener])  # type: ignore[arg-type]

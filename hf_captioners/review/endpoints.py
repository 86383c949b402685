"""Request handlers of the review server: page, images, captions and changes."""

import io
import json
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, Response

from hf_captioners.processing.image_reading import read_image

from .confidences import DOUBTFUL_BELOW, Confidences
from .corrections import NAMES_OF_CHANGES, Change, Corrections
from .guard import HEADERS
from .table import ChangedCaptionsError

LONGEST_SIDE = 1280  # pixels of the images that are sent
LONGEST_THUMBNAIL = 256
MAX_THUMBNAILS = 1_000  # in memory, of about 15 kB
MAX_DECODED_AT_ONCE = 2  # at once: an image may need 300 MB
MAX_BYTES = 200_000  # of a request
MAX_DIGITS = 12  # of the number of an image
PAGE = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    **{
        f"{name}.js": (f"{name}.js", "text/javascript")
        for name in ("page", "requests", "fields", "drafts", "overview")
    },
}
DECODING = threading.Semaphore(MAX_DECODED_AT_ONCE)


class TooLargeError(ValueError):
    """A request has more bytes than `MAX_BYTES`."""


class Endpoints:
    """Request handlers for the requests that `guard.OnlyFromPage` lets through.

    Changes are answered in the event loop, one after the other, which also is the thread that holds the lock.

    Args:
        corrections: the captions of a folder.
    """

    def __init__(self, corrections: Corrections) -> None:
        self.corrections, self.table = corrections, corrections.table
        self.confidences = Confidences(self.table)
        self.agreed = False

    def page(self, request: Any) -> Response:
        """Return a file of the web page."""
        name, media_type = PAGE[request.url.path.rpartition("/")[2]]
        text = files(__package__).joinpath(name).read_text(encoding="utf-8")
        return Response(text, media_type=media_type, headers=HEADERS)

    def folder(self, request: Any) -> Response:
        """Return the names and states of all images, and the confidence of captions."""
        names = [shown_name(name) for name in self.table.names]
        folder = {"folder": shown_name(str(self.table.folder)), "images": len(names), "names": names}
        folder |= {"confidences": self.confidences.of_images(), "doubtful_below": DOUBTFUL_BELOW}
        return JSONResponse({**folder, **self.corrections.states()}, headers=HEADERS)

    def captions(self, request: Any) -> Response:
        """Return the captions of an image, their origin and confidence."""
        number = self._number(request)
        if number is None:
            return self._absent()
        name = shown_name(self.table.names[number])
        shown = self.corrections.captions(number)
        assessed = self.confidences.of_captions(number, shown["captions"], shown["source"])
        return JSONResponse({"name": name, **shown, "assessed": assessed}, headers=HEADERS)

    def image(self, request: Any) -> Response:
        """Return an image as JPEG, or the error of reading it."""
        return self._jpeg(request, lambda path: jpeg_of(str(path), LONGEST_SIDE, quality=90))

    def thumbnail(self, request: Any) -> Response:
        """Return a small JPEG of an image, or the error of reading it."""
        return self._jpeg(request, thumbnail_of)

    def _jpeg(self, request: Any, encode: Callable[[Path], bytes]) -> Response:
        number = self._number(request)
        if number is None:
            return self._absent()
        try:
            content = encode(self.table.images[number])
        except (OSError, ValueError) as error:
            return fault(422, str(error))
        return Response(content, media_type="image/jpeg", headers=HEADERS)

    async def draft(self, request: Any) -> Response:
        """Store the text fields of an image as a draft."""

        def store(number: int, asked: dict[str, Any]) -> dict[str, Any]:
            begins = asked.get("begins") is not False
            captions, shown = asked.get("captions"), asked.get("shown", [])
            return {"draft": self.corrections.type(number, captions, shown, begins, time_in(asked))}

        return await self._change(request, store)

    async def keep(self, request: Any) -> Response:
        """Keep the captions of an image."""

        def keep(number: int, asked: dict[str, Any]) -> dict[str, Any]:
            note = self.corrections.keep(number, asked.get("captions"), shown_in(asked), time_in(asked))
            return {"kept": len(self.table.rows())} | ({"note": note} if note else {})

        return await self._change(request, keep, asks=True)

    async def reject(self, request: Any) -> Response:
        """Mark an image as rejected for training."""

        def reject(number: int, asked: dict[str, Any]) -> dict[str, Any]:
            self.corrections.reject(number, asked.get("captions"), shown_in(asked), time_in(asked))
            return {"rejected": number}

        return await self._change(request, reject, asks=True)

    async def undo(self, request: Any) -> Response:
        """Undo the last change."""
        return await self._change(request, lambda *_: self._moved("Undone", self.corrections.undo()))

    async def redo(self, request: Any) -> Response:
        """Redo the change that was undone last."""
        return await self._change(request, lambda *_: self._moved("Done again", self.corrections.redo()))

    def _moved(self, what: str, change: Change) -> dict[str, Any]:
        name = shown_name(self.table.names[change.number])
        message = f"{what}: {NAMES_OF_CHANGES[change.kind]} of {name}."
        return {"number": change.number, "message": message, **self.corrections.states()}

    async def _change(
        self, request: Any, act: Callable[[int, dict[str, Any]], dict[str, Any]], asks: bool = False
    ) -> Response:
        """Handle a request that changes files; return a question first if the user must agree (`asks`)."""
        number = self._number(request) if "number" in request.path_params else -1
        if number is None:
            return self._absent()
        try:
            asked = await body_of(request)
            if asks:
                self.agreed = self.agreed or asked.get("agreed") is True
                if not self.agreed:
                    return JSONResponse({"ask": question(self.corrections)}, 409, HEADERS)
            return JSONResponse(act(number, asked), headers=HEADERS)
        except TooLargeError as error:
            return fault(413, str(error))
        except LookupError as error:
            return fault(404, str(error.args[0]))
        except ChangedCaptionsError as error:
            if not asks:
                return fault(410, f"{error} The change is not undone.")
            answer = {"ask": replacement_question(self.corrections, error), "changed": error.captions}
            return JSONResponse(answer, 409, HEADERS)
        except (ValueError, RecursionError) as error:
            return fault(400, str(error))
        except BlockingIOError as error:
            return fault(423, str(error))
        except OSError as error:
            return fault(507, f"{self.table.path} or a file beside it cannot be written: {error}")

    def _number(self, request: Any) -> int | None:
        """Return the index of the image in a request; None if there is no such image."""
        text = request.path_params["number"]
        is_number = text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS
        return int(text) if is_number and int(text) < len(self.table.images) else None

    def _absent(self) -> Response:
        return fault(404, f"There are {len(self.table.images)} images, numbered from 0.")


def fault(status: int, reason: str) -> Response:
    """Return the error response to a request."""
    return JSONResponse({"error": reason}, status, HEADERS)


async def body_of(request: Any) -> dict[str, Any]:
    """Return the JSON object in a request's body; empty for an empty body.

    Raises:
        TooLargeError: it has too many bytes.
        ValueError, RecursionError: it is no JSON object.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise TooLargeError(f"A request may have {MAX_BYTES:,} bytes.")
    content = json.loads(body)
    if not isinstance(content, dict):
        raise ValueError("The request is no JSON object.")
    return content


def shown_in(asked: dict[str, Any]) -> list[str] | None:
    """Return the table's captions as the user saw them on the page, if the request includes them."""
    shown = asked.get("shown")
    return shown if isinstance(shown, list) else None


def time_in(asked: dict[str, Any]) -> float:
    """Return the page's time stamp in a request; 0 if absent."""
    time = asked.get("time")
    return float(time) if isinstance(time, (int, float)) and 0 < time < 1e18 else 0.0


def jpeg_of(path: str, longest: int, quality: int) -> bytes:
    """Return an image as JPEG with a maximum length of the longer side.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    with DECODING:
        image = read_image(path)
        image.thumbnail((longest, longest))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def thumbnail_of(path: Path) -> bytes:
    """Return the thumbnail of an image, cached until the file changes."""
    state = path.stat()
    return _thumbnail(str(path), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=MAX_THUMBNAILS)
def _thumbnail(path: str, changed: int, size: int) -> bytes:
    return jpeg_of(path, LONGEST_THUMBNAIL, quality=80)


def replacement_question(corrections: Corrections, error: ChangedCaptionsError) -> str:
    """Return the question before captions are replaced that another program has written meanwhile."""
    captions = "; ".join(error.captions) or "none any more"
    path = corrections.table.path
    return f"{path} was changed meanwhile, and has other captions of this image: {captions}. Replace them?"


def question(corrections: Corrections) -> str:
    """Return the question before the first change."""
    table = corrections.table
    count = 0 if corrections.text_files is None else corrections.text_files.count()
    more = f" Captions that you keep also replace those of a captioner in {count:,} text file(s)." if count else ""
    if table.path.is_file():
        kept = len(table.rows())
        return f"Change {table.path}? It has captions of {kept:,} images. Other rows stay as they are.{more}"
    return f"Write the captions that you keep into {table.path}?{more} Other files stay as they are."


def shown_name(name: str) -> str:
    """Return a file name for display: invalid UTF-8 bytes become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")

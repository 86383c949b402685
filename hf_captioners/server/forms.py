"""Parsing of requests: image and parameters from a plain body or a form."""

from typing import NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

IMAGE_FIELD = "image"
FORM = "multipart/form-data"
MAX_FIELDS = 64  # of a form
READING_ERRORS = (  # of bodies that are not as their headers state
    HttpProcessingError,
    web.RequestPayloadError,
    ValueError,
    RuntimeError,
    AssertionError,
    LookupError,
)


class UnreadableBodyError(ValueError):
    """A request body cannot be parsed."""


class ReadBody(NamedTuple):
    """Parsed request body: image and parameters.

    Args:
        image: the bytes of the image.
        parameters: names and texts of the other fields of a form.
    """

    image: bytes
    parameters: list[tuple[str, str]]


async def read_body(request: web.Request, max_bytes: int) -> ReadBody:
    """Read and parse the body of a request, in memory only.

    Args:
        request: its content type is that of an image, or of a form.
        most: bytes that a form may have; plain bodies are limited by the application.

    Raises:
        UnreadableBodyError: it is no such body.
        HTTPRequestEntityTooLarge: it has more bytes.
    """
    try:
        if request.content_type != FORM:
            return ReadBody(await request.read(), [])
        return await _read_form(request, max_bytes)
    except READING_ERRORS as error:
        part = "form" if request.content_type == FORM else "body"
        raise UnreadableBodyError(f"The {part} cannot be read: {str(error) or type(error).__name__}.") from error


async def _read_form(request: web.Request, max_bytes: int) -> ReadBody:
    image: bytes | None = None
    parameters: list[tuple[str, str]] = []
    remaining = max_bytes
    reader = await request.multipart()
    while (part := await reader.next()) is not None:
        name = getattr(part, "name", None)
        if name is None:
            raise ValueError("a field has no name")
        if name != IMAGE_FIELD and getattr(part, "filename", None) is not None:
            raise ValueError(f"the field {name!r:.60} has a file, expected the image in the field `{IMAGE_FIELD}`")
        content = bytearray()
        while chunk := await part.read_chunk():  # type: ignore[union-attr]
            remaining -= len(chunk)
            if remaining < 0:
                raise web.HTTPRequestEntityTooLarge(max_bytes, max_bytes - remaining)
            content += chunk
        if name != IMAGE_FIELD:
            parameters.append((name, content.decode("utf-8")))
            if len(parameters) > MAX_FIELDS:
                raise ValueError(f"it has more than {MAX_FIELDS} fields")
        elif image is not None:
            raise ValueError(f"it has the field `{IMAGE_FIELD}` twice; send one image a request")
        else:
            image = bytes(content)
    if image is None:
        raise ValueError(f"it has no field `{IMAGE_FIELD}`; type for example: curl -F {IMAGE_FIELD}=@photo.jpg")
    return ReadBody(image, parameters)

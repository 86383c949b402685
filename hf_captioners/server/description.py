"""OpenAPI 3.1 description of the server, made from the declared parameters and statuses."""

from collections.abc import Iterable
from typing import Any

from hf_captioners._version import __version__

from .parameters import PARAMETERS

STATUSES = {
    400: "the body or the form cannot be read",
    403: "a form from a web page of another origin",
    404: "there is no such address",
    405: "the address does not answer this method; the header Allow has those that it answers",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the content type is neither that of an image nor multipart/form-data",
    421: "the name in the header Host is unknown",
    422: "the body is no image that can be read, or a parameter is unknown, wrong or does not fit the captioner",
    500: "the captioner failed",
    503: "too many requests are being answered, or there was no caption in time; try again later",
}
"""The statuses of refused requests."""
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "reason, in one sentence"}},
}


def describe(captioner: str, names: Iterable[str], confidence: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        captioner: name of the captioner.
        names: parameters that it takes.
        confidence: captions come with their confidence.
    """
    parameters = {name: PARAMETERS[name] for name in names}
    fields = {name: each.schema() | {"description": each.description} for name, each in parameters.items()}
    image = {"type": "string", "contentMediaType": "application/octet-stream"}
    form = {"type": "object", "required": ["image"], "properties": {"image": image, **fields}}
    operation = {
        "operationId": "caption",
        "summary": "Caption an image",
        "parameters": [
            {"name": name, "in": "query", "description": parameter.description, "schema": parameter.schema()}
            for name, parameter in parameters.items()
        ],
        "requestBody": {
            "required": True,
            "content": {"image/*": {"schema": image}, "multipart/form-data": {"schema": form}},
        },
        "responses": {"200": _answer("the caption", _caption_schema(confidence))} | _refusals(STATUSES),
    }
    health = {
        "type": "object",
        "required": ["status", "requests"],
        "properties": {"status": {"const": "ok"}, "requests": {"type": "integer", "minimum": 0}},
    }
    metrics = {"description": "measurements", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Image captions",
            "version": __version__,
            "description": f"Captioner: {captioner}.",
        },
        "paths": {
            "/caption": {"post": operation},
            "/health": _reading("health", "The server runs", _answer("it runs", health)),
            "/metrics": _reading("metrics", "Measurements for Prometheus", metrics),
        },
        "components": {"schemas": {"Error": ERROR}},
    }


def _reading(name: str, summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a `GET` endpoint."""
    responses = {"200": answer} | _refusals((421,))
    return {"get": {"operationId": name, "summary": summary, "responses": responses}}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _refusals(statuses: Iterable[int]) -> dict[str, Any]:
    return {str(status): _answer(STATUSES[status], {"$ref": "#/components/schemas/Error"}) for status in statuses}


def _caption_schema(confidence: bool) -> dict[str, Any]:
    """Return the JSON schema of a response; values are lists if several captions are requested."""
    word = {
        "type": "object",
        "properties": {"word": {"type": "string"}, "confidence": {"type": ["number", "null"]}},
    }
    score = "sum of the log-probabilities of the tokens"
    values: dict[str, Any] = {"caption": {"type": "string"}, "score": {"type": "number", "description": score}}
    if confidence:
        sure = "probability that all content words are right"
        values["confidence"] = {"type": ["number", "null"], "description": sure}
        values["words"] = {"type": "array", "items": word}
    properties = {name: {"anyOf": [schema, {"type": "array", "items": schema}]} for name, schema in values.items()}
    return {"type": "object", "required": list(values), "properties": properties}

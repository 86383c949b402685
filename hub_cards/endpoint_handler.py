"""Request handler of an Inference Endpoint that captions images. It does not need the library hf_captioners."""

import base64
import binascii
from typing import Any

from transformers import pipeline

PARAMETERS = ("max_new_tokens", "num_beams", "num_return_sequences", "prompt", "return_scores", "return_token_scores")


class EndpointHandler:
    """Request handler, created once when the endpoint starts.

    Args:
        path: directory of the captioner.
    """

    def __init__(self, path: str = "") -> None:
        self.captioner = pipeline(model=path, trust_remote_code=True)

    def __call__(self, data: dict[str, Any]) -> list[Any]:
        """Caption one image or several.

        Args:
            data: `inputs` is an image (a request body of type `image/...`), its bytes as base64 text, or a list of
                these; `parameters` is a dictionary with any of `PARAMETERS` as keys.

        Returns:
            `[{"generated_text": ...}]` for an image, a list of these for a list.

        Raises:
            ValueError: `inputs` is missing, an input is not an image, or a parameter is unknown.
        """
        inputs, parameters = data.get("inputs"), data.get("parameters") or {}
        if inputs is None:
            raise ValueError("`inputs` is missing: an image, or its bytes as base64 text.")
        if unknown := sorted(set(parameters) - set(PARAMETERS)):
            raise ValueError(f"`parameters` has {', '.join(unknown)}, expected any of {', '.join(PARAMETERS)}.")
        several = isinstance(inputs, list)
        images = [as_image(item) for item in (inputs if several else [inputs])]
        captions = self.captioner(images, **parameters)
        return captions if several else captions[0]


def as_image(item: Any) -> Any:
    """Decode base64 text; return an image unchanged.

    URLs and paths are refused: a server that fetches URLs of its clients exposes its internal network.

    Raises:
        ValueError: a text is not base64.
    """
    if not isinstance(item, str):
        return item
    try:
        return base64.b64decode(item.rpartition(",")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"`inputs` is the text {item[:40]!r}, expected the bytes of an image as base64 text."
        ) from error

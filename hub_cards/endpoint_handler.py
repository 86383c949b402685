"""Answers the requests of an Inference Endpoint: images in, captions out, without the library hf_captioners."""

import base64
import binascii
from typing import Any

from transformers import pipeline

PARAMETERS = ("max_new_tokens", "num_beams", "num_return_sequences", "prompt", "return_scores", "return_token_scores")


class EndpointHandler:
    """Made once when the endpoint starts, called for every request.

    Args:
        path: folder of the captioner.
    """

    def __init__(self, path: str = "") -> None:
        self.captioner = pipeline(model=path, trust_remote_code=True)

    def __call__(self, data: dict[str, Any]) -> list[Any]:
        """Caption one image or several.

        Args:
            data: `inputs` is an image (a body of the type `image/...`) or its bytes as base64 text, or a list of
                these; `parameters` are any of `PARAMETERS`.

        Returns:
            For an image `[{"generated_text": ...}]`, for a list one of these each.

        Raises:
            ValueError: there are no inputs, one is no image, or a parameter is unknown.
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
    """The bytes behind base64 text; an image stays as it is.

    Addresses and paths are refused: what fetches whatever strangers name can be turned against its own network.

    Raises:
        ValueError: a text is no base64.
    """
    if not isinstance(item, str):
        return item
    try:
        return base64.b64decode(item.rpartition(",")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"`inputs` is the text {item[:40]!r}, expected the bytes of an image as base64 text."
        ) from error

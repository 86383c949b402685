"""Request handler of an Inference Endpoint that captions images. It does not need the library hf_captioners."""

import base64
import binascii
from typing import Any

from transformers import pipeline

BATCH_SIZE = 16
# Options of `generate()` and of the pipeline that a request may set.
PARAMETERS = (
    "max_new_tokens",
    "min_new_tokens",
    "num_beams",
    "num_return_sequences",
    "length_penalty",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "prompt",
    "return_scores",
    "return_token_scores",
)


class EndpointHandler:
    """Request handler of an Inference Endpoint, created once when the endpoint starts.

    Args:
        path: directory of the captioner.
    """

    def __init__(self, path: str = "") -> None:
        self.captioner: Any = pipeline(model=path, trust_remote_code=True)

    def __call__(self, data: dict[str, Any]) -> list[Any]:
        """Caption the image or images of a request, in batches.

        Args:
            data: `inputs` is an image (a request body of type `image/...`), its bytes as base64 text, or a list of
                these; `parameters` is a dictionary with any of `PARAMETERS` as keys.

        Returns:
            `[{"generated_text": ...}]` for an image, a list of these for a list, in which an image that cannot be
            read has `[{"error": ...}]`.

        Raises:
            ValueError: `inputs` is missing, the only input is not an image, or a parameter is unknown.
        """
        inputs, parameters = data.get("inputs"), data.get("parameters") or {}
        if inputs is None:
            raise ValueError("`inputs` is missing: an image, or its bytes as base64 text.")
        if unknown := sorted(set(parameters) - set(PARAMETERS)):
            raise ValueError(f"`parameters` has {', '.join(unknown)}, expected any of {', '.join(PARAMETERS)}.")
        if isinstance(inputs, list):
            batches = [inputs[first : first + BATCH_SIZE] for first in range(0, len(inputs), BATCH_SIZE)]
            return [records for batch in batches for records in self.caption(batch, parameters)]
        (records,) = self.caption([inputs], parameters)
        if "error" in records[0]:
            raise ValueError(records[0]["error"])
        return records

    def caption(self, images: list[Any], parameters: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """Caption a batch of images: a list of records for each, or an error message if it cannot be read."""
        prepared, records = {}, {}
        for place, image in enumerate(images):
            try:
                prepared[place] = self.captioner.prepare(as_image(image), **parameters)
            except Exception as error:  # decoders and image processors raise errors of many types
                records[place] = [{"error": str(error)}]
        if prepared:
            captioned = self.captioner.caption_prepared(list(prepared.values()), **parameters)
            records |= dict(zip(prepared, captioned, strict=True))
        return [records[place] for place in range(len(images))]


def as_image(item: Any) -> Any:
    """Decode an image from base64 text; an image object is returned as it is.

    URLs and paths are refused: a server that fetches URLs of its clients exposes its internal network.

    Raises:
        ValueError: a text is not base64.
        TypeError: an item is neither a text, bytes nor an image.
    """
    if isinstance(item, (dict, list)):
        raise TypeError(f"`inputs` has an item of type {type(item).__name__}, expected base64 text.")
    if not isinstance(item, str):
        return item
    try:
        return base64.b64decode(item.rpartition(",")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(
            f"`inputs` is the text {item[:40]!r}, expected the bytes of an image as base64 text."
        ) from error

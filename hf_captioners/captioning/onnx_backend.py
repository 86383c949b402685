"""A pipeline for exported captioners: onnxruntime captions many images without torch."""

import hashlib
import json
import logging
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hf_captioners.default_model import default_model, is_default
from hf_captioners.onnx import OnnxCaptioner
from hf_captioners.onnx.onnx_images import prepare_image

RUNTIME = "onnxruntime"
logger = logging.getLogger(__name__)


class OnnxPipeline:
    """Exported captioner with the methods of `ImageCaptioningPipeline`; pickled copies leave out the graphs.

    Args:
        folder: folder that `hf-captioners export` wrote, or of a captioner with graphs. None or `"default"`: the
            captioner that an installed package offers.
        threads: see `OnnxCaptioner`.

    Raises:
        ImportError: onnxruntime or tokenizers is not installed.
        ValueError: it reads regions, or a file is damaged.
        FileNotFoundError: it is no exported folder, or none is named and no package offers one.
    """

    dtype = "float32"

    def __init__(self, folder: str | None = None, threads: int | None = None) -> None:
        listed = default_model() if is_default(folder) else None
        chosen = Path(str(folder)) if listed is None else listed.folder
        self.captioner = OnnxCaptioner(chosen, threads)
        if not self.captioner.reads_images:
            raise ValueError(f"{folder} is an exported captioner of regions, expected one of images.")
        if listed is not None:
            logger.warning(listed.introduction_on(RUNTIME))
        self.model = SimpleNamespace(name_or_path=str(self.captioner.folder), dtype=self.dtype)
        self.numbers = self.captioner.facts["image"]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the graphs."""
        return {name: value for name, value in self.__dict__.items() if name not in ("captioner", "tokenizer")}

    @cached_property
    def tokenizer(self) -> "ExportedTokenizer":
        """The tokenizer, with the call of a transformers tokenizer."""
        return ExportedTokenizer(self.captioner.tokenizer)

    def require_instruction_read(self, instruction: str | None) -> None:
        """Raise a `ValueError` if an instruction is passed: exported captioners take images only."""
        if instruction is not None:
            raise ValueError(
                f"`instruction` is {instruction!r}, and an exported captioner reads images without an instruction. "
                "Leave it out; `prompt` is the beginning of captions."
            )

    def prepare(self, image: Any, **options: Any) -> dict[str, Any]:
        """Return the pixel values of a decoded image; `options` have no effect here.

        Raises:
            ValueError: it is a study of several views.
        """
        if isinstance(image, list):
            raise ValueError("an exported captioner reads no studies of several views")
        return {"pixel_values": prepare_image(image, self.numbers)}

    def caption_prepared(self, items: list[dict[str, Any]], **options: Any) -> list[list[dict[str, Any]]]:
        """Caption prepared images, see `OnnxCaptioner`; a `seed` is combined with the images of each batch."""
        if options.get("seed") is not None:
            options["seed"] = seed_of_batch(options["seed"], items)
        return self.captioner(items, batch_size=len(items), **options)

    def pack_weights(self, packed_weights: str | None = None, drop_plain: bool = False, **more: Any) -> None:
        """Do nothing: the weights are in the graphs."""

    def __call__(self, images: Any, **options: Any) -> Any:
        """Caption images, see `OnnxCaptioner`."""
        return self.captioner(images, **options)

    def digest(self) -> str:
        """Return a digest of the captioner's files on which captions depend."""
        return hashlib.sha256(json.dumps(self.captioner.facts, sort_keys=True).encode()).hexdigest()


class ExportedTokenizer:
    """Tokenizer of the `tokenizers` library, callable like one of transformers, for `bad_words_ids`.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        unknown = json.loads(tokenizer.to_str())["model"].get("unk_token")
        self.unk_token_id = None if unknown is None else tokenizer.token_to_id(unknown)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the token ids of a text."""
        return {"input_ids": self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}


def seed_of_batch(seed: int, items: list[dict[str, Any]]) -> int:
    """Return the random seed of a batch, derived from the job's seed and the batch's images only."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=7)
    for item in items:
        digest.update(item["pixel_values"].tobytes())
    return int.from_bytes(digest.digest(), "little")

"""Exported captioners in place of the pipeline, so that onnxruntime captions many images."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from hf_captioners.onnx import OnnxCaptioner
from hf_captioners.onnx.onnx_captioner import naming
from hf_captioners.onnx.onnx_facts import TOKENIZER_FILE
from hf_captioners.onnx.onnx_images import prepare_image
from hf_captioners.pipelines.image_captioning import batch_seed


class OnnxPipeline:
    """An exported captioner with what `CaptionBatches` reads of an `ImageCaptioningPipeline`; copies have no graphs.

    Args:
        folder: folder that `hf-captioners export` wrote.

    Raises:
        ValueError: it reads regions, or a file is damaged.
        FileNotFoundError: it is no exported folder.
    """

    dtype = "float32"

    def __init__(self, folder: str) -> None:
        self.captioner = OnnxCaptioner(folder)
        if not self.captioner.reads_images:
            raise ValueError(f"{folder} is an exported captioner of regions, expected one of images.")
        self.model = SimpleNamespace(name_or_path=str(folder), dtype=self.dtype)
        path = Path(folder, TOKENIZER_FILE)
        with naming(path, "is damaged"):
            self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
        self.numbers = self.captioner.facts["image"]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the graphs, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "captioner"}

    def prepare(self, image: Any, **options: Any) -> dict[str, Any]:
        """Return the pixel values of an image that `read_image` has read; `options` have no effect here.

        Raises:
            ValueError: it is a study of several views.
        """
        if isinstance(image, list):
            raise ValueError("an exported captioner reads no studies of several views")
        return {"pixel_values": prepare_image(image, self.numbers)}

    def caption_prepared(self, items: list[dict[str, Any]], **options: Any) -> list[list[dict[str, Any]]]:
        """Return the records of prepared images, see `OnnxCaptioner`; a `seed` is that of all batches."""
        if options.get("seed") is not None:
            inputs = {str(place): torch.from_numpy(item["pixel_values"]) for place, item in enumerate(items)}
            options["seed"] = batch_seed(options["seed"], inputs)
        return self.captioner(items, batch_size=len(items), **options)

    def pack_weights(self, packed_weights: str | None = None, drop_plain: bool = False) -> None:
        """Do nothing: the weights are in the graphs."""

    def __call__(self, images: Any, **options: Any) -> Any:
        """Caption images, see `OnnxCaptioner`."""
        return self.captioner(images, **options)

    def digest(self) -> str:
        """Return a digest of what captions depend on beside the options of a call."""
        return hashlib.sha256(json.dumps(self.captioner.facts, sort_keys=True).encode()).hexdigest()

"""A captioner that was exported with `hf-captioners export`, run by onnxruntime without torch and transformers.

This file and `onnx_facts.py`, `onnx_images.py` and `onnx_search.py` are part of every exported folder, so they need no
other file of the library, only numpy, Pillow, tokenizers and onnxruntime.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING or __package__:
    from hf_captioners.default_model import default_folder
    from hf_captioners.tokenizer_file import require_limited_growth

    from .onnx_facts import (
        DECODER,
        ENCODER,
        EXPORT_AGAIN,
        FACTS_FILE,
        TOKENIZER_FILE,
        GenerationOptions,
        read_facts,
        require_tokens,
    )
    from .onnx_images import prepare_image, read_image
    from .onnx_search import LENGTH, PAST, ROWS, DecoderStates, Hypotheses, Search, TooLongError
else:  # in an exported folder
    from onnx_facts import (
        DECODER,
        ENCODER,
        EXPORT_AGAIN,
        FACTS_FILE,
        TOKENIZER_FILE,
        GenerationOptions,
        read_facts,
        require_tokens,
    )
    from onnx_images import prepare_image, read_image
    from onnx_search import LENGTH, PAST, ROWS, DecoderStates, Hypotheses, Search, TooLongError

    def default_folder() -> Path:
        """Return the folder of this file, which holds the exported captioner."""
        return Path(__file__).parent

    def require_limited_growth(path: Path) -> None:
        """Check nothing: a user who runs a folder's code trusts its tokenizer."""


TRAVELLING = ("onnx_captioner.py", "onnx_facts.py", "onnx_images.py", "onnx_search.py")
"""The files of every exported folder that make it caption."""
MAX_STATE = 2**24  # numbers of a state of a row of text
IMAGES_AT_ONCE = 2  # that the encoder reads: more need more memory, and more time for each
THREADS_VARIABLE = "OMP_NUM_THREADS"
PANIC = "PanicException"  # of the Rust code of tokenizers, which is no `Exception`


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Add a file's name to errors of reading or running it, which libraries omit or split into lines.

    Args:
        path: the file.
        what: what it cannot, for the message.

    Raises:
        ValueError: instead of any other error inside.
    """
    try:
        yield
    except BaseException as error:  # libraries raise errors of many types, also `Exception` itself
        is_fault = isinstance(error, Exception) or type(error).__name__ == PANIC
        if not is_fault or isinstance(error, TooLongError):
            raise
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        reason = " ".join(str(error).split())[:500].rstrip(".")
        raise ValueError(f"{path} {what}: {kind}{reason}. {EXPORT_AGAIN}") from error


class OnnxCaptioner:
    """Captioner of an exported folder, called as the `image-captioning` pipeline is.

    ```python
    captioner = OnnxCaptioner("my_captioner_onnx")
    captioner("photo.jpg")  # [{"generated_text": "two dogs on a beach"}]
    captioner(["photo.jpg", "other.png"], batch_size=2)  # one list for each image
    captioner("photo.jpg", num_beams=3, num_return_sequences=3, return_scores=True)
    captioner("photo.jpg", do_sample=True, seed=0)
    ```

    Args:
        folder: folder that `hf-captioners export` wrote. None: the captioner that an installed package offers; in an
            exported folder, that one.
        threads: threads of an operation. None: as many as the environment variable `OMP_NUM_THREADS` says, or one for
            each core of the processor. Threads without work sleep.
        providers: execution providers of onnxruntime.

    Raises:
        ImportError: onnxruntime or tokenizers is not installed.
        FileNotFoundError: it is no exported folder, or a file is missing.
        ValueError: a file is damaged or of another export, a fact of `captioner.json` is above its limit, or the rules
            of `tokenizer.json` make a text very long. The message names folder and file.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ImportError(
                f"An exported captioner needs {error.name}: pip install onnxruntime tokenizers"
            ) from error
        self.folder = default_folder() if folder is None else Path(folder)
        self.facts = read_facts(self.folder)
        require_limited_growth(self.folder / TOKENIZER_FILE)
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        settings.intra_op_num_threads = threads_of_environment() if threads is None else threads
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.graphs = {name: self.folder / self.facts["graphs"][name] for name in (ENCODER, DECODER)}
        sessions = []
        for path in self.graphs.values():
            with naming(path, "is damaged"):
                sessions.append(onnxruntime.InferenceSession(path, settings, providers=list(providers)))
        self.encoder, self.decoder = sessions
        with naming(self.folder / TOKENIZER_FILE, "is damaged"):
            self.tokenizer = Tokenizer.from_file(str(self.folder / TOKENIZER_FILE))
        self.inputs = [node.name for node in self.encoder.get_inputs()]
        self.end_ids = list(self.facts["tokens"]["end"])
        self.positions = self.facts.get("positions")
        with naming(self.graphs[ENCODER], "does not fit its captioner"):
            self._check_encoder()
        with naming(self.graphs[DECODER], "does not fit its encoder"):
            self.vocabulary = self._check_decoder()
        with naming(self.folder / FACTS_FILE, "does not fit its graphs"):
            self._check_tokens()

    def _check_encoder(self) -> None:
        """Check the encoder graph: its image size is the one in `captioner.json`.

        Raises:
            ValueError: they have another one.
        """
        if not self.encoder.get_outputs():
            raise ValueError("it has no outputs")
        if not self.reads_images and "region_features" not in self.inputs:
            raise ValueError(f"it reads {', '.join(self.inputs)[:200]}, expected pixel_values or region_features")
        if not self.reads_images:
            return
        image = self.facts["image"]
        if image is None:
            raise ValueError(f"it reads images, and {FACTS_FILE} does not say how they are prepared")
        size = image["crop_size"] or image["size"] or {}
        shape = next(node.shape for node in self.encoder.get_inputs() if node.name == "pixel_values")
        if shape[1:] != [3, size.get("height"), size.get("width")]:
            raise ValueError(f"it reads images {shape}, and {FACTS_FILE} prepares them to {size}")

    def _check_decoder(self) -> int:
        """Check the decoder graph: its inputs are tokens, encoder outputs and small states.

        Returns:
            The number of tokens of the vocabulary.

        Raises:
            ValueError: an input or output is missing, or has another shape.
        """
        encoded = {node.name for node in self.encoder.get_outputs()}
        inputs = {node.name: node.shape for node in self.decoder.get_inputs()}
        outputs = {node.name: node.shape for node in self.decoder.get_outputs()}
        if "input_ids" not in inputs or "logits" not in outputs:
            raise ValueError("it lacks the input `input_ids` or the output `logits`")
        for name, shape in inputs.items():
            if name == "input_ids" or name in encoded:
                continue
            fixed = [size for size in shape if size not in (ROWS, LENGTH)]
            if not name.startswith(PAST) or not all(isinstance(size, int) and size >= 0 for size in fixed):
                raise ValueError(f"its input {name!r:.60} {shape} is no output of the encoder, and no state")
            if np.prod([float(size) for size in fixed]) > MAX_STATE:
                raise ValueError(f"its state {name!r:.60} {shape} has more than {MAX_STATE:,} numbers for a row")
        vocabulary = outputs["logits"][-1] if outputs["logits"] else None
        if not isinstance(vocabulary, int) or vocabulary < 1:
            raise ValueError(f"its logits have the shape {outputs['logits']}, whose last size is no number of tokens")
        return vocabulary

    def _check_tokens(self) -> None:
        """Raise a `ValueError` if token ids in `captioner.json` are outside the vocabulary."""
        tokens = self.facts["tokens"]
        for name in ("start", "end", "pad"):
            ids = tokens[name] if name == "end" else [tokens[name]]
            require_tokens(f"tokens.{name}", ids, self.vocabulary)
        self.options({})

    @property
    def reads_images(self) -> bool:
        """True if the captioner reads images, False if it reads regions."""
        return "pixel_values" in self.inputs

    def __call__(
        self,
        images: Any,
        prompt: str = "",
        batch_size: int = 1,
        return_scores: bool = False,
        return_token_scores: bool = False,
        **options: Any,
    ) -> Any:
        """Caption one or several images.

        Args:
            images: an image (see `read_image`), `{"image": ..., "prompt": ...}`, or a list or iterator of these. A
                captioner of regions reads `{"features": [R, D], "boxes": [R, 4]}` (normalised xyxy) and inputs that it
                declares, by name.
            prompt: text that the captions begin with.
            batch_size: images that are computed together.
            return_scores: add `score`, the sum of the log-probabilities of the generated tokens.
            return_token_scores: add `tokens` and `token_scores`.
            **options: see `GenerationOptions`; defaults are those of the captioner.

        Returns:
            For one image a list of `{"generated_text": ...}`, best first; for several images a list of such lists, for
            an iterator an iterator.

        Raises:
            TypeError: an option does not exist.
            ValueError: an option has a wrong value, or an image cannot be read.
        """
        settings = self.options(options)
        scores = (return_scores, return_token_scores)
        if isinstance(images, Iterator):
            return self._caption_all(images, prompt, batch_size, settings, scores)
        if isinstance(images, (list, tuple)) or (isinstance(images, np.ndarray) and images.ndim == 4):
            return list(self._caption_all(images, prompt, batch_size, settings, scores))
        return next(self._caption_all([images], prompt, 1, settings, scores))

    def options(self, given: Mapping[str, Any]) -> GenerationOptions:
        """Return the decoding options of a call: passed options and the captioner's defaults.

        Raises:
            TypeError: an option does not exist.
            ValueError: a value is of a wrong type or out of range.
        """
        for name in given:
            if name not in GenerationOptions.names():
                near = difflib.get_close_matches(name, GenerationOptions.names(), 1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                raise TypeError(f"An exported captioner has no option `{name}`{hint}")
        settings = GenerationOptions(**{**self.facts["generation"], **given})
        settings.require_tokens(self.vocabulary)
        return settings

    def _caption_all(
        self,
        images: Iterable[Any],
        prompt: str,
        batch_size: int,
        settings: GenerationOptions,
        scores: tuple[bool, bool],
    ) -> Iterator[list[dict[str, Any]]]:
        """Caption images in batches."""
        if batch_size < 1:
            raise ValueError(f"`batch_size` is {batch_size}, expected at least 1.")
        batch = []
        for image in images:
            batch.append(image)
            if len(batch) == batch_size:
                yield from self._caption_batch(batch, prompt, settings, scores)
                batch = []
        if batch:
            yield from self._caption_batch(batch, prompt, settings, scores)

    def _caption_batch(
        self, images: Sequence[Any], prompt: str, settings: GenerationOptions, scores: tuple[bool, bool]
    ) -> list[list[dict[str, Any]]]:
        """Caption one batch; images with prompts of different lengths are decoded separately."""
        keys = {"image", "pixel_values", "features"}
        items = [item if isinstance(item, Mapping) and keys & item.keys() else {"image": item} for item in images]
        inputs = self.prepare(items)
        prompts = [self.prompt_ids(item.get("prompt", prompt)) for item in items]
        records: list[list[dict[str, Any]]] = [[] for _ in items]
        for length in sorted({len(ids) for ids in prompts}):
            rows = [place for place, ids in enumerate(prompts) if len(ids) == length]
            chosen = np.array([prompts[place] for place in rows], np.int64)
            hypotheses = self.generate({name: values[rows] for name, values in inputs.items()}, chosen, settings)
            for place, ids, tokens, logprobs in zip(rows, chosen, hypotheses.tokens, hypotheses.logprobs, strict=True):
                records[place] = [
                    self._record(ids[1:].tolist(), row, values, scores)
                    for row, values in zip(tokens.tolist(), logprobs, strict=True)
                ]
        return records

    def generate(
        self, inputs: Mapping[str, np.ndarray], prompts: np.ndarray, settings: GenerationOptions
    ) -> Hypotheses:
        """Decode captions.

        Args:
            inputs: of the encoder graph, B images.
            prompts: `[B, T]`, begin token and prompt.
            settings: options of decoding.

        Raises:
            ValueError: a graph cannot be run on them, or what it computes is not finite; the message names it.
        """
        with naming(self.graphs[ENCODER], "cannot encode the images"):
            encoded = self.encode(inputs, len(prompts))
            for name, values in encoded.items():
                if not values.shape or len(values) != len(prompts):
                    raise ValueError(f"{name} has the shape {list(values.shape)}, expected one row for each image")
                if values.dtype.kind == "f" and np.isnan(values).any():
                    raise ValueError(f"{name} is not finite: its weights are damaged, or its training diverged")
        try:
            with naming(self.graphs[DECODER], "cannot write captions"):
                states = DecoderStates(self.decoder, encoded, self.facts["reads_all_tokens"], self.positions)
                return Search(states, prompts, settings, self.end_ids, self.facts["tokens"]["pad"]).run()
        except TooLongError as error:
            raise ValueError(f"{self.folder}: {error}") from error

    def encode(self, inputs: Mapping[str, np.ndarray], images: int) -> dict[str, np.ndarray]:
        """Return the encoder outputs of B images, computed for `IMAGES_AT_ONCE` images at a time."""
        names = [node.name for node in self.encoder.get_outputs()]
        pieces = []
        for first in range(0, images, IMAGES_AT_ONCE):
            piece = {name: values[first : first + IMAGES_AT_ONCE] for name, values in inputs.items()}
            pieces.append(self.encoder.run(names, piece))
        return {name: np.concatenate(values) for name, values in zip(names, zip(*pieces, strict=True), strict=True)}

    def prepare(self, items: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the inputs of the encoder graph for B items.

        Raises:
            ValueError: an item lacks what the captioner reads.
        """
        if self.reads_images:
            if any("features" in item for item in items):
                raise ValueError("This captioner reads images, and an item has regions: pass `image`.")
            given = {"pixel_values": np.stack([self._pixels(item) for item in items])}
        else:
            if any("features" not in item for item in items):
                raise ValueError('This captioner reads regions: pass {"features": [regions, width], ...}.')
            features = [np.asarray(item["features"], np.float32) for item in items]
            real = [np.ones(len(rows), bool) for rows in features]
            given = {"region_features": padded(features), "region_mask": padded(real)}
            if "region_boxes" in self.inputs:
                if any(item.get("boxes") is None for item in items):
                    raise ValueError("This captioner needs the boxes of the regions: pass `boxes` [regions, 4].")
                given["region_boxes"] = padded([np.asarray(item["boxes"], np.float32) for item in items])
        for name in self.inputs:
            if name not in given and name.removesuffix("_mask") not in given:
                given |= self._declared(name, items)
        return {name: given[name] for name in self.inputs}

    def _pixels(self, item: Mapping[str, Any]) -> np.ndarray:
        """Return the pixel values `[3, H, W]` of an image."""
        if "pixel_values" in item:
            return np.asarray(item["pixel_values"], np.float32)
        return prepare_image(read_image(item["image"]), self.facts["image"])

    def _declared(self, name: str, items: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return a further input of B images, and its mask if the input is a list of ids."""
        if name.endswith("_mask"):
            return {}
        if any(name not in item for item in items):
            raise ValueError(f"This captioner reads `{name}`: pass it with every image.")
        if not name.endswith("_ids"):
            return {name: padded([np.asarray(item[name], np.float32) for item in items])}
        rows = [np.asarray(item[name], np.int64) for item in items]
        real = [np.ones(len(row), bool) for row in rows]
        return {name: padded(rows, 1), f"{name.removesuffix('_ids')}_mask": padded(real, 1)}

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return the begin token and the tokens of a prompt."""
        text = " ".join((prompt.lower() if self.facts["text"]["lowercase"] else prompt).split())
        ids: list[int] = []
        if text:
            with naming(self.folder / TOKENIZER_FILE, f"cannot encode the prompt {text!r:.100}"):
                ids = self.tokenizer.encode(self.facts["text"]["prefix"] + text, add_special_tokens=False).ids
                require_tokens("prompt", ids, self.vocabulary)
        return [self.facts["tokens"]["start"], *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first end token."""
        ends = [place for place, token in enumerate(tokens) if token in self.end_ids]
        text = self._text(tokens[: ends[0]] if ends else tokens, skip_special_tokens=True).strip()
        if self.facts["text"]["merge_repeated_words"]:
            return " ".join(word for word, _ in groupby(text.split()))
        return text

    def _text(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        with naming(self.folder / TOKENIZER_FILE, "cannot decode tokens"):
            return self.tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens)

    def _record(
        self, prompt: list[int], tokens: list[int], logprobs: np.ndarray, scores: tuple[bool, bool]
    ) -> dict[str, Any]:
        """Return the result record of one image."""
        ends = [place for place, token in enumerate(tokens) if token in self.end_ids]
        length = ends[0] + 1 if ends else len(tokens)
        record: dict[str, Any] = {"generated_text": self.decode([*prompt, *tokens])}
        if scores[0]:
            record["score"] = float(logprobs[:length].sum())
        if scores[1]:
            record["tokens"] = [self._text([token], skip_special_tokens=False) for token in tokens[:length]]
            record["token_scores"] = logprobs[:length].tolist()
        return record


def threads_of_environment() -> int:
    """Return the number of threads in `OMP_NUM_THREADS`; 0, which lets onnxruntime choose, if unset."""
    text = os.environ.get(THREADS_VARIABLE, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() else 0


def padded(rows: Sequence[np.ndarray], min_length: int = 0) -> np.ndarray:
    """Pad arrays with zeros to a common size, at least `min_length`, and stack them."""
    shape = tuple(max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True))
    result = np.zeros((len(rows), max(shape[0], min_length) if shape else 0, *shape[1:]), rows[0].dtype)
    for target, row in zip(result, rows, strict=True):
        target[tuple(slice(size) for size in row.shape)] = row
    return result


def main(arguments: Sequence[str], write: Callable[[str], Any] = sys.stdout.write) -> int:
    """Caption the images of a command line with the captioner of this folder."""
    if not arguments:
        write(f"usage: python {Path(__file__).name} IMAGE ...\n")
        return 2
    captioner = OnnxCaptioner()
    for name, records in zip(arguments, captioner(iter(arguments)), strict=True):
        write(f"{name}\t{records[0]['generated_text']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

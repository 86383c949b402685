"""A captioner that was exported with `hf-captioners export`, run by onnxruntime without torch and transformers.

This file is part of every exported folder, so it needs no other file of the library, only numpy, Pillow, tokenizers
and onnxruntime.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import PIL.ExifTags
import PIL.Image

FORMAT = 1  # of the exported folder
FACTS_FILE = "captioner.json"
TOKENIZER_FILE = "tokenizer.json"
ENCODER, DECODER = "encoder_model", "decoder_model_merged"
PAST, PRESENT = "past_key_values.", "present."
# Axes of the graphs whose size is free.
IMAGES, ROWS, LENGTH = "images", "rows", "past"
MAX_FACTS_BYTES = 16 * 2**20
EXPORT_AGAIN = "Export the captioner again, or copy the whole folder again."
# Pillow would start Ghostscript for PostScript, whatever the name of the file; these formats it decodes itself.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
TURNS = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}
EXCLUDED = np.float32(-1e9)  # added to the score of a hypothesis that must not be chosen, as in transformers


@dataclass
class GenerationOptions:
    """Options of decoding, with the names and the meaning of `generate()` of transformers.

    Beam search keeps finished hypotheses as transformers does. `seed` makes sampling repeatable; the numbers drawn
    are those of numpy, so samples are not those of torch.

    Raises:
        ValueError: a value is out of range, or two options do not go together.
    """

    max_new_tokens: int = 32
    min_new_tokens: int = 0
    min_length: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: list[list[int]] = field(default_factory=list)
    suppress_tokens: list[int] = field(default_factory=list)
    begin_suppress_tokens: list[int] = field(default_factory=list)
    no_immediate_repetition: bool = False
    bad_ending_ids: list[int] = field(default_factory=list)
    trigram_penalty: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("max_new_tokens", "num_beams", "num_return_sequences"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` is {value!r}, expected a whole number from 1.")
        if self.temperature <= 0:
            raise ValueError(f"`temperature` is {self.temperature}, expected more than 0.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` is {self.top_p}, expected more than 0, at most 1.")
        if self.do_sample and self.num_beams > 1:
            raise ValueError("`do_sample=True` with `num_beams` above 1 is not supported: pass `num_beams=1`.")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"`num_return_sequences` is {self.num_return_sequences} with `num_beams={self.num_beams}`: pass as "
                "many beams, or `do_sample=True`."
            )

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all options."""
        return [option.name for option in fields(cls)]


@dataclass
class Hypotheses:
    """Decoded captions of B images, n each.

    Args:
        tokens: `[B, n, L]`, generated tokens without prompt, padded after the end token.
        logprobs: `[B, n, L]`, log-probability of every token before processing of the logits.
    """

    tokens: np.ndarray
    logprobs: np.ndarray

    def pick(self, index: np.ndarray) -> Hypotheses:
        """Return the hypotheses `index` `[B, n]` of every image."""
        return Hypotheses(
            np.take_along_axis(self.tokens, index[..., None], 1),
            np.take_along_axis(self.logprobs, index[..., None], 1),
        )

    def join(self, other: Hypotheses) -> Hypotheses:
        """Return the hypotheses of both on one axis."""
        return Hypotheses(
            np.concatenate((self.tokens, other.tokens), 1), np.concatenate((self.logprobs, other.logprobs), 1)
        )


class DecoderStates:
    """What the decoder reads at every step: encoded images, and the states of the text rows.

    An input of the decoder graph that the encoder returns starts with that value, a state of the text rows that it
    does not return starts empty. The names of the axes say which inputs have one entry per text row.

    Args:
        session: of the decoder graph.
        encoded: outputs of the encoder graph for B images; there is one text row for each.
        reads_all_tokens: whether the graph reads all tokens so far instead of the last.
    """

    def __init__(self, session: Any, encoded: Mapping[str, np.ndarray], reads_all_tokens: bool) -> None:
        self.session, self.reads_all_tokens = session, reads_all_tokens
        self.values: dict[str, np.ndarray] = {}
        self.of_rows: list[str] = []
        images = len(next(iter(encoded.values())))
        for node in session.get_inputs():
            if node.name == "input_ids":
                continue
            if node.shape[0] == ROWS:
                self.of_rows.append(node.name)
            if node.name in encoded:
                self.values[node.name] = encoded[node.name]
            else:
                sizes = {ROWS: images, LENGTH: 0}
                shape = [sizes.get(size, size) for size in node.shape]
                self.values[node.name] = np.zeros(shape, np.float32)
        self.outputs = [node.name for node in session.get_outputs()]

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Read the last token of rows `[rows, T]`; return the logits `[rows, V]` of the next one."""
        read = tokens if self.reads_all_tokens else tokens[:, -1:]
        found = self.session.run(self.outputs, {"input_ids": np.ascontiguousarray(read), **self.values})
        for name, value in zip(self.outputs, found, strict=True):
            if name.startswith(PRESENT):
                self.values[PAST + name.removeprefix(PRESENT)] = value
        return found[self.outputs.index("logits")][:, -1]

    def reorder(self, rows: np.ndarray) -> None:
        """Let the text rows continue the rows `rows`, which may be repeated."""
        for name in self.of_rows:
            self.values[name] = self.values[name][rows]


class LogitsRules:
    """The rules that change logits before a token is chosen, in the order of transformers.

    Args:
        options: see `GenerationOptions`.
        end_ids: ids of the end tokens.
        prompt: length of the rows before the first generated token.
    """

    def __init__(self, options: GenerationOptions, end_ids: Sequence[int], prompt: int) -> None:
        self.options, self.end_ids, self.prompt = options, list(end_ids), prompt
        ends = [[token] for token in end_ids]
        self.bad_words = [words for words in options.bad_words_ids if words not in ends]

    def __call__(self, tokens: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return changed scores `[rows, V]` of the tokens that follow `tokens` `[rows, T]`."""
        options, scores = self.options, scores.copy()
        length, generated = tokens.shape[1], tokens.shape[1] - self.prompt
        if options.repetition_penalty != 1.0:
            seen = np.take_along_axis(scores, tokens, 1)
            changed = np.where(seen < 0, seen * options.repetition_penalty, seen / options.repetition_penalty)
            np.put_along_axis(scores, tokens, changed.astype(scores.dtype), 1)
        if options.no_repeat_ngram_size:
            self._forbid_repeated_ngrams(tokens, scores, options.no_repeat_ngram_size)
        for words in self.bad_words:
            *before, last = words
            if length >= len(before):
                fits = (tokens[:, length - len(before) :] == np.array(before, np.int64)).all(1)
                scores[fits, last] = -np.inf
        if length < options.min_length or generated < options.min_new_tokens:
            scores[:, self.end_ids] = -np.inf
        scores[:, options.suppress_tokens] = -np.inf
        if not generated:
            scores[:, options.begin_suppress_tokens] = -np.inf
        self._apply_caption_rules(tokens[:, self.prompt :], scores)
        return scores

    @staticmethod
    def _forbid_repeated_ngrams(tokens: np.ndarray, scores: np.ndarray, size: int) -> None:
        """Forbid the tokens that would complete an n-gram that a row already has."""
        for row, before in zip(scores, tokens, strict=True):
            start = tuple(before[len(before) - size + 1 :]) if len(before) >= size - 1 else None
            for first in range(len(before) - size + 1):
                if tuple(before[first : first + size - 1]) == start:
                    row[before[first + size - 1]] = -np.inf

    def _apply_caption_rules(self, generated: np.ndarray, scores: np.ndarray) -> None:
        """Apply the rules of captioning code, see `hf_captioners.modeling.search_captioning`."""
        options = self.options
        if not generated.shape[1]:
            return
        if options.no_immediate_repetition:
            np.put_along_axis(scores, generated[:, -1:], -np.inf, 1)
        if options.bad_ending_ids:
            bad = np.flatnonzero(np.isin(generated[:, -1], options.bad_ending_ids))
            scores[bad[:, None], self.end_ids] = -np.inf
        if options.trigram_penalty and generated.shape[1] > 2:
            pairs = np.stack((generated[:, :-2], generated[:, 1:-1]), -1)  # [rows, t - 2, 2]
            repeated = (pairs == generated[:, None, -2:]).all(-1)
            for row, followers, counted in zip(scores, generated[:, 2:], repeated, strict=True):
                np.add.at(row, followers[counted], np.float32(-options.trigram_penalty))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of logits `[rows, V]`."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def best(values: np.ndarray, count: int) -> np.ndarray:
    """Return the places `[B, count]` of the largest values of `[B, N]`, the largest first, of equal ones the first."""
    if count >= values.shape[-1]:
        return np.argsort(-values, axis=-1, kind="stable")[:, :count]
    found = np.sort(np.argpartition(-values, count - 1, axis=-1)[:, :count], axis=-1)
    order = np.argsort(-np.take_along_axis(values, found, -1), axis=-1, kind="stable")
    return np.take_along_axis(found, order, -1)


def draw(scores: np.ndarray, options: GenerationOptions, generator: np.random.Generator) -> np.ndarray:
    """Draw one token for each row of logits `[rows, V]`, after temperature, top k and top p."""
    scores = scores / options.temperature
    if options.top_k:
        least = np.sort(scores, axis=-1)[:, -min(options.top_k, scores.shape[-1])]
        scores = np.where(scores < least[:, None], -np.inf, scores)
    if options.top_p < 1:
        order = np.argsort(scores, axis=-1, kind="stable")
        summed = np.exp(log_softmax(np.take_along_axis(scores, order, -1))).cumsum(-1)
        dropped = summed <= 1 - options.top_p
        dropped[:, -1] = False
        kept = np.take_along_axis(scores, order, -1)
        np.put_along_axis(scores, order, np.where(dropped, -np.inf, kept), -1)
    chances = np.exp(log_softmax(scores).astype(np.float64)).cumsum(-1)
    drawn = generator.random((len(scores), 1)) * chances[:, -1:]
    return (chances <= drawn).sum(-1)


@dataclass
class Search:
    """Decoding of the captions of one batch.

    Args:
        states: of B rows, before the first token.
        prompt: `[B, T]`, begin token and prompt.
        options: see `GenerationOptions`.
        end_ids, pad_id: ids of the end tokens and of the padding.
    """

    states: DecoderStates
    prompt: np.ndarray
    options: GenerationOptions
    end_ids: Sequence[int]
    pad_id: int

    def run(self) -> Hypotheses:
        """Return the captions, best first."""
        for place in range(1, self.prompt.shape[1]):
            self.states.step(self.prompt[:, :place])
        return self.by_beams() if self.options.num_beams > 1 else self.by_rows()

    def first_step(self, copies: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the end of the prompt once per image, and copy the rows; return their tokens and logits."""
        rows = np.arange(len(self.prompt)).repeat(copies)
        logits = self.states.step(self.prompt)[rows]
        self.states.reorder(rows)
        return self.prompt[rows], logits

    def by_rows(self) -> Hypotheses:
        """Choose the best token of every row, or draw one."""
        options, images = self.options, len(self.prompt)
        generator = np.random.default_rng(options.seed)
        rules = LogitsRules(options, self.end_ids, self.prompt.shape[1])
        tokens, logits = self.first_step(options.num_return_sequences)
        running, logprobs = np.ones(len(tokens), bool), []
        while True:
            scores = rules(tokens, logits)
            chosen = draw(scores, options, generator) if options.do_sample else scores.argmax(-1)
            chosen = np.where(running, chosen, self.pad_id)
            logprobs.append(np.take_along_axis(log_softmax(logits), chosen[:, None], -1))
            tokens = np.concatenate((tokens, chosen[:, None]), 1)
            running &= ~np.isin(chosen, self.end_ids)
            if not running.any() or len(logprobs) >= options.max_new_tokens:
                break
            logits = self.states.step(tokens)
        shape = (images, options.num_return_sequences, -1)
        generated = tokens[:, self.prompt.shape[1] :].reshape(shape)
        return Hypotheses(generated, np.concatenate(logprobs, 1).reshape(shape))

    def by_beams(self) -> Hypotheses:
        """Search with the bookkeeping of transformers: K running and K finished hypotheses of each image."""
        options, (images, prompt), beams = self.options, self.prompt.shape, self.options.num_beams
        rules = LogitsRules(options, self.end_ids, prompt)
        kept = max(2, 1 + len(self.end_ids)) * beams
        tokens, logits = self.first_step(beams)
        width = options.max_new_tokens
        running = Hypotheses(
            np.full((images, beams, width), self.pad_id), np.zeros((images, beams, width), np.float32)
        )
        finished: Hypotheses = running
        finished_scores: Any = np.full((images, beams), EXCLUDED)
        is_finished = np.zeros((images, beams), bool)
        scores = np.where(np.arange(beams) > 0, EXCLUDED, np.float32(0))[None].repeat(images, 0)
        may_improve = np.ones((images, 1), bool)
        for step in range(width):
            raw = log_softmax(logits)
            vocabulary = raw.shape[-1]
            summed = rules(tokens, raw).reshape(images, beams, vocabulary) + scores[..., None]
            flat = best(summed.reshape(images, -1), kept)  # [B, kept]
            parents, chosen = flat // vocabulary, flat % vocabulary
            candidates = running.pick(parents)
            candidates.tokens[..., step] = chosen
            raw_chosen = raw.reshape(images, -1)
            candidates.logprobs[..., step] = np.take_along_axis(raw_chosen, flat, -1)
            found = np.take_along_axis(summed.reshape(images, -1), flat, -1)
            ends = np.isin(chosen, self.end_ids) | (step + 1 >= width)
            going_on = found + ends * EXCLUDED
            order = best(going_on, beams)
            running, scores = candidates.pick(order), np.take_along_axis(going_on, order, -1)
            # Only the best K candidates may finish; the others replace them among the running ones.
            ending = ends & (np.arange(kept) < beams)
            ranked = found / np.float32((step + 1) ** options.length_penalty)
            ranked = ranked + ~ending * EXCLUDED + ~may_improve * EXCLUDED
            if options.early_stopping is True:
                ranked = ranked + is_finished.all(-1, keepdims=True) * EXCLUDED
            both = np.concatenate((finished_scores, ranked), 1)
            order_finished = best(both, beams)
            finished = finished.join(candidates).pick(order_finished)
            finished_scores = np.take_along_axis(both, order_finished, -1)
            is_finished = np.take_along_axis(np.concatenate((is_finished, ending), 1), order_finished, -1)
            longest = width if options.early_stopping == "never" and options.length_penalty > 0 else step + 1
            reachable = scores[:, :1] / np.float32(longest**options.length_penalty)
            worst = np.where(is_finished, finished_scores.min(1, keepdims=True), EXCLUDED)
            may_improve &= (reachable > worst).any(-1, keepdims=True)
            all_full = options.early_stopping is True and is_finished.all()
            if not may_improve.any() or all_full or ends.all():
                break
            rows = (np.take_along_axis(parents, order, -1) + np.arange(images)[:, None] * beams).reshape(-1)
            self.states.reorder(rows)
            tokens = np.concatenate(
                (self.prompt.repeat(beams, 0), running.tokens[..., : step + 1].reshape(-1, step + 1)), 1
            )
            logits = self.states.step(tokens)
        every = np.arange(options.num_return_sequences)[None].repeat(images, 0)
        return finished.pick(every)


def read_image(source: Any) -> PIL.Image.Image:
    """Read an image as upright RGB with transparency over white, as the processors of captioners do.

    Args:
        source: a path, the bytes of a file, an open binary file, a PIL image, or an array `[H, W]` or `[H, W, C]` of
            levels 0 to 255.

    Raises:
        FileNotFoundError: no file has this path.
        ValueError: it cannot be read; the message has its name.
        TypeError: it has another type.
    """
    if isinstance(source, np.ndarray):
        return over_white(PIL.Image.fromarray(np.ascontiguousarray(source.astype(np.uint8))))
    if isinstance(source, PIL.Image.Image):
        return upright_rgb(source)
    name = str(source) if isinstance(source, (str, os.PathLike)) else f"given as {type(source).__name__}"
    if isinstance(source, (bytes, bytearray)):
        source = io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        if not os.path.isfile(source):
            raise FileNotFoundError(f"No image has the path {name!r}. Give the path of a file; download URLs first.")
    elif not hasattr(source, "read"):
        raise TypeError(f"An image was {name}; expected a path, bytes, an open binary file, a PIL image or an array.")
    try:
        PIL.Image.init()
        with PIL.Image.open(source, formats=[one for one in IMAGE_FORMATS if one in PIL.Image.OPEN]) as image:
            return upright_rgb(image)
    except Exception as error:  # decoders raise errors of many types
        reason = str(error).replace("\n", " ") or type(error).__name__
        raise ValueError(f"The image {name} cannot be read: {reason}. Repair it or leave it out.") from error


def upright_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    """Decode an image, turn it by its EXIF orientation, and convert it to RGB."""
    image.load()
    try:
        turn = TURNS.get(image.getexif().get(PIL.ExifTags.Base.Orientation, 1))
    except Exception:  # damaged metadata raises errors of many types, and the pixels do not depend on it
        turn = None
    image = image if turn is None else image.transpose(turn)
    if image.mode in DEEP_MODES:
        values = np.asarray(image)
        wide = (values.dtype.kind, values.dtype.itemsize) == ("u", 2) or values.max() > 255
        scale = 1 / 257 if wide else 255.0 if values.dtype.kind == "f" and values.max() <= 1 else 1.0
        image = PIL.Image.fromarray(np.rint(values.astype(np.float64) * scale).astype(np.uint8))
    return over_white(image)


def over_white(image: PIL.Image.Image) -> PIL.Image.Image:
    """Convert an 8-bit image of any mode to RGB, with transparency composed over white."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
        return PIL.Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def prepare_image(image: PIL.Image.Image, numbers: Mapping[str, Any]) -> np.ndarray:
    """Return the pixel values `[3, H, W]` of an RGB image.

    Args:
        image: the image.
        numbers: `size` (after resizing: height and width, `shortest_edge`, or `max_height` and `max_width`),
            `resample` (of Pillow), `crop_size`, `rescale_factor`, `image_mean`, `image_std`; None leaves a step out.
    """
    if numbers["size"] is not None:
        image = image.resize(size_after(image.size, numbers["size"]), numbers["resample"])
    levels = np.asarray(image)
    if numbers["crop_size"] is not None:
        levels = center_crop(levels, numbers["crop_size"]["height"], numbers["crop_size"]["width"])
    values = np.moveaxis(levels, -1, 0)
    if numbers["rescale_factor"] is not None:
        values = values.astype(np.float64) * numbers["rescale_factor"]
    values = values.astype(np.float32)
    if numbers["image_mean"] is not None:
        mean, std = (np.array(numbers[name], np.float32)[:, None, None] for name in ("image_mean", "image_std"))
        values = (values - mean) / std
    return values


def size_after(size: tuple[int, int], rule: Mapping[str, int]) -> tuple[int, int]:
    """Return width and height after resizing an image of this width and height."""
    width, height = size
    if "shortest_edge" in rule:
        edge = rule["shortest_edge"]
        return (edge, int(edge * height / width)) if width <= height else (int(edge * width / height), edge)
    if "max_height" in rule:
        scale = min(rule["max_height"] / height, rule["max_width"] / width)
        return int(width * scale), int(height * scale)
    return rule["width"], rule["height"]


def center_crop(levels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the centre of `[H, W, 3]`; a smaller image gets a black rim, the odd line above and left."""
    missing = [max(wanted - size, 0) for wanted, size in zip((height, width), levels.shape, strict=False)]
    rim = [((lines + 1) // 2, lines // 2) for lines in missing]
    levels = np.pad(levels, [*rim, (0, 0)])
    top, left = (levels.shape[0] - height) // 2, (levels.shape[1] - width) // 2
    return levels[top : top + height, left : left + width]


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of an exported folder, after checking that its files are those of one export.

    Raises:
        FileNotFoundError: it is no exported folder, or a file is missing.
        ValueError: it is of a later version, or a file has changed.
    """
    path = folder / FACTS_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {FACTS_FILE}: it is no exported captioner. Make one: hf-captioners export MODEL "
            "--output_dir DIR."
        )
    try:
        facts = json.loads(read_small_file(path))
        version, files = facts["format"], facts["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}). {EXPORT_AGAIN}") from error
    if version != FORMAT:
        raise ValueError(f"{path} has the format {version!r}, expected {FORMAT}. Update the library, or export again.")
    for name, digest in files.items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} lacks {name}. {EXPORT_AGAIN}")
        if file_digest(folder / name) != digest:
            raise ValueError(f"{folder / name} is damaged, or is a file of another export. {EXPORT_AGAIN}")
    return facts


def read_small_file(path: Path) -> bytes:
    """Read a file that describes a folder; links are followed, as those of a Hub cache.

    Raises:
        ValueError: it is a named pipe, a device or a folder, or too large.
    """
    if not path.is_file():  # a pipe would be waited for, and a device may have no end
        raise ValueError("it is no plain file")
    with open(path, "rb") as file:
        content = file.read(MAX_FACTS_BYTES + 1)
    if len(content) > MAX_FACTS_BYTES:
        raise ValueError(f"it has more than {MAX_FACTS_BYTES:,} bytes")
    return content


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        folder: folder that `hf-captioners export` wrote.
        threads: threads of an operation; None: as onnxruntime chooses.
        providers: execution providers of onnxruntime.

    Raises:
        ImportError: onnxruntime or tokenizers is not installed.
        FileNotFoundError: it is no exported folder, or a file is missing.
        ValueError: a file is damaged or of another export.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
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
        self.folder = Path(folder)
        self.facts = read_facts(self.folder)
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        if threads is not None:
            settings.intra_op_num_threads = threads
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(self.folder / self.facts["graphs"][name], settings, providers=list(providers))
            for name in (ENCODER, DECODER)
        )
        self.tokenizer = Tokenizer.from_file(str(self.folder / TOKENIZER_FILE))
        self.inputs = [node.name for node in self.encoder.get_inputs()]
        self.end_ids = list(self.facts["tokens"]["end"])

    @property
    def reads_images(self) -> bool:
        """Whether the captioner reads images; otherwise it reads regions."""
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
        """Return the options of a call: those that are given, and the captioner's own.

        Raises:
            TypeError: an option does not exist.
        """
        for name in given:
            if name not in GenerationOptions.names():
                near = difflib.get_close_matches(name, GenerationOptions.names(), 1)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                raise TypeError(f"An exported captioner has no option `{name}`{hint}")
        return GenerationOptions(**{**self.facts["generation"], **given})

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
            found = self.generate({name: values[rows] for name, values in inputs.items()}, chosen, settings)
            for place, ids, tokens, logprobs in zip(rows, chosen, found.tokens, found.logprobs, strict=True):
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
        """
        names = [node.name for node in self.encoder.get_outputs()]
        encoded = dict(zip(names, self.encoder.run(names, dict(inputs)), strict=True))
        states = DecoderStates(self.decoder, encoded, self.facts["reads_all_tokens"])
        return Search(states, prompts, settings, self.end_ids, self.facts["tokens"]["pad"]).run()

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
        """Return the pixel values `[3, H, W]` of an item."""
        if "pixel_values" in item:
            return np.asarray(item["pixel_values"], np.float32)
        return prepare_image(read_image(item["image"]), self.facts["image"])

    def _declared(self, name: str, items: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return a declared input of B items, with its mask if it is a list of ids."""
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
        ids = self.tokenizer.encode(self.facts["text"]["prefix"] + text, add_special_tokens=False).ids if text else []
        return [self.facts["tokens"]["start"], *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first end token."""
        ends = [place for place, token in enumerate(tokens) if token in self.end_ids]
        text = self.tokenizer.decode(list(tokens[: ends[0]] if ends else tokens), skip_special_tokens=True).strip()
        if self.facts["text"]["merge_repeated_words"]:
            return " ".join(word for word, _ in groupby(text.split()))
        return text

    def _record(
        self, prompt: list[int], tokens: list[int], logprobs: np.ndarray, scores: tuple[bool, bool]
    ) -> dict[str, Any]:
        """Return one row of the result."""
        ends = [place for place, token in enumerate(tokens) if token in self.end_ids]
        length = ends[0] + 1 if ends else len(tokens)
        record: dict[str, Any] = {"generated_text": self.decode([*prompt, *tokens])}
        if scores[0]:
            record["score"] = float(logprobs[:length].sum())
        if scores[1]:
            record["tokens"] = [self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens[:length]]
            record["token_scores"] = logprobs[:length].tolist()
        return record


def padded(rows: Sequence[np.ndarray], least: int = 0) -> np.ndarray:
    """Pad arrays with zeros to the largest of them, at least `least` long, and stack them."""
    shape = tuple(max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True))
    result = np.zeros((len(rows), max(shape[0], least) if shape else 0, *shape[1:]), rows[0].dtype)
    for target, row in zip(result, rows, strict=True):
        target[tuple(slice(size) for size in row.shape)] = row
    return result


def main(arguments: Sequence[str], write: Callable[[str], Any] = sys.stdout.write) -> int:
    """Caption the images of a command line with the captioner of this folder."""
    if not arguments:
        write(f"usage: python {Path(__file__).name} IMAGE ...\n")
        return 2
    captioner = OnnxCaptioner(Path(__file__).parent)
    for name, records in zip(arguments, captioner(iter(arguments)), strict=True):
        write(f"{name}\t{records[0]['generated_text']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Batching of requested images that arrive at the same time."""

import asyncio
import copy
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from hf_captioners.captioning.batches import require_batch_size
from hf_captioners.captioning.columns import CaptionBatches, PreparedBatch
from hf_captioners.captioning.generation_options import default_option
from hf_captioners.captioning.instructions import InstructionTemplate

from .metrics import Metrics
from .parameters import check_combination

READING_THREADS = 2  # decoders release Python's lock; each may need the memory of one large image


class UnreadableImageError(ValueError):
    """The bytes of a request are not a readable image."""


class CaptioningFailedError(RuntimeError):
    """The captioner failed on a batch."""


class RefusedOptionsError(ValueError):
    """The captioner refuses the parameters of a request."""


class WaitingImage(NamedTuple):
    """An image waiting for a batch.

    Args:
        item: the prepared image.
        options: arguments of the pipeline that its request has.
        answer: receives what `RequestBatches.caption` returns; cancelled if nobody waits for it any more.
    """

    item: dict[str, Any]
    options: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]]

    def goes_with(self, other: "WaitingImage") -> bool:
        """Return whether two images can share a batch; an image with a seed is captioned alone."""
        return self.options == other.options and "seed" not in self.options


class RequestBatches:
    """Queue that captions the images of requests in batches.

    Whenever the model is free, it captions the images that wait, at most `batch_size`: the one that waits longest and
    those of the same options. So a request that is alone is captioned at once, and the batches grow with the load.
    Images are decoded in threads while the model works.

    Args:
        captioner: what captions the batches.
        batch_size: images per batch.
        metrics: what counts the batches.

    Raises:
        ValueError: `batch_size` is below 1, or the captioner's instruction has fields.
    """

    def __init__(self, captioner: CaptionBatches, batch_size: int = 16, metrics: Metrics | None = None) -> None:
        require_batch_size(batch_size)
        if fields := InstructionTemplate(captioner.generate.get("instruction") or "").fields:
            raise ValueError(f"`instruction` has the field {{{fields[0]}}}, and images of requests have no fields.")
        self.captioner, self.batch_size = captioner, batch_size
        self.metrics = metrics or Metrics()
        self.prepare = captioner.preparation(joins=False)
        self.reading = ThreadPoolExecutor(READING_THREADS, "read-images")
        self.captioning = ThreadPoolExecutor(1, "caption-images")
        self.waiting: deque[WaitingImage] = deque()
        self.arrived = asyncio.Event()

    async def caption(self, content: bytes, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Caption an image file; return `caption` and `score`, and `confidence` and `words` if computed.

        Args:
            content: the bytes.
            options: arguments of the pipeline, such as `num_beams`, instead of those of the server. An `instruction`
                is read word by word.

        Raises:
            UnreadableImageError: they are no image that can be captioned.
            RefusedOptionsError: the captioner does not take the options.
            CaptioningFailedError: the captioner failed at the batch of the image.
        """
        chosen = dict(options or {})
        instruction = chosen.pop("instruction", None)
        self._check(chosen, instruction)
        loop = asyncio.get_running_loop()
        prepare = copy.copy(self.prepare)
        prepare.options = self.prepare.options | chosen
        prepared = await loop.run_in_executor(self.reading, prepare, [content])
        if prepared.errors[0] is not None:
            raise UnreadableImageError(prepared.errors[0])
        item = prepared.items[0]
        if instruction is not None:
            item = dict(self.captioner.pipeline.with_instruction(item, instruction))
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.waiting.append(WaitingImage(item, chosen, answer))
        self.arrived.set()
        return await answer

    def _check(self, options: Mapping[str, Any], instruction: str | None) -> None:
        """Raise a `RefusedOptionsError` if the captioner refuses the options or the instruction."""
        pipeline, checks = self.captioner.pipeline, {name: options[name] for name in options if name != "prompt"}
        exported = getattr(pipeline, "captioner", None)
        try:
            if instruction is not None:
                pipeline.require_instruction_read(instruction)
                if mark := next((mark for mark in pipeline.instructed.marks if mark in instruction), None):
                    raise ValueError(f"The instruction has {mark!r}, a special token of the captioner.")
            names = ("num_beams", "num_return_sequences", "do_sample")
            generate = self.captioner.generate
            check_combination(options, {name: generate.get(name, default_option(pipeline, name)) for name in names})
            if exported is not None:
                exported.options({name: generate[name] for name in generate if name != "prompt"} | checks)
            if self.captioner.assessor is not None:
                self.captioner.assessor.decoding(**generate | checks)
        except (TypeError, ValueError) as error:
            raise RefusedOptionsError(str(error)) from error

    async def run(self) -> None:
        """Caption waiting images until the task is cancelled."""
        while True:
            while not self.waiting:
                self.arrived.clear()
                await self.arrived.wait()
            if batch := self._next_batch():
                await self._answer(batch)

    def _next_batch(self) -> list[WaitingImage]:
        """Take the next batch of waiting images; drop requests of disconnected clients."""
        batch: list[WaitingImage] = []
        remaining: deque[WaitingImage] = deque()
        for image in self.waiting:
            if image.answer.done():
                continue
            if not batch or (len(batch) < self.batch_size and image.goes_with(batch[0])):
                batch.append(image)
            else:
                remaining.append(image)
        self.waiting = remaining
        return batch

    async def _answer(self, batch: list[WaitingImage]) -> None:
        """Caption a batch and answer its requests; on failure, every request gets the error."""
        prepared = PreparedBatch([image.item for image in batch], [None] * len(batch))
        begin = time.perf_counter()
        try:
            columns = await asyncio.get_running_loop().run_in_executor(
                self.captioning, self.captioner.caption, prepared, batch[0].options
            )
        except Exception as error:
            if (
                len(batch) > 1 and getattr(self.prepare.pipeline, "instructed", None) is not None
            ):  # one image may have spoilt the others
                for image in batch:
                    await self._answer([image])
                return
            for image in batch:
                if not image.answer.done():
                    failed = CaptioningFailedError(f"{type(error).__name__}: {error}")
                    failed.__cause__ = error
                    image.answer.set_exception(failed)
            return
        self.metrics.batch_images.add(len(batch))
        self.metrics.batch_seconds.add(time.perf_counter() - begin)
        names = [name for name in ("caption", "score", "confidence", "words") if name in columns]
        for place, (image, fault) in enumerate(zip(batch, columns["error"], strict=True)):
            if not image.answer.done() and fault is not None:
                image.answer.set_exception(UnreadableImageError(fault))
            if not image.answer.done():
                image.answer.set_result({name: columns[name][place] for name in names})

    def close(self) -> None:
        """Stop the threads after their current work."""
        self.reading.shutdown(wait=False, cancel_futures=True)
        self.captioning.shutdown(wait=False, cancel_futures=True)

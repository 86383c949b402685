"""Images of requests, captioned in the batches in which they arrive."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from hf_captioners.captioning.batches import require_batch_size
from hf_captioners.captioning.columns import CaptionBatches, PreparedBatch
from hf_captioners.captioning.instructions import InstructionTemplate

READING_THREADS = 2  # decoders release Python's lock; each may need the memory of one large image


class UnreadableImageError(ValueError):
    """The bytes of a request are no image that can be captioned."""


class CaptioningFailedError(RuntimeError):
    """The captioner failed at a batch."""


class WaitingImage(NamedTuple):
    """An image that waits for the model.

    Args:
        item: the prepared image.
        answer: receives what `RequestBatches.caption` returns; cancelled if nobody waits for it any more.
    """

    item: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]]


class RequestBatches:
    """Captions images of requests in batches.

    Whenever the model is free, it captions the images that wait, at most `batch_size`. So a request that is alone is
    captioned at once, and the batches grow with the load. Images are decoded in threads while the model works.

    Args:
        captioner: what captions the batches.
        batch_size: images per batch.

    Raises:
        ValueError: `batch_size` is below 1, or the captioner's instruction has fields.
    """

    def __init__(self, captioner: CaptionBatches, batch_size: int = 16) -> None:
        require_batch_size(batch_size)
        if fields := InstructionTemplate(captioner.generate.get("instruction") or "").fields:
            raise ValueError(f"`instruction` has the field {{{fields[0]}}}, and images of requests have no fields.")
        self.captioner, self.batch_size = captioner, batch_size
        self.prepare = captioner.preparation(joins=False)
        self.reading = ThreadPoolExecutor(READING_THREADS, "read-images")
        self.captioning = ThreadPoolExecutor(1, "caption-images")
        self.waiting: asyncio.Queue[WaitingImage] = asyncio.Queue()

    async def caption(self, content: bytes, instruction: str | None = None) -> dict[str, Any]:
        """Return `caption` and `score` of the bytes of an image, with `confidence` of the captioner also `confidence`
        and `words`; see `CaptionBatches`.

        Args:
            content: the bytes.
            instruction: what the captioner is asked, word by word. None: that of the server.

        Raises:
            UnreadableImageError: they are no image that can be captioned, or the captioner reads no such instruction.
            CaptioningFailedError: the captioner failed at the batch of the image.
        """
        loop = asyncio.get_running_loop()
        prepared = await loop.run_in_executor(self.reading, self.prepare, [content])
        if prepared.errors[0] is not None:
            raise UnreadableImageError(prepared.errors[0])
        item = prepared.items[0] if instruction is None else self._with_instruction(prepared.items[0], instruction)
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.waiting.put_nowait(WaitingImage(item, answer))
        return await answer

    def _with_instruction(self, item: dict[str, Any], instruction: str) -> dict[str, Any]:
        try:
            self.captioner.pipeline.require_instruction_read(instruction)
        except ValueError as error:
            raise UnreadableImageError(str(error)) from error
        pipeline = self.captioner.pipeline
        if mark := next((mark for mark in pipeline.instructed.marks if mark in instruction), None):
            raise UnreadableImageError(f"The instruction has {mark!r}, a special token of the captioner.")
        return dict(pipeline.with_instruction(item, instruction))

    async def run(self) -> None:
        """Caption what waits, until the task is cancelled."""
        while True:
            batch = [await self.waiting.get()]
            while len(batch) < self.batch_size and not self.waiting.empty():
                batch.append(self.waiting.get_nowait())
            if wanted := [image for image in batch if not image.answer.done()]:
                await self._answer(wanted)

    async def _answer(self, batch: list[WaitingImage]) -> None:
        """Caption a batch and answer its requests; if it fails, each of them gets the error."""
        prepared = PreparedBatch([image.item for image in batch], [None] * len(batch))
        try:
            columns = await asyncio.get_running_loop().run_in_executor(
                self.captioning, self.captioner.caption, prepared
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
        names = [name for name in ("caption", "score", "confidence", "words") if name in columns]
        for place, (image, fault) in enumerate(zip(batch, columns["error"], strict=True)):
            if not image.answer.done() and fault is not None:
                image.answer.set_exception(UnreadableImageError(fault))
            if not image.answer.done():
                image.answer.set_result({name: columns[name][place] for name in names})

    def close(self) -> None:
        """End the threads after what they are doing."""
        self.reading.shutdown(wait=False, cancel_futures=True)
        self.captioning.shutdown(wait=False, cancel_futures=True)

"""Streamed training data: order of pairs, division among processes, and resuming.

A stream is read pass after pass, without end; a run ends after `max_steps`. In each pass the shards of the stream
come in a new order, every image gives its captions (or `captions_per_image` of them, drawn anew), and the pairs go
through a buffer from which they leave at random. All of it depends on the seed and the number of the pass only: every
process and every loading worker sees the same sequence of pairs and takes its own batches of it, so that P processes
with batches of B train on what one process with batches of P * B does. A resumed run passes over the pairs of its
earlier steps without decoding their images.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from datasets import Dataset as ArrowDataset
from datasets import Features, Image, List
from datasets import IterableDataset as Stream
from torch.utils.data import IterableDataset, get_worker_info

from hf_captioners.data.image_feature import allowed_feature
from hf_captioners.data.schema import CAPTIONS, IMAGE, IMAGE_ID, IMAGES, image_column

AT_ONCE = 16  # rows that are read together
SKIPPED = "skipped"  # in items of steps that a resumed run has made


class StreamedPairs(IterableDataset):
    """Endless data set of image-caption pairs: `{"image": ..., "caption": ..., "row": ...}`.

    Args:
        rows: a streamed data set with the columns `captions` and `image` or `images`.
        seed: seed of the order and of the choice of captions.
        batch_size: pairs in a batch of one process.
        captions_per_image: captions per image in one pass, drawn at random; None takes all.
        buffer_size: pairs in the buffer.
        process, processes: number of this process, and of all.
        declared_inputs: see `CaptionedImages`.

    Attributes:
        skipped_batches: batches of this process at the beginning that are only counted, see `SKIPPED`.

    Raises:
        ValueError: a column is missing.
    """

    def __init__(
        self,
        rows: Stream,
        seed: int,
        batch_size: int,
        captions_per_image: int | None = None,
        buffer_size: int = 1000,
        process: int = 0,
        processes: int = 1,
        declared_inputs: Mapping[str, str] | None = None,
    ) -> None:
        features = require_columns(rows)
        self.stream = rows
        self.image_column = str(image_column(list(features)))
        self.image_feature = allowed_feature(features[self.image_column])
        self.declared = [name for name in declared_inputs or {} if name in features]
        self.rows = undecoded(rows).select_columns(self._columns(list(features)))
        self.seed, self.batch_size, self.captions_per_image = seed, batch_size, captions_per_image
        self.buffer_size, self.process, self.processes = buffer_size, process, processes
        self.skipped_batches = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for place, pair in enumerate(self.sequence()):
            batch, position = divmod(place, self.batch_size * self.processes)
            if batch % workers == number and position // self.batch_size == self.process:
                yield {SKIPPED: True} if batch < self.skipped_batches else self._decoded(pair)

    def _columns(self, present: list[str]) -> list[str]:
        """Return the names of the columns to read."""
        columns = (self.image_column, CAPTIONS, IMAGE_ID, *self.declared)
        return [name for name in columns if name in present]

    def _decoded(self, pair: dict[str, Any]) -> dict[str, Any]:
        return {**pair, self.image_column: decoded(pair[self.image_column], self.image_feature)}

    def sequence(self) -> Iterator[dict[str, Any]]:
        """Yield the pairs for all processes, pass after pass, with encoded images.

        Raises:
            ValueError: no image of the stream has a caption.
        """
        for number in itertools.count():
            generator = np.random.default_rng((self.seed, number))
            count = 0
            for pair in mixed(self._pairs(number, generator), self.buffer_size, generator):
                yield pair
                count += 1
            if not count:
                raise ValueError("The stream has no image with a caption to train on.")

    def _pairs(self, number: int, generator: np.random.Generator) -> Iterator[dict[str, Any]]:
        # Shards only: rows are mixed as pairs. A stream's own epoch is shared among loading workers, which may be in
        # different passes, so each pass has a generator of its own instead.
        shards = self.rows.shuffle(generator=np.random.default_rng((self.seed, number)), buffer_size=1)
        for position, row in enumerate(rows_of(shards)):
            item = {self.image_column: row[self.image_column], "row": position}
            if self.declared:
                item["declared"] = {name: row[name] for name in self.declared}
            for columns in self._items(row, generator):
                yield {**item, **columns}

    def _items(self, row: dict[str, Any], generator: np.random.Generator) -> Iterator[dict[str, Any]]:
        """Yield `{"caption": ...}` for each caption of an image, or for `captions_per_image` random ones."""
        captions = row[CAPTIONS] or []
        if self.captions_per_image is not None and len(captions) > self.captions_per_image:
            chosen = generator.permutation(len(captions))[: self.captions_per_image]
            captions = [captions[index] for index in chosen]
        for caption in captions:
            yield {"caption": caption}


class StreamedImages(StreamedPairs):
    """Endless data set of captioned images for rewards: `{"image": ..., "row": ..., "example": ...}`.

    `row` counts the images from the beginning of the run; `example` has all columns of the image, the image itself
    undecoded. Arguments are those of `StreamedPairs`, where a pair is an image with all its captions.
    """

    def sequence(self) -> Iterator[dict[str, Any]]:
        """Yield the images for all processes, pass after pass, encoded."""
        for count, item in enumerate(super().sequence()):
            yield {**item, "row": count}

    def _columns(self, present: list[str]) -> list[str]:
        return present

    def _items(self, row: dict[str, Any], generator: np.random.Generator) -> Iterator[dict[str, Any]]:
        if row[CAPTIONS]:
            yield {"example": row}


def require_columns(rows: Stream) -> Features:
    """Return the columns of a stream; reads the first row if the columns are not declared.

    Raises:
        ValueError: it has no captions, or no images.
    """
    features = rows.features if rows.features is not None else rows._resolve_features().features
    if CAPTIONS not in features or image_column(list(features)) not in (IMAGE, IMAGES):
        raise ValueError(
            f"The stream has the columns {list(features)}, expected `captions` (a list of texts) and `image` or "
            "`images`. Rename yours: rows.rename_column(...)."
        )
    return features


def undecoded(rows: Stream) -> Stream:
    """Return a stream of encoded images, so that only used images are decoded."""
    kinds = {IMAGE: Image(decode=False), IMAGES: List(Image(decode=False))}
    rows = rows if rows.features is not None else rows._resolve_features()
    for name, kind in kinds.items():
        if name in rows.features and isinstance(getattr(rows.features[name], "feature", rows.features[name]), Image):
            rows = rows.cast_column(name, kind)
    return rows


def decoded(stored: Any, feature: Any) -> Any:
    """Decode a stored image, or all views of a study, by its column's feature type."""
    views = getattr(feature, "feature", None)
    return feature.decode_example(stored) if views is None else [views.decode_example(view) for view in stored]


def rows_of(rows: Stream) -> Iterator[dict[str, Any]]:
    """Yield all rows, also in data loader workers, among which `datasets` would divide them."""
    for batch in rows.iter(AT_ONCE):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def rows_of_captions(rows: Stream) -> Iterator[list[str]]:
    """Yield the captions of every image in one pass, without decoding images."""
    require_columns(rows)
    yield from (row[CAPTIONS] or [] for row in rows_of(rows.select_columns([CAPTIONS])))


def mixed(items: Iterable[Any], buffer_size: int, generator: np.random.Generator) -> Iterator[Any]:
    """Yield items in random order, from a shuffle buffer.

    Args:
        items: the items.
        buffer_size: number of items in the buffer; 1 keeps the order.
        generator: source of the order.
    """
    buffer: list[Any] = []
    for item in items:
        if len(buffer) < buffer_size:
            buffer.append(item)
            continue
        place = int(generator.integers(buffer_size))
        yield buffer[place]
        buffer[place] = item
    for place in generator.permutation(len(buffer)):
        yield buffer[place]


def in_memory(rows: Stream) -> ArrowDataset:
    """Load a stream into a data set with random access, for evaluation; images stay encoded.

    Raises:
        ValueError: the stream has no rows.
    """
    features = require_columns(rows)
    examples = list(rows_of(undecoded(rows)))
    if not examples:
        raise ValueError("The stream of evaluation images has no rows.")
    read = ArrowDataset.from_list(examples, features=features)
    read.info.dataset_name, read._split = rows.info.dataset_name, rows.split
    return read


def require_stream_arguments(args: Any) -> None:
    """Check that training arguments fit a stream, which has neither length nor epochs.

    Raises:
        ValueError: they do not.
    """
    faults = []
    if getattr(args, "begins_with_cross_entropy", False):
        faults.append(
            "has no epochs to begin with: train with cross-entropy first, and start from that captioner (`model`) "
            "without `scst_after_epochs` and `scst_after_patience`"
        )
    if args.max_steps <= 0:
        faults.append("has no length: set `max_steps`")
    for name in ("eval_strategy", "save_strategy"):
        if str(getattr(getattr(args, name), "value", getattr(args, name))) == "epoch":
            steps = name.replace("strategy", "steps")
            faults.append(f"has no epochs: set `{name}` to 'steps' with `{steps}`, or to 'no'")
    if args.train_sampling_strategy != "random":
        faults.append("cannot be sorted: leave `train_sampling_strategy` 'random'")
    if args.group_captions:
        faults.append("is mixed caption by caption: leave `group_captions` False")
    if args.scheduled_sampling_increase:
        faults.append("has no epochs: leave `scheduled_sampling_increase` 0")
    if args.lr_scheduler_type == "step_decay":
        faults.append("has no epochs: choose another `lr_scheduler_type` than 'step_decay'")
    if faults:
        raise ValueError(f"The training data are a stream, which {faults[0]}.")

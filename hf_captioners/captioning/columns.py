"""Captions for an image column of batches: one callable for the command line, `datasets.map` and engines."""

import copy
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from hf_captioners.confidence.assessing import Assessor
from hf_captioners.data.containers import NamedBytes, located
from hf_captioners.default_model import default_model, is_default
from hf_captioners.interfaces import CaptioningOptions
from hf_captioners.processing.image_reading import read_image

from .backends import BACKENDS, ONNX
from .image_list import views_of
from .instructions import InstructionTemplate

if TYPE_CHECKING:
    import pyarrow

    from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

OF_CAPTIONS = ("caption", "score", "confidence", "words")  # columns with lists where images have several captions


def load_pipeline(
    model: str | Sequence[str] | None = None,
    device: str | None = None,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    weights: Sequence[float] | None = None,
    packed_weights: str | None = None,
    backend: str = "torch",
    threads: int | None = None,
    device_map: str | None = None,
    processor_options: Mapping[str, Any] | None = None,
) -> Any:
    """Load the captioning pipeline of a model, or of an ensemble of models.

    Args:
        model: name or directory of a captioner, or several ones, which become a `CaptionerEnsemble`. None: the one
            that an installed package offers.
        device: for example `"cuda:0"`. None: an accelerator if there is one.
        dtype: number format of the weights, for example `"bfloat16"`.
        trust_remote_code: run code from the repository of the model.
        weights: of the captioners of an ensemble; default: equal ones.
        packed_weights: see `ImageCaptioningPipeline`; default, if the captioner's weights are float32: `"float32"`.
        backend: `"torch"`, or `"onnx"`: `model` is the captioner of an installed package, or a folder that
            `hf-captioners export` wrote.
        threads: threads of an operation on a CPU. None: as the library chooses, or `OMP_NUM_THREADS` says.
        device_map: for example `"auto"`: a model that is larger than one device is spread over several; not together
            with `device`.
        processor_options: settings of the image processor, for example `{"max_pixels": 401408}`.

    Returns:
        An `ImageCaptioningPipeline`; of an exported captioner, an `OnnxPipeline`.

    Raises:
        ValueError: a model is no captioner, or the captioners do not go together; the image processor has no such
            setting; or another argument is given with an exported captioner.
        OSError: it cannot be found or read.
    """
    if backend not in BACKENDS:
        raise ValueError(f"`backend` is {backend!r}, expected one of {', '.join(BACKENDS)}.")
    if threads is not None and threads < 1:
        raise ValueError(f"`threads` is {threads}, expected at least 1.")
    sources: list[Any] = [model] if model is None or isinstance(model, str) else list(model)
    if backend == ONNX:
        of_torch = (weights, packed_weights, device_map, processor_options or None)
        on_cpu = device in (None, "cpu") and dtype in ("auto", "float32")
        if len(sources) != 1 or not on_cpu or any(value is not None for value in of_torch):
            raise ValueError(
                '`backend="onnx"` takes one exported captioner, on the CPU in float32: leave out device, dtype '
                "and weights, also packed_weights, device_map and settings of the processor."
            )
        from .onnx_backend import OnnxPipeline

        return OnnxPipeline(sources[0], threads)
    import torch

    from hf_captioners.loading import load_captioner
    from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

    from .ensemble import load_ensemble

    if threads is not None:
        torch.set_num_threads(threads)
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    if device_map is not None:
        if device is not None:
            raise ValueError(f"`device` is {device!r} and `device_map` {device_map!r}, which exclude each other.")
        options["device_map"] = device_map
    if processor_options:
        options["processor_options"] = dict(processor_options)
    if len(sources) > 1 or weights is not None:
        captioner, processor = load_ensemble(sources, weights, **options)
    else:
        captioner, processor = load_captioner(sources[0], **options)
    pipeline = ImageCaptioningPipeline(model=captioner, processor=processor, device=device, packed_weights="plain")
    if packed_weights != "plain":
        pipeline.pack_weights(packed_weights)
    return pipeline


class PreparedBatch(NamedTuple):
    """Images prepared for the model, and the errors of images that cannot be read.

    Args:
        items: what the pipeline's `prepare` returns for each image that can be read.
        errors: for each image of the batch the reason why it cannot be captioned, or None.
    """

    items: list[dict[str, Any]]
    errors: list[str | None]


class TypedColumn(list[Any]):
    """List with a fixed Arrow type, because `datasets.map` takes the type of the first batch, which may be all None.

    Args:
        values: the values.
        kind: their type.
    """

    def __init__(self, values: Sequence[Any], kind: "pyarrow.DataType") -> None:
        super().__init__(values)
        self.kind = kind

    def __arrow_array__(self, type: "pyarrow.DataType | None" = None) -> "pyarrow.Array":  # noqa: A002
        """Return the values as an Arrow array; Arrow calls this method."""
        import pyarrow

        return pyarrow.array(list(self), type or self.kind)


def kind_of_column(name: str, several: bool) -> "pyarrow.DataType":
    """Return the Arrow type of an output column of captions.

    Args:
        name: of the column.
        several: images have several captions each.
    """
    import pyarrow  # here: a server of captions needs no Arrow

    word = pyarrow.struct([("word", pyarrow.string()), ("confidence", pyarrow.float64())])
    kinds = {
        "score": pyarrow.float64(),
        "ended": pyarrow.bool_(),
        "confidence": pyarrow.float64(),
        "words": pyarrow.list_(word),
    }
    kind = kinds.get(name, pyarrow.string())
    return pyarrow.list_(kind) if several and name in OF_CAPTIONS else kind


class CaptionBatches:
    """Callable that captions the image column of a batch, for engines such as `datasets.map` and Ray Data.

    An image is a path (also one inside a tar shard or a Parquet file, see `containers`), the bytes of a file,
    `{"bytes": ..., "path": ...}`, a PIL image, or an array; a list of these is a study of several views. An image that
    cannot be read has None as its caption, and the reason in `error`. The model is loaded by the first call. A pickled
    copy loads it again.

    Args:
        model: name or directory of a captioner, several of them (an ensemble), or a loaded pipeline. None: the
            captioner that an installed package offers.
        column: the column of the images.
        device: for example `"cuda:0"`. None: an accelerator if there is one.
        dtype: number format of the weights, for example `"bfloat16"`.
        trust_remote_code: run code from the repository of the model.
        packed_weights: see `ImageCaptioningPipeline`; default, if the captioner's weights are float32: `"float32"`.
        backend: `"torch"`, or `"onnx"` for a folder that `hf-captioners export` wrote.
        reduced_reading: decode large JPEG files at a reduced size, see `min_side_of`: a fraction of the time, and
            pixels that differ by a few grey levels.
        device_map, processor_options: see `load_pipeline`.
        rows: values of the fields of an instruction by the names of images, where images do not come in batches with
            columns.
        confidence: add how sure the captioner is of each caption: `"search"` or `"samples"`, see `Assessor`.
        prefer_sure: return the surest hypothesis of the beam search, see `Assessor`; with `confidence` only.
        **generate: arguments of the pipeline for every call, for example `num_beams`, `max_new_tokens`, `prompt`. An
            `instruction` may have fields, see `InstructionTemplate`: `{file_name}`, `{folder}`, columns of the batch.

    Example:
        ```python
        from hf_captioners.captioning import CaptionBatches

        caption = CaptionBatches("my_captioner", column="image", num_beams=3)
        caption({"image": ["holiday/a.jpg", "holiday/b.jpg"]})["caption"]
        ```
    """

    def __init__(
        self,
        model: "str | Sequence[str] | ImageCaptioningPipeline | None" = None,
        column: str = "image",
        device: str | None = None,
        dtype: str = "auto",
        trust_remote_code: bool = False,
        packed_weights: str | None = None,
        backend: str = "torch",
        reduced_reading: bool = False,
        device_map: str | None = None,
        processor_options: Mapping[str, Any] | None = None,
        rows: Mapping[str, Mapping[str, Any]] | None = None,
        confidence: str | None = None,
        prefer_sure: bool = False,
        **generate: Unpack[CaptioningOptions],
    ) -> None:
        if prefer_sure and confidence is None:
            raise ValueError("`prefer_sure` chooses by confidence: pass `confidence`, 'search' or 'samples'.")
        self.confidence, self.prefer_sure = confidence, prefer_sure
        self.model, self.column = model, column
        self.generate: dict[str, Any] = {**generate}
        self.reduced_reading, self.rows = reduced_reading, rows
        self.loading: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
        self.loading |= {"packed_weights": packed_weights, "backend": backend}
        self.loading |= {"device_map": device_map, "processor_options": processor_options}
        # Engines keep results by the pickled state of this object: a model that was trained further has another one.
        self.version = _files_version(model) if model is None or isinstance(model, (str, Sequence)) else None
        self._loaded: Any = None
        self._assessor: Assessor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the loaded model."""
        return self.__dict__ | {"_loaded": None, "_assessor": None}

    @property
    def pipeline(self) -> Any:
        """The captioning pipeline, loaded at the first use."""
        if self.model is not None and not isinstance(self.model, (str, Sequence)):
            return self.model
        if self._loaded is None:
            self._loaded = load_pipeline(self.model, **self.loading)
        return self._loaded

    @property
    def assessor(self) -> Assessor | None:
        """The assessor of caption confidence, which reads the calibration at the first use; None without `confidence`.

        Raises:
            NotCalibratedError: the captioner has no calibration, or that of another one.
            ValueError: surest captions are asked for and there is no beam search.
        """
        if self._assessor is None and self.confidence is not None:
            assessor = Assessor(self.pipeline, mode=self.confidence, prefer_sure=self.prefer_sure)
            assessor.decoding(**self.generate)
            self._assessor = assessor
        return self._assessor

    def __call__(self, batch: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Caption a batch.

        Args:
            batch: columns by name.

        Returns:
            A copy with the columns `caption`, `score` (sum of the log-probabilities of its tokens) and `error`; of
            captioners that follow instructions also `ended`, False of a caption that was cut at `max_new_tokens`.
            With `confidence` also `confidence` and `words`, see `Assessment`. With `num_return_sequences` above 1,
            these have lists.

        Raises:
            KeyError: there is no column of this name.
            ValueError: the captioner fails on images that are whole.
        """
        if self.column not in batch:
            raise KeyError(f"The batch has the columns {list(batch)}, expected the images in {self.column!r}.")
        result = copy.copy(batch)
        several = (self.generate.get("num_return_sequences") or 1) > 1
        prepare = self.preparation()
        rows = None if prepare.template is None else columns_of_fields(prepare.template, batch)
        for name, values in self.caption(prepare(undecoded(batch, self.column), rows)).items():
            result[name] = TypedColumn(values, kind_of_column(name, several))
        return result

    def preparation(self, joins: bool = True) -> "Preparation":
        """Return the callable that decodes and preprocesses images, which other processes can run.

        Args:
            joins: encode the images of a batch together where the captioner follows an instruction; False: its items
                are joined to batches later.

        Raises:
            ValueError: there is an instruction, and the captioner reads none.
        """
        if (instruction := self.generate.get("instruction")) is not None:
            self.pipeline.require_instruction_read(instruction)
        preparing = copy.copy(self.pipeline)
        preparing.model = SimpleNamespace(dtype=self.pipeline.dtype)  # all that `prepare` asks of it
        min_side = min_side_of(preparing) if self.reduced_reading else None
        joins = joins and self.confidence is None  # samples are drawn image by image
        return Preparation(preparing, self.generate, min_side, joins, self.rows)

    def caption(self, prepared: PreparedBatch, options: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Caption prepared images; return the columns `caption`, `score`, `error` and others, see `__call__`.

        Args:
            prepared: the images.
            options: arguments of the pipeline for this batch, instead of those of `generate` with the same names.

        Raises:
            ValueError: the captioner fails on images that are whole.
        """
        options = {**self.generate, **(options or {}), "return_scores": True}
        follows = getattr(self.pipeline, "instructed", None) is not None
        if follows:
            options["return_ended"] = True
        captioner = self.assessor or self.pipeline
        try:
            results = iter(captioner.caption_prepared(prepared.items, **options) if prepared.items else ())
        except Exception as error:
            raise _fault_of(self.pipeline, error) from error
        captions: list[Any] = []
        scores: list[Any] = []
        assessed: dict[str, list[Any]] = {"confidence": [], "words": []}
        ended: list[bool | None] = []
        errors = list(prepared.errors)
        for place, fault in enumerate(prepared.errors):
            records = [] if fault is not None else next(results)
            if records and "error" in records[0]:
                errors[place], records = records[0]["error"], []
            ended.append(records[0].get("ended") if records else None)
            texts = [record["generated_text"] for record in records]
            scores_of_image = [record["score"] for record in records]
            if not all(map(math.isfinite, scores_of_image)):
                raise ValueError(
                    f"The captioner {self.pipeline.model.name_or_path} computed the score {scores_of_image[0]} of a "
                    "caption, expected a finite number: its weights are damaged, or its training diverged. Pass an "
                    "earlier checkpoint, or download it again."
                )
            several = len(records) > 1
            captions.append(None if not records else texts if several else texts[0])
            scores.append(None if not records else scores_of_image if several else scores_of_image[0])
            for name, column in assessed.items():
                values = [record.get(name) for record in records]
                column.append(None if not records else values if several else values[0])
        columns: dict[str, list[Any]] = {"caption": captions, "score": scores, "error": errors}
        columns |= {} if self.confidence is None else assessed
        return columns | ({"ended": ended} if follows else {})


class Preparation:
    """Callable that decodes and preprocesses images for a pipeline's model; picklable, without weights.

    Args:
        pipeline: a pipeline without its model.
        options: arguments of its `prepare`.
        min_side: see `read_image`.
        joins: see `CaptionBatches.preparation`.
        rows: see `CaptionBatches`.
    """

    def __init__(
        self,
        pipeline: "ImageCaptioningPipeline",
        options: dict[str, Any],
        min_side: int | None = None,
        joins: bool = True,
        rows: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.pipeline, self.options, self.min_side, self.rows = pipeline, options, min_side, rows or {}
        self.joins = joins and getattr(pipeline, "instructed", None) is not None
        instruction = options.get("instruction")
        self.template = None if instruction is None else InstructionTemplate(instruction)

    def __call__(self, images: Iterable[Any], rows: Sequence[Mapping[str, Any]] | None = None) -> PreparedBatch:
        """Decode and preprocess the images of a batch, see `CaptionBatches`.

        Args:
            images: the images.
            rows: for each image the values of the fields of the instruction. None: those that are known by its name.
        """
        sources = list(images)
        read: list[Any] = []
        errors: list[str | None] = [None] * len(sources)
        for place, source in enumerate(sources):
            try:
                read.append(decoded(source, self.min_side))
            except (OSError, ValueError, TypeError) as error:
                read.append(None)
                errors[place] = str(error)
        if any(isinstance(image, list) for image in read):  # images among studies are studies of one view
            read = [image if image is None or isinstance(image, list) else [image] for image in read]
        items: dict[int, Any] = {}
        for place, image in enumerate(read):
            if image is None:
                continue
            try:
                row = rows[place] if rows is not None else self._row_of(sources[place])
                items[place] = self.pipeline.prepare(image, **self._options_of(sources[place], row))
            except Exception as error:  # image processors raise errors of many types, for example of a thin image
                errors[place] = _not_prepared(sources[place], error)
        if not self.joins:
            return PreparedBatch(list(items.values()), errors)
        return PreparedBatch(self._joined(items, sources, errors), errors)

    def _row_of(self, source: Any) -> Mapping[str, Any]:
        return self.rows.get(source, {}) if isinstance(source, str) else {}

    def _options_of(self, source: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pipeline options of an image, with the image's values filled into the instruction."""
        if self.template is None:
            return self.options
        marks = self.pipeline.instructed.marks if self.template.fields and self.pipeline.instructed else ()
        return self.options | {"instruction": self.template.expand(source, row, marks)}

    def _joined(self, items: dict[int, Any], sources: list[Any], errors: list[str | None]) -> list[Any]:
        """Join prepared images to batches; images that the processor refuses are dropped and get an error."""
        try:
            return list(self.pipeline.join_prepared(list(items.values())))
        except Exception as error:  # as above; which one it is, is found one by one
            if len(items) == 1:
                (place,) = items
                errors[place] = _not_prepared(sources[place], error)
                return []
        sound = {place: item for place, item in items.items() if self._joined({place: item}, sources, errors)}
        return list(self.pipeline.join_prepared(list(sound.values())))


def _not_prepared(source: Any, error: Exception) -> str:
    name = source if isinstance(source, str) else f"given as {type(source).__name__}"
    return f"The image {name} cannot be prepared: {error}"


def decoded(source: Any, min_side: int | None = None) -> Any:
    """Decode an image, or each view of a study.

    Args:
        source: see `CaptionBatches`; of a text, see also `views_of`.
        min_side: see `read_image`.

    Raises:
        OSError, ValueError, TypeError: it cannot be read.
    """
    if isinstance(source, str):
        views = [read_image(located(view), min_side=min_side) for view in views_of(source)]
        return views if len(views) > 1 else views[0]
    if isinstance(source, (list, tuple)):
        return [decoded(view, min_side) for view in source]
    if isinstance(source, dict):
        content, path = source.get("bytes"), source.get("path")
        source = path if content is None else content if path is None else NamedBytes(content, path)
    return read_image(source, min_side=min_side)


def min_side_of(pipeline: Any) -> int | None:
    """Return the minimum side in pixels to which large JPEG images may be reduced while they are decoded.

    Args:
        pipeline: see `load_pipeline`.

    Returns:
        The longest side to which images are resized; None if they are not resized, or by a processor of another
        library, which may cut tiles of full size.
    """
    if getattr(pipeline, "instructed", None) is not None:
        return None
    exported = getattr(pipeline, "numbers", None)
    processor = getattr(pipeline, "image_processor", None)
    size = exported["size"] if exported is not None else getattr(processor, "size", None)
    if not size or not getattr(processor, "do_resize", True):
        return None
    return max(value for value in dict(size).values() if value is not None)


def undecoded(batch: Mapping[str, Any], column: str) -> Any:
    """Return the image column of a batch without decoding it: one damaged image would end the whole batch."""
    # Of a `LazyBatch` of datasets, whose import takes a second that captions of files do not need.
    table = getattr(batch, "pa_table", None)
    if table is not None:
        import pyarrow

        if pyarrow.types.is_nested(table.schema.field(column).type):
            return table[column].to_pylist()
    return copy.copy(batch)[column]  # type: ignore[index]


def columns_of_fields(template: InstructionTemplate, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the values of an instruction's fields for each row of a batch.

    Raises:
        ValueError: the batch has no such column.
    """
    template.require_columns(list(batch))
    columns = {name: batch[name] for name in template.fields if name in batch}
    length = len(next(iter(columns.values()))) if columns else len(batch[next(iter(batch))])
    return [{name: values[place] for name, values in columns.items()} for place in range(length)]


def _files_version(model: str | Sequence[str] | None) -> str:
    """Return a digest of the names, sizes and times of a local captioner's files."""
    models = [model] if model is None or isinstance(model, str) else list(model)
    sources = [str(default_model().folder) if is_default(one) else str(one) for one in models]
    files = [path for source in sources if Path(source).is_dir() for path in sorted(Path(source).iterdir())]
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([sources, states]).encode()).hexdigest()[:16]


def _fault_of(pipeline: "ImageCaptioningPipeline", error: Exception) -> Exception:
    """Return an error that names the captioner, for a failure on images that can be read."""
    name = pipeline.model.name_or_path
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return ValueError(
            f"There is not enough memory to caption with {name}: {' '.join(str(error).split())[:200]} Lower "
            "`batch_size`, `num_beams` or `max_new_tokens`, take smaller images (`processor max_pixels=401408` or "
            "another setting of the image processor), or `dtype=bfloat16`."
        )
    if isinstance(error, ImportError) or name in str(error):
        return error
    reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return ValueError(
        f"The captioner {name} cannot caption images that are whole: {' '.join(reason.split())[:500].rstrip('.')}. "
        "Check the options that you typed, and its generation_config.json."
    )

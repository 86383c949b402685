"""Captioning on Ray, on one machine or a cluster: tasks prepare batches of images, and actors caption them."""

import io
import logging
import os
import pickle
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import PIL.Image
import pyarrow
import torch

from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline

from .columns import CaptionBatches, Preparation, load_pipeline

CPUS_OF_TASKS = 0.9  # see `RayEngine.columns`
MAX_BLOCKS = 5000  # of a job: a block of batches is one task, and what a killed job loses of it


class TensorPickler(pickle.Pickler):
    """Pickler that stores tensors as numpy arrays; torch would first write each to a file of its own."""

    def reducer_override(self, value: Any) -> Any:
        """Return the function and array from which pickle rebuilds a tensor."""
        if isinstance(value, torch.Tensor):
            with suppress(TypeError):  # a number format that NumPy does not have, such as bfloat16
                return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def table_of(column: str, value: Any) -> pyarrow.Table:
    """Return a value as an Arrow table of one row, which Ray Data passes on without copies."""
    stored = io.BytesIO()
    TensorPickler(stored, pickle.HIGHEST_PROTOCOL).dump(value)
    content = pyarrow.py_buffer(stored.getbuffer())
    ends = pyarrow.array([0, len(content)], pyarrow.int64()).buffers()[1]
    return pyarrow.table({column: pyarrow.Array.from_buffers(pyarrow.large_binary(), 1, [None, ends, content])})


def value_of(table: pyarrow.Table, column: str) -> Any:
    """Return the value in a table of one row, the inverse of `table_of`."""
    return pickle.loads(table[column][0].as_buffer())


class ProcessState(NamedTuple):
    """Settings that Ray's worker processes take over from the process that starts the job.

    Args:
        folder: the working directory, where relative names begin.
        max_pixels: Pillow's limit of pixels.
        on_start: called at the start of every task and actor, and may be called again in the same process.
    """

    folder: str
    max_pixels: int | None
    on_start: Callable[[], Any] | None

    @classmethod
    def of_this_process(cls, on_start: Callable[[], Any] | None) -> "ProcessState":
        """Return the settings of this process."""
        return cls(os.getcwd(), PIL.Image.MAX_IMAGE_PIXELS, on_start)

    def take_over(self) -> None:
        """Apply the settings to this process."""
        if self.on_start is not None:
            self.on_start()
        PIL.Image.MAX_IMAGE_PIXELS = self.max_pixels
        with suppress(OSError):  # a machine that does not have the folder reads absolute names only
            os.chdir(self.folder)


class PreparingTask:
    """Ray task that decodes and preprocesses the images of a batch.

    Args:
        preparation: what prepares images, without weights.
        state: of the process that started the job.
    """

    def __init__(self, preparation: Preparation, state: ProcessState) -> None:
        self.preparation, self.state = preparation, state

    def __call__(self, row: pyarrow.Table) -> pyarrow.Table:
        """Replace the image names of a batch by the prepared images."""
        self.state.take_over()
        return table_of("prepared", self.preparation(value_of(row, "names")))


class CaptioningActor:
    """Ray actor that captions prepared batches and loads the captioner once.

    Args:
        loading: arguments of `load_pipeline`.
        options: arguments of the pipeline for every call.
        state: of the process that started the job.
    """

    def __init__(self, loading: dict[str, Any], options: dict[str, Any], state: ProcessState) -> None:
        state.take_over()
        self.captioner = CaptionBatches(load_pipeline(**loading), **options)
        self.prepare = self.captioner.preparation()

    def __call__(self, row: pyarrow.Table) -> pyarrow.Table:
        """Return the caption columns of a batch; the actor also decodes images if no tasks prepare them."""
        if "prepared" in row.column_names:
            prepared = value_of(row, "prepared")
        else:
            prepared = self.prepare(value_of(row, "names"))
        return table_of("columns", self.captioner.caption(prepared))


class RayEngine:
    """Engine that captions batches on Ray Data and keeps their order.

    Args:
        loading: arguments of `load_pipeline`, with which each actor loads the captioner; its directory has the same
            path on all machines.
        actors: number of actors, each with a captioner, and with a GPU if the cluster has any and `device` allows it.
        address: of a cluster. None: the variable `RAY_ADDRESS`; without it, Ray is started on this machine.
        on_start: a function without arguments that every process of Ray calls before it works, such as
            `hf_captioners.cli.memory.keep_freed_memory`, which has to be called in each.

    Raises:
        ValueError: `actors` is below 1.
        ImportError: Ray is not installed.
    """

    def __init__(
        self,
        loading: Mapping[str, Any],
        actors: int = 1,
        address: str | None = None,
        on_start: Callable[[], Any] | None = None,
    ) -> None:
        if actors < 1:
            raise ValueError(f"`actors` is {actors}, expected at least 1.")
        try:
            import ray.data  # noqa: F401
        except ImportError:
            raise ImportError("`engine=ray` needs Ray: pip install 'hf-captioners[ray]'") from None
        self.loading, self.actors, self.address, self.on_start = dict(loading), actors, address, on_start

    def columns(
        self,
        pipeline: ImageCaptioningPipeline,
        batches: Sequence[Sequence[str]],
        workers: int,
        options: Mapping[str, Any],
    ) -> Iterator[dict[str, list[Any]]]:
        """Yield the caption columns of each batch, see `CaptionBatches.caption`.

        Args:
            pipeline: the captioner, of which the preparation is used.
            batches: names of images.
            workers: tasks at a time that prepare images; 0: the actors do.
            options: arguments of the pipeline.

        Raises:
            ValueError: a task fails on images that are whole.
            ConnectionError: there is no cluster at the address.
        """
        if not batches:  # a job that was killed after its last batch
            return
        import ray.data

        with running_ray(self.address, self.actors + workers):
            rows = [{"names": pickle.dumps(list(batch))} for batch in batches]
            data: ray.data.Dataset = ray.data.from_items(rows, override_num_blocks=min(len(rows), MAX_BLOCKS))
            state = ProcessState.of_this_process(self.on_start)
            one_row: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
            if workers:
                preparing = PreparingTask(CaptionBatches(pipeline, **options).preparation(), state)
                # Ray would join two steps that need the same resources, and the actors would read the images.
                data = data.map_batches(
                    preparing.__call__,
                    **one_row,
                    compute=ray.data.TaskPoolStrategy(size=workers),
                    num_cpus=CPUS_OF_TASKS,
                )
            data = data.map_batches(
                CaptioningActor,
                **one_row,
                fn_constructor_kwargs={"loading": self.loading, "options": dict(options), "state": state},
                compute=ray.data.ActorPoolStrategy(size=self.actors),
                num_gpus=1 if self.uses_gpus() else None,
            )
            try:
                for row in data.iter_rows():
                    yield pickle.loads(row["columns"])
            except ray.exceptions.RayError as error:
                reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), repr(error))
                raise ValueError(f"A task of Ray failed: {reason.strip()}") from error

    def uses_gpus(self) -> bool:
        """Return whether each actor occupies a GPU."""
        import ray

        device = self.loading.get("device")
        return (device is None or device.startswith("cuda")) and ray.cluster_resources().get("GPU", 0) >= 1


@contextmanager
def running_ray(address: str | None, processors: int) -> Iterator[None]:
    """Context manager that connects to a Ray cluster, or starts Ray on this machine until the block ends.

    Args:
        address: see `RayEngine`.
        processors: tasks and actors at a time on this machine.

    Raises:
        ConnectionError: there is no cluster at the address.
    """
    import ray
    from ray.data import DataContext

    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if ray.is_initialized():  # whoever started it ends it
        started = False
    elif address is not None or "RAY_ADDRESS" in os.environ:
        ray.init(address=address, **quiet)
        started = True
    else:
        # A token of this process; Ray would write one into the home folder. Without any, whoever reaches the ports of
        # this machine could run code.
        if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=processors, include_dashboard=False, **quiet)
        started = True
    try:
        context = DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield
    finally:
        if started:
            ray.shutdown()

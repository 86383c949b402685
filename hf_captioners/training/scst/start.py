"""Initial model of self-critical training, and the cross-entropy run that trains it if asked for.

They are in `OUTPUT_DIR/start` and `OUTPUT_DIR/cross_entropy`. If `start` exists, it is complete. The divergence is
measured from this model; it stays the best model until an evaluation improves on it; and a run that was killed before
the first self-critical checkpoint resumes from it.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from accelerate.utils import broadcast_object_list

from hf_captioners.training.resume import last_complete_checkpoint

from .arguments import CROSS_ENTROPY_FOLDER

START_FOLDER = "start"


def last_scst_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the checkpoint to resume a run of `SCSTTrainer` from.

    It is the newest complete checkpoint of the self-critical part, else the finished cross-entropy model, else the
    newest complete checkpoint of the cross-entropy part; None if there is none.
    """
    start = Path(output_dir, START_FOLDER)
    return (
        last_complete_checkpoint(output_dir)
        or (str(start) if start.is_dir() else None)
        or last_complete_checkpoint(Path(output_dir, CROSS_ENTROPY_FOLDER))
    )


def phase_of(checkpoint: str | os.PathLike[str], output_dir: str | os.PathLike[str]) -> str:
    """Return the phase of a run that wrote a checkpoint: `"start"`, `"cross_entropy"` or `"scst"`."""
    place, output = Path(checkpoint).resolve(), Path(output_dir).resolve()
    if place == output / START_FOLDER:
        return "start"
    return "cross_entropy" if place.parent == output / CROSS_ENTROPY_FOLDER else "scst"


def check_is_of_scst(checkpoint: str | os.PathLike[str], mark: str) -> None:
    """Raise an error for a checkpoint of another trainer.

    Args:
        checkpoint: its folder.
        mark: name of the callback whose state only self-critical training stores.

    Raises:
        ValueError: the checkpoint is of a different trainer.
    """
    path = Path(checkpoint, "trainer_state.json")
    if mark not in json.loads(path.read_text(encoding="utf-8"))["stateful_callbacks"]:
        raise ValueError(
            f"The checkpoint {checkpoint} is not of self-critical training, so it cannot be resumed as such. Start "
            "from its model instead (`model`, or `load_captioner`) with a different `output_dir`."
        )


def save_start(save: Callable[..., None], output_dir: str | os.PathLike[str], is_main: bool) -> str:
    """Save the initial model of self-critical training.

    Args:
        save: `save_model` of the trainer; called in every process.
        output_dir: output directory of the run.
        is_main: whether this process renames the finished folder to `start`.

    Returns:
        The folder.
    """
    folder = Path(output_dir, START_FOLDER)
    # No other run uses this name, and all processes of this run do.
    (name,) = broadcast_object_list([f".{START_FOLDER}-{os.getpid()}-{secrets.token_hex(4)}"])
    unfinished = folder.with_name(name)
    try:
        save(str(unfinished), _internal_call=True)  # or it would be pushed as a model of its own
        if is_main:
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(unfinished, folder)
    finally:
        if is_main:
            shutil.rmtree(unfinished, ignore_errors=True)
    return str(folder)

"""Finished runs: why a run makes no further step when it is resumed, and the state that its final save left."""

from pathlib import Path

from transformers import TrainerState
from transformers.utils import logging

from .arguments import CaptioningTrainingArguments

logger = logging.get_logger(__name__)

STATE = "trainer_state.json"


def why_finished(state: TrainerState, args: CaptioningTrainingArguments) -> str | None:
    """Return why a run with this state makes no further step; None if it has steps left.

    The loop of transformers makes one step before it compares the number of steps with `max_steps`.

    Args:
        state: the state of a checkpoint.
        args: the arguments with which the run is resumed; they may ask for more steps than those of the first call.
    """
    if args.max_steps > 0:
        is_last = state.global_step >= args.max_steps
        return f"step {state.global_step} of `max_steps` {args.max_steps}" if is_last else None
    epoch = state.epoch or 0.0
    if state.global_step and epoch >= args.num_train_epochs - 1e-9:  # a fraction of an epoch may be rounded
        return f"epoch {epoch:g} of `num_train_epochs` {args.num_train_epochs:g}"
    return None


def final_state(output_dir: str | Path) -> TrainerState | None:
    """Return the state that a run wrote after its final save; None if there is none, or none that can be read."""
    try:
        return TrainerState.load_from_json(str(Path(output_dir, STATE)))
    except (OSError, ValueError, TypeError):
        return None


def restore_best_checkpoint(state: TrainerState, checkpoint: str | Path) -> None:
    """Find the best checkpoint of a state beside another checkpoint of the run, if the output directory was moved."""
    best = state.best_model_checkpoint
    if best is None or Path(best).is_dir():
        return
    moved = Path(checkpoint).parent / Path(best).name
    state.best_model_checkpoint = str(moved) if moved.is_dir() else None
    if state.best_model_checkpoint is None:
        logger.warning(f"The best checkpoint {best} does not exist any more: the run ends with its last weights.")

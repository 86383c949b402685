"""Resuming of runs: complete checkpoints, their weights, and the state of finished runs."""

import json
import os
import shutil
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel, TrainerState
from transformers.utils import logging

from .adapters import load_adapter_weights
from .arguments import CaptioningTrainingArguments

logger = logging.get_logger(__name__)

STATE = "trainer_state.json"
# Files that the trainer writes in this order; a run may be killed between any two of them.
NEEDED = ("optimizer.pt", "scheduler.pt", STATE)
CONFIGURATIONS = ("config.json", "adapter_config.json")  # of a whole model, or of adapters alone


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint has all its files."""
    if not all((checkpoint / name).is_file() for name in NEEDED):
        return False
    if not any((checkpoint / name).is_file() for name in CONFIGURATIONS):
        return False
    if not list(checkpoint.glob("rng_state*.pth")) or not list(checkpoint.glob("*.safetensors*")):
        return False
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def require_complete(checkpoint: str | os.PathLike[str]) -> None:
    """Raise an error for an incomplete checkpoint, from which training cannot resume exactly.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the checkpoint is incomplete, or it is a captioner without the state of its training.
    """
    if not Path(checkpoint).is_dir():
        raise FileNotFoundError(f"There is no checkpoint {checkpoint}.")
    if not is_complete(Path(checkpoint)):
        raise ValueError(
            f"{checkpoint} is not complete, expected a folder `checkpoint-N` with {', '.join(NEEDED)}. To start a new "
            "run from a trained captioner, pass `model`."
        )


def last_complete_checkpoint(output_dir: str | os.PathLike[str], before: int | None = None) -> str | None:
    """Return the newest complete checkpoint of a run; None without one.

    `trainer.train(resume_from_checkpoint=True)` of transformers takes the newest directory, even an incomplete one.

    Args:
        output_dir: output directory of the run.
        before: only checkpoints of earlier steps than this one.
    """
    earlier = [folder for step, folder in numbered_checkpoints(output_dir) if before is None or step < before]
    return next((str(folder) for folder in reversed(earlier) if is_complete(folder)), None)


def numbered_checkpoints(output_dir: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Return step and folder of each checkpoint of a run, complete or not, ordered by step."""
    folders = Path(output_dir).glob("checkpoint-*")
    return sorted((int(folder.name[11:]), folder) for folder in folders if folder.name[11:].isdigit())


def remove_surplus_checkpoints(
    output_dir: str | os.PathLike[str], checkpoint: str | os.PathLike[str], best: str | None, limit: int | None
) -> None:
    """Remove checkpoints above `save_total_limit` that a run killed after its last save has left.

    Args:
        output_dir: output directory of the run.
        checkpoint: the last one of the run; those of later steps stay. Nothing is removed if it is of another run.
        best: the best one of the run; None if no metric chooses it.
        limit: `save_total_limit`. As in transformers, the last and the best checkpoint stay, but a limit of 1 leaves
            the best one alone.
    """
    last = Path(checkpoint)
    checkpoints = [folder for _, folder in numbered_checkpoints(output_dir)]
    if not limit or last.resolve() not in [folder.resolve() for folder in checkpoints]:
        return
    checkpoints = checkpoints[: [folder.name for folder in checkpoints].index(last.name) + 1]
    kept = {last.name} if best is None else {Path(best).name} if limit == 1 else {last.name, Path(best).name}
    surplus = max(0, len(checkpoints) - max(limit, len(kept)))
    for folder in [folder for folder in checkpoints if folder.name not in kept][:surplus]:
        shutil.rmtree(folder, ignore_errors=True)


def load_weights(model: PreTrainedModel, checkpoint: str | os.PathLike[str]) -> None:
    """Load the weights of a checkpoint into a model of the same class.

    The weights are read as `from_pretrained` reads them. The trainer of transformers compares names with those in the
    file, but several vision models (ViT, BEiT, ...) are saved under names that differ from those in memory: it would
    leave such a part unchanged and only log a message.

    Args:
        model: the model to change; of one with an adapter of PEFT only the adapter changes.
        checkpoint: its folder.

    Raises:
        ValueError: the checkpoint is of a different model.
    """
    if hasattr(model, "peft_config"):
        load_adapter_weights(model, checkpoint)
        return
    saved_type = PreTrainedConfig.get_config_dict(checkpoint)[0].get("model_type")
    if saved_type != model.config.model_type:
        raise ValueError(
            f"The checkpoint {checkpoint} is of a different model: a {saved_type!r}, and this is a "
            f"{model.config.model_type!r}. Resume with the model of the first run."
        )
    saved, info = type(model).from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    checkpoints = {name: weight.shape for name, weight in saved.state_dict().items()}
    expected = {name: weight.shape for name, weight in model.state_dict().items()}
    different = sorted(dict(checkpoints.items() ^ expected.items())) or sorted(info["missing_keys"])
    if different:
        raise ValueError(
            f"The checkpoint {checkpoint} is of a different model: {len(different)} weights differ in name or size, "
            f"among them {', '.join(different[:3])}. Resume with the configuration of the first run."
        )
    model.load_state_dict(saved.state_dict())


def why_finished(state: TrainerState, args: CaptioningTrainingArguments) -> str | None:
    """Return why a run with this state is finished; None if it has steps left.

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
    """Return the trainer state of a run's final save; None if missing or unreadable."""
    try:
        return TrainerState.load_from_json(str(Path(output_dir, STATE)))
    except (OSError, ValueError, TypeError):
        return None


def restore_best_checkpoint(state: TrainerState, checkpoint: str | Path) -> None:
    """Correct the path of the best checkpoint, if the output directory was moved."""
    best = state.best_model_checkpoint
    if best is None or Path(best).is_dir():
        return
    moved = Path(checkpoint).parent / Path(best).name
    state.best_model_checkpoint = str(moved) if moved.is_dir() else None
    if state.best_model_checkpoint is None:
        logger.warning(f"The best checkpoint {best} does not exist any more: the run ends with its last weights.")

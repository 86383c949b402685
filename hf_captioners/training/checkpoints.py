"""Finding the checkpoint to go on from."""

import json
import os
from pathlib import Path

# What the trainer writes, in this order; a run may be killed between any two of them.
NEEDED = ("config.json", "optimizer.pt", "scheduler.pt", "trainer_state.json")


def is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    if not all((checkpoint / name).is_file() for name in NEEDED):
        return False
    if not list(checkpoint.glob("rng_state*.pth")) or not list(checkpoint.glob("*.safetensors*")):
        return False
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest checkpoint of a run that was written to its end; None if there is none.

    `trainer.train(resume_from_checkpoint=True)` takes the newest directory, even one that a kill left half-written.
    """
    folders = Path(output_dir).glob("checkpoint-*")
    numbered = [(int(folder.name.rpartition("-")[2]), folder) for folder in folders if folder.name[11:].isdigit()]
    return next((str(folder) for _, folder in sorted(numbered, reverse=True) if is_complete(folder)), None)

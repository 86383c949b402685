"""Checkpoints of a run: completeness, the newest one to resume from, and loading of weights."""

import json
import os
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .adapters import load_adapter_weights

# Files that the trainer writes in this order; a run may be killed between any two of them.
NEEDED = ("optimizer.pt", "scheduler.pt", "trainer_state.json")
CONFIGURATIONS = ("config.json", "adapter_config.json")  # of a whole model, or of adapters alone


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint is complete."""
    if not all((checkpoint / name).is_file() for name in NEEDED):
        return False
    if not any((checkpoint / name).is_file() for name in CONFIGURATIONS):
        return False
    if not list(checkpoint.glob("rng_state*.pth")) or not list(checkpoint.glob("*.safetensors*")):
        return False
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def require_complete(checkpoint: str | os.PathLike[str]) -> None:
    """Refuse a checkpoint from which training cannot resume exactly.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the checkpoint is incomplete, or it is a captioner without the state of its training.
    """
    if not Path(checkpoint).is_dir():
        raise FileNotFoundError(f"There is no checkpoint {checkpoint}.")
    if not is_complete(Path(checkpoint)):
        raise ValueError(
            f"{checkpoint} is not complete, expected a folder `checkpoint-N` with {', '.join(NEEDED)}. To start a new "
            "run from a trained captioner, pass `--model`."
        )


def last_complete_checkpoint(output_dir: str | os.PathLike[str], before: int | None = None) -> str | None:
    """Return the newest complete checkpoint of a run; None if there is none.

    `trainer.train(resume_from_checkpoint=True)` of transformers takes the newest directory, even an incomplete one.

    Args:
        output_dir: output directory of the run.
        before: only checkpoints of earlier steps than this one.
    """
    folders = Path(output_dir).glob("checkpoint-*")
    numbered = [(int(folder.name.rpartition("-")[2]), folder) for folder in folders if folder.name[11:].isdigit()]
    earlier = sorted((step, folder) for step, folder in numbered if before is None or step < before)
    return next((str(folder) for _, folder in reversed(earlier) if is_complete(folder)), None)


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
    found = {name: weight.shape for name, weight in saved.state_dict().items()}
    expected = {name: weight.shape for name, weight in model.state_dict().items()}
    different = sorted(dict(found.items() ^ expected.items())) or sorted(info["missing_keys"])
    if different:
        raise ValueError(
            f"The checkpoint {checkpoint} is of a different model: {len(different)} weights differ in name or size, "
            f"among them {', '.join(different[:3])}. Resume with the configuration of the first run."
        )
    model.load_state_dict(saved.state_dict())

"""Completing a saved checkpoint, so that it loads and captions where this package is not installed."""

import json
import os
from pathlib import Path

from hf_captioners.architectures import get_architecture
from hf_captioners.pipelines.image_captioning import bundle_pipeline

AUTO_CLASSES = {
    "AutoConfig": "Config",
    "AutoModel": "Model",
    "AutoModelForImageTextToText": "ForConditionalGeneration",
}


def complete_checkpoint(directory: str | os.PathLike[str]) -> None:
    """Add to a saved model what transformers leaves out: every Auto class in `config.json`, and the pipeline.

    The model's code is there already: transformers copies it when it saves.

    Args:
        directory: holds `config.json` and the code files.
    """
    path = Path(directory) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    architecture = get_architecture(config["model_type"])
    config["auto_map"] = {
        auto: f"{architecture.module(kind).rpartition('.')[2]}.{architecture.prefix}{kind}"
        for auto, kind in AUTO_CLASSES.items()
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)
    bundle_pipeline(directory)

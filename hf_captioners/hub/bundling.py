"""Completion of a saved checkpoint, so that it loads where this package is not installed."""

import json
import os
from pathlib import Path

from hf_captioners.architectures import get_architecture
from hf_captioners.output_files import write_text
from hf_captioners.pipelines.image_captioning import bundle_pipeline

AUTO_CLASSES = {
    "AutoConfig": "Config",
    "AutoModel": "Model",
    "AutoModelForImageTextToText": "ForConditionalGeneration",
}


def complete_checkpoint(directory: str | os.PathLike[str]) -> None:
    """Add every Auto class and the pipeline to a saved checkpoint.

    `save_pretrained` of transformers copies the code of the model, but writes only one Auto class into `config.json`.

    Args:
        directory: directory with `config.json` and the code files.
    """
    path = Path(directory) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    architecture = get_architecture(config["model_type"])
    config["auto_map"] = {
        auto: f"{architecture.module(kind).rpartition('.')[2]}.{architecture.prefix}{kind}"
        for auto, kind in AUTO_CLASSES.items()
    }
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
    bundle_pipeline(directory)

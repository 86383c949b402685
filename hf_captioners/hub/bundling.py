"""Code and configuration that let a saved checkpoint load where this package is not installed."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

from hf_captioners.architectures import AUXILIARY_MODELS, get_architecture
from hf_captioners.output_files import write_text
from hf_captioners.pipelines.image_captioning import bundle_pipeline

NOTICE = "NOTICE"
LIBRARY_IMPORT = re.compile(r"^([ \t]*)from hf_captioners\.(modeling|processing)\.(\w+) import", re.MULTILINE)
RELATIVE_IMPORT = re.compile(r"^[ \t]*from \.(\w+) import", re.MULTILINE)
AUTO_CLASSES = {
    "AutoConfig": "Config",
    "AutoModel": "Model",
    "AutoModelForImageTextToText": "ForConditionalGeneration",
}


def complete_checkpoint(directory: str | os.PathLike[str]) -> None:
    """Add every Auto class, the pipeline and the notice of its weights' licence to a saved checkpoint.

    `save_pretrained` of transformers copies the code of the model, but writes only one Auto class into `config.json`.

    Args:
        directory: directory with `config.json` and the code files.
    """
    path = Path(directory) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    auxiliary = [row for row in AUXILIARY_MODELS.values() if row.model_type == config["model_type"]]
    architecture = auxiliary[0] if auxiliary else get_architecture(config["model_type"])
    config["auto_map"] = {
        auto: f"{architecture.module(kind).rpartition('.')[2]}.{architecture.prefix}{kind}"
        for auto, kind in AUTO_CLASSES.items()
        if kind in architecture.kinds
    }
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
    if notice := (config.get("weights_license") or {}).get("notice"):
        write_text(Path(directory) / NOTICE, str(notice))
    bundle_library_code(directory)
    if not auxiliary:
        bundle_pipeline(directory)


def bundle_library_code(directory: str | os.PathLike[str]) -> None:
    """Copy this library's source files into a checkpoint, if its code imports them by absolute names.

    That is how the files of another package's architecture import this library. transformers copies only what files
    import by relative names, so the imports are made relative, and the files that they name are copied.

    Args:
        directory: directory with the code files.
    """
    folder = Path(directory)
    waiting = list(folder.glob("*.py"))
    while waiting:
        path = waiting.pop()
        code = path.read_text(encoding="utf-8")
        changed = LIBRARY_IMPORT.sub(r"\1from .\3 import", code)
        if changed != code:
            write_text(path, changed)
        for name in RELATIVE_IMPORT.findall(changed):
            source = library_file(name)
            if source is not None and not (folder / source.name).exists():
                write_text(folder / source.name, source.read_text(encoding="utf-8"))
                waiting.append(folder / source.name)


def library_file(name: str) -> Path | None:
    """Return the path of the module `name` of modeling/ or processing/; None if there is none."""
    for package in ("modeling", "processing"):
        spec = find_spec(f"hf_captioners.{package}.{name}")
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    return None

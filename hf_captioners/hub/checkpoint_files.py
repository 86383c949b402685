"""Selection and validation of the files of a checkpoint."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import get_relative_import_files

from hf_captioners.confidence.calibration import CALIBRATION_FILE
from hf_captioners.confidence.card_section import FIGURE_FILE
from hf_captioners.output_files import require_link_inside, require_plain

from .bundling import NOTICE
from .card_facts import FACTS_FILE

WEIGHTS = "model.safetensors"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pth", "*.pt", "*.ckpt", "*.npz", "*.tar")
PROCESSOR = ("processor_config.json", "preprocessor_config.json")
CODE_SOURCES = ("config.json", *PROCESSOR, "tokenizer_config.json")
# Files other than weights and code: those that from_pretrained reads, the facts of the card and licences.
DESCRIPTIONS = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    *PROCESSOR,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    FACTS_FILE,
    CALIBRATION_FILE,
    FIGURE_FILE,
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    NOTICE,
)
# Of a second tokenizer, which processors such as that of InstructBLIP save in a folder of its name.
SECOND_TOKENIZER = "*_tokenizer"
OF_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
)


def checkpoint_files(directory: str | os.PathLike[str], with_processor: bool = True) -> list[Path]:
    """Return the files of a checkpoint to upload, without optimizer states, features and the card.

    Args:
        directory: directory of the checkpoint.
        with_processor: whether a processor is required.

    Returns:
        Paths, sorted by name.

    Raises:
        FileNotFoundError: a required file is missing.
        UnsafeFileError: a file other than weights is a symbolic link that leads out of the directory.
        ValueError: weights are truncated or pickled, or the base captioner of an adapter is a local directory.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    is_adapter = (folder / "adapter_config.json").is_file()
    if not is_adapter and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json, so it is not a saved captioner.")
    if is_adapter:
        _check_base(folder)
    weights = _weights(folder, is_adapter)
    for path in weights:
        _check_weights(path)
    if with_processor and not is_adapter and not any((folder / name).is_file() for name in PROCESSOR):
        raise FileNotFoundError(
            f"{folder} has no processor (processor_config.json), which prepares images. Save it there: "
            "processor.save_pretrained(...)."
        )
    index = [folder / INDEX] if weights and weights[0].name not in (WEIGHTS, ADAPTER_WEIGHTS) else []
    described = [folder / name for name in DESCRIPTIONS if (folder / name).is_file()]
    second = [path / name for path in folder.glob(SECOND_TOKENIZER) for name in OF_TOKENIZERS]
    texts = {*described, *index, *code_files(folder), *(path for path in second if path.is_file())}
    for path in texts:  # weights may be links to anywhere
        require_link_inside(path, folder, advice="Copy the file into the folder, if that is right.")
        require_plain(path, path.stat().st_mode)
    return sorted({*texts, *weights})


def code_files(folder: Path) -> set[Path]:
    """Return the code files that a checkpoint's configurations name, and the files that these import.

    Raises:
        FileNotFoundError: a file is missing.
    """
    files: set[Path] = set()
    for name in CODE_SOURCES:
        path = folder / name
        described = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for reference in _references(described):
            code = folder / f"{reference.split('--')[-1].partition('.')[0]}.py"
            if "--" in reference:  # code of a different repository
                continue
            if not code.is_file():
                raise FileNotFoundError(f"{path} names {reference}, but {code.name} is missing. Save the model again.")
            files |= {code, *map(Path, get_relative_import_files(code))}
    return files


def _references(described: Any) -> Iterator[str]:
    """Yield every class reference `file.Class` of a configuration (`auto_map`, `custom_pipelines`), at any depth."""
    if not isinstance(described, dict):
        return
    for value in described.get("auto_map", {}).values():
        yield from (reference for reference in (value if isinstance(value, list) else [value]) if reference)
    for pipeline in described.get("custom_pipelines", {}).values():
        yield pipeline["impl"]
    for value in described.values():
        yield from _references(value)


def _check_base(folder: Path) -> None:
    """Check that an adapter's base captioner is on the Hub."""
    path = folder / "adapter_config.json"
    require_base_on_hub(json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path"), str(path))


def require_base_on_hub(base: str | None, what: str) -> None:
    """Raise an error unless the base captioner of an adapter is on the Hub.

    Args:
        base: its name.
        what: the file or option that names it, for the message.

    Raises:
        ValueError: it is a directory, or there is none.
    """
    if not base or os.path.isabs(base) or Path(base).is_dir():
        raise ValueError(
            f"{what} names {base!r} as the base captioner of the adapter, which is not on the Hub. Push that one "
            "first and set `base_model_name_or_path` to its name on the Hub; or merge the adapter and push the merged "
            "captioner (`hf-captioners push --merge_adapter`)."
        )


def _weights(folder: Path, is_adapter: bool) -> list[Path]:
    single = folder / (ADAPTER_WEIGHTS if is_adapter else WEIGHTS)
    if single.is_file():
        return [single]
    if not is_adapter and (folder / INDEX).is_file():
        from hf_captioners.loading import require_sound_index  # this module may be imported while that one is

        require_sound_index(folder / INDEX)
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        shards = [folder / name for name in sorted(set(index["weight_map"].values()))]
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}, which {INDEX} lists.")
        return shards
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise ValueError(
            f"{folder} has no {single.name}, only {', '.join(pickled)}. Pickles are not pushed; load the model and "
            "save it with save_pretrained, or see: hf-captioners convert --help"
        )
    raise FileNotFoundError(f"{folder} has no weights ({single.name}).")


def _check_weights(path: Path) -> None:
    try:
        with safe_open(path, "np"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or corrupt ({error}). Save or download it again.") from error

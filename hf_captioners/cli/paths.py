"""Checks of paths and devices in arguments, before heavy imports; the library checks the rest."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_captioners.default_model import DEFAULT, is_default
from hf_captioners.names import did_you_mean, near_path

DEVICES = ("cpu", "cuda", "mps", "xpu", "npu", "hpu", "mlu", "musa")
TIMM_PREFIX = "timm:"
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
HUB_SECONDS = 5  # that a first answer of the Hub may take
# Files of which a checkpoint in the cache of the Hub has at least one.
CACHED_FILES = ("config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json")


def check_path(name: str, text: str | os.PathLike[str] | None, folder: bool = False) -> None:
    """Check that a file or folder exists.

    Args:
        name: name of the argument, for the message.
        text: the path; None is not checked.
        folder: whether it must be a folder.
    """
    if text is None:
        return
    path = Path(text).expanduser()
    if path.is_dir() if folder else path.exists():
        return
    if path.exists():
        raise NotADirectoryError(f"`{name}`: {text} is a file, expected a folder.")
    kind = "folder" if folder else "file or folder"
    raise FileNotFoundError(f"`{name}`: there is no {kind} {text}.{near_path(path)}")


def check_source(name: str, source: str | None) -> None:
    """Check that a checkpoint exists: a directory, or a name in the cache or on the Hub.

    Args:
        name: name of the argument, for the message.
        source: directory, name on the Hub, `default` or a model of timm; None is not checked.
    """
    if is_default(source) or str(source).startswith(TIMM_PREFIX) or Path(str(source)).is_dir():
        return
    missing = f"`{name}`: {source} is no checkpoint: there is no such directory"
    if Path(str(source)).is_file():
        raise NotADirectoryError(f"`{name}`: {source} is a file and no checkpoint, expected its directory.")
    hint = near_path(str(source)) or (did_you_mean(str(source), (DEFAULT,)) if name == "model" else "")
    if not HUB_NAME.fullmatch(str(source)):
        raise FileNotFoundError(f"{missing}.{hint}")
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HTTPError, RepositoryNotFoundError

    if any(isinstance(try_to_load_from_cache(str(source), file), str) for file in CACHED_FILES):
        return
    if constants.HF_HUB_OFFLINE:
        raise FileNotFoundError(f"{missing}, nor is it in the cache of the Hub, which is offline.{hint}")
    try:
        HfApi().model_info(str(source), timeout=HUB_SECONDS)
    except RepositoryNotFoundError as error:
        if not isinstance(error, GatedRepoError):  # of which the library says how to get access
            missing += ", and no such model on the Hub (or it is private: sign in with `hf auth login`)"
            raise FileNotFoundError(f"{missing}.{hint}") from error
    except HfHubHTTPError:  # the library asks again, and waits longer
        return
    except HTTPError as error:
        if "Timeout" not in type(error).__name__:
            missing += f", it is not in the cache of the Hub, and there is no connection to the Hub ({error})"
            raise ConnectionError(f"{missing}.{hint}") from error


def check_model_and_device(model: str | Sequence[str] | None, device: str | None = None) -> None:
    """Check the existence of one or several captioners, see `check_source`, and of a device."""
    for source in [model] if isinstance(model, str) else model or ():
        check_source("model", source)
    check_device(device)


def check_device(name: str | None) -> None:
    """Check a device's name and presence; imports torch unless the device is the CPU."""
    if name is None:
        return
    kind, _, index = name.partition(":")
    if kind not in DEVICES or not re.fullmatch(rf"{kind}(:\d+)?", name):
        advice = did_you_mean(kind, ("cpu", "cuda", "mps", "xpu"))
        raise ValueError(f"`device` is {name!r}, expected cpu, cuda, cuda:N or mps, for example.{advice}")
    if kind == "cpu":
        return
    import torch

    module = getattr(torch, kind, None)
    count = module.device_count() if module is not None and module.is_available() else 0
    if int(index or 0) >= count:
        available = f"torch finds {count:,} of its kind" if count else "torch finds no such device here"
        raise ValueError(f"`device` is {name!r}, and {available}. Leave it out, or pass `device=cpu`.")


def check_training_paths(values: Mapping[str, Any]) -> None:
    """Check the paths and checkpoints in the arguments of a training run."""
    is_named = values.get("dataset") not in (None, "caption_folder")
    for name in ("train_dir", "data_dir", "validation_dir"):
        check_path(name, values.get(name), folder=is_named)
    check_path("resume_from_checkpoint", values.get("resume_from_checkpoint"), folder=True)
    check_path("subset", values.get("subset"))
    try:
        check_path("features", features := values.get("features"))
    except FileNotFoundError as error:
        advice = f"hf-captioners extract-features ... --split train --output {features}"
        raise FileNotFoundError(f"{error} Extract the features: {advice}") from error
    for name in ("model", "language_model", "tokenizer", "vision_model", "attribute_detector"):
        if values.get(name) is not None:
            check_source(name, values[name])

"""Checks of what a person typed, before anything heavy is imported: names, paths, devices, checkpoints.

Each function raises a `ValueError` or `FileNotFoundError` with one line and the nearest name. What only a library or a
model can tell is checked later, by the code that uses it.
"""

import argparse
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_captioners.declared_classes import DeclaredClass, declared_class, declared_constant, source_file
from hf_captioners.default_model import default_model, is_default
from hf_captioners.names import did_you_mean, listed, read_named_values

from .table_names import FOLDER

GENERATION_OPTIONS = Path(__file__).with_name("generation_options.json")
TIMM_PREFIX = "timm:"
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
OTHER_DTYPES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "single": "float32"}
OTHER_DTYPES |= {"fp64": "float64", "double": "float64"}
PACKED_WEIGHTS = ("float32", "bfloat16", "int8", "plain")
DEVICES = ("cpu", "cuda", "mps", "xpu", "npu", "hpu", "mlu", "musa")
CHECKPOINT_FILES = ("config.json", "adapter_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "config.json")
# Fields of `config.json` of which a vision model has at least one.
VISION_FIELDS = {"image_size", "num_channels", "patch_size", "vision_config", "backbone_config", "architecture"}
OWN_MODELS = "captioning_"
USUAL_SPLITS = ("train", "validation", "test")
LARGEST_HEADER = 100 * 2**20  # bytes, as in safetensors
HUB_SECONDS = 5  # that a first answer of the Hub may take


def check_dtype(name: str) -> None:
    """Check the name of a data type of weights."""
    if name not in DTYPES:
        other = OTHER_DTYPES.get(name.lower())
        hint = did_you_mean(name, DTYPES) if other is None else f" Did you mean `{other}`?"
        raise ValueError(f"`--dtype` is {name!r}, expected one of {', '.join(DTYPES)}.{hint}")


def check_packed_weights(name: str | None, dtype: str) -> None:
    """Check the number format of packed weights, which are made of weights in float32."""
    if name is None:
        return
    if name not in PACKED_WEIGHTS:
        hint = did_you_mean(name, PACKED_WEIGHTS)
        raise ValueError(f"`--packed_weights` is {name!r}, expected one of {', '.join(PACKED_WEIGHTS)}.{hint}")
    if name != "plain" and dtype not in ("auto", "float32"):
        raise ValueError(f"`--packed_weights {name}` needs weights of type float32, got `--dtype {dtype}`; give one.")


def check_device(name: str | None) -> None:
    """Check the name of a device, and that there is one; this imports torch unless it is the CPU."""
    if name is None:
        return
    kind, _, index = name.partition(":")
    if kind not in DEVICES or not re.fullmatch(rf"{kind}(:\d+)?", name):
        known = did_you_mean(kind, ("cpu", "cuda", "mps", "xpu"))
        raise ValueError(f"`--device` is {name!r}, expected cpu, cuda, cuda:N or mps, for example.{known}")
    if kind == "cpu":
        return
    import torch

    module = getattr(torch, kind, None)
    count = module.device_count() if module is not None and module.is_available() else 0
    if int(index or 0) >= count:
        there = f"torch finds {count:,} of its kind" if count else "torch finds no such device here"
        raise ValueError(f"`--device` is {name!r}, and {there}. Leave it out, or pass `--device cpu`.")


def check_path(flag: str, text: str | os.PathLike[str] | None, folder: bool = False) -> None:
    """Check that a file or folder exists.

    Args:
        flag: what it is called, for the message.
        text: the path; None is not checked.
        folder: whether it must be a folder.
    """
    if text is None:
        return
    path = Path(text).expanduser()
    if path.is_dir() if folder else path.exists():
        return
    if path.exists():
        raise NotADirectoryError(f"`{flag}`: {text} is a file, expected a folder.")
    what = "folder" if folder else "file or folder"
    raise FileNotFoundError(f"`{flag}`: there is no {what} {text}.{near_path(path)}")


def near_path(text: str | os.PathLike[str]) -> str:
    """Return ` Did you mean ...?` with the nearest existing path, or which folder of it is missing."""
    path = Path(text)
    parent = path.parent
    if not parent.is_dir():
        return f" There is no folder {parent} either.{near_path(parent)}" if parent != path else ""
    near = did_you_mean(path.name, (one.name for one in parent.iterdir()))
    return near if str(parent) == "." else re.sub("`(.*)`", lambda found: f"`{parent / found[1]}`", near)


def check_source(flag: str, source: str, files: Sequence[str] = CHECKPOINT_FILES) -> dict[str, Any] | None:
    """Check that a checkpoint exists: a directory, or a name that is in the cache if the Hub is not reached.

    Args:
        flag: what it is called, for the message.
        source: directory or name, or `default`, see `default_model`.
        files: files of which a directory has at least one.

    Returns:
        Its `config.json`. None: it has none, or is a name that only the Hub knows.
    """
    path = Path(default_model().folder if is_default(source) else source)
    if path.is_dir():
        if not any((path / name).is_file() for name in files):
            raise FileNotFoundError(f"`{flag}`: {source} is no checkpoint: it has no {' or '.join(files)}.")
        return _config(path / "config.json") or _config_of_base(flag, path)
    if path.is_file():
        raise NotADirectoryError(f"`{flag}`: {source} is a file and no checkpoint, expected its directory.")
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source):
        raise FileNotFoundError(f"`{flag}`: {source} is no checkpoint: there is no such directory.{near_path(source)}")
    from huggingface_hub import constants

    cached = Path(constants.HF_HUB_CACHE, f"models--{source.replace('/', '--')}")
    if cached.is_dir():
        return next((_config(found) for found in sorted(cached.glob("snapshots/*/config.json"))), None)
    if constants.HF_HUB_OFFLINE:
        raise FileNotFoundError(
            f"`{flag}`: {source} is no checkpoint: there is no such directory, nor is it in the cache of the Hub, "
            f"which is offline.{near_path(source)}"
        )
    return _config_on_hub(flag, source)


def _config_of_base(flag: str, folder: Path) -> dict[str, Any] | None:
    """Return the `config.json` of the captioner that an adapter belongs to; None if the folder has no adapter."""
    base = (_config(folder / "adapter_config.json") or {}).get("base_model_name_or_path")
    if not isinstance(base, str) or Path(base) == folder:
        return None
    try:
        return check_source(flag, base)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{error} It is the captioner of the adapter {folder}.") from error


def _config_on_hub(flag: str, source: str) -> dict[str, Any] | None:
    """Return the `config.json` of a name on the Hub; None if it has none, or the Hub does not answer as it should."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HTTPError, RepositoryNotFoundError

    try:
        files = HfApi().model_info(source, timeout=HUB_SECONDS).siblings or ()
        if not any(one.rfilename == "config.json" for one in files):
            return None
        return _config(Path(HfApi().hf_hub_download(source, "config.json")))
    except GatedRepoError:  # what reads it says how to get access
        return None
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"`{flag}`: {source} is no checkpoint: there is no such directory, and no such model on the Hub (or it is "
            f"private: sign in with `hf auth login`).{near_path(source)}"
        ) from error
    except (HfHubHTTPError, OSError, ValueError, RuntimeError):
        return None
    except HTTPError as error:
        if "Timeout" in type(error).__name__:  # a slow connection: what loads the model asks again, and waits longer
            return None
        raise ConnectionError(
            f"`{flag}`: {source} is no checkpoint: there is no such directory, it is not in the cache of the Hub, and "
            f"there is no connection to the Hub ({error}).{near_path(source)}"
        ) from error


def _config(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # what reads it says what is wrong with it
        return None
    return content if isinstance(content, dict) else None


def weight_names(source: str) -> list[str]:
    """Return the names of the weights of a checkpoint in a directory; none where they cannot be read without torch."""
    names: list[str] = []
    for file in sorted(Path(source).glob("model*.safetensors")):
        with open(file, "rb") as stream:
            try:  # the format: the size of a header of JSON in 8 bytes, then the header
                header = json.loads(stream.read(min(int.from_bytes(stream.read(8), "little"), LARGEST_HEADER)))
            except ValueError:
                return []
        names += [name for name in header if name != "__metadata__"]
    return names


def check_captioner(flag: str, source: str) -> dict[str, Any] | None:
    """Check that a captioner exists, see `check_source`."""
    config = check_source(flag, source)
    kind = (config or {}).get("model_type")
    if kind == "gpt2":
        raise ValueError(f"`{flag}`: {source} is no captioner: it is a {kind!r} language model.")
    return config


def check_language_model(source: str) -> None:
    """Check that a language model exists and is a GPT-2."""
    kind = (check_source("--language_model", source) or {}).get("model_type")
    if kind not in (None, "gpt2"):
        raise ValueError(f"`--language_model`: {source} is a {kind!r} model, expected a 'gpt2' language model.")


def check_vision_model(source: str, flag: str = "--vision_model") -> None:
    """Check that a vision model exists and is one."""
    if source.startswith(TIMM_PREFIX):
        return check_timm(source, flag)
    config = check_source(flag, source) or {}
    kind = str(config.get("model_type", ""))
    if kind.startswith(OWN_MODELS) or ("vocab_size" in config and not VISION_FIELDS & set(config)):
        raise ValueError(f"`{flag}`: {source} is a {kind!r} model, expected a vision model.")
    return None


def check_timm(source: str, flag: str) -> None:
    """Check the name of a timm model, in the sources of timm: importing it takes ten seconds."""
    from importlib.util import find_spec

    architecture, _, tag = source.split(":")[1].partition(".")
    spec = find_spec("timm")
    if spec is None or spec.origin is None:
        return
    known, tags = set(), set()
    for file in sorted(Path(spec.origin).parent.glob("models/*.py")):
        text = file.read_text(encoding="utf-8")
        known.update(re.findall(r"^@register_model\ndef (\w+)\(", text, re.MULTILINE))
        tags.update(re.findall(rf"['\"]{re.escape(architecture)}\.(\w+)['\"]", text))
        if "register_model_deprecations(" in text:
            known.update(re.findall(r"^ +['\"](\w+)['\"]: ?['\"]", text, re.MULTILINE))
    if known and architecture not in known:
        raise ValueError(f"`{flag}`: timm has no model {architecture!r}.{did_you_mean(architecture, sorted(known))}")
    if tag and tags and tag not in tags:
        raise ValueError(
            f"`{flag}`: timm has no weights {tag!r} of {architecture}; it has {listed(sorted(tags))}."
            f"{did_you_mean(tag, sorted(tags))}"
        )


def data_readers() -> Mapping[str, tuple[str, str]]:
    """Return the table of data sets, see `hf_captioners.data.loading`."""
    loaded = sys.modules.get("hf_captioners.data.loading")  # to which other packages may have added data sets
    if loaded is not None:
        return loaded.READERS
    return declared_constant(source_file("data.loading"), "READERS")


def check_data(name: str, options: Iterable[str] = (), flag: str = "--dataset") -> None:
    """Check the name of a data set and the names of its options."""
    readers = data_readers()
    if name not in readers:
        raise ValueError(
            f"`{flag}`: there is no data set {name!r}; expected one of {', '.join(sorted(readers))}."
            f"{did_you_mean(name, readers)}"
        )
    reader = _reader(name)
    if reader is None:
        return
    known = [one for one in reader.fields if one != "data_dir"]
    for option in options:
        if option not in known:
            raise ValueError(
                f"`--data_options`: {name!r} has no option {option}; it has {', '.join(known)}."
                f"{did_you_mean(option, known)}"
            )
    if missing := [one for one in reader.needed if one not in (*options, "data_dir")]:
        raise ValueError(f"`--data_options`: {name!r} needs {', '.join(f'{one}=...' for one in missing)}.")


def _reader(name: str) -> DeclaredClass | None:
    module, cls = data_readers()[name]
    file = source_file(f"data.{module}")
    return declared_class(file, cls) if file.is_file() else None


def check_split(name: str, split: str, folder: str | None, flag: str = "--split") -> None:
    """Check the name of a split where a name that differs from the usual ones can be told from a mistake."""
    if name == "by_columns" or _has_splits_of_its_own(name, folder):
        return
    for part in re.split(r"\+", split):
        base = re.sub(r"\[.*\]$", "", part.strip())
        if base not in (known := _splits(name, folder)):
            raise ValueError(
                f"`{flag} {split}`: there is no split {base!r}; there are {', '.join(known)}."
                f"{did_you_mean(base, known)}"
            )


def _splits(name: str, folder: str | None) -> Sequence[str]:
    if name != FOLDER or folder is None or not Path(folder).is_dir():
        return USUAL_SPLITS
    names = declared_constant(source_file("data.folder_tables"), "SPLIT_NAMES")
    inside = {names.get(one.name.lower()) for one in Path(folder).iterdir() if one.is_dir()}
    return [one for one in USUAL_SPLITS if one in inside] or ["train"]


def _has_splits_of_its_own(name: str, folder: str | None) -> bool:
    """Whether rows of a folder name their split, or its tables are not where they usually are."""
    if name != FOLDER:
        return name not in ("coco", "conceptual_captions", "flickr8k", "flickr30k", "iu_xray", "scenes")
    tables = [] if folder is None else sorted(Path(folder).glob("metadata.*")) + sorted(Path(folder).glob("*.jsonl"))
    if not tables:
        return folder is not None and not any(one.is_dir() for one in Path(folder).glob("*"))
    with open(tables[0], "rb") as file:
        return b"split" in file.read(4096)


def check_metrics(names: Sequence[str], flag: str = "--metrics") -> None:
    """Check the names of metrics; functions of `module:function` are imported."""
    from hf_captioners.metrics.registry import find_metrics

    try:
        find_metrics(list(names))
    except ValueError as error:
        raise ValueError(f"`{flag}`: {error}") from error


def check_least(flag: str, value: float | None, least: float = 1) -> None:
    """Check that a number, if it was typed, is not too small."""
    if value is not None and value < least:
        raise ValueError(f"`{flag}` is {value:,}, expected at least {least:,}.")


def check_model_arguments(args: argparse.Namespace) -> None:
    """Check the arguments of `add_model_arguments`, and the captioners in `model`, one, several or none."""
    for name in ("batch_size", "num_beams", "max_new_tokens"):
        check_least(f"--{name}", getattr(args, name, None))
    if getattr(args, "dtype", None) is not None:
        check_dtype(args.dtype)
        check_packed_weights(getattr(args, "packed_weights", None), args.dtype)
    check_generation_names(read_named_values(getattr(args, "generate", ()), "--generate"))
    models = [args.model] if isinstance(args.model, str) else args.model or []
    for model in models:
        if getattr(args, "backend", "torch") == "onnx":
            check_source("--model", model, ("captioner.json",))
        else:
            check_captioner("--model", model)
    check_device(getattr(args, "device", None))


def check_generation_names(names: Iterable[str]) -> None:
    """Check the names of `--generate`, by the committed list of the options of generate()."""
    content = json.loads(GENERATION_OPTIONS.read_text(encoding="utf-8"))
    if content["transformers"] != importlib.metadata.version("transformers"):
        return  # which may have others; they are checked when it is imported
    known = content["options"]
    for name in names:
        if name not in known:
            raise ValueError(
                f"`--generate` has {name!r}, which is no option of generate().{did_you_mean(name, known)} See the "
                "documentation of transformers' GenerationConfig."
            )


def check_score_arguments(args: argparse.Namespace) -> None:
    """Check the arguments of `add_metric_arguments`."""
    check_metrics(args.metrics)
    stages = declared_constant(source_file("metrics.meteor"), "STAGES")
    for stage in args.meteor_stages or ():
        if stage not in stages:
            raise ValueError(
                f"`--meteor_stages`: there is no stage {stage!r}, expected {', '.join(stages)}."
                f"{did_you_mean(stage, stages)}"
            )
    for name in ("document_frequency", "meteor_tables", "spice_jar", "chair_objects", "chair_instances"):
        check_path(f"--{name}", getattr(args, name))


def check_converter(architecture: str, settings: Iterable[str]) -> None:
    """Check that an architecture has a converter, and the names of its settings."""
    from hf_captioners.architectures import get_architecture, list_architectures

    name = get_architecture(architecture).name
    converters = [one for one in list_architectures() if source_file(f"hub.convert.{one}").is_file()]
    if name not in converters:
        raise ValueError(f"{name} has no converter; choose one of {', '.join(converters)}.")
    try:
        known = declared_constant(source_file(f"hub.convert.{name}"), "SETTINGS")
    except ValueError:  # its converter reads options of the authors' program
        return
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"`--set`: {get_architecture(name).prefix} has no setting {setting}; it has {', '.join(known)}."
                f"{did_you_mean(setting, known)}"
            )

"""Loading of captioners, vision models and processors from directories or names."""

import dataclasses
import json
import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT_TO_TEXT
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, cached_file

from hf_captioners.architectures import ARCHITECTURES, Architecture, Purpose, is_supported, supported_captioners
from hf_captioners.default_model import default_model, is_default
from hf_captioners.image_text_processor import ImageTextProcessor as ImageTextProcessor
from hf_captioners.interfaces import Captioner, Processor
from hf_captioners.modeling.configuration_captioning import DETECTORS
from hf_captioners.modeling.loading_vision import TIMM_PREFIX, load_vision_model, vision_config_of
from hf_captioners.modeling.modeling_captioning import CaptioningForConditionalGeneration
from hf_captioners.names import did_you_mean, listed, near_path
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processor_settings import with_processor_options
from hf_captioners.tokenizer_file import require_limited_growth

logger = logging.getLogger(__name__)

COPY_AGAIN = "Copy the file again, or download it again with `hf download NAME --force-download`."
ADAPTER_CONFIG = "adapter_config.json"
SUB_CONFIGS = ("text_config", "vision_config", "encoder", "decoder", "backbone_config")
# Fields with a number of layers, and the least one: parts that a model lacks have 0.
LAYER_COUNTS = {"n_layer": 1, "num_hidden_layers": 1, "encoder_layers": 0, "decoder_layers": 0, "num_layers": 0}
MAX_LAYERS = 1000
# Fields of a generation configuration: whole numbers with the least one, other numbers, and token ids or lists of ids.
WHOLE_NUMBERS = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "max_length", "pool_groups"), 1),
    **dict.fromkeys(("max_new_tokens", "min_length", "min_new_tokens", "no_repeat_ngram_size", "top_k"), 0),
}
MAX_NUMBERS = {"num_beams": 1000, "num_return_sequences": 1000}  # other numbers may be large where they are unused
OTHER_NUMBERS = ("temperature", "length_penalty", "repetition_penalty")
SHARES = ("top_p", "min_p", "typical_p")
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# In messages of transformers about whole checkpoints of other models.
OTHER_TYPES = ("configuration class", "model_type", "trust_remote_code")


def load_vision_part(source: str, image_size: int | None = None) -> tuple[Any, CaptioningImageProcessor]:
    """Load a vision model and the image processor that belongs to it.

    Args:
        source: name or directory of a vision model, or `timm:ARCHITECTURE[:FILE]`.
        image_size: side of the images in pixels: the shorter side is resized to it, the central square cropped; for a
            detector, the whole image is stretched to the square. Default: the preparation of the vision model.

    Raises:
        ValueError: `source` is not a vision model.
        FileNotFoundError: it cannot be read.
    """
    settings: dict[str, Any] = {}
    require_timm_name(source)
    with reading(source):
        vision = load_vision_model(source)
        if image_size is not None:
            square = {"height": image_size, "width": image_size}
            settings = {"size": {"shortest_edge": image_size}, "do_center_crop": True, "crop_size": square}
            if vision.config.model_type in DETECTORS:  # an object at the edge is an object too
                settings = {"size": square, "do_pad": False, "size_divisor": None}
        return vision, CaptioningImageProcessor.from_backbone(image_settings_source(source, vision), **settings)


def read_vision_config(source: str) -> Any:
    """Read the configuration of a vision model, without weights.

    Args:
        source: see `load_vision_part`.

    Raises:
        ValueError: `source` is not a vision model, or timm does not have it.
        FileNotFoundError: it cannot be read.
    """
    if source.startswith(TIMM_PREFIX):
        require_timm_name(source)
        return AutoConfig.for_model("timm_wrapper", architecture=source.split(":")[1], num_labels=0)
    with reading(source):
        return vision_config_of(source)


def require_timm_name(source: str) -> None:
    """Check that timm has a model and pretrained weights of this name; other sources are not checked.

    Args:
        source: see `load_vision_part`.

    Raises:
        ValueError: timm has no such model or weights. The message has the nearest name.
    """
    if not source.startswith(TIMM_PREFIX) or find_spec("timm") is None:
        return
    import timm

    architecture, _, tag = source.split(":")[1].partition(".")
    if not timm.is_model(architecture):
        raise ValueError(
            f"{source}: timm has no model {architecture!r}.{did_you_mean(architecture, timm.list_models())}"
        )
    tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
    if tag and tags and tag not in tags:
        raise ValueError(
            f"{source}: timm has no weights {tag!r} of {architecture}; it has {listed(tags)}.{did_you_mean(tag, tags)}"
        )


def image_settings_source(name: Any, vision: Any) -> Any:
    """Return the source of a vision model's image settings: its directory, or timm's data configuration."""
    if not str(name).startswith(TIMM_PREFIX):
        return name
    from timm.data import resolve_model_data_config

    return resolve_model_data_config(vision.timm_model)


@contextmanager
def reading(source: str, revision: str | None = None) -> Iterator[None]:
    """Context manager that adds the checkpoint and the damaged file to loading errors.

    Args:
        source: name or directory of the checkpoint that is read inside.
        revision: its revision on the Hub.

    Raises:
        FileNotFoundError: instead of an `OSError` inside.
        ValueError: a file is damaged, or instead of other errors inside.
    """
    config = None if source.startswith(TIMM_PREFIX) else _config_file(source, revision)
    if config is not None:
        require_sound_config(config)
        generation = config.with_name(GENERATION_CONFIG_NAME)
        if generation.is_file():  # transformers generates with other settings if it cannot be read
            require_sound_generation(generation)
        require_limited_growth(config.with_name("tokenizer.json"))
        for index in sorted(config.parent.glob("*.index.json")):
            require_sound_index(index)
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # libraries raise errors of many types for damaged files, also `Exception` itself
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        if config is not None and (fault := _damaged_file(config.parent)):
            raise ValueError(fault) from error
        if isinstance(error, OSError):
            raise FileNotFoundError(
                f"{source} is no checkpoint that can be read locally or from the Hub ({reason}){near_path(source)}"
            ) from error
        if isinstance(error, (ValueError, KeyError)) and any(word in str(error) for word in OTHER_TYPES):
            raise
        if config is not None and (fault := _config_fault(config)):
            raise ValueError(fault) from error
        if isinstance(error, ValueError) and source in str(error):
            raise
        if config is not None and "mismatched" in reason:
            raise ValueError(
                f"{config} states other sizes than the weights beside it have (`--verbose` lists them). {COPY_AGAIN}"
            ) from error
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{source} cannot be loaded: {kind}{' '.join(str(error).split())[:1000]}") from error


def _config_file(source: str, revision: str | None) -> Path | None:
    return checkpoint_file(source, revision, CONFIG_NAME)


def checkpoint_file(source: str, revision: str | None, name: str) -> Path | None:
    """Return the local path of a checkpoint file, downloaded if needed; None if it does not exist."""
    path = Path(source, name)
    if Path(source).is_dir():
        return path if path.is_file() else None
    names = ("gated_repo", "missing_entries", "connection_errors")
    lenient = {f"_raise_exceptions_for_{name}": False for name in names}
    try:
        found = cached_file(source, name, revision=revision, **lenient)
    except (OSError, ValueError):  # the caller's own reading says why
        return None
    return None if found is None else Path(found)


def require_sound_config(path: Path) -> None:
    """Check the structure of a `config.json`: objects as sub-configurations, and possible numbers of layers.

    Raises:
        ValueError: it is damaged; a model of its size would take minutes to build.
    """

    def check(content: Any, name: str) -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{path} is damaged: {name} is {content!r:.60}, expected an object. {COPY_AGAIN}")
        for key, value in content.items():
            if key in LAYER_COUNTS and value is not None:
                low = LAYER_COUNTS[key]
                if type(value) is not int or not low <= value <= MAX_LAYERS:
                    raise ValueError(
                        f"{path} is damaged: `{key}` is {value!r:.60}, expected {low} to {MAX_LAYERS}. {COPY_AGAIN}"
                    )
            if key in SUB_CONFIGS and value is not None:
                check(value, f"`{key}`")

    check(_read_json(path), "it")


def require_sound_generation(path: Path) -> None:
    """Check that numeric values of a `generation_config.json` are numbers, before decoding fails on them.

    Raises:
        ValueError: it is damaged.
    """
    content = _read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is {content!r:.60}, expected an object. {COPY_AGAIN}")
    for name, value in content.items():
        if value is not None and (expected := expected_of_generation(name, value)):
            raise ValueError(f"{path} is damaged: `{name}` is {value!r:.60}, expected {expected}. {COPY_AGAIN}")


def require_sound_index(path: Path) -> None:
    """Check that the index of sharded weights names only files in its own folder.

    Raises:
        ValueError: it is damaged, or names a file elsewhere.
    """
    content = _read_json(path)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict):
        raise ValueError(f"{path} is damaged: it has no object `weight_map`. {COPY_AGAIN}")
    for name in set(map(str, names.values())):
        if PurePath(name).name != name or name == "..":
            raise ValueError(f"{path} names the file {name!r:.80}, expected one beside it. {COPY_AGAIN}")


def expected_of_generation(name: str, value: Any) -> str | None:
    """Return the expected type of an invalid generation setting; None if the value is valid."""
    if name in WHOLE_NUMBERS:
        low, high = WHOLE_NUMBERS[name], MAX_NUMBERS.get(name, 2**31 - 1)
        limit = f" to {high:,}" if name in MAX_NUMBERS else ""
        return None if type(value) is int and low <= value <= high else f"a whole number from {low}{limit}"
    if name in TOKEN_IDS:
        ids = value if isinstance(value, list) and value else [value]
        are_ids = all(type(entry) is int and 0 <= entry < 2**31 for entry in ids)
        return None if are_ids else "a token id or a list of them"
    if name in SHARES:
        return None if type(value) in (int, float) and 0 <= value <= 1 else "a number from 0 to 1"
    sound = name not in OTHER_NUMBERS or (type(value) in (int, float) and math.isfinite(value))
    return None if sound else "a number"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error}). {COPY_AGAIN}") from error


def _damaged_file(folder: Path) -> str | None:
    """Return what is wrong with the first unreadable file of a checkpoint; None if all are readable."""
    for path in sorted(folder.glob("*.json")):
        try:
            _read_json(path)
        except (ValueError, OSError) as error:
            return str(error)
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            size = f"{path.stat().st_size:,} bytes" if path.exists() else "missing"
            return f"{path} ({size}) is damaged: {error}. {COPY_AGAIN}"
    for path in [] if any(folder.glob("*.safetensors")) else sorted(folder.glob("pytorch_model*.bin")):
        try:
            torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:  # as above
            return (
                f"{path} ({path.stat().st_size:,} bytes) is pickled and cannot be read without running code, or is "
                f"damaged ({type(error).__name__}). {COPY_AGAIN} If it is whole and you trust it, load it with the "
                "program that wrote it and save it there with `save_pretrained`, which writes model.safetensors."
            )
    return None


def _config_fault(path: Path) -> str | None:
    """Return why a model cannot be built from a configuration; None if it can."""
    try:
        AutoConfig.from_pretrained(path.parent)
    except Exception as error:  # as above
        if "trust_remote_code" in str(error):
            return None
        reason = " ".join(str(error).split())[:300].rstrip(".")
        return f"{path} has a value of a wrong type or range: {type(error).__name__}: {reason}. {COPY_AGAIN}"
    return None


def changed_config(source: str | None, fields: dict[str, Any]) -> Any:
    """Return a captioner's configuration with some fields changed.

    Args:
        source: see `load_captioner`.
        fields: new values.

    Raises:
        ValueError: the configuration has no such field, or the value is not allowed.
        FileNotFoundError: it cannot be read.
    """
    source = str(default_model().folder) if is_default(source) else str(source)
    with reading(source):
        kind = type(AutoConfig.from_pretrained(source))
        content, _ = kind.get_config_dict(source)
    # The fields come from a recipe or a card: `from_pretrained(..., **fields)` would take `trust_remote_code` among
    # them as the permission to run the code of the checkpoint.
    config, unknown = kind.from_dict(content, **{**fields, "return_unused_kwargs": True})
    require_fields(kind, unknown)
    config.validate()
    return config


# Keywords of every configuration that are no fields.
OTHER_KEYWORDS = ("attn_implementation", "torch_dtype")


def require_fields(config_class: type[Any], names: Iterable[str]) -> None:
    """Check that a configuration has fields with the given names.

    Args:
        config_class: class of the configuration.
        names: the names in `model_config`.

    Raises:
        ValueError: it has no such field. The message has the nearest one.
    """
    fields = [*(field.name for field in dataclasses.fields(config_class)), *OTHER_KEYWORDS]
    for name in names:
        if name not in fields:
            raise ValueError(
                f"`model_config` has {name!r}, and a {config_class.__name__} has no such field."
                f"{did_you_mean(name, fields)}"
            )


def require_supported(
    source: str | None,
    purpose: Purpose = Purpose.CAPTIONING,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Check that a checkpoint's model type is supported, without reading weights.

    A checkpoint whose configuration cannot be read passes: loading it says why. A directory without one does not.

    Args:
        source: see `load_captioner`; of an adapter, its captioner is checked.
        purpose: what the captioner is for.
        revision: its revision on the Hub.
        trust_remote_code: run code from the repository of the model, which may be that of a captioner of this library
            or of another package.

    Raises:
        ValueError: the model type is not supported, or a file is damaged.
        FileNotFoundError: a directory has no configuration.
    """
    source = str(default_model().folder) if is_default(source) else str(source)
    if (adapter := adapter_settings(source, revision)) is not None:
        return require_supported(base_of_adapter(source, adapter), purpose, None, trust_remote_code)
    path = checkpoint_file(source, revision, CONFIG_NAME)
    if path is None and Path(source).is_dir():
        raise FileNotFoundError(f"{source} has no {CONFIG_NAME}, so it is no captioner{_unfinished(Path(source))}.")
    content = {} if path is None else _read_json(path)
    if not isinstance(content, dict) or not isinstance(model_type := content.get("model_type"), str):
        return None
    if trust_remote_code and "auto_map" in content:
        with reading(source, revision):
            config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=True)
        supported = _is_own(config) or (purpose is Purpose.CAPTIONING and _has_chat_template(source, revision))
    else:  # transformers tells of code that has to be trusted
        supported = is_supported(model_type, purpose) or ("auto_map" in content and model_type not in CONFIG_MAPPING)
        if (
            not supported and purpose is Purpose.CAPTIONING
        ):  # of a family that was not compared; the pipeline checks it
            supported = model_type in IMAGE_TEXT_TO_TEXT and _has_chat_template(source, revision)
    if not supported:
        raise ValueError(f"{source} is {_unsupported(model_type, purpose)}")
    return None


def require_supported_model(model: Any, purpose: Purpose) -> None:
    """Check that a model is supported for a purpose.

    Args:
        model: the captioner, perhaps wrapped in an adapter.
        purpose: what the captioner is for.

    Raises:
        ValueError: it is not.
    """
    if not supports(model, purpose):
        raise ValueError(f"The captioner is {_unsupported(getattr(model.config, 'model_type', ''), purpose)}")


def supports(model: Any, purpose: Purpose) -> bool:
    """Return whether a model, possibly wrapped in an adapter, is supported for a purpose."""
    return _is_own(model.config) or is_supported(getattr(model.config, "model_type", ""), purpose)


def _has_chat_template(source: str, revision: str | None) -> bool:
    """Return whether a checkpoint has a chat template."""
    if any(checkpoint_file(source, revision, name) for name in ("chat_template.jinja", "chat_template.json")):
        return True
    paths = (checkpoint_file(source, revision, name) for name in ("tokenizer_config.json", "processor_config.json"))
    contents = [_read_json(path) for path in paths if path is not None]
    return any(isinstance(content, dict) and content.get("chat_template") for content in contents)


def _unfinished(folder: Path) -> str:
    """Return an error text for the output folder of unfinished training; empty for other folders."""
    from transformers.trainer_utils import get_last_checkpoint  # which imports much

    if (last := get_last_checkpoint(str(folder))) is None:
        return ""
    return f": its training has not ended. Continue it with `resume`, or name its last checkpoint, {last}"


def _is_own(config: Any) -> bool:
    """Return whether a configuration belongs to a captioner of this library or a copy of its code."""
    return hasattr(config, "encoder_inputs")


def _unsupported(model_type: str, purpose: Purpose) -> str:
    return (
        f"a model of the type {model_type!r}, for which {purpose} is not supported. Supported: "
        f"{supported_captioners(purpose)}."
    )


def load_captioner(
    source: str | None = None,
    purpose: Purpose = Purpose.CAPTIONING,
    processor_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Captioner, Processor]:
    """Load a captioner and its processor.

    Args:
        source: name or directory; None or `"default"`: the one that an installed package offers, see `default_model`.
            An adapter of PEFT is loaded with its base captioner, and stays apart from its weights; `merge_adapter`
            merges it.
        purpose: what the captioner is for; see `TRANSFORMERS_CAPTIONERS` in `hf_captioners.architectures`.
        processor_options: see `load_processor`.
        **options: arguments of `from_pretrained` of the model.

    Raises:
        ValueError: the checkpoint is not a captioner or not supported for the purpose, one of its files is damaged,
            a weight is not finite, or the processor has no such option.
        FileNotFoundError: it cannot be read, or none is named and no package offers one.
        ImportError: it is an adapter, and peft is not installed.
    """
    if is_default(source):
        listed = default_model()
        logger.warning(listed.introduction_on("torch"))
        source = str(listed.folder)
    source = str(source)
    revision, trusts_code = options.get("revision"), options.get("trust_remote_code", False)
    if (adapter := adapter_settings(source, revision)) is not None:
        return _load_adapted(source, purpose, adapter, options, processor_options)
    require_supported(source, purpose, revision, trusts_code)
    try:
        with reading(source, revision):
            model = AutoModelForImageTextToText.from_pretrained(source, **options)
    except (ValueError, KeyError) as error:
        if "configuration class" not in str(error) and "model_type" not in str(error):
            raise
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"{source} is no captioner ({reason}). Pass a checkpoint that generates captions.") from error
    _require_finite(model, source)
    with reading(source, revision):
        processor = load_processor(source, trusts_code)
    return model, with_processor_options(processor, processor_options or {})


def _require_finite(model: torch.nn.Module, source: str) -> None:
    if name := weight_that_is_not_finite(model):
        raise ValueError(
            f"{source} has weights that are not finite, first in {name}: its training diverged, or the file is "
            "damaged. Pass an earlier checkpoint, or download it again."
        )


def adapter_settings(source: str, revision: str | None = None) -> dict[str, Any] | None:
    """Return an adapter's `adapter_config.json`; None if the checkpoint is not an adapter.

    Args:
        source: directory or name.
        revision: its revision on the Hub.

    Raises:
        ValueError: the file is damaged.
    """
    path = checkpoint_file(source, revision, ADAPTER_CONFIG)
    if path is None:
        return None
    content = _read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is {content!r:.60}, expected an object. {COPY_AGAIN}")
    return content


def base_of_adapter(source: str, settings: dict[str, Any]) -> str:
    """Return the directory or name of an adapter's base captioner.

    Args:
        source: directory or name of the adapter, for messages.
        settings: see `adapter_settings`.

    Raises:
        ValueError: it names none, or itself, or another adapter.
        FileNotFoundError: it names a directory that does not exist.
    """
    base = settings.get("base_model_name_or_path")
    where = f"{source} is an adapter, and its {ADAPTER_CONFIG} names {base!r} as its captioner"
    if not isinstance(base, str) or not base or base == source:
        raise ValueError(f"{where} (`base_model_name_or_path`), expected a directory or name.")
    if os.path.isabs(base) and not Path(base).is_dir():
        raise FileNotFoundError(f"{where}, which does not exist. Set `base_model_name_or_path` to where it is now.")
    if adapter_settings(base) is not None:
        raise ValueError(f"{where}, which is an adapter too. Merge that one first, see `merge_adapter`.")
    return base


def require_peft(what: str) -> None:
    """Check that peft is installed.

    Args:
        what: what needs it, for the message.

    Raises:
        ImportError: it is not.
    """
    if find_spec("peft") is None:
        raise ImportError(f"{what} needs the package peft: pip install 'hf-captioners[peft]'")


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence peft's warning about GPT-2 layers, which peft handles itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        yield


def _load_adapted(
    source: str,
    purpose: Purpose,
    settings: dict[str, Any],
    options: dict[str, Any],
    processor_options: Mapping[str, Any] | None,
) -> tuple[Any, Any]:
    """Load an adapter's base captioner with the adapter."""
    require_peft(f"{source} is an adapter, which")
    revision = options.get("revision")  # of the adapter
    further = {name: value for name, value in options.items() if name != "revision"}
    model, processor = load_captioner(base_of_adapter(source, settings), purpose, **further)
    place = {"adapter_kwargs": {"revision": revision}} if revision else {}
    with reading(source, revision), quiet_peft():
        loaded = model.load_adapter(source, **place)
    wrong = sorted(loaded.missing_keys) + sorted(loaded.unexpected_keys)
    if wrong or loaded.mismatched_keys:
        raise ValueError(f"{source} is an adapter of another captioner than {model.name_or_path}: {wrong[:3]} ...")
    _require_finite(model, source)
    if any(checkpoint_file(source, revision, name) for name in ("processor_config.json", "preprocessor_config.json")):
        with reading(source, revision):
            processor = load_processor(source, options.get("trust_remote_code", False))
    return model.eval(), with_processor_options(processor, processor_options or {})


def merge_adapter(source: str, **options: Any) -> tuple[Captioner, Processor]:
    """Load an adapter's base captioner and merge the adapter into its weights.

    Args:
        source: directory or name of an adapter.
        **options: arguments of `from_pretrained`.

    Returns:
        Model and processor, to save or to push.

    Raises:
        ValueError: it is no adapter; see also `load_captioner`.
    """
    settings = adapter_settings(source, options.get("revision"))
    if settings is None:
        raise ValueError(f"{source} is no adapter: it has no {ADAPTER_CONFIG}. It can be used as it is.")
    _, processor = load_captioner(source, **options)  # also checks that it fits
    further = {name: value for name, value in options.items() if name != "revision"}
    model, _ = load_captioner(base_of_adapter(source, settings), **further)
    from peft import PeftModel

    with reading(source, options.get("revision")), quiet_peft():
        adapted = PeftModel.from_pretrained(model, source, revision=options.get("revision"))
    return adapted.merge_and_unload(), processor  # type: ignore[operator]


def require_merged(model: Any) -> None:
    """Check that a captioner has no separate adapter.

    Raises:
        ValueError: it has one.
    """
    if getattr(model, "peft_config", None) or getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            "The captioner has an adapter apart from its weights. Merge it first: "
            "`model, processor = hf_captioners.loading.merge_adapter(ADAPTER)`, and save both with "
            "`save_pretrained(DIR)`; or push the whole captioner: `hf-captioners push ADAPTER REPO --merge_adapter`."
        )


def architecture_of(model: Any) -> Architecture:
    """Return the architecture of a captioner of this library.

    Raises:
        ValueError: it is a model of another library.
    """
    architectures = [each for each in ARCHITECTURES.values() if each.model_type == model.config.model_type]
    if not architectures or not isinstance(model, CaptioningForConditionalGeneration):
        raise ValueError(
            f"{type(model).__name__} ({model.config.model_type}) is no class of this library, expected a captioner of "
            f"{', '.join(ARCHITECTURES)}, as `hf-captioners train` and `convert` write them, loaded without "
            "`trust_remote_code`."
        )
    return architectures[0]


# Other number formats (8 bits and less) belong to quantised weights, and have no infinity or no test for it.
CHECKED_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.no_grad()
def weight_that_is_not_finite(model: torch.nn.Module) -> str | None:
    """Return the name of the first parameter with NaN or infinite values; None if all values are finite."""
    for name, weight in model.named_parameters():
        if weight.dtype in CHECKED_TYPES and not weight.is_meta and not bool(torch.isfinite(weight).all()):
            return name
    return None


def load_processor(source: str, trust_remote_code: bool = False) -> Processor:
    """Load a captioner's processor; a separately saved image processor and tokenizer are joined.

    Raises:
        ValueError: its tokenizer has no words: transformers makes such a one where `tokenizer.json` is missing.
    """
    processor = AutoProcessor.from_pretrained(source, trust_remote_code=trust_remote_code)
    if not (hasattr(processor, "image_processor") and hasattr(processor, "tokenizer")):
        processor = ImageTextProcessor(
            AutoImageProcessor.from_pretrained(source, trust_remote_code=trust_remote_code),
            AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code),
        )
    if len(processor.tokenizer) <= len(set(processor.tokenizer.all_special_ids)):
        raise ValueError(
            f"{source} has a tokenizer without words: its tokenizer.json is missing or damaged. {COPY_AGAIN}"
        )
    return processor

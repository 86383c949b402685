"""Checks of the names in the arguments of a training run, before anything heavy is imported."""

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_captioners.architectures import ARCHITECTURES, Architecture, get_architecture
from hf_captioners.declared_classes import DeclaredClass, declared_class, source_file
from hf_captioners.names import did_you_mean, read_named_values
from hf_captioners.reproduce.argument import SELF_CRITICAL
from hf_captioners.reproduce.argument_list import argument_list, require_argument

from .names import (
    TOKENIZER_FILES,
    check_captioner,
    check_data,
    check_language_model,
    check_metrics,
    check_path,
    check_source,
    check_split,
    check_vision_model,
    near_path,
    weight_names,
)
from .table_names import FOLDER, check_columns

# Values of a field that an annotation allows, by the types that it names.
TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "None": (type(None),),
}


NEW_PARTS = (
    "`--scst` trains on rewards of captions that the captioner samples, and a captioner of new parts samples random "
    "words: pass --scst_after_patience 5 (or --scst_after_epochs N) to train with cross-entropy first, or a trained "
    "captioner with --model."
)
EXCLUSIVE = (("data_dir", "train_dir"), ("subset", "train_share"), ("features", "validation_dir"))


def check_training(values: Mapping[str, Any], with_paths: bool = True) -> None:
    """Check names, paths and checkpoints of a training run.

    Args:
        values: the merged arguments, see `merge_arguments`.
        with_paths: whether to check paths and checkpoints too.

    Raises:
        ValueError, FileNotFoundError, NotADirectoryError: one line says what is wrong, with the nearest name.
    """
    self_critical = str(values.get(SELF_CRITICAL, False)).lower() in ("true", "1", "yes")
    read = {name: _read(name, value, self_critical) for name, value in values.items() if name != SELF_CRITICAL}

    def value_of(name: str) -> Any:
        return read.get(name)

    architecture = get_architecture(str(value_of("architecture") or argument_list()["architecture"].default))
    for first, second in EXCLUSIVE:
        if None not in (value_of(first), value_of(second)):
            raise ValueError(f"`--{first}` and `--{second}` exclude each other; give one.")
    options = read_named_values(value_of("data_options") or {}, "--data_options")
    check_data(value_of("dataset") or FOLDER, options)
    _check_metrics(value_of)
    _check_adapter(value_of, with_paths)
    if self_critical and value_of("reward_funcs"):
        from hf_captioners.training.rewards import check_rewards

        check_rewards(value_of("reward_funcs"))
    if self_critical and with_paths:
        after = (value_of("scst_after_epochs"), value_of("scst_after_patience"))
        if after == (None, None) and value_of("model") is None:
            raise ValueError(NEW_PARTS)
    _check_streaming(value_of, self_critical)
    if with_paths:
        _check_folders(value_of, options)
        _check_parts(value_of, architecture)
        check_path("--resume_from_checkpoint", value_of("resume_from_checkpoint"), folder=True)
    _check_fields(value_of, architecture)


def _read(name: str, value: Any, self_critical: bool) -> Any:
    return require_argument(name, self_critical).read(value)


def _check_folders(value_of: Callable[[str], Any], options: Mapping[str, Any]) -> None:
    dataset = value_of("dataset") or FOLDER
    for name in ("train_dir", "data_dir", "validation_dir"):
        check_path(f"--{name}", value_of(name), folder=True)
    check_path("--subset", value_of("subset"))
    features = value_of("features")
    if features is not None and not Path(features).exists():
        raise FileNotFoundError(
            f"`--features`: there is no file or folder {features}.{near_path(features)} Extract the features: "
            f"hf-captioners extract-features ... --split train --output {features}"
        )
    folder = value_of("train_dir") or value_of("data_dir")
    if folder is None and dataset == FOLDER:
        raise ValueError("`--train_dir` is missing: the folder with your images and their captions.")
    for one in (folder, value_of("validation_dir")):
        check_columns(dataset, one, options)
    if value_of("test_split") is not None and not options.get("metadata_file"):
        check_split(dataset, value_of("test_split"), folder, "--test_split")


def _check_metrics(value_of: Callable[[str], Any]) -> None:
    from hf_captioners.metrics.registry import DEFAULT_METRICS
    from hf_captioners.training.arguments import require_best_metric

    for name in ("eval_metrics", "test_metrics"):
        if value_of(name):
            check_metrics(value_of(name), f"--{name}")
    best = value_of("metric_for_best_model")
    if best is not None and value_of("eval_strategy") != "no":
        require_best_metric(best, value_of("eval_metrics") or DEFAULT_METRICS)


def _check_streaming(value_of: Callable[[str], Any], self_critical: bool) -> None:
    """Check the arguments that a stream needs, and those that it does not take."""
    if not value_of("streaming"):
        return
    after = [name for name in ("scst_after_epochs", "scst_after_patience") if value_of(name) is not None]
    if self_critical and (after or value_of("model") is None):
        raise ValueError(
            "`--streaming` and `--scst` need a trained captioner, as a stream has no epochs to begin with: train with "
            f"cross-entropy first, then `--model RUN`{f' without `--{after[0]}`' if after else ''}."
        )
    if (value_of("max_steps") or -1) <= 0:
        raise ValueError("`--streaming` needs `--max_steps N`: a stream has no length.")
    for name in ("eval_strategy", "save_strategy"):
        if (value_of(name) or "epoch") == "epoch":
            steps = name.replace("strategy", "steps")
            raise ValueError(f"`--streaming` needs `--{name} steps --{steps} N` (or `no`): a stream has no epochs.")
    for name in ("features", "train_share", "subset", "attributes"):
        if value_of(name) is not None:
            raise ValueError(f"`--streaming` and `--{name}` exclude each other: a stream is read once, in its order.")


def _check_adapter(value_of: Callable[[str], Any], with_paths: bool) -> None:
    """Check the arguments of LoRA, and the names of layers in a checkpoint that is here."""
    known = argument_list()
    of_lora = [name for name in known if name.startswith("lora_") or name in ("use_rslora", "use_dora")]
    typed = [name for name in of_lora if value_of(name) not in (None, False)]
    if not value_of("use_peft"):
        if typed:
            raise ValueError(f"`--{typed[0]}` is an argument of LoRA: pass --use_peft too, or leave it out.")
        return
    if find_spec("peft") is None:
        raise ImportError("--use_peft needs the package peft: pip install 'hf-captioners[peft]'")
    for name, low, high in (("lora_r", 1, None), ("lora_alpha", 1, None), ("lora_dropout", 0, 1)):
        value = float(known[name].default if value_of(name) is None else value_of(name))
        if value < low or (high is not None and value >= high):
            expected = f"at least {low}" if high is None else f"a number in [{low}, {high})"
            raise ValueError(f"`--{name}` is {value:g}, expected {expected}.")
    if not with_paths:
        return
    if value_of("model") is None:
        raise ValueError(
            "`--use_peft` trains an adapter of a captioner that is trained already, and new parts have to be trained "
            "whole: pass --model CAPTIONER, or leave it out."
        )
    parts = {part for name in weight_names(value_of("model")) for part in name.split(".")[:-1] if not part.isdigit()}
    for name in ("lora_target_modules", "lora_modules_to_save"):
        for layer in value_of(name) or ():
            last = layer.rpartition(".")[2]
            is_name = re.fullmatch(r"\w*[a-zA-Z_]\w*", last) is not None  # not all-linear, nor an expression
            if parts and is_name and last not in parts:
                raise ValueError(
                    f"`--{name}`: {value_of('model')} has no layer {layer!r}.{did_you_mean(last, sorted(parts))}"
                )


def _check_parts(value_of: Callable[[str], Any], architecture: Architecture) -> None:
    if value_of("model") is not None:
        check_captioner("--model", value_of("model"))
        return
    prefix, language_model = architecture.prefix, value_of("language_model")
    if architecture.tokenizer == "gpt2" and language_model is None:
        raise ValueError(f"`--language_model` is missing: {prefix} starts from a GPT-2 and a vision model.")
    if architecture.tokenizer == "words" and language_model is not None:
        raise ValueError(
            f"`--language_model {language_model}` is not used by {prefix}, which builds its vocabulary from the "
            "captions; leave it out."
        )
    if language_model is not None:
        check_language_model(language_model)
    if value_of("tokenizer") is not None:
        check_source("--tokenizer", value_of("tokenizer"), TOKENIZER_FILES)
    if value_of("attribute_detector") is not None:
        check_source("--attribute_detector", value_of("attribute_detector"))
    if value_of("vision_model") is not None:
        check_vision_model(value_of("vision_model"))
    elif value_of("features") is None and "region_feature_size" not in _named(value_of, "model_config"):
        raise ValueError("`--vision_model` is missing: pass a vision model, or stored features (--features).")


def _named(value_of: Callable[[str], Any], name: str) -> dict[str, Any]:
    return read_named_values(value_of(name) or {}, f"--{name}")


def _check_fields(value_of: Callable[[str], Any], architecture: Architecture) -> None:
    """Check the fields of configuration and processor, where they are those of an architecture of this library."""
    if value_of("model") is not None:
        kind = (check_captioner("--model", value_of("model")) or {}).get("model_type")
        known = [one for one in ARCHITECTURES.values() if one.model_type == kind]
        if not known:
            return
        (architecture,) = known
    if architecture.package is not None:
        return
    config = declared_class(source_file(_file(architecture, "Config")), f"{architecture.prefix}Config")
    for name, value in _named(value_of, "model_config").items():
        check_config_field(f"{architecture.prefix}Config", config, name, value)
    processor = declared_class(source_file(_file(architecture, "Processor")), f"{architecture.prefix}Processor")
    for name in _named(value_of, "processor_config"):
        fields = [one for one in processor.parameters if one not in ("image_processor", "tokenizer")]
        if name not in fields:
            raise ValueError(
                f"`--processor_config` has {name!r}, and a {architecture.prefix}Processor has no such field."
                f"{did_you_mean(name, fields)}"
            )


def _file(architecture: Architecture, kind: str) -> str:
    return architecture.module(kind).removeprefix("hf_captioners.")


# Fields of `PreTrainedConfig` that a person may want to set; a test compares them with the class.
BASE_FIELDS = ("output_hidden_states", "return_dict", "dtype", "chunk_size_feed_forward")
ATTENTION = "attn_implementation"  # a keyword of every configuration, but no field


def check_config_field(config: str, declared: DeclaredClass, name: str, value: Any) -> None:
    """Check name and value of a field of a configuration.

    Args:
        config: name of the class.
        declared: what it declares.
        name: of the field.
        value: its value.
    """
    if name not in declared.fields:
        if name in (*BASE_FIELDS, ATTENTION):
            return
        raise ValueError(
            f"`--model_config` has {name!r}, and a {config} has no such field.{did_you_mean(name, declared.fields)}"
        )
    choices = declared.constants.get("field_choices", {}).get(name)
    if choices is not None and value not in choices:
        expected = ", ".join(map(repr, choices))
        raise ValueError(
            f"`--model_config`: `{name}` is {value!r}, expected one of {expected}."
            f"{did_you_mean(str(value), map(str, choices))}"
        )
    _check_number(declared, name, value)
    kinds = [one.strip() for one in declared.fields[name].split("|")]
    allowed = tuple(kind for one in kinds for kind in TYPES.get(one, ()))
    if all(one in TYPES for one in kinds):
        wrong_bool = isinstance(value, bool) and bool not in allowed
        if not isinstance(value, allowed) or wrong_bool:
            raise ValueError(f"`--model_config`: `{name}` is {value!r}, expected {declared.fields[name]}.")


def _check_number(declared: DeclaredClass, name: str, value: Any) -> None:
    """Check a number by what the configuration declares, see `CaptioningConfig.field_choices`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = declared.constants.get("field_ranges", {}).get(name, (None, None))
    if low is not None and not low <= value <= high:
        raise ValueError(f"`--model_config`: `{name}` is {value}, expected a number in [{low}, {high}].")
    if name in declared.constants.get("field_rates", ()) and not 0 <= value < 1:
        raise ValueError(f"`--model_config`: `{name}` is {value}, expected a number in [0, 1).")
    least = declared.constants.get("field_minimums", {}).get(name)
    if least is not None and value < least:
        raise ValueError(f"`--model_config`: `{name}` is {value}, expected at least {least}.")

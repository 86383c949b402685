"""LoRA adapters (Hu et al., 2022) for trained captioners, with the arguments and defaults of TRL."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D

from hf_captioners.loading import (
    adapter_settings,
    base_of_adapter,
    load_captioner,
    quiet_peft,
    reading,
    require_peft,
)
from hf_captioners.names import did_you_mean
from hf_captioners.pipelines.instructed_inputs import CHAT_FAMILIES, PROMPTS

ALL_LINEAR = "all-linear"
LANGUAGE_PARTS = ("language_model", "text_model", "decoder")  # attributes of models of transformers


@dataclass
class AdapterArguments:
    """Arguments of LoRA adapters, named as in TRL's `ModelConfig`.

    Args:
        use_peft: train a LoRA adapter of `model` instead of its own weights.
        lora_r: rank of the updates.
        lora_alpha: the updates are scaled by `lora_alpha / lora_r`.
        lora_dropout: dropout of the inputs of the updates.
        lora_target_modules: names of the layers that get an update, or a regular expression of their full names.
            `all-linear`: all linear layers but the output layer and those of a frozen vision model. None: the same, of
            a model that captions by an instruction those of its language model.
        lora_modules_to_save: names of modules that are trained whole and saved with the adapter.
        use_rslora: scale by `lora_alpha / sqrt(lora_r)` (Kalajdzievski, 2023).
        use_dora: learn the size of each column of a weight apart from its direction (Liu et al., 2024).
        load_in_4bit: hold the weights of the captioner in 4 bits while the adapter is trained (QLoRA, Dettmers et al.,
            2023). Needs bitsandbytes and a GPU.

    Raises:
        ValueError: a value is outside its range, or set without `use_peft`; or there is no GPU for 4 bits.
        ImportError: `load_in_4bit`, and bitsandbytes is not installed.
    """

    use_peft: bool = field(
        default=False, metadata={"help": "Train a LoRA adapter of --model instead of all its weights (needs peft)."}
    )
    lora_r: int = field(default=16, metadata={"help": "LoRA: rank."})
    lora_alpha: int = field(default=32, metadata={"help": "LoRA: the updates are scaled by lora_alpha / lora_r."})
    lora_dropout: float = field(default=0.05, metadata={"help": "LoRA: dropout."})
    lora_target_modules: list[str] | None = field(
        default=None,
        metadata={
            "help": "LoRA: names of layers, or a regular expression; all-linear: all layers; default: all, of a "
            "model that captions by an instruction those of its language model."
        },
    )
    lora_modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "LoRA: names of modules that are trained and saved whole."}
    )
    use_rslora: bool = field(default=False, metadata={"help": "LoRA: scale by lora_alpha / sqrt(lora_r)."})
    use_dora: bool = field(default=False, metadata={"help": "LoRA: learn size and direction apart (DoRA)."})
    load_in_4bit: bool = field(
        default=False, metadata={"help": "LoRA: hold the captioner's own weights in 4 bits (bitsandbytes, a GPU)."}
    )

    def __post_init__(self) -> None:
        """Check the values of the fields."""
        if self.lora_r < 1:
            raise ValueError(f"`lora_r` is {self.lora_r}, expected at least 1.")
        if self.lora_alpha <= 0:
            raise ValueError(f"`lora_alpha` is {self.lora_alpha}, expected more than 0.")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"`lora_dropout` is {self.lora_dropout}, expected a number in [0, 1).")
        if not self.use_peft and (names := self.set_adapter_arguments()):
            raise ValueError(f"`{names[0]}` is an argument of LoRA: pass `use_peft` too, or leave it out.")
        if self.load_in_4bit:
            if find_spec("bitsandbytes") is None:
                raise ImportError("`load_in_4bit` needs bitsandbytes: pip install bitsandbytes")
            if not torch.cuda.is_available():
                raise ValueError("`load_in_4bit` needs a GPU, and torch sees none here: leave it out.")

    def loading_options(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained` for the base captioner of the adapter."""
        if not self.load_in_4bit:
            return {}
        kind = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        return {
            "quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **kind)
        }

    def set_adapter_arguments(self) -> list[str]:
        """Return the names of the adapter arguments, except `use_peft`, that differ from their defaults."""
        adapter_fields = [field for field in fields(AdapterArguments) if field.name != "use_peft"]
        return [field.name for field in adapter_fields if getattr(self, field.name) != field.default]


def add_adapter(model: Any, arguments: AdapterArguments) -> Any:
    """Wrap a captioner in a new LoRA adapter; training changes, and checkpoints store, the adapter only.

    Args:
        model: a trained captioner of this library or of transformers.
        arguments: the arguments of LoRA.

    Returns:
        A `PeftModel` in evaluation mode.

    Raises:
        ImportError: peft is not installed.
        ValueError: no layer has one of the names.
    """
    require_peft("`use_peft`")
    import peft

    targets = arguments.lora_target_modules
    one_text = targets[0] if targets is not None and len(targets) == 1 else targets
    if one_text is None:
        chosen: Any = language_layers(model)
    else:
        chosen = linear_layers(model) if one_text == ALL_LINEAR else one_text
    if isinstance(chosen, str) and not _is_pattern(chosen):
        chosen = [chosen]
    require_modules(model, [] if isinstance(chosen, str) else chosen, "lora_target_modules")
    require_modules(model, arguments.lora_modules_to_save or [], "lora_modules_to_save")
    config = peft.LoraConfig(
        r=arguments.lora_r,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=chosen,
        modules_to_save=arguments.lora_modules_to_save,
        use_rslora=arguments.use_rslora,
        use_dora=arguments.use_dora,
    )
    if Path(model.name_or_path).is_dir():  # the adapter is found from everywhere
        model.name_or_path = os.path.abspath(model.name_or_path)
    if arguments.load_in_4bit:  # norms and the output layer in float32
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    with reading(model.name_or_path), quiet_peft():
        return peft.get_peft_model(model, config).eval()


def linear_layers(model: Any) -> list[str]:
    """Return the names of all linear layers of a captioner to which LoRA can be applied.

    Layers whose weight is also that of an embedding are left out, because merging would change the embedding; so are
    the output layer, as PEFT does, and a frozen vision model, whose features may be stored.

    Args:
        model: a captioner of this library or of transformers.
    """
    modules = dict(model.named_modules())
    embeddings = {id(layer.weight) for layer in modules.values() if isinstance(layer, nn.Embedding)}
    outputs = {
        id(model.get_output_embeddings()),
        *(id(layer) for name, layer in modules.items() if name == "lm_head"),
    }
    frozen = model.get_encoder().vision if getattr(model.config, "freeze_vision", False) else None
    left_out = set() if frozen is None else {id(layer) for layer in frozen.modules()}
    return [
        name
        for name, layer in modules.items()
        if isinstance(layer, (nn.Linear, Conv1D))
        and id(layer) not in outputs | left_out
        and id(layer.weight) not in embeddings
    ]


def language_layers(model: Any) -> list[str]:
    """Return the names of the linear layers to which LoRA is applied by default.

    Of a model that captions by an instruction these are the layers of its language model: without those of its vision
    model, of the projector between them, and of a Q-Former. Of others they are all, see `linear_layers`.

    Args:
        model: a captioner of this library or of transformers.
    """
    layers = linear_layers(model)
    if model.config.model_type not in (*PROMPTS, *CHAT_FAMILIES):
        return layers
    owners = {"": model, "model.": getattr(model, "model", None)}
    parts = [f"{place}{name}." for place, owner in owners.items() for name in LANGUAGE_PARTS if hasattr(owner, name)]
    return [name for name in layers if name.startswith(tuple(parts[:1]))]


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*+?()[]|\\^$")


def require_modules(model: nn.Module, names: Iterable[str], flag: str) -> None:
    """Check that a model has modules with the given names.

    Args:
        model: the captioner.
        names: full names, or their last parts.
        flag: the argument, for the message.

    Raises:
        ValueError: it has none of a name; with the nearest name.
    """
    module_names = [name for name, _ in model.named_modules() if name]
    for module in names:
        if not any(name == module or name.endswith(f".{module}") for name in module_names):
            last = dict.fromkeys(name.rpartition(".")[2] for name in module_names)
            near = did_you_mean(module, [one for one in last if not one.isdigit()])
            raise ValueError(f"`{flag}`: a {type(model).__name__} has no module {module!r}.{near}")


def continue_adapter(source: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Load a captioner with its existing adapter, to train the adapter further.

    Args:
        source: directory or name of the adapter.
        settings: its settings, see `adapter_settings`.

    Returns:
        `PeftModel` and processor.

    Raises:
        ImportError, ValueError, FileNotFoundError: see `load_captioner`.
    """
    require_peft(source)
    import peft

    _, processor = load_captioner(source)  # also checks that it fits
    model, _ = load_captioner(base_of_adapter(source, settings))
    with reading(source), quiet_peft():
        return peft.PeftModel.from_pretrained(model, source, is_trainable=True).eval(), processor


def load_adapter_weights(model: Any, checkpoint: str | os.PathLike[str]) -> None:
    """Load the adapter weights of a checkpoint into a model with an adapter of the same shape.

    Args:
        model: a `PeftModel`.
        checkpoint: folder of the checkpoint.

    Raises:
        ValueError: the checkpoint is of a different adapter.
    """
    import peft

    expected = peft.get_peft_model_state_dict(model)
    settings = adapter_settings(str(checkpoint))
    weights = {} if settings is None else peft.load_peft_weights(str(checkpoint), device="cpu")
    shapes = [{name: tuple(weight.shape) for name, weight in tensor.items()} for tensor in (expected, weights)]
    if different := sorted(dict(shapes[0].items() ^ shapes[1].items())):
        raise ValueError(
            f"The checkpoint {checkpoint} is of a different adapter: {len(different)} weights differ in name or size, "
            f"among them {', '.join(different[:3])}. Resume with the arguments of the first run."
        )
    peft.set_peft_model_state_dict(model, weights)


def _last_word(name: str) -> str:
    """Return the last part of a module's dotted name that is not a number."""
    return next((part for part in reversed(name.split(".")) if not part.isdigit()), name)


def describe_adapter(model: Any) -> str | None:
    """Return a description of a model's adapter, such as `LoRA of rank 16 ...`; None without an adapter."""
    config = getattr(model, "peft_config", {}).get(getattr(model, "active_adapter", "default"))
    if config is None:
        return None
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind != "LORA":
        return kind
    variants = [name for name, used in (("rank-stabilised", config.use_rslora), ("DoRA", config.use_dora)) if used]
    targets = config.target_modules
    layers = [targets] if isinstance(targets, str) else sorted(set(map(_last_word, targets)))
    return (
        f"LoRA of rank {config.r}, alpha {config.lora_alpha}, dropout {config.lora_dropout:g}"
        f"{''.join(f', {name}' for name in variants)}, of the layers {', '.join(layers)}"
    )

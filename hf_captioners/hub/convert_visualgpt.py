"""Checkpoints of the VisualGPT code base: `saved_models/NAME_best.pth`, whose `state_dict` holds everything.

Sizes are read from the weights. They do not say how many heads there are, which threshold the gates had, and which ids
begin, end and pad captions: unless settings do, GPT-2's 64 features a head, the released script's default threshold
and, for GPT-2's own vocabulary, the released ids.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .converting import Released
from .keys_visualgpt import convert_config, convert_state_dict, map_key
from .torch_files import read_torch_file

HEAD_SIZE = 64
GPT2_TOKENS = 50257
RELEASED_IDS = {"bos_token_id": 47934, "eos_token_id": 50256, "pad_token_id": 47932}
VARIANT = ("fusion", "srau_threshold", "normalize_srau")
SETTINGS = (*RELEASED_IDS, *VARIANT, "n_head", "cross_levels", "layer_norm_epsilon", "identity_map_reordering")


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Read a checkpoint.

    Args:
        checkpoint: the file, or one with the `state_dict` alone.
        settings: any of `SETTINGS`.

    Raises:
        ValueError: it is no checkpoint of the code base, or a setting is unknown or missing.
    """
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise ValueError(f"VisualGPT has no setting {', '.join(unknown)}; there are {', '.join(SETTINGS)}.")
    file = read_torch_file(checkpoint)
    content = file.content
    state = content["state_dict"] if isinstance(content, dict) and "state_dict" in content else content
    released = file.tensors(state)
    if "decoder.transformer.wte.weight" not in released or "encoder.fc.weight" not in released:
        raise ValueError(
            f"{checkpoint} has no `decoder.transformer.wte.weight` and `encoder.fc.weight`, so it is no checkpoint of "
            "VisualGPT."
        )
    used, unused, unknown = sort_keys(released)
    config = convert_config(
        read_sizes(released, settings),
        attention_on_attention=any(".aoa_layer." in key for key in released),
        **{name: settings[name] for name in VARIANT if name in settings},
    )
    return Released(
        config=config,
        weights=convert_state_dict({key: released[key] for key in used}),
        vocabulary="gpt2",
        unused=unused,
        unknown=unknown,
        processor={"merge_repeated_words": True},
        generation={"num_beams": 5, "max_new_tokens": 20, "bookkeeping": "live"},
    )


def sort_keys(keys: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Keys that we have weights for, keys that no forward pass reads, and keys that are none of the code base's."""
    used: list[str] = []
    unused: list[str] = []
    unknown: list[str] = []
    for key in keys:
        try:
            (unused if map_key(key) is None else used).append(key)
        except KeyError:
            unknown.append(key)
    return used, unused, unknown


def read_sizes(released: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes as `convert_config` takes them.

    Raises:
        ValueError: the number of heads or the ids cannot be known.
    """
    tokens, width = released["decoder.transformer.wte.weight"].shape
    heads = settings.get("n_head", width // HEAD_SIZE)
    attention = "encoder.layers.0.mhatt.attention.fc_{}.weight"
    if not heads or any(released[attention.format(part)].shape[0] % heads for part in "qv"):
        raise ValueError(f"{width} features cannot be divided among {heads} heads. Say how many: --set n_head=...")
    ids = RELEASED_IDS if tokens == GPT2_TOKENS else {}
    ids = {name: settings.get(name, ids.get(name)) for name in RELEASED_IDS}
    if missing := [name for name, token in ids.items() if token is None]:
        raise ValueError(
            f"The vocabulary has {tokens} tokens, not GPT-2's {GPT2_TOKENS}. Say which begin, end and pad captions: "
            + " ".join(f"--set {name}=..." for name in missing)
        )
    levels = {int(found[1]) for key in released if (found := re.search(r"\.fc_alpha(\d)\.", key))}
    return ids | {
        "d_model": width,
        "n_head": heads,
        "d_k": released[attention.format("q")].shape[0] // heads,
        "d_v": released[attention.format("v")].shape[0] // heads,
        "d_ff": released["encoder.layers.0.pwff.fc1.weight"].shape[0],
        "d_in": released["encoder.fc.weight"].shape[1],
        "encoder_layers": _count(released, r"encoder\.layers\.(\d+)\."),
        "decoder_layers": _count(released, r"decoder\.transformer\.h\.(\d+)\."),
        "vocab_size": tokens,
        "n_positions": released["decoder.transformer.wpe.weight"].shape[0],
        "cross_levels": settings.get("cross_levels", sorted(level - 1 for level in levels)),
        "layer_norm_epsilon": settings.get("layer_norm_epsilon", 1e-5),
        "identity_map_reordering": settings.get("identity_map_reordering", False),
    }


def _count(keys: Iterable[str], pattern: str) -> int:
    return 1 + max(int(found[1]) for key in keys if (found := re.match(pattern, key)))

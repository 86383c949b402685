"""Checkpoints of Show, Attend and Tell: the authors' `NAME.npz`, and the re-implementation's pickled modules.

Both read regions: the program's annotations come from a VGG of its own, and the re-implementation's image encoder is
a ResNet, whose weights are left out.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .converting import Released
from .keys_show_attend_tell import (
    CUT,
    JOINED,
    KEY_MAP,
    PROGRAM_DEFAULTS,
    convert_config,
    convert_program_config,
    convert_program_weights,
    convert_state_dict,
    program_key,
)
from .safe_unpickling import Record, program_dictionary
from .torch_files import read_torch_file

MODULES = frozenset(("models", name) for name in ("Encoder", "DecoderWithAttention", "Attention"))
NEVER_STORED = frozenset({"location_baseline"})


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Read a checkpoint: the authors' if its name ends in `.npz`, else the re-implementation's.

    Args:
        checkpoint: the file; the authors' has its options beside it, in `NAME.npz.pkl`.
        settings: options of the program that take the place of stored ones; or `dropout`, `alpha_c`, `start`, `end`
            and `pad` (ids) of the re-implementation.

    Raises:
        ValueError: it is no checkpoint of either.
    """
    return (
        convert_program(checkpoint, settings) if checkpoint.suffix == ".npz" else convert_modules(checkpoint, settings)
    )


def convert_program(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Arrays and options of arctic-captions.

    Raises:
        ValueError: there is no array that only this program has, or `convert_program_config` refuses the options.
        FileNotFoundError: the options are not beside the arrays.
    """
    beside = checkpoint.with_name(checkpoint.name + ".pkl")
    if not beside.is_file():
        raise FileNotFoundError(f"{beside} is missing: the options that the program writes beside {checkpoint.name}.")
    options = program_dictionary(beside) | settings
    released, unused, unknown = {}, [], []
    with np.load(checkpoint, allow_pickle=False) as arrays:
        if "Wemb" not in arrays.files or "ff_logit_W" not in arrays.files:
            raise ValueError(f"{checkpoint} has no arrays `Wemb` and `ff_logit_W`, so it is none of arctic-captions.")
        for name in arrays.files:
            if name in ("history_errs", "zipped_params", "train_err", "valid_err", "test_err"):
                unused.append(name)
                continue
            try:
                program_key(name, PROGRAM_DEFAULTS | options)
                released[name] = torch.from_numpy(np.array(arrays[name]))
            except KeyError:
                unknown.append(name)
    return Released(
        config=convert_program_config(options),
        weights=convert_program_weights(released, options),
        vocabulary="arctic",
        unused=unused,
        unknown=unknown,
        may_lack=NEVER_STORED,
        generation={"num_beams": 5, "bookkeeping": "shrinking"},
    )


def convert_modules(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """The pickled decoder of the re-implementation, or its `state_dict`.

    Raises:
        ValueError: there is no decoder in it.
    """
    file = read_torch_file(checkpoint, MODULES)
    content = file.content
    decoder = content.get("decoder", content) if isinstance(content, dict) else content
    released = file.tensors(decoder)
    if "attention.full_att.weight" not in released:
        raise ValueError(f"{checkpoint} has no `attention.full_att.weight`, so it is none of the re-implementation.")
    known = {*KEY_MAP, *JOINED, *CUT}
    lacking = sorted(known - set(released))
    if lacking:
        raise ValueError(f"{checkpoint} lacks {', '.join(lacking)}.")
    encoder = content.get("encoder") if isinstance(content, dict) else None
    return Released(
        config=convert_config(read_sizes(released, settings), read_ids(released, settings)),
        weights=convert_state_dict({key: tensor for key, tensor in released.items() if key in known}),
        vocabulary="start_end",
        unused=["encoder"] if isinstance(encoder, Record) else [],
        unknown=sorted(set(released) - known),
        may_lack=NEVER_STORED,
        generation={"num_beams": 5, "bookkeeping": "shrinking_finished"},
    )


def read_sizes(released: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    """Sizes as `convert_config` takes them."""
    tokens, embedding = released["embedding.weight"].shape
    attention, features = released["attention.encoder_att.weight"].shape
    given = {name: settings[name] for name in ("dropout", "alpha_c") if name in settings}
    return given | {
        "attention_dim": attention,
        "embed_dim": embedding,
        "decoder_dim": released["init_h.weight"].shape[0],
        "encoder_dim": features,
        "vocab_size": tokens,
    }


def read_ids(released: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, int]:
    """Ids of the word map: padding first, and unknown, start and end behind the words."""
    tokens = released["embedding.weight"].shape[0]
    return {name: settings.get(name, id) for name, id in (("start", tokens - 2), ("end", tokens - 1), ("pad", 0))}

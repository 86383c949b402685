"""Conversion of checkpoints of Show, Attend and Tell: the authors' arctic-captions and its common re-implementation.

Two programs are read: the authors' arctic-captions (`NAME.npz`), and the common PyTorch re-implementation (pickled
modules). Both converted captioners read region features. The authors' program reads features of a VGG that is not
part of the checkpoint; the re-implementation's ResNet encoder is left out.

Sources: github.com/kelvinxu/arctic-captions, github.com/sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning. The
conversion of weights is differentiable, so gradients can be compared under the released names.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_captioners.hub.safe_unpickling import Record, program_dictionary
from hf_captioners.hub.torch_files import read_torch_file
from hf_captioners.modeling.configuration_show_attend_tell import ShowAttendTellConfig

from .released import Released

SUPPRESSED_LOGIT = -1e4  # a logit whose probability is 0 in every precision
PROGRAM_DROPOUT = 0.5  # arctic-captions scales by the rate in evaluation; PyTorch scales by 2 in training
NEVER_STORED = frozenset({"location_baseline"})  # running average of REINFORCE, which neither program saves

# Default options of arctic-captions, as `evaluate_coco.py` sets them.
PROGRAM_DEFAULTS: dict[str, Any] = {
    "attn_type": "deterministic",
    "n_layers_att": 2,
    "n_layers_out": 1,
    "n_layers_lstm": 1,
    "n_layers_init": 2,
    "prev2out": True,
    "ctx2out": True,
    "selector": True,
    "use_dropout": True,
    "use_dropout_lstm": False,
    "lstm_encoder": False,
    "alpha_c": 1.0,
    "alpha_entropy_c": 0.002,
    "semi_sampling_p": 0.5,
    "temperature": 1.0,
    "RL_sumCost": True,
}
# Classes that checkpoints of the re-implementation pickle.
MODULES = frozenset(("models", name) for name in ("Encoder", "DecoderWithAttention", "Attention"))
# Keys of the re-implementation that are only renamed; `convert_state_dict` adds or splits the others.
KEY_MAP = {
    "attention.encoder_att.weight": "model.encoder.keys.0.projection.weight",
    "attention.decoder_att.weight": "model.decoder.layers.0.attention.query_projection.weight",
    "attention.full_att.weight": "model.decoder.layers.0.attention.score.weight",
    "attention.full_att.bias": "model.decoder.layers.0.attention.score.bias",
    "embedding.weight": "model.decoder.embedding.weight",
    "decode_step.weight_hh": "model.decoder.layers.0.lstm.hidden_projection.weight",
    "init_h.weight": "model.decoder.initial_state.hidden.0.weight",
    "init_h.bias": "model.decoder.initial_state.hidden.0.bias",
    "init_c.weight": "model.decoder.initial_state.memory.0.weight",
    "init_c.bias": "model.decoder.initial_state.memory.0.bias",
    "f_beta.weight": "model.decoder.layers.0.gate.weight",
    "f_beta.bias": "model.decoder.layers.0.gate.bias",
    "fc.weight": "lm_head.weight",
    "fc.bias": "lm_head.bias",
}
JOINED = ("attention.encoder_att.bias", "attention.decoder_att.bias")
CUT = ("decode_step.weight_ih", "decode_step.bias_ih", "decode_step.bias_hh")


def convert(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert a checkpoint: of arctic-captions if its name ends in `.npz`, else of the re-implementation.

    Args:
        checkpoint: the file; the options of arctic-captions are in the same directory, in `NAME.npz.pkl`.
        settings: options of arctic-captions that override the stored ones; or `dropout`, `alpha_c` and the ids
            `start`, `end` and `pad` of the re-implementation.

    Raises:
        ValueError: it is a checkpoint of neither.
    """
    return (
        convert_program(checkpoint, settings) if checkpoint.suffix == ".npz" else convert_modules(checkpoint, settings)
    )


def convert_program(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert arrays and options of arctic-captions to a configuration, weights and words.

    Raises:
        ValueError: arrays that only this program has are missing, or `convert_program_config` refuses the options.
        FileNotFoundError: the file of options is missing.
    """
    beside = checkpoint.with_name(checkpoint.name + ".pkl")
    if not beside.is_file():
        raise FileNotFoundError(f"{beside} is missing: the file of options that belongs to {checkpoint.name}.")
    options = program_dictionary(beside) | settings
    released, unused, unknown = {}, [], []
    with np.load(checkpoint, allow_pickle=False) as arrays:
        if "Wemb" not in arrays.files or "ff_logit_W" not in arrays.files:
            raise ValueError(f"{checkpoint} has no arrays `Wemb` and `ff_logit_W`, so it is not of arctic-captions.")
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


def convert_program_config(options: Mapping[str, Any]) -> ShowAttendTellConfig:
    """Build the configuration of an arctic-captions model from its options.

    Args:
        options: its options (`NAME.npz.pkl`): `ctx_dim`, `dim`, `dim_word`, `n_words`, and any of `PROGRAM_DEFAULTS`.

    Returns:
        The configuration, with the token ids of the program: 0 is end and padding, 1 is unknown. The program has no
        begin token; the last id is added for it.

    Raises:
        ValueError: the model has the bidirectional encoder, which the program trains and decodes differently.
    """
    options = PROGRAM_DEFAULTS | dict(options)
    if options["lstm_encoder"]:
        raise ValueError(
            "`lstm_encoder` is set: the program reverses the batch in training and the regions in decoding, so no "
            "single model is equal to it. Convert a checkpoint without it."
        )
    hard = options["attn_type"] == "stochastic"
    return ShowAttendTellConfig(
        vocab_size=options["n_words"] + 1,
        embedding_size=options["dim_word"],
        hidden_size=options["dim"],
        num_layers=options["n_layers_lstm"],
        region_feature_size=options["ctx_dim"],
        attention_size=options["ctx_dim"],
        attention_layers=options["n_layers_att"],
        attention_type="hard" if hard else "soft",
        attention_score_scale=options["temperature"] if hard else 1.0,
        visual_gate="scalar" if options["selector"] else "none",
        initial_state_layers=options["n_layers_init"] - 1,
        output_previous_word=options["prev2out"],
        output_context=options["ctx2out"],
        output_hidden_layers=options["n_layers_out"] - 1,
        dropout=PROGRAM_DROPOUT if options["use_dropout"] else 0.0,
        zero_begin_embedding=True,
        probability_floor=1e-8,
        loss_reduction="caption_mean",
        doubly_stochastic_weight=options["alpha_c"],
        doubly_stochastic_reduction="batch_sum",
        location_sampling_probability=options["semi_sampling_p"],
        location_sampling_unit="batch",
        location_reward="caption_mean" if options["RL_sumCost"] else "token",
        location_reward_weight=0.1,
        location_entropy_weight=options["alpha_entropy_c"],
        location_loss_reduction="batch_sum",
        bos_token_id=options["n_words"],
        eos_token_id=0,
        pad_token_id=0,
    )


def convert_program_weights(released: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert the arrays of arctic-captions' `NAME.npz` to weights of this library.

    Matrices are transposed, the gates of the LSTM are put into PyTorch's order, a row for the begin token is added,
    and the factor that the program applies after dropout in evaluation is multiplied into the weights.

    Args:
        released: arrays by name.
        options: options of the program.

    Raises:
        KeyError: the program has no such array.
    """
    options = PROGRAM_DEFAULTS | dict(options)
    converted: dict[str, Tensor] = {}
    for key, value in released.items():
        name, change = program_key(key, options)
        converted[name] = change(value)
    return converted


def program_key(key: str, options: Mapping[str, Any]) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return this library's name for an array of arctic-captions, and the function that converts it.

    Raises:
        KeyError: the program has no such array.
    """
    factor = PROGRAM_DROPOUT if options["use_dropout"] else 1.0

    def matrix(scale: float = 1.0) -> Callable[[Tensor], Tensor]:
        return lambda value: scale * value.T

    def same(value: Tensor) -> Tensor:
        return value.reshape(-1)

    if match := re.fullmatch(r"decoder_(?:(\d+)_)?(\w+)", key):
        return _program_layer(int(match[1] or 0), match[2], key, options)
    if match := re.fullmatch(r"ff_init_(\d+)_(W|b)", key):
        index = int(match[1]) - 1
        name = f"model.decoder.initial_state.layers.{index}"
        return (f"{name}.weight", matrix(factor if index else 1.0)) if match[2] == "W" else (f"{name}.bias", same)
    if match := re.fullmatch(r"ff_(state|memory)(?:_(\d+))?_(W|b)", key):
        part = {"state": "hidden", "memory": "memory"}[match[1]]
        name = f"model.decoder.initial_state.{part}.{match[2] or 0}"
        scale = factor if options["n_layers_init"] > 1 else 1.0
        return (f"{name}.weight", matrix(scale)) if match[3] == "W" else (f"{name}.bias", same)
    if match := re.fullmatch(r"ff_logit_(lstm|ctx|h(\d+))_(W|b)", key):
        projections = {"lstm": "hidden_projection", "ctx": "context_projection"}
        name = f"model.decoder.output.{projections.get(match[1]) or f'layers.{int(match[2]) - 1}'}"
        scale = 1.0 if match[1] == "ctx" else factor
        return (f"{name}.weight", matrix(scale)) if match[3] == "W" else (f"{name}.bias", same)
    if key == "Wemb":
        return "model.decoder.embedding.weight", lambda value: _with_begin(value, 0.0)
    if key == "ff_logit_W":
        return "lm_head.weight", lambda value: _with_begin(factor * value.T, 0.0)
    if key == "ff_logit_b":
        return "lm_head.bias", lambda value: _with_begin(value, SUPPRESSED_LOGIT)
    raise KeyError(f"`{key}` is not an array of an arctic-captions checkpoint.")


def _program_layer(
    layer: int, part: str, key: str, options: Mapping[str, Any]
) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return this library's name for an array of an LSTM layer, and the function that converts it."""
    keys, layer_name = f"model.encoder.keys.{layer}", f"model.decoder.layers.{layer}"
    scale = PROGRAM_DROPOUT if options["use_dropout_lstm"] else 1.0

    def gates(value: Tensor) -> Tensor:
        i, f, o, g = value.chunk(4, dim=-1)  # PyTorch's order is i, f, g, o
        ordered = torch.cat((scale * i, scale * f, g, scale * o), dim=-1)
        return ordered.T if ordered.ndim == 2 else ordered

    def matrix(value: Tensor) -> Tensor:
        return value.T

    def vector(value: Tensor) -> Tensor:
        return value.reshape(-1)

    if match := re.fullmatch(r"(W|b)_att_(\d+)", part):
        name = f"{keys}.layers.{int(match[2]) - 1}"
        return (f"{name}.weight", matrix) if match[1] == "W" else (f"{name}.bias", vector)
    parts: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "W": (f"{layer_name}.lstm.word_projection.weight", gates),
        "b": (f"{layer_name}.lstm.word_projection.bias", gates),
        "U": (f"{layer_name}.lstm.hidden_projection.weight", gates),
        "Wc": (f"{layer_name}.lstm.context_projection.weight", gates),
        "Wc_att": (f"{keys}.projection.weight", matrix),
        "b_att": (f"{keys}.projection.bias", vector),
        "Wd_att": (f"{layer_name}.attention.query_projection.weight", matrix),
        "U_att": (f"{layer_name}.attention.score.weight", matrix),
        "c_tt": (f"{layer_name}.attention.score.bias", vector),
        "W_sel": (f"{layer_name}.gate.weight", matrix),
        "b_sel": (f"{layer_name}.gate.bias", vector),
    }
    if part not in parts:
        raise KeyError(f"`{key}` is not an array of an arctic-captions checkpoint.")
    return parts[part]


def _with_begin(rows: Tensor, value: float) -> Tensor:
    """Append a row of a constant for the begin token, which arctic-captions lacks."""
    return torch.cat((rows, torch.full_like(rows[:1], value)))


def convert_modules(checkpoint: Path, settings: dict[str, Any]) -> Released:
    """Convert the pickled decoder of the re-implementation, or its `state_dict`.

    Raises:
        ValueError: the file contains no such decoder, or weights are missing.
    """
    file = read_torch_file(checkpoint, MODULES)
    content = file.content
    decoder = content.get("decoder", content) if isinstance(content, dict) else content
    released = file.tensors(decoder)
    if "attention.full_att.weight" not in released:
        raise ValueError(f"{checkpoint} has no `attention.full_att.weight`, so it is not of the re-implementation.")
    expected = {*KEY_MAP, *JOINED, *CUT}
    lacking = sorted(expected - set(released))
    if lacking:
        raise ValueError(f"{checkpoint} lacks {', '.join(lacking)}.")
    encoder = content.get("encoder") if isinstance(content, dict) else None
    return Released(
        config=convert_config(read_sizes(released, settings), read_ids(released, settings)),
        weights=convert_state_dict({key: tensor for key, tensor in released.items() if key in expected}),
        vocabulary="start_end",
        unused=["encoder"] if isinstance(encoder, Record) else [],
        unknown=sorted(set(released) - expected),
        may_lack=NEVER_STORED,
        generation={"num_beams": 5, "bookkeeping": "shrinking_finished"},
    )


def read_sizes(released: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    """Infer layer sizes, as `convert_config` needs them, from the weights and the settings."""
    tokens, embedding = released["embedding.weight"].shape
    attention, features = released["attention.encoder_att.weight"].shape
    trained_settings = {name: settings[name] for name in ("dropout", "alpha_c") if name in settings}
    return trained_settings | {
        "attention_dim": attention,
        "embed_dim": embedding,
        "decoder_dim": released["init_h.weight"].shape[0],
        "encoder_dim": features,
        "vocab_size": tokens,
    }


def read_ids(released: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, int]:
    """Return the special token ids of the word map: padding first; unknown, start and end after the words."""
    tokens = released["embedding.weight"].shape[0]
    return {name: settings.get(name, id) for name, id in (("start", tokens - 2), ("end", tokens - 1), ("pad", 0))}


def convert_config(sizes: Mapping[str, Any], ids: Mapping[str, int]) -> ShowAttendTellConfig:
    """Build the configuration of a model of the re-implementation from its sizes.

    Args:
        sizes: `attention_dim`, `embed_dim`, `decoder_dim`, `encoder_dim`, `vocab_size`; optionally `dropout` (0.5)
            and `alpha_c` (1.0).
        ids: ids of `start`, `end` and `pad` in its word map.
    """
    return ShowAttendTellConfig(
        vocab_size=sizes["vocab_size"],
        embedding_size=sizes["embed_dim"],
        hidden_size=sizes["decoder_dim"],
        region_feature_size=sizes["encoder_dim"],
        attention_size=sizes["attention_dim"],
        attention_activation="relu",
        visual_gate="vector",
        initial_state_layers=0,
        initial_state_activation="linear",
        output_layer="linear",
        dropout=sizes.get("dropout", 0.5),
        doubly_stochastic_weight=sizes.get("alpha_c", 1.0),
        bos_token_id=ids["start"],
        eos_token_id=ids["end"],
        pad_token_id=ids["pad"],
    )


def convert_state_dict(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the `state_dict` of the re-implementation's decoder to weights of this library.

    Pairs of biases that are always added become one bias. The input matrix of the LSTM is split into the part that
    reads the word and the part that reads the context.

    Raises:
        KeyError: the re-implementation has no such key.
    """
    unknown = [key for key in released if key not in KEY_MAP and key not in (*JOINED, *CUT)]
    if unknown:
        raise KeyError(f"`{unknown[0]}` is not a key of the re-implementation's decoder.")
    word_size = released["embedding.weight"].shape[1]
    lstm = "model.decoder.layers.0.lstm"
    return {KEY_MAP[key]: tensor for key, tensor in released.items() if key in KEY_MAP} | {
        "model.encoder.keys.0.projection.bias": released[JOINED[0]] + released[JOINED[1]],
        f"{lstm}.word_projection.weight": released[CUT[0]][:, :word_size],
        f"{lstm}.context_projection.weight": released[CUT[0]][:, word_size:],
        f"{lstm}.word_projection.bias": released[CUT[1]] + released[CUT[2]],
    }

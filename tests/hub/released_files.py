"""Write weights into files of the form of the authors' programs."""

import argparse
import pickle
import random
import string
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def write_visualgpt(
    path: Path, weights: dict[str, Tensor], sizes: dict, new_format: bool = True, **more: Tensor
) -> None:
    """Write a training checkpoint: `state_dict` with tied and unused entries, optimizer and random states."""
    state = OrderedDict(weights)
    state.setdefault("decoder.lm_head.decoder.weight", weights["decoder.transformer.wte.weight"])
    width, heads = sizes["d_model"], sizes["n_head"]
    for layer in range(sizes["encoder_layers"]):
        for part in ("query", "key", "value"):
            name = f"encoder.layers.{layer}.mhatt.attention.c_attn_{part}"
            state |= {f"{name}.weight": torch.randn(width, width), f"{name}.bias": torch.randn(width)}
    mask = torch.ones(1, 1, sizes["n_ctx"], sizes["n_ctx"], dtype=torch.uint8).tril()
    for layer in range(sizes["decoder_layers"]):
        name = f"decoder.transformer.h.{layer}"
        running = torch.zeros(1, heads, 0, width // heads)
        state |= {f"{name}.attn.bias": mask, f"{name}.enc_dec_attn.bias": mask}
        state |= {f"{name}.attn.running_keys": running, f"{name}.attn.running_values": running}
        state |= {f"{name}.enc_dec_attn.c_attn.weight": torch.randn(width, 3 * width)}
        state |= {f"{name}.enc_dec_attn.c_attn.bias": torch.randn(3 * width)}
    state |= {
        "decoder.running_mask_self_attention": torch.zeros(1, 1, 0),
        "decoder.transformer.running_seq": torch.zeros(1),
    }
    parameter = nn.Parameter(torch.zeros(3))
    checkpoint = {
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.get_rng_state(),
        "numpy_rng_state": np.random.get_state(),
        "random_rng_state": random.getstate(),
        "epoch": 7,
        "val_loss": 2.5,
        "val_cider": np.float64(1.1),
        "state_dict": state | more,
        "optimizer": torch.optim.AdamW([parameter]).state_dict(),
        "patience": 0,
        "best_cider": np.float64(1.1),
        "use_rl": False,
    }
    torch.save(checkpoint, path, _use_new_zipfile_serialization=new_format)


def write_m2(path: Path, weights: dict[str, Tensor], sizes: dict, new_format: bool = True) -> None:
    """Write a training checkpoint of the M2 code: `state_dict` with decoding state, optimizer and random states."""
    state = OrderedDict(weights)
    state |= {
        "decoder.running_mask_self_attention": torch.zeros(1, 1, 0),
        "decoder.running_seq": torch.zeros(1),
    }
    for layer in range(sizes["decoder_layers"]):
        for name in ("keys", "values"):
            state[f"decoder.layers.{layer}.self_att.running_{name}"] = torch.zeros(0, sizes["d_model"])
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(3))])
    checkpoint = {
        "torch_rng_state": torch.get_rng_state(),
        "numpy_rng_state": np.random.get_state(),
        "random_rng_state": random.getstate(),
        "epoch": 7,
        "val_cider": np.float64(1.1),
        "state_dict": state,
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9).state_dict(),
        "use_rl": False,
    }
    torch.save(checkpoint, path, _use_new_zipfile_serialization=new_format)


def write_program(path: Path, weights: dict[str, Tensor], options: dict) -> None:
    """Write `NAME.npz`, with the errors of the run and a pickled copy of the parameters, and `NAME.npz.pkl`."""
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    again = np.array([arrays], dtype=object)
    np.savez(path, history_errs=np.zeros((3, 2)), zipped_params=again, train_err=np.float64(3.0), **arrays)
    stored = options | {"dataset": "flickr8k", "lrate": np.float64(0.01), "optimizer": "adam"}
    path.with_name(path.name + ".pkl").write_bytes(pickle.dumps(stored, 0))


def write_modules(path: Path, weights: dict[str, Tensor], sizes: dict, new_format: bool = True) -> None:
    """Write `BEST_checkpoint_NAME.pth.tar`: pickled modules of a file `models.py`, and their optimizers."""
    with models_file(sizes) as models:
        decoder, encoder = models.DecoderWithAttention(), models.Encoder()
        decoder.load_state_dict(weights)
        state = {
            "epoch": 5,
            "epochs_since_improvement": 0,
            "bleu-4": 0.24,
            "encoder": encoder,
            "decoder": decoder,
            "encoder_optimizer": None,
            "decoder_optimizer": torch.optim.Adam(decoder.parameters()),
        }
        torch.save(state, path, _use_new_zipfile_serialization=new_format)


def write_model_and_infos(
    folder: Path,
    weights: dict[str, Tensor],
    options: dict,
    vocabulary: dict[str, str],
    new_format: bool = True,
    suffix: str = "",
    **more: object,
) -> Path:
    """Write `model.pth` and `infos_NAME.pkl` as the ImageCaptioning.pytorch family; return the first.

    Args:
        suffix: of both names, such as "-best".
        more: entries of the infos file that are added or replaced.
    """
    path = folder / f"model{suffix}.pth"
    torch.save(OrderedDict(weights), path, _use_new_zipfile_serialization=new_format)
    infos = {
        "iter": 30000,
        "epoch": 5,
        "loader_state_dict": {"train": {"index_list": list(range(7)), "iter_counter": 3}},
        "vocab": vocabulary,
        "opt": argparse.Namespace(**options, id="test", learning_rate=5e-4),
        "best_val_score": np.float64(1.1),
    }
    (folder / f"infos_test{suffix}.pkl").write_bytes(pickle.dumps(infos | more, 2))
    return path


@contextmanager
def models_file(sizes: dict) -> Iterator[types.ModuleType]:
    """Provide the module `models` of the re-implementation while a checkpoint is saved."""
    module = types.ModuleType("models")

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder_att = nn.Linear(sizes["encoder_dim"], sizes["attention_dim"])
            self.decoder_att = nn.Linear(sizes["decoder_dim"], sizes["attention_dim"])
            self.full_att = nn.Linear(sizes["attention_dim"], 1)
            self.relu, self.softmax = nn.ReLU(), nn.Softmax(dim=1)

    class DecoderWithAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vocab_size = sizes["vocab_size"]
            self.attention = Attention()
            self.embedding = nn.Embedding(sizes["vocab_size"], sizes["embed_dim"])
            self.dropout = nn.Dropout(p=0.5)
            self.decode_step = nn.LSTMCell(sizes["embed_dim"] + sizes["encoder_dim"], sizes["decoder_dim"])
            self.init_h = nn.Linear(sizes["encoder_dim"], sizes["decoder_dim"])
            self.init_c = nn.Linear(sizes["encoder_dim"], sizes["decoder_dim"])
            self.f_beta = nn.Linear(sizes["decoder_dim"], sizes["encoder_dim"])
            self.sigmoid = nn.Sigmoid()
            self.fc = nn.Linear(sizes["decoder_dim"], sizes["vocab_size"])

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.resnet = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
            self.adaptive_pool = nn.AdaptiveAvgPool2d((14, 14))

    for kind in (Attention, DecoderWithAttention, Encoder):
        kind.__module__, kind.__qualname__ = "models", kind.__name__
        setattr(module, kind.__name__, kind)
    sys.modules["models"] = module
    try:
        yield module
    finally:
        del sys.modules["models"]


def words(count: int) -> list[str]:
    """Return different words of two letters."""
    return [first + second for first in string.ascii_lowercase for second in string.ascii_lowercase][:count]

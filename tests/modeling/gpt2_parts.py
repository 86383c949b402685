"""Tiny language models, and a tokenizer with the letters as vocabulary."""

import string
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

from .common_case import disturb

TEXT = {
    "vocab_size": 30,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 40,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def tiny_gpt2_tokenizer() -> GPT2Tokenizer:
    """Return a tokenizer of byte-level tokens of the blank and 26 letters, id 27 as end token, no merges."""
    tokens = ["Ġ", *string.ascii_lowercase, "<|endoftext|>"]
    return GPT2Tokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[])


def random_gpt2(sizes: dict[str, Any]) -> GPT2LMHeadModel:
    """Return a GPT-2 in evaluation mode in which every parameter matters."""
    torch.manual_seed(0)
    return disturb(GPT2LMHeadModel(GPT2Config(**{"bos_token_id": 0, "eos_token_id": 0} | sizes))).eval()

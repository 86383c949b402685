"""A GPT-2 with the letters as vocabulary."""

import string

from transformers import GPT2Tokenizer

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
    """Byte-level tokens of the blank and 26 letters, id 27 as end token, no merges."""
    tokens = ["Ġ", *string.ascii_lowercase, "<|endoftext|>"]
    return GPT2Tokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[])

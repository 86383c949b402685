"""Pretrain a small GPT-2 on text and captions, as the language model of a captioner.

    python examples/pretrain_language_model.py --text novels.txt.gz --captions images/train \
        --tokenizer path/to/gpt2_tokenizer --output_dir runs/language_model --num_train_epochs 1 --bf16

Texts are cut into blocks of `--block_size` tokens. Captions are packed into blocks, each after an end token. There
is no padding. All arguments of the `Trainer` of transformers are accepted.
"""

import gzip
import json
import logging
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from torch.utils.data import Dataset
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class LanguageModelArguments:
    """Arguments of the texts and of the size of the model."""

    text: list[str] = field(default_factory=list, metadata={"help": "Text files, plain or .gz."})
    captions: list[str] = field(
        default_factory=list,
        metadata={"help": "Folders with metadata.jsonl, .jsonl with `captions` or `caption`, .txt, or COCO's .json."},
    )
    max_captions: int | None = field(
        default=None, metadata={"help": "Use at most this many captions, drawn at random."}
    )
    tokenizer: str | None = field(default=None, metadata={"help": "Directory or name; default: a new byte-level BPE."})
    vocab_size: int = field(default=4000, metadata={"help": "Vocabulary size of the new byte-level BPE."})
    max_text_tokens: int | None = field(default=None, metadata={"help": "Use at most this many tokens of --text."})
    caption_repeats: int = field(default=1, metadata={"help": "How often each caption occurs in one epoch."})
    width: int = field(default=256, metadata={"help": "Hidden size."})
    layers: int = field(default=6, metadata={"help": "Number of layers."})
    heads: int = field(default=4, metadata={"help": "Attention heads."})
    positions: int = field(default=128, metadata={"help": "Maximum sequence length in tokens."})
    block_size: int = field(default=64, metadata={"help": "Tokens per training row."})


@dataclass
class PretrainingArguments(TrainingArguments):
    """Arguments of the trainer, with a learning rate from which a small model learns."""

    learning_rate: float = field(default=1e-3, metadata={"help": "Initial learning rate."})


def read_text(path: str) -> str:
    """Read a plain or gzipped text file."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        return file.read()


def read_captions(path: str) -> Iterator[str]:
    """Read captions in the form that a captioner is trained on: lower case, no final punctuation."""
    source = Path(path)
    source = source / "metadata.jsonl" if source.is_dir() else source
    if source.suffix == ".json":
        rows = json.loads(source.read_text(encoding="utf-8"))["annotations"]
    else:
        lines = source.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) if source.suffix == ".jsonl" else {"caption": line} for line in lines]
    for row in rows:
        for caption in row.get("captions") or [row["caption"]]:
            yield " ".join(caption.lower().split()).rstrip(" .,;:!?")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with the end token of GPT-2."""
    base = ByteLevelBPETokenizer()
    base.train_from_iterator(texts, vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False)
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=base._tokenizer, bos_token=end, eos_token=end, unk_token=end)


class Blocks(Dataset):
    """A stream of tokens cut into rows of equal length; a shorter last row is dropped."""

    def __init__(self, tokens: list[int], block_size: int) -> None:
        count = len(tokens) // block_size
        self.rows = torch.tensor(tokens[: count * block_size]).view(count, block_size)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def tokens_of(arguments: LanguageModelArguments, tokenizer, seed: int) -> list[int]:
    """Return the tokens of the texts, then those of the captions in random order."""
    end = tokenizer.eos_token_id
    tokens: list[int] = []
    for path in arguments.text:
        for paragraph in read_text(path).split("\n\n"):
            tokens += tokenizer(" ".join(paragraph.split()) + "\n")["input_ids"]
            if arguments.max_text_tokens and len(tokens) >= arguments.max_text_tokens:
                break
    tokens = tokens[: arguments.max_text_tokens]
    captions = [caption for path in arguments.captions for caption in read_captions(path)]
    order = random.Random(seed)
    if arguments.max_captions is not None and arguments.max_captions < len(captions):
        captions = order.sample(captions, arguments.max_captions)
    for _ in range(arguments.caption_repeats):
        order.shuffle(captions)
        for row in tokenizer([f" {caption}" for caption in captions])["input_ids"] if captions else []:
            tokens += [end, *row]
    return tokens


def main() -> None:
    """Pretrain and save model and tokenizer."""
    logging.getLogger("transformers.tokenization_utils_base").setLevel(
        logging.ERROR
    )  # no warning: long paragraphs are cut below
    arguments, training = HfArgumentParser(
        (LanguageModelArguments, PretrainingArguments)
    ).parse_args_into_dataclasses()
    if not arguments.text and not arguments.captions:
        raise SystemExit("Nothing to read: pass --text FILE ... or --captions FOLDER ...")
    set_seed(training.seed)
    if arguments.tokenizer:
        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    else:
        texts = [read_text(path) for path in arguments.text]
        texts += [f" {caption}" for path in arguments.captions for caption in read_captions(path)]
        tokenizer = train_tokenizer(texts, arguments.vocab_size)
    blocks = Blocks(tokens_of(arguments, tokenizer, training.seed), arguments.block_size)
    print(f"{blocks.rows.numel():,} tokens in {len(blocks):,} rows of {arguments.block_size}")
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=arguments.positions,
        n_embd=arguments.width,
        n_layer=arguments.layers,
        n_head=arguments.heads,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(model, training, train_dataset=blocks, data_collator=default_data_collator)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model(training.output_dir)
    tokenizer.save_pretrained(training.output_dir)


if __name__ == "__main__":
    main()

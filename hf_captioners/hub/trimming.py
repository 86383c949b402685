"""Vocabulary trimming: keep only the tokens that captions need, in embedding, head and tokenizer."""

import copy
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from hf_captioners.default_model import default_model, is_default
from hf_captioners.loading import architecture_of, checkpoint_file, load_captioner, require_merged
from hf_captioners.metrics.caption_files import read_captions
from hf_captioners.output_files import new_folder, require_new_folder

from .card_facts import FACTS_FILE, TrainingFacts
from .cards import write_card

# Lists of a generation configuration with tokens that are not generated, or not at some place.
FORBIDDEN_TOKENS = ("suppress_tokens", "begin_suppress_tokens", "bad_ending_ids")
# Entries of a generation configuration with tokens in other forms.
OTHER_TOKENS = ("sequence_bias", "force_words_ids", "forced_decoder_ids", "constraints")


@dataclass(frozen=True)
class TrimmedCaptioner:
    """Trimmed captioner's folder and sizes before and after; result of `write_trimmed_captioner`.

    Args:
        folder: directory of the trimmed captioner.
        captions: number of captions whose tokens were kept.
        tokens: size of the vocabulary before and after.
        parameters: number of parameters before and after.
    """

    folder: Path
    captions: int
    tokens: tuple[int, int]
    parameters: tuple[int, int]


def write_trimmed_captioner(
    source: str | None, captions: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> TrimmedCaptioner:
    """Save a captioner with only the tokens that the captions of files need, see `trim_vocabulary`.

    Args:
        source: directory or name of the captioner; None or `"default"`: the one that an installed package offers.
        captions: files of captions, or folders with a table, see `hf_captioners.metrics.caption_files`.
        output: a new directory.

    Raises:
        FileExistsError: `output` has files.
        FileNotFoundError: the captioner or a file is missing.
        ValueError: the captioner cannot be trimmed, or a file cannot be read.
    """
    require_new_folder(Path(output))
    texts = [text for path in captions for some in read_captions(path).captions.values() for text in some]
    model, processor = load_captioner(source)
    trimmed, trimmed_processor = trim_vocabulary(model, processor, texts)
    sizes = (model.config.vocab_size, trimmed.config.vocab_size)
    place = checkpoint_file(str(default_model().folder if is_default(source) else source), None, FACTS_FILE)
    facts = (TrainingFacts.load(place.parent) if place is not None else None) or TrainingFacts()
    kept = f"{sizes[1]:,} of {sizes[0]:,} tokens, those of {len(texts):,} captions; evaluated before it was trimmed"
    with new_folder(output) as folder:
        trimmed.save_pretrained(folder)
        trimmed_processor.save_pretrained(folder)
        replace(facts, vocabulary=kept if facts.evaluations else kept.partition(";")[0]).save(folder)
        write_card(folder, Path(output).resolve().name)
    parameters = tuple(sum(weight.numel() for weight in captioner.parameters()) for captioner in (model, trimmed))
    return TrimmedCaptioner(Path(output), len(texts), sizes, parameters)


def trim_vocabulary(model: Any, processor: Any, captions: Iterable[str]) -> tuple[Any, Any]:
    """Return a captioner whose tokenizer, embedding and head have only the tokens that captions need.

    Kept are the tokens of the captions, all tokens that byte-pair encoding merges on the way to them, tokens that no
    merge makes (of GPT-2 the 256 bytes, so that every text can still be written), special tokens, and tokens that the
    configuration names. The captions are encoded as before; other texts may become more tokens. Tokens keep their
    order. A caption in which the captioner writes other words than these changes.

    Args:
        model: a captioner of this library, without an adapter; it is not changed.
        processor: its processor; it is not changed.
        captions: the captions, for instance those of the training images.

    Returns:
        A new captioner in evaluation mode and its processor.

    Raises:
        ValueError: the model is not of this library or has an adapter, its tokenizer is of another kind than words or
            byte pairs, or there are no captions.

    Example:
        ```python
        from hf_captioners import load_captioner
        from hf_captioners.hub.trimming import trim_vocabulary

        model, processor = load_captioner("my_captioner")
        model, processor = trim_vocabulary(model, processor, ["a dog runs on the beach", "two cats"])
        ```
    """
    require_merged(model)
    architecture_of(model)
    if processor is None:
        raise ValueError("`processor` is missing: pass that of the captioner, which has its tokenizer.")
    needed = processor.tokens_of_captions(captions)
    if not needed:
        raise ValueError("The captions have no tokens. Pass those of the training images.")
    content = tokenizer_content(processor.tokenizer)
    token_fields = dict(config_tokens(model))
    needed |= set(processor.tokenizer.all_special_ids) | {entry["id"] for entry in content["added_tokens"]}
    needed |= {token for tokens in token_fields.values() for token in tokens}
    kept = closed_under_merges(content["model"], needed)
    require_in_vocabulary(token_fields, kept, content, model.config.vocab_size)
    places = {token: place for place, token in enumerate(kept)}
    return trimmed_model(model, places), trimmed_processor(processor, content, places)


def tokenizer_content(tokenizer: Any) -> dict[str, Any]:
    """Return the parsed content of `tokenizer.json`.

    Raises:
        ValueError: it is not one of words or of byte pairs.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = {} if backend is None else json.loads(backend.to_str())
    kind = content.get("model", {}).get("type", type(tokenizer).__name__)
    if kind not in ("BPE", "WordLevel"):
        raise ValueError(f"The tokenizer is a {kind}, expected a tokenizer of words (WordLevel) or byte pairs (BPE).")
    step = (content["post_processor"] or {}).get("type", "ByteLevel")
    if step not in ("ByteLevel", "TemplateProcessing"):
        raise ValueError(f"The tokenizer ends with a {step}, expected none, or ByteLevel or TemplateProcessing.")
    return content


def config_tokens(model: Any) -> Iterator[tuple[str, list[int]]]:
    """Yield each configuration field of token ids, with these ids.

    Raises:
        ValueError: the generation configuration names tokens in a form that cannot be trimmed.
    """
    generation = model.generation_config
    for name in OTHER_TOKENS:
        if getattr(generation, name, None):
            raise ValueError(
                f"The captioner decodes with `{name}`, whose tokens cannot be renumbered. Remove it: "
                f"`model.generation_config.{name} = None`, and save the captioner again."
            )
    for config in configs_of(model):
        for name, value in vars(config).items():
            if name.endswith(("_token_id", "_token_ids")) and value is not None:
                yield name, [token for token in (value if isinstance(value, list) else [value]) if token >= 0]


def configs_of(model: Any) -> list[Any]:
    """Return the configurations that hold token ids: captioner, language model and generation."""
    text = model.config.get_text_config()
    return [model.config, *([text] if text is not model.config else []), model.generation_config]


def closed_under_merges(tokenizer_model: Mapping[str, Any], needed: Collection[int]) -> list[int]:
    """Add the tokens that merge into needed tokens (BPE), and tokens that no merge makes; return sorted ids.

    Args:
        tokenizer_model: entry `model` of `tokenizer.json`.
        needed: ids.
    """
    ids = tokenizer_model["vocab"]
    parts: dict[int, list[int]] = defaultdict(list)
    for pair in tokenizer_model.get("merges", ()):
        parts[ids[merged(pair, tokenizer_model)]] += [ids[part] for part in pair]
    is_merged = tokenizer_model["type"] == "BPE"
    kept: set[int] = set()
    waiting = [*needed, *(token for token in ids.values() if is_merged and token not in parts)]
    while waiting:
        token = waiting.pop()
        if token not in kept:
            kept.add(token)
            waiting += parts.get(token, [])
    return sorted(kept)


def merged(pair: Sequence[str], tokenizer_model: Mapping[str, Any]) -> str:
    """Return the token into which byte-pair encoding merges a pair of tokens."""
    return pair[0] + pair[1].removeprefix(tokenizer_model.get("continuing_subword_prefix") or "")


def require_in_vocabulary(
    token_fields: Mapping[str, Sequence[int]], kept: Sequence[int], content: Mapping[str, Any], size: int
) -> None:
    """Check that the embedding has a row for each token, and that the tokenizer has the configuration's tokens.

    Raises:
        ValueError: it is not so.
    """
    tokenizer_ids = {*content["model"]["vocab"].values(), *(entry["id"] for entry in content["added_tokens"])}
    for name, tokens in token_fields.items():
        if unknown := [token for token in tokens if token not in tokenizer_ids]:
            raise ValueError(
                f"`{name}` has {unknown[0]}, which the tokenizer does not know: it is of another captioner."
            )
    if kept[-1] >= size:
        raise ValueError(
            f"The tokenizer is that of another captioner: it has a token {kept[-1]}, and `vocab_size` is {size}."
        )


def trimmed_model(model: Any, places: Mapping[int, int]) -> Any:
    """Return a copy of a captioner with only these rows of embedding and head.

    Args:
        model: the captioner.
        places: ids of kept tokens, to their new ids; in ascending order.
    """
    config = copy.deepcopy(model.config)
    generation = copy.deepcopy(model.generation_config)
    smaller_configs = [config, config.get_text_config(), generation]
    for token_config in {id(token_config): token_config for token_config in smaller_configs}.values():
        renumber(token_config, places)
    config.get_text_config().vocab_size = len(places)
    smaller = type(model)(config).to(model.dtype)
    rows = torch.tensor(list(places))
    layers = [layer for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer is not None]
    of_tokens = {id(weight) for layer in layers for weight in layer.parameters()}
    trimmed: dict[str, Tensor] = {}
    for name, values in model.state_dict(keep_vars=True).items():
        trimmed[name] = values.detach()[rows] if id(values) in of_tokens else values.detach()
    smaller.load_state_dict(trimmed)
    smaller.generation_config = generation
    return smaller.eval()


def renumber(config: Any, places: Mapping[int, int]) -> None:
    """Replace the token ids in a configuration by their new numbers."""
    for name, value in list(vars(config).items()):
        if not value and value != 0:
            continue
        if name.endswith(("_token_id", "_token_ids")):
            setattr(
                config, name, [places.get(token, -1) for token in value] if isinstance(value, list) else places[value]
            )
        elif name in FORBIDDEN_TOKENS:
            setattr(config, name, [places[token] for token in value if token in places])
        elif name == "bad_words_ids":
            kept_words = [words for words in value if all(token in places for token in words)]
            setattr(config, name, [[places[token] for token in words] for words in kept_words] or None)


def trimmed_processor(processor: Any, content: dict[str, Any], places: Mapping[int, int]) -> Any:
    """Return a copy of a processor whose tokenizer has only these tokens.

    Args:
        processor: the processor.
        content: of its `tokenizer.json`.
        places: ids of kept tokens, to their new ids.
    """
    content = copy.deepcopy(content)
    part = content["model"]
    vocabulary = part["vocab"] = {text: places[token] for text, token in part["vocab"].items() if token in places}
    if "merges" in part:
        part["merges"] = [pair for pair in part["merges"] if {*pair, merged(pair, part)} <= vocabulary.keys()]
    content["padding"] = None  # it has an id; processors of captioners pad themselves
    content["added_tokens"] = [entry | {"id": places[entry["id"]]} for entry in content["added_tokens"]]
    for special in (content["post_processor"] or {}).get("special_tokens", {}).values():
        special["ids"] = [places[token] for token in special["ids"]]
    smaller = copy.copy(processor)
    smaller.tokenizer = copy.deepcopy(processor.tokenizer)
    smaller.tokenizer._tokenizer = Tokenizer.from_str(json.dumps(content))
    return smaller

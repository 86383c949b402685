"""Captions of a data set, what they are worth against all references, and the file that keeps them."""

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

METRICS = ("bleu", "cider_d")
SHOWN_HEALTH = ("distinct", "length", "bad_endings")


def generation_config_for(model: PreTrainedModel, settings: Mapping[str, Any]) -> GenerationConfig:
    """The model's generation settings with others for an evaluation; the model's own stay as they are.

    Raises:
        ValueError: a setting is none of generation.
    """
    config = copy.deepcopy(model.generation_config)
    config.max_length = None  # or it would compete with `max_new_tokens`
    unknown = config.update(**settings)
    if unknown:
        raise ValueError(f"The generation configuration has no settings {sorted(unknown)}.")
    return config


@contextmanager
def generating_by(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Let a captioner generate by these settings alone: `generate()` takes what they leave unset from the model's own.

    Args:
        model: the captioner; an adapter may be wrapped around it.
        config: the settings.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    own, base.generation_config = base.generation_config, config
    try:
        yield
    finally:
        base.generation_config = own


@torch.no_grad()
def caption_batch(
    model: PreTrainedModel,
    batch: Mapping[str, torch.Tensor],
    generation_config: GenerationConfig,
    precision: AbstractContextManager[Any],
) -> torch.Tensor:
    """Tokens `[B, T]` of the best caption of each image of a batch."""
    with precision, generating_by(model, generation_config):
        return model.generate(**batch, generation_config=generation_config)  # type: ignore[operator,return-value]


def caption_statistics(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """How captions look, whatever they say: what tells a collapse early.

    Returns:
        Shares `distinct` and `bad_endings`, mean `length` in words, and `length_ratio` to that of the references.
    """
    from hf_captioners.metrics import PTBTokenizer

    tokenize = PTBTokenizer()
    theirs = [len(text.split()) for texts in references for text in tokenize(texts)]
    figures = shown_health(captions)
    figures["length_ratio"] = figures["length"] / (sum(theirs) / len(theirs))
    return figures


def shown_health(captions: Sequence[str]) -> dict[str, float]:
    """Shares `distinct` and `bad_endings` and mean `length` in words, as the PTB tokenizer counts words."""
    from hf_captioners.metrics import PTBTokenizer, caption_health

    health = caption_health(PTBTokenizer()(captions))
    return {name: health[name] for name in SHOWN_HEALTH}


class MetricResult(dict[str, float]):
    """Figures by name, and under what conditions they came about.

    Attributes:
        conditions: `variants` (what each figure is exactly), `tokenizer` and `document_frequency`.
    """

    conditions: dict[str, Any]

    def __or__(self, others: Any) -> "MetricResult":  # type: ignore[override]
        """With other figures, under the same conditions."""
        joined = MetricResult({**self, **others})
        joined.conditions = self.conditions
        return joined


def score_captions(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = METRICS,
    tokenizer: str = "ptb",
) -> MetricResult:
    """Captions against all references of their images, in natural units; metrics as for `compute_caption_metrics`.

    Raises:
        ValueError: no image has a reference.
    """
    from hf_captioners.metrics import compute_caption_metrics

    known = [row for row, texts in enumerate(references) if texts]
    if not known:
        raise ValueError(f"None of the {len(captions)} evaluation images has a caption to compare with.")
    result = compute_caption_metrics(
        [captions[row] for row in known], [list(references[row]) for row in known], tuple(metrics), tokenizer
    )
    figures = MetricResult({name: value for name, value in result.items() if isinstance(value, float)})
    figures.conditions = {
        name: result[name] for name in ("variants", "tokenizer", "document_frequency") if name in result
    }
    return figures


def write_captions(path: str | os.PathLike[str], image_ids: Sequence[str], captions: Sequence[str]) -> None:
    """Write one `{"image_id", "caption"}` a line, atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        for image_id, caption in zip(image_ids, captions, strict=True):
            file.write(json.dumps({"image_id": image_id, "caption": caption}, ensure_ascii=False) + "\n")
    os.replace(temporary, path)

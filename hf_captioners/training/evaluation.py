"""Evaluation of captions: generation settings, metrics against all references, and caption files."""

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from hf_captioners.metrics.registry import DEFAULT_METRICS
from hf_captioners.output_files import atomic_file
from hf_captioners.pipelines.image_captioning import seeded
from hf_captioners.pipelines.instructed_inputs import generating_part

# Settings of sampling, which are wrong without it.
SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
STATISTICS = ("distinct", "length", "bad_endings")  # of `caption_health`


def generation_config_for(model: PreTrainedModel, settings: Mapping[str, Any]) -> GenerationConfig:
    """Return a copy of the model's generation configuration with other settings; sampling is off unless set.

    Args:
        model: the captioner; its own configuration does not change.
        settings: generation settings by name.

    Raises:
        ValueError: a setting is unknown to the generation configuration.
    """
    config = copy.deepcopy(generating_part(model).generation_config)
    config.max_length = None  # or it would compete with `max_new_tokens`
    config.num_return_sequences = 1
    if not settings.get("do_sample"):
        config.update(**dict.fromkeys(SAMPLING_SETTINGS), do_sample=False)
    unknown = config.update(**settings)
    if unknown:
        raise ValueError(f"The generation configuration has no settings {sorted(unknown)}.")
    return config


@contextmanager
def generating_by(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Context manager: `generate()` uses these settings only, not the model's own generation configuration.

    Args:
        model: the captioner, perhaps wrapped in an adapter.
        config: the settings.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    part: Any = generating_part(base)
    previous, part.generation_config = part.generation_config, config
    try:
        yield
    finally:
        part.generation_config = previous


@contextmanager
def packed_weights(model: Any) -> Iterator[None]:
    """Context manager: generation on a CPU uses packed weights, see `optimize_for_generation`.

    Args:
        model: the captioner, perhaps wrapped in an adapter. One of another library is left as it is.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    optimize = getattr(base, "optimize_for_generation", None)
    if optimize is None or base.packed_weights or base.device.type != "cpu" or base.dtype != torch.float32:
        yield
        return
    optimize()
    try:
        yield
    finally:
        base.restore_weights()


@torch.no_grad()
def caption_batch(
    model: PreTrainedModel,
    batch: Mapping[str, torch.Tensor],
    generation_config: GenerationConfig,
    precision: AbstractContextManager[Any],
    seed: int | None = None,
) -> torch.Tensor:
    """Generate the best caption of each image of a batch as tokens `[B, T]`; see `seeded` for `seed`."""
    with precision, generating_by(model, generation_config), seeded(seed, batch):
        return model.generate(**batch, generation_config=generation_config)  # type: ignore[operator,return-value]


def caption_statistics(words: Sequence[str], reference_words: Sequence[Sequence[str]] = ()) -> dict[str, float]:
    """Compute statistics of captions, such as length and distinct captions, that reveal a collapse early.

    Args:
        words: tokenised captions.
        reference_words: tokenised references of each caption; without them there is no `length_ratio`.

    Returns:
        `distinct`, the share of captions that differ from all others; `length`, the mean number of words;
        `bad_endings`, the share of truncated captions; `length_ratio`, mean length over that of the references, if
        these have any words.

    Example:

    ```python
    from hf_captioners.training.evaluation import caption_statistics

    statistics = caption_statistics(["two dogs", "a dog on a"], [["two dogs run"], ["a dog on a beach"]])
    assert statistics == {"distinct": 1.0, "length": 3.0, "bad_endings": 0.5, "length_ratio": 0.75}
    ```
    """
    from hf_captioners.metrics import caption_health

    health = caption_health(words)
    statistics = {name: health[name] for name in STATISTICS}
    lengths = [len(text.split()) for texts in reference_words for text in texts]
    if any(lengths):
        statistics["length_ratio"] = statistics["length"] / (sum(lengths) / len(lengths))
    return statistics


class MetricResult(dict[str, float]):
    """Metric values by name, with the conditions of their computation.

    Attributes:
        conditions: `variants` (the exact definition of each metric), `tokenizer` and `document_frequency`.
    """

    conditions: dict[str, Any]

    def __or__(self, others: Any) -> "MetricResult":  # type: ignore[override]
        """Return the union of two results; the conditions stay."""
        joined = MetricResult({**self, **others})
        joined.conditions = self.conditions
        return joined


def score_captions(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str] = DEFAULT_METRICS,
    tokenizer: str = "ptb",
    tokenize: Callable[[Sequence[str]], list[str]] | None = None,
) -> MetricResult:
    """Score captions against all references of their images, and compute caption statistics.

    Args:
        captions: one caption per image.
        references: for each image its references; images without any are left out of the metrics.
        metrics, tokenizer: see `compute_caption_metrics`.
        tokenize: the tokenizer of this name, to reuse; default: a new one.

    Returns:
        Metrics in natural units (CIDEr-D 0.45 is 45 in papers), and the statistics of `caption_statistics`.

    Raises:
        ValueError: no image has a reference, a metric or the tokenizer is unknown, or the tokenizer is `"ptb"` and the
            references have no blanks between words.

    Example:

    ```python
    from hf_captioners.training.evaluation import score_captions

    result = score_captions(["Two dogs run.", "A red circle."], [["two dogs run"], ["a red circle", "a circle"]])
    assert result["bleu_1"] > 0.99 and result.conditions["tokenizer"] == "ptb"
    ```
    """
    from hf_captioners.metrics import compute_caption_metrics
    from hf_captioners.metrics.caption_tokenizers import caption_tokenizer, require_blanks
    from hf_captioners.metrics.compute import check_choice

    check_choice(metrics, tokenizer)
    with_references = [row for row, texts in enumerate(references) if texts]
    if not with_references:
        raise ValueError(f"None of the {len(captions)} evaluation images has a reference caption.")
    require_blanks([text for row in with_references for text in references[row]], tokenizer)
    split = caption_tokenizer(tokenizer) if tokenize is None else tokenize
    words, reference_words = split(captions), [split(references[row]) for row in with_references]
    # Texts are tokenised once, for the metrics and the statistics.
    result = compute_caption_metrics([words[row] for row in with_references], reference_words, tuple(metrics), "none")
    scores = {name: value for name, value in result.items() if isinstance(value, float)}
    joined = MetricResult(scores | caption_statistics(words, reference_words))
    joined.conditions = {name: result[name] for name in ("variants", "document_frequency") if name in result}
    joined.conditions["tokenizer"] = tokenizer
    return joined


def write_captions(path: str | os.PathLike[str], image_ids: Sequence[str], captions: Sequence[str]) -> None:
    """Write one JSON object `{"image_id", "caption"}` per line, atomically.

    Args:
        path: the file; its folder is made if it is missing.
        image_ids: one per caption.
        captions: the captions.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        for image_id, caption in zip(image_ids, captions, strict=True):
            file.write(json.dumps({"image_id": image_id, "caption": caption}, ensure_ascii=False) + "\n")

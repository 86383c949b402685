"""Model cards rendered from facts by a template. Unknown facts are absent from the card."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index
from huggingface_hub.utils import HFValidationError, validate_repo_id

from hf_captioners.inert_text import code_span, inert_text, one_line
from hf_captioners.metrics.registry import hub_names, score_titles
from hf_captioners.output_files import change_file, read_bytes_inside

from .bundling import NOTICE
from .card_facts import (
    CheckpointFacts,
    DataFacts,
    EvaluationFacts,
    PublishedFacts,
    SampleFacts,
    TrainingFacts,
    sample_images,
)
from .card_merging import is_generated, merge_cards, new_card

CARD = "README.md"
# Titles of what a card shows besides metrics.
STATISTIC_NAMES = {
    "loss": "loss",
    "train_loss": "training loss",
    "distinct": "distinct captions",
    "length": "words per caption",
    "length_ratio": "length ratio",
    "bad_endings": "truncated captions",
}
# Definitions of metrics for which an evaluation has no variant.
MEANINGS = {
    "loss": "mean negative log-likelihood of the tokens of all references",
    "distinct": "share of distinct captions",
    "length": "mean",
    "length_ratio": "mean caption length divided by that of the references",
    "bad_endings": "share of captions that end in a word such as `a` or `with`",
}
# Names in the metadata of the data sets that anybody can get; their captions are English.
PUBLISHED_DATA = (
    "coco",
    "conceptual_captions",
    "flickr30k",
    "flickr8k",
    "iu_xray",
    "nocaps",
    "textcaps",
    "vizwiz",
)
LOG_COLUMNS = ("train_loss", "loss", "bleu_4", "cider_d")
# Visual scores (0 to 1) of the shown captions that differ by less are left out.
MIN_SPREAD_OF_SCORES = 0.1
NO_BRACKETS = str.maketrans("[]", "()")

OWN_SNIPPET = """from transformers import pipeline

captioner = pipeline(model="{repo}", trust_remote_code=True)
print(captioner("photo.jpg")[0]["generated_text"])"""
REGIONS_SNIPPET = """from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{repo}", trust_remote_code=True)
processor = AutoProcessor.from_pretrained("{repo}", trust_remote_code=True)
inputs = processor(regions=[features], return_tensors="pt")  # features: [regions, size] of one image
print(processor.post_process_image_text_to_text(model.generate(**inputs)))"""
# What a process with the library types instead: no code of the repository is run.
OWN_SNIPPET_WITH_LIBRARY = """import hf_captioners
from transformers import pipeline

captioner = pipeline("image-captioning", model="{repo}")
print(captioner("photo.jpg")[0]["generated_text"])"""
REGIONS_SNIPPET_WITH_LIBRARY = "import hf_captioners\n" + REGIONS_SNIPPET.replace(", trust_remote_code=True", "")
FOREIGN_SNIPPET = OWN_SNIPPET_WITH_LIBRARY
ADAPTER_SNIPPET = """from hf_captioners import load_captioner
from hf_captioners.loading import merge_adapter

model, processor = load_captioner("{repo}")  # with {base}
model, processor = merge_adapter("{repo}")  # the same as one captioner, to save or to push"""


def write_card(
    directory: str | os.PathLike[str], repo_id: str | None = None, place: str | os.PathLike[str] | None = None
) -> None:
    """Write the model card `README.md` of a checkpoint from its files; text written by people is kept.

    Args:
        directory: directory of the checkpoint.
        repo_id: name on the Hub; default: the name of the directory.
        place: directory to write to; default: `directory`.

    Raises:
        ValueError: the existing card or `card_facts.json` cannot be read.
    """
    path = Path(place or directory, CARD)
    merge_into_card(path, make_card(directory, repo_id))


def write_generated_card(directory: str | os.PathLike[str]) -> bool:
    """Regenerate the card of a checkpoint unless a person wrote it; return True if it was written.

    Raises:
        ValueError: the existing card or `card_facts.json` cannot be read.
    """
    present = read_text(Path(directory, CARD))
    if not Path(directory, "config.json").is_file() or (present is not None and not is_generated(present)):
        return False
    write_card(directory)
    return True


def merge_into_card(path: Path, card: str) -> None:
    """Merge a rendered card into `README.md`; text written by people is kept, with its line endings.

    Raises:
        ValueError: the existing card cannot be read.
    """

    def merged(content: bytes | None) -> bytes:
        return merge_cards(None if content is None else content.decode("utf-8"), card, str(path)).encode("utf-8")

    change_file(path, merged)


def read_text(path: Path) -> str | None:
    """Read a text file with its line endings unchanged; None if the file is missing."""
    return read_bytes_inside(path).decode("utf-8") if path.exists() else None


def make_card(directory: str | os.PathLike[str], repo_id: str | None = None, with_images: bool = False) -> str:
    """Render the model card of a checkpoint from its files.

    Args:
        directory: directory of the checkpoint.
        repo_id: name on the Hub; default: the name of the directory.
        with_images: show the thumbnails of evaluation images, see `sample_images`.

    Raises:
        ValueError: `card_facts.json` cannot be read.
    """
    name = repo_id or Path(directory).resolve().name
    shown = frozenset(path.name for path in sample_images(directory)) if with_images else frozenset()
    return render_card(name, CheckpointFacts.read(directory), TrainingFacts.load(directory), shown)


def render_card(
    name: str,
    checkpoint: CheckpointFacts,
    training: TrainingFacts | None = None,
    shown: frozenset[str] = frozenset(),
) -> str:
    """Render a model card from facts.

    Args:
        name: name of the repository or directory.
        checkpoint: facts of the checkpoint.
        training: facts of the training run.
        shown: file names of the thumbnails to show.

    Returns:
        Markdown with the metadata that the Hub reads.
    """
    log = training.log if training else []
    snippet, snippet_with_library = _snippets(name, checkpoint)
    evaluations = [evaluation for evaluation in training.evaluations if evaluation.figures] if training else []
    body = card_template().render(
        title=name.rpartition("/")[2],
        snippet=snippet,
        snippet_with_library=snippet_with_library,
        architecture=checkpoint.architecture,
        model_type=checkpoint.model_type,
        adapter_of=checkpoint.adapter_of,
        reads_images=checkpoint.vision is not None,
        table=_table(checkpoint, training),
        training=training,
        trained=training is not None and training.has_training,
        medical=training is not None and training.is_medical,
        trained_on=_trained_on(training.data) if training else "",
        evaluations=[_with_meaningful_scores(evaluation) for evaluation in evaluations],
        log=log,
        log_columns=[column for column in LOG_COLUMNS if any(column in entry for entry in log)],
        reproduces=training.reproduces if training and training.reproduces and training.reproduces.compared else None,
        citations=_citations(checkpoint, training),
        terms=checkpoint.weights_license,
        confidence=checkpoint.confidence,
        inert=inert_text,
        code=code_span,
        image=lambda sample: _image(sample, shown),
        references=lambda sample: "<br>".join(map(inert_text, sample.references)),
        scores=lambda sample: " ".join(
            f"{inert_text(word)} <sub>{score:.2f}</sub>" for word, score in sample.visual_scores
        ),
        reproduced=_reproduced,
        deviating=with_deviation,
        duration=_duration,
        figure=lambda value, digits=4: f"{value:.{digits}f}",
        figure_name=figure_name,
        meanings=MEANINGS,
        number=lambda value: f"{value:,}",
        settings=_settings,
        versions=lambda values: ", ".join(f"{inert_text(key)} {inert_text(value)}" for key, value in values.items()),
    )
    return new_card(card_metadata(name, checkpoint, training), body)


@cache
def card_template() -> jinja2.Template:
    """Load the template `hub_cards/model_card.md.jinja`; an undefined variable is an error."""
    text = files("hf_captioners.hub_cards").joinpath("model_card.md.jinja").read_text(encoding="utf-8")
    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)


def card_metadata(name: str, checkpoint: CheckpointFacts, training: TrainingFacts | None) -> dict[str, Any]:
    """Build the metadata of a card, its YAML header that the Hub reads."""
    tags = ["image-captioning", "hf-captioners"]
    if checkpoint.architecture is not None:
        tags += [checkpoint.architecture.name, *([] if checkpoint.adapter_of else ["custom_code"])]
    metadata: dict[str, Any] = {
        "library_name": "peft" if checkpoint.adapter_of else "transformers",
        "pipeline_tag": "image-to-text",
        "tags": tags,
    }
    base = [checkpoint.adapter_of] if checkpoint.adapter_of and _is_hub_name(checkpoint.adapter_of) else []
    if training is not None:
        data = training.data.name if training.data.name in PUBLISHED_DATA else None
        language = training.language or ("en" if data else None)
        metadata |= _known({"license": training.licence, "language": language, "datasets": data and [data]})
        base += [source for source in training.started_from if _is_hub_name(source)]
    terms = checkpoint.weights_license
    if terms:
        stated = {field: str(terms[field]) for field in ("license", "license_name", "base_model") if field in terms}
        stated = {field: value for field, value in stated.items() if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", value)}
        base += [source for source in (stated.pop("base_model", name),) if source not in (name, *base)]
        metadata |= {"license": "other"} | stated | ({"license_link": NOTICE} if terms.get("notice") else {})
    if base:
        metadata["base_model"] = base
        if checkpoint.adapter_of or len(base) > 1:  # the Hub takes several for a merge of their weights
            metadata["base_model_relation"] = "adapter" if checkpoint.adapter_of else "finetune"
    results = [result for evaluation in training.evaluations for result in _results(evaluation)] if training else []
    metadata = {name: _one_line_each(value) for name, value in metadata.items()}
    if results:
        metadata["metrics"] = sorted({result.metric_type for result in results})
        metadata["model-index"] = eval_results_to_model_index(name.rpartition("/")[2], results)
    return metadata


def _one_line_each(value: Any) -> Any:
    """Join each metadata text to one line, as a line of hyphens would end the metadata."""
    if isinstance(value, list):
        return [_one_line_each(entry) for entry in value]
    return one_line(value) if isinstance(value, str) else value


def _table(checkpoint: CheckpointFacts, training: TrainingFacts | None) -> dict[str, str]:
    """Return the rows of the card's first table: (label, text) of each known fact."""
    training = training or TrainingFacts()
    size = checkpoint.image_size
    rows = {
        "parameters": f"{checkpoint.parameters:,}" if checkpoint.parameters else None,
        "adapter": inert_text(training.adapter and f"{training.adapter}{'' if checkpoint.adapter_of else '; merged'}"),
        "vision model": inert_text(checkpoint.vision),
        "input resolution": f"{size[0]} x {size[1]}" if size else None,
        "default generation settings": _settings(checkpoint.generation),
        "started from": ", ".join(map(code_span, training.started_from)),
        "converted from": inert_text(training.converted_from, links=True),
        "vocabulary": inert_text(training.vocabulary),
        "language": inert_text(training.language),
        "licence of the weights": inert_text(training.licence),
    }
    return {name: value for name, value in rows.items() if value}


def _trained_on(data: DataFacts) -> str:
    """Describe the training data in a phrase: images, captions, name and split."""
    what = f"{data.images:,} images" if data.images else ""
    if data.images and data.of_images:
        what += f" ({data.images / data.of_images:.1%} of {data.of_images:,})"
    if what and data.captions:
        what += f" with {data.captions:,} captions"
    if data.name:
        split = f" ({inert_text(data.split)})" if data.split else ""
        what += f"{' of ' if what else ''}{inert_text(data.name)}{split}"
    if not what:
        return ""
    parts = [
        f"Trained on {what}.",
        inert_text(data.description, links=True),
        f"Source: {inert_text(data.homepage, links=True)}." if data.homepage else None,
        f"Licence of the data: {inert_text(data.licence)}." if data.licence else None,
    ]
    return " ".join(part for part in parts if part)


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(code_span(f"{name}={value!r}") for name, value in values.items())


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """Drop the values that are None."""
    return {name: value for name, value in values.items() if value is not None}


def _is_hub_name(source: str) -> bool:
    try:
        validate_repo_id(source)
    except HFValidationError:
        return False
    return not Path(source).exists()


def figure_name(figure: str) -> str:
    """Return the title of a metric or statistic in cards; of a user's own metric its name."""
    return (STATISTIC_NAMES | score_titles()).get(figure, figure)


def _results(evaluation: EvaluationFacts) -> list[EvalResult]:
    data, frequency = evaluation.data, {"document_frequency": _one_line_each(evaluation.document_frequency)}
    if data.name is None:
        return []
    types = hub_names()
    conditions = {
        "scale": "natural units",
        "tokenizer": _one_line_each(evaluation.tokenizer),
        "images": data.images,
        "references": data.captions,
        **{key: _one_line_each(value) for key, value in evaluation.generation.items()},
    }
    return [
        EvalResult(
            task_type="image-to-text",
            task_name="Image captioning",
            dataset_type=one_line(data.name),
            dataset_name=one_line(data.name),
            dataset_split=_one_line_each(data.split),
            metric_type=types[figure],
            metric_name=one_line(evaluation.variants.get(figure) or figure_name(figure)),
            metric_value=round(value, 6),
            metric_args=_known(conditions | (frequency if figure.startswith("cider") else {})),
        )
        for figure, value in evaluation.figures.items()
        if figure in types
    ]


def _snippets(name: str, checkpoint: CheckpointFacts) -> tuple[str, str]:
    """Return usage code of a checkpoint: by transformers alone, and with this library ("" if equal)."""
    repo, base = (json.dumps(text, ensure_ascii=False)[1:-1] for text in (name, checkpoint.adapter_of or ""))  # quoted
    if checkpoint.adapter_of is not None:
        return ADAPTER_SNIPPET.format(base=base, repo=repo), ""
    if checkpoint.architecture is None:
        return FOREIGN_SNIPPET.format(repo=repo), ""
    if checkpoint.vision is None:
        return REGIONS_SNIPPET.format(repo=repo), REGIONS_SNIPPET_WITH_LIBRARY.format(repo=repo)
    return OWN_SNIPPET.format(repo=repo), OWN_SNIPPET_WITH_LIBRARY.format(repo=repo)


def _with_meaningful_scores(evaluation: EvaluationFacts) -> EvaluationFacts:
    """Drop visual scores of an evaluation that hardly differ between words, as these say nothing."""
    scores = [score for sample in evaluation.samples for _, score in sample.visual_scores]
    if not scores or max(scores) - min(scores) >= MIN_SPREAD_OF_SCORES:
        return evaluation
    return replace(evaluation, samples=[replace(sample, visual_scores=[]) for sample in evaluation.samples])


def _citations(checkpoint: CheckpointFacts, training: TrainingFacts | None) -> list[str]:
    every = [checkpoint.architecture.paper] if checkpoint.architecture else []
    if training is not None:
        every += [data.citation for data in (training.data, *(e.data for e in training.evaluations)) if data.citation]
    return [inert_text(citation, links=True) for citation in dict.fromkeys(every)]


def _image(sample: SampleFacts, shown: frozenset[str]) -> str:
    """Return the thumbnail path of a sample if it is shown, otherwise the image's name."""
    if sample.file not in shown:
        return inert_text(sample.image)
    return f"![{inert_text(one_line(sample.image).translate(NO_BRACKETS)) or 'image'}]({sample.file})"


def _reproduced(published: PublishedFacts) -> str:
    """Describe the published row and table that a run reproduces."""
    parts = [
        f"row {inert_text(published.row)}" if published.row else None,
        f"table {inert_text(published.table)}" if published.table else None,
        code_span(published.paper) if published.paper else None,
    ]
    place = " of ".join(part for part in parts if part) or "a published row"
    return f"Reproduces {place}" + (f", regime {inert_text(published.regime)}" if published.regime else "")


def with_deviation(figures: Sequence[float]) -> str:
    """Format mean and deviation as `58.2 ± 2.30`, as `58.2` without deviation, or "" without values."""
    return " ± ".join(f"{figure:.{places}f}" for figure, places in zip(figures, (1, 2), strict=False))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"

"""Export of a captioner to a folder that runs on onnxruntime, checked against the captioner."""

import importlib.util
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import torch
from huggingface_hub import ModelCard

from hf_captioners._version import __version__
from hf_captioners.architectures import Architecture, Purpose
from hf_captioners.confidence.calibration import Calibration, NotCalibratedError
from hf_captioners.confidence.card_section import FIGURE_FILE, card_section, with_section
from hf_captioners.inert_text import inert_text
from hf_captioners.loading import architecture_of, load_captioner, require_merged
from hf_captioners.modeling.layers_transformer import TransformerTextDecoder
from hf_captioners.names import did_you_mean
from hf_captioners.output_files import as_json, new_folder, read_text_inside, require_new_folder, write_text
from hf_captioners.processing.image_processing_captioning import _ImageSteps

from .graphs import IMAGE_SIZE, NEWEST_OPSET, OLDEST_OPSET, OPSET, Graphs, make_graphs, save_graph
from .onnx_captioner import TRAVELLING
from .onnx_facts import DECODER, ENCODER, FACTS_FILE, FORMAT, TOKENIZER_FILE, GenerationOptions, file_digest
from .quantizing import quantize_graph

logger = logging.getLogger(__name__)
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
GRAPH_FOLDER = "onnx"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
WEIGHTS = {"float32": "", "int8": "_int8"}  # kinds of weights, and how the names of their graphs end
DEFAULT_NEW_TOKENS = 32  # of the pipeline, for a captioner without a limit
# Entries of a generation configuration that say nothing about which tokens are chosen, or that are exported otherwise.
OTHER_ENTRIES = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "max_length", "use_cache"),
    *("transformers_version", "_from_model_config", "return_dict_in_generate", "cache_implementation"),
}


@dataclass
class ExportedCaptioner:
    """Result of `export_captioner`: the folder, its size and the difference of logits.

    Args:
        folder: the exported folder.
        size: of all files in bytes.
        largest_difference: of the logits of a step from those of the captioner.
    """

    folder: Path
    size: int
    largest_difference: float


def export_captioner(
    model: Any,
    output_dir: str | os.PathLike[str],
    processor: Any = None,
    opset: int = OPSET,
    weights: str = "float32",
) -> ExportedCaptioner:
    """Export a captioner to a folder that onnxruntime runs without torch and transformers.

    The folder has the graphs `onnx/encoder_model.onnx` and `onnx/decoder_model_merged.onnx`, `captioner.json` (how
    images are prepared, defaults of decoding, tokens), `tokenizer.json`, a card with the licence, and
    `onnx_captioner.py` with three files that it imports, which caption images with this folder alone. It appears when
    it is complete, and its logits have been compared with those of the captioner.

    Args:
        model: directory or name of a captioner, or a loaded captioner. None: the one that an installed package offers.
        output_dir: a new folder.
        processor: processor of a loaded captioner.
        opset: version of the operators of ONNX.
        weights: `"float32"`, or `"int8"`: matrices and embeddings as 8-bit integers, convolutions in float32. The
            graphs are then `onnx/encoder_model_int8.onnx` and `onnx/decoder_model_merged_int8.onnx`.

    Returns:
        The folder, its size, and the largest difference of logits.

    Raises:
        FileExistsError: `output_dir` has files.
        ImportError: packages of the extra `export` are missing.
        ValueError: the captioner cannot be exported, or the exported one computes something else.

    Example:
        ```python
        from hf_captioners.onnx import OnnxCaptioner, export_captioner

        export_captioner("my_captioner", "my_captioner_onnx")
        OnnxCaptioner("my_captioner_onnx")("photo.jpg")
        ```
    """
    require_packages()
    require_opset(opset)
    if weights not in WEIGHTS:
        raise ValueError(
            f"`weights` is {weights!r}, expected one of {', '.join(WEIGHTS)}.{did_you_mean(weights, WEIGHTS)}"
        )
    target = Path(output_dir)
    require_new_folder(target)
    source, is_loaded = None, model is not None and not isinstance(model, (str, os.PathLike))
    if not is_loaded:
        source = model
        model, processor = load_captioner(None if model is None else str(model), Purpose.EXPORT)
    architecture = require_exportable(model, processor)
    model.restore_weights()  # packed weights have operations of their own
    model = model.to(device="cpu", dtype=torch.float32).eval()
    facts = captioner_facts(model, processor, architecture, weights)
    graphs = make_graphs(model, image_size_of(facts["image"]), opset, untied=weights == "int8")
    facts |= {"opset": opset, "reads_all_tokens": graphs.reads_all_tokens}
    with new_folder(target) as folder:
        write_folder(folder, graphs, facts, model, processor, source)
        if not is_loaded:
            carry_calibration(Path(model.name_or_path), folder, weights)
        from .checking import compare_with_captioner

        difference = compare_with_captioner(folder, model, processor)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return ExportedCaptioner(target, size, difference)


def carry_calibration(source: Path, folder: Path, weights: str) -> None:
    """Write a captioner's calibration into its exported folder, unless the export changed the weights.

    Args:
        source: directory of the captioner.
        folder: the exported folder.
        weights: number format of the export. 8-bit integers change probabilities, so they need their own calibration.
    """
    try:
        calibration = Calibration.load(source)
    except (NotCalibratedError, FileNotFoundError):
        return
    if weights != "float32":
        logger.warning(
            f"The calibration of {source} is not exported: {weights} weights have other probabilities. Calibrate the "
            "exported captioner: hf-captioners calibrate FOLDER DATA"
        )
        return
    calibration.carry_over(folder)
    card = folder / "README.md"
    write_text(card, with_section(card.read_text(encoding="utf-8"), card_section(calibration)))
    figure = source / FIGURE_FILE
    if figure.is_file():
        write_text(folder / FIGURE_FILE, read_text_inside(figure))


def require_packages() -> None:
    """Raise an `ImportError` if packages of the extra `export` are missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"The export needs {', '.join(missing)}: pip install 'hf-captioners[export]'")


def require_opset(opset: int) -> None:
    """Raise a `ValueError` for an opset that is too old or too new."""
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise ValueError(
            f"`opset` is {opset}, expected {OLDEST_OPSET} to {NEWEST_OPSET}: the exporter of torch writes no other "
            f"operators. Leave it out for {OPSET}."
        )


def require_exportable(model: Any, processor: Any) -> Architecture:
    """Check that a captioner can be exported to ONNX, and return its architecture.

    Raises:
        ValueError: it is no captioner of this library, has an adapter, or decodes in a way that an exported captioner
            does not.
    """
    require_merged(model)
    architecture = architecture_of(model)
    if model.captions_depend_on_batch:
        raise ValueError(
            "A caption of this captioner depends on the other images of its batch (the pool 'released'), which has "
            "no step with a cache. Train it with `intensity_pool` 'mean' or 'sum', or export another captioner."
        )
    if unsupported := set(model.config.vision_inputs) - {"pixel_mask"}:
        raise ValueError(f"The vision model reads {', '.join(sorted(unsupported))}, which cannot be exported.")
    if processor is None:
        raise ValueError("`processor` is missing: pass that of the captioner, or the directory of both.")
    if not isinstance(processor.image_processor, _ImageSteps):
        raise ValueError(
            f"The images are prepared by {type(processor.image_processor).__name__}, expected a "
            "`CaptioningImageProcessor`, whose preparation is a few numbers."
        )
    return architecture


def captioner_facts(model: Any, processor: Any, architecture: Architecture, weights: str) -> dict[str, Any]:
    """Return the content of `captioner.json`: image preparation, tokens, text rules and decoding defaults."""
    config, generation = model.config, model.generation_config
    ends = generation.eos_token_id if generation.eos_token_id is not None else config.eos_token_id
    prefix, word = processor.text_for_tokenizer("x"), "x"
    positions = positions_of_decoder(model)
    return {
        "format": FORMAT,
        "library_version": __version__,
        "architecture": architecture.name,
        "paper": architecture.paper,
        "weights": weights,
        "graphs": {name: f"{GRAPH_FOLDER}/{name}{WEIGHTS[weights]}.onnx" for name in (ENCODER, DECODER)},
        "image": image_numbers(processor.image_processor) if config.vision_config is not None else None,
        "tokens": {
            "start": config.decoder_start_token_id,
            "end": [ends] if isinstance(ends, int) else list(ends),
            "pad": generation.pad_token_id if generation.pad_token_id is not None else config.pad_token_id,
        },
        "text": {
            "lowercase": processor.lowercase,
            "merge_repeated_words": processor.merge_repeated_words,
            "prefix": prefix.removesuffix(word),
        },
        "positions": positions,
        "generation": generation_defaults(generation, positions),
    }


def positions_of_decoder(model: Any) -> int | None:
    """Return the largest number of tokens that the decoder can read; None if there is no limit."""
    decoders = [module for module in model.modules() if isinstance(module, TransformerTextDecoder)]
    limits = [module.position_embedding.num_embeddings - module.first_position for module in decoders]
    return min(limits, default=None)


def image_numbers(processor: Any) -> dict[str, Any]:
    """Return the sizes, mean, standard deviation and so on of the image preparation, for `captioner.json`.

    Raises:
        ValueError: the size is given in a form that an exported captioner does not know.
    """

    def plain(size: Any) -> dict[str, int]:
        return {name: value for name, value in dict(size).items() if value is not None}

    size = plain(processor.size) if processor.do_resize else None
    if size is not None and set(size) not in ({"height", "width"}, {"shortest_edge"}, {"max_height", "max_width"}):
        raise ValueError(f"The images are resized to {size}, expected height and width, or shortest_edge alone.")
    normalized = processor.do_normalize
    return {
        "size": size,
        "resample": int(processor.resample),
        "crop_size": plain(processor.crop_size) if processor.do_center_crop else None,
        "rescale_factor": processor.rescale_factor if processor.do_rescale else None,
        "image_mean": list(processor.image_mean) if normalized else None,
        "image_std": list(processor.image_std) if normalized else None,
    }


def image_size_of(numbers: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return the height and width to which all images are prepared.

    Raises:
        ValueError: images have different sizes.
    """
    if numbers is None:
        return IMAGE_SIZE, IMAGE_SIZE
    size = numbers["crop_size"] or numbers["size"]
    if size is None or set(size) != {"height", "width"}:
        raise ValueError(
            f"Prepared images have different sizes ({size}), and a graph reads one. Set the image processor's "
            "`crop_size` and `do_center_crop=True`, and save it."
        )
    return size["height"], size["width"]


def generation_defaults(generation: Any, positions: int | None = None) -> dict[str, Any]:
    """Return the generation settings of a captioner that differ from the defaults of `GenerationOptions`.

    Args:
        generation: the generation configuration.
        positions: largest number of tokens that the decoder reads. None: unlimited.

    Raises:
        ValueError: an option is set that an exported captioner does not have, or captions may exceed the positions.
    """
    usual = {field.name: field.default if field.default is not MISSING else [] for field in fields(GenerationOptions)}
    settings = {
        name: value
        for name, value in generation.to_diff_dict().items()
        if name not in OTHER_ENTRIES and not name.startswith("output_") and value is not None
    }
    if settings.get("bookkeeping") == "transformers":
        del settings["bookkeeping"]
    settings = {name: value for name, value in settings.items() if name in usual or value not in (False, 0, 1.0)}
    unknown = {name: value for name, value in settings.items() if name not in usual}
    if unknown:
        name, value = next(iter(unknown.items()))
        raise ValueError(
            f"The captioner decodes with `{name}={value!r}`, which an exported captioner does not have. Remove it: "
            f"`model.generation_config.{name} = None`, and save the captioner again."
        )
    limit = generation.max_new_tokens
    if limit is None and generation.max_length is not None:
        limit = generation.max_length - 1  # beside the begin token
    if limit and positions is not None and limit > positions:
        raise ValueError(
            f"The captioner writes up to {limit:,} tokens, and its decoder has {positions:,} positions. Lower the "
            f"limit: `model.generation_config.max_new_tokens = {positions}`, and save the captioner again."
        )
    chosen = settings | {"max_new_tokens": limit or min(DEFAULT_NEW_TOKENS, positions or DEFAULT_NEW_TOKENS)}
    return {name: value for name, value in chosen.items() if value != usual[name] or name == "max_new_tokens"}


def write_folder(folder: Path, graphs: Graphs, facts: dict[str, Any], model: Any, processor: Any, source: Any) -> None:
    """Write the graphs, tokenizer, `captioner.json`, Python files and card of an exported captioner."""
    (folder / GRAPH_FOLDER).mkdir()
    for graph, name in ((graphs.encoder, ENCODER), (graphs.decoder, DECODER)):
        path = folder / facts["graphs"][name]
        save_graph(graph, path)
        if facts["weights"] == "int8":
            quantize_graph(path)
    processor.tokenizer.backend_tokenizer.save(str(folder / TOKENIZER_FILE))
    for name in TRAVELLING:
        shutil.copyfile(Path(__file__).with_name(name), folder / name)
    names = [*facts["graphs"].values(), TOKENIZER_FILE]
    facts = facts | {"files": {name: file_digest(folder / name) for name in names}}
    write_text(folder / FACTS_FILE, as_json(facts) + "\n")
    terms = model.config.weights_license or {}
    if terms.get("notice"):
        write_text(folder / "NOTICE", str(terms["notice"]))
    write_text(folder / "README.md", card(facts, terms, source, folder.parent))


def is_text(value: Any) -> bool:
    """Return whether a value of a card's metadata is a text, or a list of texts."""
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(entry, str) and entry for entry in values)


def card(facts: Mapping[str, Any], terms: Mapping[str, Any], source: Any, parent: Path) -> str:
    """Return the text of `README.md` of an exported captioner: what it is, how to use it, its licence."""
    metadata: dict[str, Any] = {"library_name": "onnxruntime", "pipeline_tag": "image-to-text"}
    metadata |= {"tags": ["image-captioning", "hf-captioners", "onnx"]} | ({"license": "other"} if terms else {})
    stated = {name: str(terms[name]) for name in ("license", "license_name") if name in terms}
    path = Path(str(source), "README.md")
    if path.is_file():
        data = ModelCard.load(path, ignore_metadata_errors=True).data
        known = ("language", "datasets", "base_model", *([] if terms else ["license"]))
        stated |= {name: data[name] for name in known if is_text(data.get(name))}
    elif source and HUB_NAME.fullmatch(str(source)):
        stated["base_model"] = str(source)
    metadata |= stated | ({"license_link": "NOTICE"} if terms.get("notice") else {})
    text = files("hf_captioners.hub_cards").joinpath("onnx_card.md.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)
    lines = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in metadata.items())
    return f"---\n{lines}\n---\n" + template.render(
        facts=facts,
        terms=terms,
        licence=str(metadata.get("license") or ""),
        source=inert_text(str(source or "")),
        inert=inert_text,
    )

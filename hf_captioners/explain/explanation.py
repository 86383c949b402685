"""Computation of attention over image regions for each word of a caption, as arrays."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hf_captioners.architectures import Purpose
from hf_captioners.explain import METHODS
from hf_captioners.loading import load_captioner
from hf_captioners.processing.vocabulary import word_means


@dataclass(frozen=True)
class RegionGraph:
    """Relations between the regions of an image, and the attention along each relation.

    Args:
        is_parent: `[R, R]`, True where the column's region is a parent of the row's: it contains that region.
        maps: by the name of a relation, attention `[R, R]` of the last encoder layer with relations, of the row's
            region to those that have this relation to it, averaged over heads.
    """

    is_parent: NDArray[np.bool_]
    maps: dict[str, NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class AttributeWeights:
    """Attributes of an image, and each word's attention to them.

    Args:
        words: the N attributes, those with the largest weights first.
        weights: `[W, N]`, of the last layer, averaged over heads and attentions; a row sums to 1.
        probabilities: `[N]`, of detected attributes; None if they were given.
    """

    words: list[str]
    weights: NDArray[np.floating[Any]]
    probabilities: NDArray[np.floating[Any]] | None = None


@dataclass(frozen=True)
class Explanation:
    """A caption and the attention for each of its words.

    Args:
        words: the W words of the caption.
        maps: `[W, R]`, attention weights over the regions, or their relevance; a word of several tokens has the mean
            of theirs. No regions (R = 0) where the captioner attends to attributes alone.
        boxes: `[R, 4]`, boxes of the regions, normalised xyxy.
        image: the image as the captioner receives it: resized and cropped by its processor, without padding.
        gates: by their names, gates of the last decoder layer for each word, `[W]` between 0 and 1, averaged over
            features; none where the captioner has no gates. See `token_gates` of the model.
        graph: relations between the regions; None where the captioner has none.
        intensities: `[W]`, pooled intensity (rho, ZoDIAC's Eq. 7) of the last layer's attention to the regions, mean
            over heads; the attended vectors are multiplied by zeta + phi(rho). None where there is none.
        attributes: attributes and the attention to them; None where the captioner reads none.
        region_names: what a detector calls the R regions, `""` where it has no name; None without a detector.
        method: `"attention"` or `"relevance"`, see `explain_caption`.
        confidence: probability that all content words are right, see `Assessment`; None if it is unknown.
        confidences: that of each word, None of words that are no content words; None if they are unknown. See
            `with_confidence`.
    """

    words: list[str]
    maps: NDArray[np.floating[Any]]
    boxes: NDArray[np.floating[Any]]
    image: Image.Image
    gates: dict[str, NDArray[np.floating[Any]]] = field(default_factory=dict)
    graph: RegionGraph | None = None
    intensities: NDArray[np.floating[Any]] | None = None
    attributes: AttributeWeights | None = None
    region_names: list[str] | None = None
    method: str = "attention"
    confidence: float | None = None
    confidences: list[float | None] | None = None

    @property
    def caption(self) -> str:
        """The words joined to a text."""
        return " ".join(self.words)


def load_explainable(source: str | None, locations: bool = False, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Load a captioner that can return attention maps, and its processor.

    Args:
        source: name or directory, see `load_captioner`.
        locations: for hard attention: use the most probable location instead of the expectation over all of them.
        trust_remote_code: run code from the repository of the model.

    Raises:
        ValueError: the captioner has no attention over regions, or `locations` is set and its attention is not hard.
    """
    options: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": trust_remote_code}
    model, processor = load_captioner(source, Purpose.EXPLANATION, **options)
    if not hasattr(model, "attention_maps"):
        raise ValueError(f"{source} is a {type(model).__name__}, which has no attention maps over regions.")
    if locations and getattr(model.config, "attention_type", None) != "hard":
        raise ValueError("`locations` needs a model with hard attention; leave it out.")
    if locations:
        model.config.location_decoding = "argmax"
    return model, processor


@torch.no_grad()
def explain_caption(
    model: Any,
    processor: Any,
    image: str | os.PathLike[str] | Image.Image,
    caption: str | None = None,
    num_beams: int | None = None,
    attributes: Sequence[str] | None = None,
    method: str = "attention",
) -> Explanation:
    """Compute attention, or relevance of the regions, for each word of a caption.

    Args:
        model: see `load_explainable`.
        processor: the processor of the model.
        image: path of an image, or an image.
        caption: the caption to explain. None: the model generates it.
        num_beams: beams of the search. None: the generation configuration of the model.
        attributes: words that the captioner reads as attributes of the image. None: those that it detects.
        method: what the maps are: `"attention"`, the weights of the decoder's last layer, or `"relevance"`, these
            times the gradient of the word's log-probability, see `relevance_maps` of the model.

    Raises:
        ValueError: `attributes` are given to a captioner that reads none, or are missing; the method is unknown, or
            hard attention has no relevance.

    Example:
        ```python
        from hf_captioners.explain.drawing import draw_attention
        from hf_captioners.explain.explanation import explain_caption, load_explainable

        model, processor = load_explainable("my_lstm")
        explanation = explain_caption(model, processor, "photo.jpg")
        print(explanation.words[1], explanation.maps[1].argmax())
        draw_attention(explanation).savefig("photo.attention.svg")
        ```
    """
    if method not in METHODS:
        raise ValueError(f"`method` is {method!r}, expected {' or '.join(map(repr, METHODS))}.")
    reads_attributes = getattr(model.config, "reads_attributes", False)
    if attributes is not None and not reads_attributes:
        raise ValueError(f"`attributes`: {model.name_or_path} is a {type(model).__name__}, which reads no attributes.")
    views = processor(images=os.fspath(image) if isinstance(image, os.PathLike) else image, return_tensors="pt")
    attribute_inputs = {} if attributes is None else processor(attributes=[list(attributes)], return_tensors="pt")
    inputs = {**views, **attribute_inputs}
    if caption is None:
        options = {} if num_beams is None else {"num_beams": num_beams}
        sequence = model.generate(**inputs, **options)[:1]
    else:
        labels = processor(text_target=caption, return_tensors="pt")["labels"]
        start = model.prepare_decoder_input_ids_from_labels(labels)
        sequence = torch.cat((start, labels[:, -1:]), dim=1)
    tokens = sequence[0].tolist()

    def of_words(values: Any) -> NDArray[Any]:
        """Return the mean value of each word from values of tokens `[T, ...]`."""
        return np.array(word_means(processor, tokens, values.float().numpy())[1])

    regions = model.get_region_features(**views)
    real = regions.region_mask[0].numpy()
    boxes = regions.region_boxes[0].numpy()[real]
    words = word_means(processor, tokens, [0.0] * (len(tokens) - 1))[0]
    has_map = getattr(model.config, "reads_regions", True)
    if method == "relevance" and not hasattr(model, "relevance_maps"):
        raise ValueError(f"{model.name_or_path} is saved with code that has no `relevance_maps`; use 'attention'.")
    maps_of = model.relevance_maps if method == "relevance" else model.attention_maps
    maps = of_words(maps_of(sequence, **inputs)[0][:, real]) if has_map else np.zeros((len(words), 0))
    outputs = model(**inputs, decoder_input_ids=sequence[:, :-1], output_attentions=True, output_gates=True)
    intensities = intensity_of_tokens(model.config, outputs)
    return Explanation(
        words,
        maps.reshape(len(words), -1 if len(words) else len(boxes)),
        boxes,
        image_of(inputs["pixel_values"][0], processor.image_processor, inputs.get("pixel_mask")),
        {name: of_words(gate[0]) for name, gate in model.token_gates(outputs).items()},
        graph_of(model.config, outputs, real),
        None if intensities is None else of_words(intensities),
        attributes_of(model, processor, sequence, inputs, of_words) if reads_attributes else None,
        names_of_regions(model, views),
        method,
    )


def names_of_regions(model: Any, views: Mapping[str, Tensor]) -> list[str] | None:
    """Return the detector's class names of an image's regions without padding; None without class names.

    Args:
        model: the captioner.
        views: `pixel_values` and perhaps `pixel_mask` of one image.
    """
    if not model.config.has_detector:
        return None
    detections = model.get_encoder().vision.detect(**views)
    names = model.config.vision_config.id2label
    if all(name == f"LABEL_{number}" for number, name in names.items()):  # those of a configuration without names
        return None
    return [names.get(label, "") for label in detections.region_labels[0][detections.region_mask[0]].tolist()]


def intensity_of_tokens(config: Any, outputs: Any) -> Tensor | None:
    """Return the attention intensity of each token `[T]`, pooled over regions; None if not computed."""
    if getattr(config, "intensity_pool", None) is None:
        return None
    gate = outputs.gates[-1]
    # [B * K, 2, H or 1, T], where the second attention is that to regions, or [B * K, T, H or 1]
    return gate[0, 1].mean(0) if isinstance(gate, Tensor) else gate.attention[0].mean(-1)


def attributes_of(
    model: Any, processor: Any, sequence: Tensor, inputs: Mapping[str, Any], of_words: Callable[[Any], NDArray[Any]]
) -> AttributeWeights:
    """Return the attributes of an image, and each word's attention to them."""
    encoded = model.get_encoder()(**inputs)
    attended = model.attribute_maps(sequence, encoder_outputs=encoded)
    weights = of_words(attended.weights[0])
    weights = weights.reshape(len(weights), attended.ids.shape[1])
    order = [place for place in np.argsort(-weights.sum(0), kind="stable").tolist() if attended.mask[0, place]]
    words = processor.tokenizer.convert_ids_to_tokens(attended.ids[0, order].tolist())
    scores = encoded.attribute_probabilities
    return AttributeWeights(words, weights[:, order], None if scores is None else scores[0, order].float().numpy())


def graph_of(config: Any, outputs: Any, real: NDArray[np.bool_]) -> RegionGraph | None:
    """Return the region graph of the first image in a captioner's outputs; None without relations.

    Args:
        config: its configuration.
        outputs: with relations and the encoder's attentions.
        real: `[R]`, True = a real region.
    """
    relations, numbers = outputs.get("encoder_relations"), getattr(config, "relation_numbers", {})
    weights = [layer for layer in outputs.encoder_attentions or () if layer is not None and layer.ndim == 5]
    if relations is None or not weights:
        return None
    of_last = weights[-1][0].mean(1)  # [B, S, H, R, R] to [S, R, R]
    maps = {
        name: (attention * torch.isin(relations[0], torch.tensor(ids))).float().numpy()[real][:, real]
        for (name, ids), attention in zip(numbers.items(), of_last, strict=True)
    }
    return RegionGraph((relations[0] == config.parent_number).numpy()[real][:, real], maps)


def image_of(pixel_values: Tensor, image_processor: Any, pixel_mask: Tensor | None = None) -> Image.Image:
    """Convert pixel values `[3, H, W]` back to an image.

    Args:
        pixel_values: normalised pixel values.
        image_processor: the image processor, for its mean and standard deviation.
        pixel_mask: `[1, H, W]`, 0 at padding, which the image is without.
    """
    pixels = pixel_values.float().permute(1, 2, 0).numpy()
    if pixel_mask is not None:
        height, width = (int(pixel_mask[0].any(axis).sum()) for axis in (1, 0))
        pixels = pixels[:height, :width]
    if image_processor.do_normalize:
        mean, std = (np.array(getattr(image_processor, name)) for name in ("image_mean", "image_std"))
        pixels = pixels * std + mean
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))

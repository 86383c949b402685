"""Confidence of the words of an explained caption, computed by the `image-captioning` pipeline."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from hf_captioners.confidence.assessing import SEARCH, Assessor
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline
from hf_captioners.processing.image_reading import read_image

from .explanation import Explanation


class ExplainedConfidence:
    """Captions images and computes word confidence, for explanations of the same captions.

    Args:
        model: see `load_explainable`.
        processor: the processor of the model.
        num_beams: beams of the search. None: the generation configuration of the model.
        mode: see `Assessor`.

    Raises:
        NotCalibratedError: the captioner has no calibration, or that of another one.
    """

    def __init__(self, model: Any, processor: Any, num_beams: int | None = None, mode: str = SEARCH) -> None:
        self.pipeline = ImageCaptioningPipeline(model=model, processor=processor, packed_weights="plain")
        self.assessor = Assessor(self.pipeline, mode=mode)
        self.options = {} if num_beams is None else {"num_beams": num_beams}

    def caption(self, image: str | os.PathLike[str] | Image.Image) -> dict[str, Any]:
        """Return the pipeline's record of an image: `generated_text`, `confidence` and `words`.

        Args:
            image: path of the image, or the image.
        """
        item = self.pipeline.prepare(read_image(image), **self.options)
        return dict(self.assessor.caption_prepared([item], **self.options)[0][0])


def with_confidence(explanation: Explanation, record: Mapping[str, Any]) -> Explanation:
    """Return an explanation with the confidence of its words added.

    Args:
        explanation: of the caption of the record.
        record: see `ExplainedConfidence.caption`.
    """
    confidences = confidences_of(explanation.words, record["words"])
    return dataclasses.replace(explanation, confidence=record["confidence"], confidences=confidences)


def confidences_of(words: Sequence[str], assessed: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return the confidence of each word of a caption, None for words without confidence.

    Args:
        words: the words between blanks; a word such as `t-shirt.` has the least confidence of its content words.
        assessed: `word` and `confidence` of the content words, in their order.
    """
    confidences: list[float | None] = []
    remaining = list(assessed)
    for word in words:
        unmatched, values = word.lower(), []
        while remaining and (place := unmatched.find(remaining[0]["word"])) >= 0:
            unmatched = unmatched[place + len(remaining[0]["word"]) :]
            if (value := remaining.pop(0)["confidence"]) is not None:
                values.append(value)
        confidences.append(min(values, default=None))
    return confidences

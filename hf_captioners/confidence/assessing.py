"""Captioning with confidence: additional decoding, and the confidence fields of records."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .calibration import CALIBRATION_FILE, Calibration, NotCalibratedError
from .caption_words import CaptionWord
from .estimator import Agreement, Estimator, Word, words_of

SEARCH, SAMPLES = "search", "samples"
MODES = (SEARCH, SAMPLES)
"""Evidence besides the tokens of a caption: hypotheses of its own search, or sampled captions too."""
SAMPLING_SEED = 0
MIN_SURE_WORDS = 4  # content words of a caption that is chosen because it is sure
# Options of decoding that samples do not take from those of the caption.
OF_THE_SEARCH = {
    *("num_beams", "num_return_sequences", "do_sample", "seed", "temperature", "top_k", "top_p", "length_penalty"),
    *("early_stopping", "bookkeeping", "num_beam_groups", "diversity_penalty", "return_scores", "return_ended"),
}


class Assessment(NamedTuple):
    """Confidence of a caption and of its words.

    Args:
        confidence: probability that all content words are right; None without content words.
        words: content words in their order with their confidences, None of a word that the captioner did not write.
        mean: mean confidence of the words, the support that is expected; 0 without any.
    """

    confidence: float | None
    words: list[dict[str, Any]]
    mean: float

    def fields(self) -> dict[str, Any]:
        """Return the confidence fields of a record."""
        return {"confidence": self.confidence, "words": self.words}


class Assessor:
    """Captions images with a pipeline, and computes the confidence of captions and words.

    Args:
        pipeline: an `ImageCaptioningPipeline` or an exported captioner in its place.
        calibration: of the captioner. None: that beside its weights.
        mode: `"search"`: tokens and hypotheses of the caption's own search, which costs next to nothing; `"samples"`:
            also captions that are sampled for each image, which order words better and take longer.
        prefer_sure: of the hypotheses of the beam search, return the surest first: that with the largest mean
            confidence among those with at least `MIN_SURE_WORDS` content words.

    Raises:
        NotCalibratedError: the captioner has no calibration, or that of another one.
        ValueError: the mode is unknown or was not calibrated, or the weights are packed as 8-bit integers.
    """

    def __init__(
        self, pipeline: Any, calibration: Calibration | None = None, mode: str = SEARCH, prefer_sure: bool = False
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"`confidence` is {mode!r}, expected one of {', '.join(MODES)}.")
        require_calibrated_weights(pipeline)
        self.pipeline, self.mode, self.prefer_sure = pipeline, mode, prefer_sure
        self.calibration = calibration or Calibration.load(calibrated_folder(pipeline))
        if mode == SAMPLES and not {"samples", "beams_and_samples"} & self.calibration.estimators.keys():
            raise ValueError(
                "`confidence` is 'samples', and the captioner was calibrated without sampled captions. Pass 'search', "
                "or calibrate it with `samples`."
            )

    def caption_prepared(self, items: Sequence[dict[str, Any]], **options: Any) -> list[list[dict[str, Any]]]:
        """Caption prepared images, see `ImageCaptioningPipeline.caption_prepared`; sampling runs image by image.

        Args:
            items: results of `prepare`, one image each.
            **options: arguments of a call.

        Returns:
            The records of each image, each with `confidence` and `words`, see `Assessment`.

        Raises:
            ValueError: surest captions are asked for and there is no beam search.
        """
        decoding = self.decoding(**options)
        scoring = {**options, "return_scores": True, "return_token_scores": True}
        if decoding.is_beam_search:
            scoring["num_return_sequences"] = max(decoding.beams, decoding.returned)
        found = self.pipeline.caption_prepared(list(items), **scoring)
        drawn: list[list[dict[str, Any]]] = [[] for _ in items]
        if self.mode == SAMPLES:
            drawn = draw_samples(self.pipeline, items, self.calibration.samples, options)
        keeps_scores = bool(options.get("return_token_scores"))
        return [
            self._assessed(records, samples, decoding, keeps_scores)
            for records, samples in zip(found, drawn, strict=True)
        ]

    def decoding(self, **options: Any) -> "Decoding":
        """Return the decoding method of a call with some options.

        Raises:
            ValueError: surest captions are asked for and there is no beam search.
        """
        decoding = Decoding.of(self.pipeline, options)
        if self.prefer_sure and not decoding.is_beam_search:
            raise ValueError(
                "`prefer_sure` chooses among the hypotheses of a beam search, and captions are "
                f"{'sampled' if decoding.samples else 'searched greedily'}. Pass `num_beams=5`, or leave it out."
            )
        return decoding

    def _assessed(
        self, records: list[dict[str, Any]], samples: list[dict[str, Any]], decoding: "Decoding", keeps_scores: bool
    ) -> list[dict[str, Any]]:
        """Return the requested records with confidence."""
        if any("error" in record for record in records):
            return records[: decoding.returned]
        has_beams = decoding.is_beam_search and decoding.beams == self.calibration.num_beams
        kind = {(False, False): "tokens", (True, False): "beams", (False, True): "samples"}.get(
            (has_beams, bool(samples)), "beams_and_samples"
        )
        estimators = self.calibration.estimators
        kind = kind if kind in estimators else kind.removeprefix("beams_and_") if "samples" in kind else "tokens"
        agreement = Agreement(records if has_beams else (), samples)
        assessed = [(record, self.assess(record, agreement, estimators[kind])) for record in records]
        if self.prefer_sure:
            assessed.sort(key=lambda pair: -(pair[1].mean + (len(pair[1].words) >= MIN_SURE_WORDS)))
        results = [{**record, **assessment.fields()} for record, assessment in assessed[: decoding.returned]]
        for record in () if keeps_scores else results:
            del record["tokens"], record["token_scores"]
        return results

    def assess(self, record: Mapping[str, Any], agreement: Agreement, estimator: Estimator) -> Assessment:
        """Compute the confidence of one caption with one of the calibration's estimators."""
        words = words_of(record, agreement)
        scored_words = [word for word in words if isinstance(word, Word)]
        confidences = estimator.confidences(scored_words, self.calibration.rates)
        values = iter(confidences.tolist())
        shown = [
            {"word": word.word, "confidence": None if isinstance(word, CaptionWord) else round(next(values), 4)}
            for word in words
        ]
        if not scored_words:
            return Assessment(None, shown, 0.0)
        return Assessment(round(estimator.caption_confidence(confidences), 4), shown, float(np.mean(confidences)))


SAMPLING: dict[str, Any] = {
    **{"do_sample": True, "num_beams": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": SAMPLING_SEED},
    **{"return_scores": True, "return_token_scores": True},
}
"""Options with which captions are sampled: from the probabilities of the captioner as they are."""


def draw_samples(
    pipeline: Any, items: Sequence[dict[str, Any]], count: int, options: Mapping[str, Any]
) -> list[list[dict[str, Any]]]:
    """Return sampled captions of each image, independent of the other images in the batch.

    Args:
        pipeline: see `Assessor`.
        items: prepared images.
        count: samples of each image.
        options: arguments of the call whose captions are assessed.
    """
    sampling = {name: value for name, value in options.items() if name not in OF_THE_SEARCH}
    sampling |= {"num_return_sequences": count, **SAMPLING}
    return [pipeline.caption_prepared([dict(item)], **sampling)[0] for item in items]


def caption_with_confidence(
    pipeline: Any, images: Any, mode: str = SEARCH, batch_size: int = 1, prefer_sure: bool = False, **options: Any
) -> Any:
    """Caption images as a pipeline call does, and add `confidence` and `words` to the records.

    Args:
        pipeline: see `Assessor`.
        images: see `ImageCaptioningPipeline`.
        mode, prefer_sure: see `Assessor`.
        batch_size: images per batch.
        **options: arguments of the call.

    Returns:
        For one image its records, for a list a list of records for each, for an iterator or a data set an iterator.
    """
    assessor = Assessor(pipeline, mode=mode, prefer_sure=prefer_sure)

    def captioned() -> Iterator[list[dict[str, Any]]]:
        remaining = iter(images)
        while batch := list(islice(remaining, batch_size)):
            yield from assessor.caption_prepared([pipeline.prepare(image, **options) for image in batch], **options)

    if isinstance(images, list):
        return list(captioned())
    if isinstance(images, Iterator):
        return captioned()
    return assessor.caption_prepared([pipeline.prepare(images, **options)], **options)[0]


class Decoding(NamedTuple):
    """Decoding method of a call: number of beams, sampling or not, number of returned captions.

    Args:
        beams: number of beams.
        samples: whether captions are sampled.
        returned: captions of each image that are returned.
    """

    beams: int
    samples: bool
    returned: int

    @property
    def is_beam_search(self) -> bool:
        """True if decoding is a beam search, which returns several hypotheses for each image."""
        return self.beams > 1 and not self.samples

    @classmethod
    def of(cls, pipeline: Any, options: Mapping[str, Any]) -> "Decoding":
        """Return the decoding method of a call, from its options and the captioner's defaults."""
        chosen = {**(options.get("generate_kwargs") or {}), **options}
        values = [
            chosen.get(name, default_of(pipeline, name)) for name in ("num_beams", "do_sample", "num_return_sequences")
        ]
        return cls(int(values[0] or 1), bool(values[1]), int(values[2] or 1))


def default_of(pipeline: Any, name: str) -> Any:
    """Return a default generation option of a captioner, exported or not."""
    config = getattr(pipeline.model, "generation_config", None)
    return pipeline.captioner.facts["generation"].get(name) if config is None else getattr(config, name, None)


def calibrated_folder(pipeline: Any) -> Path:
    """Return the directory of a captioner, where its calibration is expected.

    Raises:
        NotCalibratedError: the captioner is in no directory, as an ensemble.
    """
    name = str(getattr(pipeline.model, "name_or_path", "") or "")
    if name and Path(name).is_dir():
        return Path(name)
    path = None
    if name:
        hub = importlib.import_module("huggingface_hub")
        try:
            path = hub.try_to_load_from_cache(name, CALIBRATION_FILE)
        except ValueError:  # no name of a repository
            path = None
    if isinstance(path, str):
        return Path(path).parent
    raise NotCalibratedError(
        f"The captioner {name or 'without a name'} has no calibration ({CALIBRATION_FILE}), so nothing is known of "
        "its confidence. Save it to a directory, and calibrate it on images that it was not trained on: hf-captioners "
        "calibrate DIRECTORY DATA"
    )


def require_calibrated_weights(pipeline: Any) -> None:
    """Check that a captioner computes with the same weights for which it was calibrated.

    Raises:
        ValueError: they are packed as 8-bit integers, which have other probabilities.
    """
    if getattr(pipeline.model, "packed_weights", None) == "int8":
        raise ValueError(
            "`confidence` is calibrated for the weights as they are stored, and `packed_weights` is 'int8'. Leave it "
            "out."
        )

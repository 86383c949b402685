"""Calibration of a captioner: estimators, calibration data, and the file beside the weights."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_captioners.output_files import as_json, read_bytes_inside, write_text

from .digests import captioner_digest
from .estimator import KINDS, Estimator, Logistic, WordRates

CALIBRATION_FILE = "confidence.json"
FORMAT = 1
MAX_BYTES = 2**24
MAX_STEMS = 20_000
MAX_SAMPLES = 100


class NotCalibratedError(ValueError):
    """A captioner has no calibration, or the calibration of a captioner with other weights."""


@dataclass
class Calibration:
    """Calibration of a captioner: estimators, word rates, and data.

    Args:
        digest: of the captioner, see `captioner_digest`.
        estimators: by kind of evidence, see `KINDS`.
        rates: how often words are right.
        num_beams: beams of the search that was calibrated; 1: greedy.
        samples: sampled captions that give the evidence of the kinds with samples.
        data: name, split and number of the images, and how many words and captions they had.
        report: for each kind what cross-validation measured, see `measured`.
        source_digest: of the captioner that was exported, in an exported folder.
    """

    digest: str
    estimators: dict[str, Estimator]
    rates: WordRates
    num_beams: int
    samples: int
    data: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    source_digest: str | None = None

    def save(self, folder: Path) -> Path:
        """Write the calibration beside the weights; return the file."""
        path = folder / CALIBRATION_FILE
        write_text(path, as_json(self.to_dict()) + "\n")
        return path

    def carry_over(self, folder: Path) -> Path:
        """Write the calibration into the folder of an exported captioner with the same weights.

        Args:
            folder: the exported folder, complete but for this file.

        Returns:
            The file, which has the digest of the exported captioner and that of this one.
        """
        carried = replace(self, digest=captioner_digest(folder), source_digest=self.source_digest or self.digest)
        return carried.save(folder)

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as JSON values."""
        return {
            "format": FORMAT,
            "digest": self.digest,
            "source_digest": self.source_digest,
            "data": self.data,
            "num_beams": self.num_beams,
            "samples": self.samples,
            "rate": self.rates.rate,
            "smoothing": self.rates.smoothing,
            "estimators": {kind: _estimator_values(value) for kind, value in self.estimators.items()},
            "report": self.report,
            "words": {stem: list(counts) for stem, counts in sorted(self.rates.counts.items())},
        }

    @classmethod
    def load(cls, folder: Path) -> "Calibration":
        """Read the calibration from a captioner's directory.

        Args:
            folder: directory of the captioner.

        Raises:
            NotCalibratedError: there is none, or it is that of other weights or another tokenizer.
            ValueError: its file is damaged.
        """
        path = folder / CALIBRATION_FILE
        if not path.is_file():
            raise NotCalibratedError(
                f"{folder} has no calibration ({CALIBRATION_FILE}), so nothing is known of its confidence. Calibrate "
                f"it on images that it was not trained on: hf-captioners calibrate {folder} DATA"
            )
        try:
            stored = cls.from_dict(json.loads(read_bytes_inside(path, limit=MAX_BYTES)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
            raise ValueError(
                f"{path} is damaged ({reason}). Calibrate the captioner again, or copy the file."
            ) from error
        if (digest := captioner_digest(folder)) != stored.digest:
            raise NotCalibratedError(
                f"{path} is the calibration of another captioner: its digest is {stored.digest[:12]}, that of the "
                f"weights and the tokenizer of {folder} is {digest[:12]}. Calibrate this captioner: hf-captioners "
                f"calibrate {folder} DATA"
            )
        return stored

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Calibration":
        """Make a calibration from JSON values.

        Raises:
            ValueError, KeyError, TypeError: a value is missing or impossible.
        """
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, expected {FORMAT}; update the library")
        words = values["words"]
        if len(words) > MAX_STEMS:
            raise ValueError(f"it has {len(words):,} words, expected at most {MAX_STEMS:,}")
        counts = {str(stem): (int(total), int(right)) for stem, (total, right) in words.items()}
        if any(not 0 <= right <= total for total, right in counts.values()):
            raise ValueError("a word is right more often than it occurs")
        rates = WordRates(counts, _number(values["rate"], 0, 1), _number(values["smoothing"], 1e-3, 1e6))
        estimators = {
            kind: _estimator(kind, values["estimators"][kind]) for kind in KINDS if kind in values["estimators"]
        }
        if "tokens" not in estimators:
            raise ValueError("it has no estimator `tokens`")
        return cls(
            str(values["digest"]),
            estimators,
            rates,
            int(_number(values["num_beams"], 1, 1000)),
            int(_number(values["samples"], 0, MAX_SAMPLES)),
            dict(values["data"]),
            dict(values["report"]),
            values["source_digest"],
        )


def _number(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{value!r:.40} is no number from {low:g} to {high:g}")
    return float(value)


def _estimator_values(estimator: Estimator) -> dict[str, Any]:
    parts = {"words": estimator.words, "shape": estimator.shape, "captions": estimator.captions}
    return {
        name: {key: [round(float(value), 6) for value in values] for key, values in vars(part).items()}
        for name, part in parts.items()
    }


def _estimator(kind: str, values: Mapping[str, Any]) -> Estimator:
    sizes = {"words": len(KINDS[kind]), "shape": 2, "captions": 1}
    return Estimator(kind, **{name: _logistic(values[name], size) for name, size in sizes.items()})


def _logistic(values: Mapping[str, Any], features: int) -> Logistic:
    arrays = {name: np.array(values[name], dtype=np.float64) for name in ("means", "scales", "weights")}
    sizes = {"means": features, "scales": features, "weights": features + 1}
    for name, array in arrays.items():
        if array.shape != (sizes[name],) or not all(map(math.isfinite, array)):
            raise ValueError(f"`{name}` has the shape {list(array.shape)}, expected {sizes[name]} finite numbers")
    if not (arrays["scales"] > 0).all():
        raise ValueError("`scales` are not above 0")
    return Logistic(**arrays)

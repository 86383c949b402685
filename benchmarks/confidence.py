"""Measure the confidence of a calibrated captioner on the odd rows of Flickr8k's validation photographs.

    hf-captioners calibrate default $HF_CAPTIONERS_DATA_DIR/flickr8k --split validation --rows even
    python benchmarks/confidence.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k
    python benchmarks/write_confidence.py

The captioner was calibrated on the even rows, on which the features of its estimators were chosen too. For each kind
of evidence: how confidence orders words and captions, its calibration error, and the support of the surest half. For
`prefer_sure`: support, CIDEr-D and content words of the captions. CPU times are those of one thread, of all three ways
of captioning the same photographs in turn.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from provenance import ROOT, write_results

from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.calibrating import observe, observed_words, rows_of
from hf_captioners.captioning.data_set import load_split
from hf_captioners.confidence.assessing import Assessor
from hf_captioners.confidence.caption_words import content_words
from hf_captioners.confidence.fitting import Predicted, predicted_by
from hf_captioners.confidence.measures import calibration_error, measured
from hf_captioners.metrics import PTBTokenizer, caption_support, compare_systems, compute_caption_metrics

SPLIT, ROWS = "validation", "odd"
RESULTS = ROOT / "benchmarks" / "results" / "confidence.json"
METRICS = ("support", "cider_d")


def captioned(captioner: Any, pipeline: Any, rows: Any, **options: Any) -> tuple[list[dict[str, Any]], float]:
    """Return the best record of each image, and the CPU seconds for an image."""
    start = time.process_time()
    records = [captioner.caption_prepared([pipeline.prepare(row["image"])], **options)[0][0] for row in rows]
    return records, (time.process_time() - start) / len(rows)


def figures_of(records: list[dict[str, Any]], references: list[list[str]]) -> dict[str, Any]:
    """Return metrics of captions, and the content words of a caption."""
    captions = [record["generated_text"] for record in records]
    found = compute_caption_metrics(captions, references, METRICS)
    words = float(np.mean([len(content_words(text)) for text in captions]))
    return {name: found[name] for name in found["variants"]} | {
        "content_words": words,
        "per_image": found["per_image"],
    }


def error_of(records: list[dict[str, Any]], references: list[list[str]]) -> float:
    """Return the calibration error of the words of captions."""
    tokenize = PTBTokenizer()
    confidences, is_right = [], []
    for record, texts in zip(records, references, strict=True):
        support = caption_support(tokenize([record["generated_text"]])[0], tokenize(texts))
        confidences += [word["confidence"] for word in record["words"]]
        is_right += support.supported
    return calibration_error(np.array(confidences), np.array(is_right))


def own_probabilities(observed: list[Any]) -> dict[str, Any]:
    """Return the figures of the captioner's own probabilities, without calibration."""
    kept = [one for one in observed if one.words]
    words = [1 / (1 + np.exp(-np.array([word.values["token"] for word in one.words]))) for one in kept]
    captions = np.exp([one.words[0].values["caption"] for one in kept])
    return measured(Predicted(words, [np.array(one.supported, dtype=bool) for one in kept], captions))


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="default", help="calibrated captioner with graphs; default: the installed one"
    )
    parser.add_argument("--data_dir", required=True, help="folder of Flickr8k")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = rows_of(load_split(args.data_dir, None, SPLIT, {}), ROWS)
    references = list(rows["captions"])
    pipeline = load_pipeline(args.model, backend="onnx", threads=1)
    assessor = Assessor(pipeline)
    calibration = assessor.calibration
    plain, plain_seconds = captioned(pipeline, pipeline, rows)
    results: dict[str, Any] = {
        "data": f"flickr8k {SPLIT}, {ROWS} rows",
        "images": len(rows),
        "calibrated_on": calibration.data,
        "seconds": {"plain": plain_seconds},
        "plain": figures_of(plain, references),
        "prefer_sure": {},
    }
    for mode in ("search", "samples"):
        sure, seconds = captioned(Assessor(pipeline, calibration, mode, prefer_sure=True), pipeline, rows)
        results["seconds"][mode] = seconds
        figures = figures_of(sure, references)
        figures["calibration_error_words"] = error_of(sure, references)
        gain = compare_systems(figures["per_image"]["support"], results["plain"]["per_image"]["support"])
        results["prefer_sure"][mode] = figures | {"gain_of_support": gain._asdict()}
    greedy, _ = captioned(Assessor(pipeline, calibration), pipeline, rows, num_beams=1)
    results["greedy"] = {"calibration_error_words": error_of(greedy, references)}
    observed = observed_words(observe(pipeline, rows, calibration.samples), True)
    results["kinds"] = {
        kind: measured(predicted_by(estimator, calibration.rates, observed))
        for kind, estimator in calibration.estimators.items()
    }
    results["own_probabilities"] = own_probabilities(observed)
    for figures in (results["plain"], *results["prefer_sure"].values()):
        del figures["per_image"]
    write_results(args.output, results)


if __name__ == "__main__":
    main()

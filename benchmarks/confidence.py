"""Measure the confidence estimates of a calibrated captioner on the odd rows of Flickr8k's validation photographs.

    hf-captioners calibrate default $HF_CAPTIONERS_DATA_DIR/flickr8k --split validation --rows even
    python benchmarks/confidence.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --work_dir runs/confidence
    python benchmarks/write_confidence.py

The captioner was calibrated on the even rows, on which the features of its estimators were chosen too. For each kind
of evidence: how confidence orders words and captions, its calibration error, and the support of the surest half. For
`prefer_sure`: support, CIDEr-D and content words of the captions. CPU times are those of one thread; each photograph
is captioned in all ways in turn. What was captioned is kept in the work folder, so that an interrupted run goes on.
Figures of a captioner are added to `benchmarks/results/confidence.json` under its name.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from provenance import ROOT, records_of, write_results

from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.captioning.calibrating import observe, observed_words, rows_of
from hf_captioners.captioning.data_set import load_split
from hf_captioners.captioning.scoring import compare_scores
from hf_captioners.confidence.assessing import Assessor
from hf_captioners.confidence.caption_words import content_words
from hf_captioners.confidence.fitting import Predicted, predicted_by
from hf_captioners.confidence.measures import calibration_error, measured
from hf_captioners.metrics import PTBTokenizer, caption_support, compute_caption_metrics

SPLIT, ROWS = "validation", "odd"
RESULTS = ROOT / "benchmarks" / "results" / "confidence.json"
METRICS = ("support", "cider_d")
MODES = ("search", "samples")


def caption_in_all_ways(pipeline: Any, assessors: dict[str, Assessor], row: Any) -> dict[str, Any]:
    """Caption a photograph by every method (plain, greedy, by confidence); return its best records and CPU seconds."""
    ways = {"plain": (pipeline, {}), **{mode: (assessors[mode], {}) for mode in MODES}}
    ways["greedy"] = (assessors["plain_search"], {"num_beams": 1})
    records: dict[str, Any] = {"seconds": {}}
    for name, (captioner, options) in ways.items():
        start = time.process_time()
        records[name] = captioner.caption_prepared([pipeline.prepare(row["image"])], **options)[0][0]
        records["seconds"][name] = time.process_time() - start
    return records


def captioned(pipeline: Any, assessors: dict[str, Assessor], rows: Any, file: Path) -> list[dict[str, Any]]:
    """Caption photographs by every method; results that the file already has are not computed again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    results = [json.loads(line) for line in lines if line.endswith("\n")]
    samples = assessors["search"].calibration.samples
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(line for line in lines if line.endswith("\n"))
        for place in range(len(results), len(rows)):
            result = caption_in_all_ways(pipeline, assessors, rows[place])
            ((_, hypotheses, drawn),) = observe(pipeline, rows.select([place]), samples)
            results.append(result | {"hypotheses": hypotheses, "drawn": drawn})
            stream.write(json.dumps(results[-1]) + "\n")
            stream.flush()
            if len(results) % 50 == 0:
                print(len(results), "photographs", flush=True)
    return results


def figures_of(records: list[dict[str, Any]], references: list[list[str]]) -> dict[str, Any]:
    """Return metrics of captions, over all images and of each, and the mean number of content words."""
    captions = [record["generated_text"] for record in records]
    metrics = compute_caption_metrics(captions, references, METRICS)
    words = float(np.mean([len(content_words(text)) for text in captions]))
    return {name: metrics[name] for name in (*METRICS, "per_image")} | {"content_words": words}


def ratio(first: Sequence[float], second: Sequence[float], samples: int = 2000) -> dict[str, Any]:
    """Return the ratio of two systems' mean scores on the same images, with its bootstrapped 95 % interval."""
    pairs, draw = np.array([first, second]), np.random.default_rng(0)
    drawn = [pairs[:, draw.integers(len(first), size=len(first))].mean(1) for _ in range(samples)]
    bounds = np.quantile([means[0] / means[1] for means in drawn], [0.025, 0.975])
    return {"value": pairs[0].mean() / pairs[1].mean(), "interval": bounds.tolist()}


def error_of(records: list[dict[str, Any]], references: list[list[str]]) -> float:
    """Return the calibration error of the word confidences."""
    tokenize = PTBTokenizer()
    confidences, is_right = [], []
    for record, texts in zip(records, references, strict=True):
        support = caption_support(tokenize([record["generated_text"]])[0], tokenize(texts))
        confidences += [word["confidence"] for word in record["words"]]
        is_right += support.supported
    return calibration_error(np.array(confidences), np.array(is_right))


def own_probabilities(observed: list[Any]) -> dict[str, Any]:
    """Evaluate the captioner's raw probabilities as confidence, without calibration."""
    kept = [caption for caption in observed if caption.words]
    words = [1 / (1 + np.exp(-np.array([word.values["token"] for word in caption.words]))) for caption in kept]
    captions = np.exp([caption.words[0].values["caption"] for caption in kept])
    return measured(Predicted(words, [np.array(caption.supported, dtype=bool) for caption in kept], captions))


def figures(results: list[dict[str, Any]], rows: Any, assessor: Assessor) -> dict[str, Any]:
    """Return all measurements of a captioner."""
    references, calibration = list(rows["captions"]), assessor.calibration
    plain = figures_of([result["plain"] for result in results], references)
    sure = {}
    for mode in MODES:
        records = [result[mode] for result in results]
        caption_figures = figures_of(records, references)
        images = caption_figures.pop("per_image")
        sure[mode] = caption_figures | {
            "calibration_error_words": error_of(records, references),
            "gain_of_support": compare_scores({"support": images["support"]}, plain["per_image"])["support"],
            "share_of_cider_d": ratio(images["cider_d"], plain["per_image"]["cider_d"]),
        }
    observed = observed_words(
        ((row, result["hypotheses"], result["drawn"]) for row, result in zip(rows, results, strict=True)),
        assessor.decoding().is_beam_search,
    )
    kinds = {
        kind: measured(predicted_by(estimator, calibration.rates, observed))
        for kind, estimator in calibration.estimators.items()
    }
    greedy = error_of([result["greedy"] for result in results], references)
    names = list(results[0]["seconds"])
    return {
        "data": f"flickr8k {SPLIT}, {ROWS} rows",
        "images": len(results),
        "calibrated_on": calibration.data,
        "seconds": {name: float(np.mean([result["seconds"][name] for result in results])) for name in names},
        "plain": {name: plain[name] for name in (*METRICS, "content_words")},
        "prefer_sure": sure,
        "greedy": {"calibration_error_words": greedy},
        "kinds": kinds,
        "own_probabilities": own_probabilities(observed),
    }


def main() -> None:
    """Measure captioners, and add them to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="calibrated captioner; default: the installed one")
    parser.add_argument("--backend", default="onnx", help="onnx or torch; default: onnx")
    parser.add_argument("--name", default="default", help="name of the captioner in the results; default: default")
    parser.add_argument("--data_dir", required=True, help="folder of Flickr8k")
    parser.add_argument("--work_dir", type=Path, required=True, help="folder of what was captioned")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = rows_of(load_split(args.data_dir, None, SPLIT, {}), ROWS)
    pipeline = load_pipeline(args.model, backend=args.backend, threads=1)
    assessor = Assessor(pipeline)
    assessors = {mode: Assessor(pipeline, assessor.calibration, mode, prefer_sure=True) for mode in MODES}
    results = captioned(pipeline, assessors | {"plain_search": assessor}, rows, args.work_dir / f"{args.name}.jsonl")
    earlier = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {"captioners": {}}
    earlier["captioners"][args.name] = figures(results, rows, assessor)
    write_results(args.output, earlier, records_of(args.output))


if __name__ == "__main__":
    main()

"""Compare the speed of the caption metrics with the unmodified original programs, in one run on one core.

python benchmarks/metrics.py --references captions_val2014.json \
    --pycocoevalcap SITE_PACKAGES --ciderd cider/pyciderevalcap/ciderD --m2 meshed-memory-transformer

`--references` is an annotation file of COCO. The last caption of an image is the candidate, the others are the
references. Each original program runs if its option is given: `--pycocoevalcap` is the folder that contains the
package, `--ciderd` the folder of `ciderD_scorer.py`, `--m2` the root of meshed-memory-transformer with the jar of the
tokenizer.

Times are medians of CPU seconds, including child processes, from strings to floats.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import pickle
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
from known_changes import known_changes, provenance_lines
from provenance import records_of, write_results

from hf_captioners.metrics import (  # noqa: E402
    CiderD,
    DocumentFrequency,
    Meteor,
    MeteorTables,
    PTBTokenizer,
    bleu_counts,
    bleu_from_counts,
    compute_caption_metrics,
    corpus_bleu,
    rouge_l,
)

RESULTS = Path(__file__).parent / "results" / "metrics.json"
PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
MARK = "<!-- made by benchmarks/metrics.py -->\n"
OURS_TOKENIZE = """
import json, sys
from hf_captioners.metrics import PTBTokenizer
PTBTokenizer()(json.load(open(sys.argv[1])))
"""
OURS_METEOR = """
import json, sys
from hf_captioners.metrics import Meteor, MeteorTables
predictions, references = json.load(open(sys.argv[1]))
Meteor(tables=MeteorTables(sys.argv[2])).score(predictions, references)
"""
OURS_IMPORT = """
import sys, time, numpy
start = time.process_time()
import hf_captioners.metrics as metrics
metrics.compute_caption_metrics
print(time.process_time() - start)
"""
THEIR_METEOR = """
import json, sys
sys.path.insert(0, sys.argv[2])
from pycocoevalcap.meteor.meteor import Meteor
predictions, references = json.load(open(sys.argv[1]))
meteor = Meteor()
meteor.compute_score(dict(enumerate(references)), dict(enumerate([p] for p in predictions)))
meteor.meteor_p.stdin.close(); meteor.meteor_p.wait()
"""


class Data:
    """Captions and references of images, raw and tokenised."""

    def __init__(self, path: Path) -> None:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            annotations = json.load(file)["annotations"]
        captions: dict[int, list[str]] = {}
        for row in annotations:
            captions.setdefault(row["image_id"], []).append(row["caption"].replace("\n", " "))
        rows = [texts for texts in captions.values() if len(texts) > 1]
        self.raw_references = [texts[:5] for texts in rows]
        self.raw_predictions = [texts[-1] for texts in rows]
        tokenize = PTBTokenizer()
        self.references = [tokenize(texts) for texts in self.raw_references]
        self.predictions = tokenize(self.raw_predictions)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its finished child processes."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def median(run: Callable[[], Any], repeats: int) -> float:
    """Return the median CPU seconds of several runs."""
    seconds = []
    for _ in range(repeats):
        start = cpu_seconds()
        with contextlib.redirect_stdout(io.StringIO()):
            run()
        seconds.append(cpu_seconds() - start)
    return statistics.median(seconds)


def mean_of_many(run: Callable[[], Any], repeats: int, times: int) -> float:
    """Return the CPU seconds of a function too short for a single measurement, as the mean of many calls."""
    return median(lambda: [run() for _ in range(times)], repeats) / times


def in_process(code: str, *arguments: str) -> str:
    """Run code in a new Python process and return its output."""
    return subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True).stdout


class Report:
    """List of measurements, printed as they are added."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def compare(self, name: str, original: float, ours: float, wanted: float) -> None:
        """Add the seconds of the original program and of this library, and their ratio."""
        ratio = original / ours
        row = {"what": name, "original_seconds": original, "our_seconds": ours, "ratio": ratio, "wanted": wanted}
        self.rows.append(row)
        print(f"{name:<64} {original:9.4f} {ours:9.5f} {ratio:7.1f} x (at least {wanted:g} x)", flush=True)


def time_tokenizer(report: Report, data: Data, scratch: Path, original: type) -> None:
    """Time the PTB tokenizer against the Java one of pycocoevalcap."""
    captions = [caption for texts in data.raw_references for caption in texts][:25_000]
    file = scratch / "captions.json"
    file.write_text(json.dumps(captions))

    def theirs(texts: Sequence[str]) -> None:
        original().tokenize({number: [{"caption": text}] for number, text in enumerate(texts)})

    PTBTokenizer()(captions[:500])  # compiles the rules, which happens on first use
    whole, start = median(lambda: theirs(captions), 5), median(lambda: theirs(captions[:1]), 5)
    running = median(lambda: PTBTokenizer()(captions), 7)
    fresh = median(lambda: in_process(OURS_TOKENIZE, str(file)), 5)
    report.compare("tokenizer, 25,000 captions, running process, empty cache", whole - start, running, 5)
    report.compare("tokenizer, 25,000 captions, including start-up", whole, fresh, 2.5)
    print(f"    start-up alone: Java {start:.3f} s, ours with the tokenizer imported {fresh - running:.3f} s")


def time_rewards(report: Report, data: Data, scratch: Path, folder: Path) -> None:
    """Time CIDEr-D rewards against the `ciderD` class of self-critical training (frequencies of 6,000 images)."""
    sys.path.insert(0, str(folder))
    from ciderD_scorer import CiderScorer

    frequencies: dict[tuple[str, ...], float] = defaultdict(float)
    corpus = data.references[:6000]
    for texts in corpus:
        grams = {
            tuple(w[i : i + n]) for w in map(str.split, texts) for n in range(1, 5) for i in range(len(w) - n + 1)
        }
        for gram in grams:
            frequencies[gram] += 1
    for place in ("data", "data/tmp/4"):  # forks use different folders
        (scratch / place).mkdir(parents=True, exist_ok=True)
        with open(scratch / place / "frequencies.p", "wb") as file:
            pickle.dump({"document_frequency": frequencies, "ref_len": float(len(corpus))}, file)
    with contextlib.chdir(scratch):
        scorer = CiderScorer(df_mode="frequencies")
    samples, references, images = _samples(data)

    def theirs() -> np.ndarray:
        batch = scorer.copy_empty()
        for sample, image in zip(samples, images, strict=True):
            batch += (sample, references[image])
        return batch.compute_score()[1]

    frequency = DocumentFrequency.per_image(corpus)
    prepared = CiderD(references, frequency)
    assert np.abs(prepared.score(samples, images) - theirs()).max() < 1e-9
    original = median(theirs, 9)
    ours = mean_of_many(lambda: prepared.score(samples, images).tolist(), 7, 20)
    report.compare("CIDEr-D reward, 50 images x 5 samples, references prepared", original, ours, 50)
    ours = mean_of_many(lambda: CiderD(references, frequency).score(samples, images).tolist(), 7, 20)
    report.compare("CIDEr-D reward, 50 images x 5 samples, references not prepared", original, ours, 25)


def _samples(data: Data, raw: bool = False) -> tuple[list[str], list[list[str]], list[int]]:
    """Return five captions per image for 50 images: the image's own and those of the next four."""
    predictions, references = (
        (data.raw_predictions, data.raw_references) if raw else (data.predictions, data.references)
    )
    samples = [predictions[image + shift] for image in range(50) for shift in range(5)]
    return samples, references[:50], [image for image in range(50) for _ in range(5)]


def time_m2_rewards(report: Report, data: Data, folder: Path) -> None:
    """Time CIDEr-D rewards against those of meshed-memory-transformer, tokenizer included."""
    sys.path.insert(0, str(folder))
    from evaluation import Cider
    from evaluation import PTBTokenizer as TheirTokenizer

    captions = [caption for texts in data.references[:6000] for caption in texts]
    cider = Cider({number: [caption] for number, caption in enumerate(captions)})
    samples, references, images = _samples(data, raw=True)

    def theirs() -> np.ndarray:
        generated = TheirTokenizer.tokenize(samples)
        wanted = TheirTokenizer.tokenize([references[image] for image in images])
        return cider.compute_score(wanted, generated)[1]

    frequency = DocumentFrequency.per_caption(captions)

    def ours() -> np.ndarray:
        tokenize = PTBTokenizer()
        return CiderD([tokenize(texts) for texts in references], frequency).score(tokenize(samples), images)

    assert np.abs(ours() - theirs()).max() < 1e-9
    name = "reward of meshed-memory-transformer, 50 images x 5 samples: tokenizer and CIDEr"
    report.compare(name, median(theirs, 5), mean_of_many(ours, 7, 10), 40)


def time_scorers(report: Report, data: Data) -> None:
    """Time CIDEr, BLEU and ROUGE-L against pycocoevalcap."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    predictions, references = data.predictions[:5000], data.references[:5000]
    wanted, generated = dict(enumerate(references)), {number: [text] for number, text in enumerate(predictions)}

    def bleu() -> tuple[list[float], list[list[float]]]:
        counts = bleu_counts(predictions, references)
        return corpus_bleu(counts).tolist(), bleu_from_counts(counts).tolist()

    name = "5,000 images x 5 references"
    ours = median(lambda: CiderD(references).score(predictions).tolist(), 5)
    report.compare(f"corpus CIDEr, {name}", median(lambda: Cider().compute_score(wanted, generated), 3), ours, 3)
    theirs = median(lambda: Bleu(4).compute_score(wanted, generated), 3)
    report.compare(f"BLEU-1..4, {name}", theirs, median(bleu, 5), 2)
    theirs = median(lambda: Rouge().compute_score(wanted, generated), 3)
    report.compare(f"ROUGE-L, {name}", theirs, median(lambda: rouge_l(predictions, references).tolist(), 5), 2)


def time_meteor(report: Report, data: Data, scratch: Path, folder: Path) -> None:
    """Time METEOR against the Java program, each in a new process."""
    file, tables = scratch / "meteor.json", str(folder / "pycocoevalcap" / "meteor")
    file.write_text(json.dumps([data.predictions[:1000], data.references[:1000]]))
    Meteor(tables=MeteorTables(tables)).score(["a"], [["a"]])  # builds the index of the paraphrases once
    theirs = median(lambda: in_process(THEIR_METEOR, str(file), str(folder)), 3)
    ours = median(lambda: in_process(OURS_METEOR, str(file), tables), 3)
    report.compare("METEOR, 1,000 images x 5 references, including start-up", theirs, ours, 1)


def time_import() -> float:
    """Return the CPU seconds of importing the metrics after numpy."""
    seconds = statistics.median(float(in_process(OURS_IMPORT)) for _ in range(5))
    print(f"import of hf_captioners.metrics after numpy: {seconds:.3f} s")
    return seconds


def time_growth(data: Data) -> list[dict[str, float]]:
    """Time BLEU, ROUGE-L and CIDEr-D from raw text for increasing numbers of images."""
    rows = []
    for size in (100, 1_000, 10_000, 40_000):
        if size <= len(data.predictions):
            predictions, references = data.raw_predictions[:size], data.raw_references[:size]
            seconds = median(lambda p=predictions, r=references: compute_caption_metrics(p, r), 3)
            rows.append({"images": size, "seconds": seconds, "microseconds_per_image": 1e6 * seconds / size})
            print(f"{size:>7,} images: {seconds:8.3f} s, {1e6 * seconds / size:6.1f} microseconds per image")
    return rows


def write_page(figures: dict[str, Any]) -> None:
    """Write the measurements to the end of the page on metrics."""
    lines = [
        *provenance_lines(RESULTS.stem, records_of(RESULTS), known_changes()),
        f"CPU seconds on {figures['machine']}. All programs were measured in the same run.",
        "",
        "| task | original | this library | speed-up |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['what']} | {row['original_seconds']:.4g} | {row['our_seconds']:.2g} | {row['ratio']:.1f} |"
        for row in figures["rows"]
    ]
    lines += ["", "BLEU, ROUGE-L and CIDEr-D together, from raw text with five references per image:", ""]
    lines += ["| images | CPU seconds | microseconds per image |", "|---|---|---|"]
    lines += [
        f"| {row['images']:,} | {row['seconds']:.3g} | {row['microseconds_per_image']:.0f} |"
        for row in figures["growth"]
    ]
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(head + MARK + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Run the selected comparisons, and write the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--pycocoevalcap", type=Path)
    parser.add_argument("--ciderd", type=Path)
    parser.add_argument("--m2", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    report, data = Report(), Data(args.references)
    print(f"{'':<64} {'original':>9} {'ours':>9}   CPU seconds")
    with tempfile.TemporaryDirectory() as scratch:
        if args.pycocoevalcap:
            sys.path.insert(0, str(args.pycocoevalcap))
            from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer as TheirTokenizer

            time_tokenizer(report, data, Path(scratch), TheirTokenizer)
            time_scorers(report, data)
            time_meteor(report, data, Path(scratch), args.pycocoevalcap)
        if args.ciderd:
            time_rewards(report, data, Path(scratch), args.ciderd)
        if args.m2:
            time_m2_rewards(report, data, args.m2)
    import_seconds, growth = time_import(), time_growth(data)
    machine = f"{platform.machine()}, one core, Python {platform.python_version()}, numpy {np.__version__}"
    figures = {"machine": machine, "rows": report.rows, "import_seconds": import_seconds, "growth": growth}
    write_results(args.output, figures)
    if args.output == RESULTS:
        write_page(figures)


if __name__ == "__main__":
    main()

"""Write docs/confidence.md and its figure from the results of confidence.py and correct_doubtful.py.

python benchmarks/confidence.py --data_dir $HF_CAPTIONERS_DATA_DIR/flickr8k --work_dir runs/confidence
python benchmarks/correct_doubtful.py --data_dir $HF_CAPTIONERS_DATA_DIR/coco --output_dir runs/doubtful
python benchmarks/write_confidence.py
"""

import json
import statistics
import textwrap
from collections.abc import Mapping
from typing import Any

from known_changes import RESULTS as FOLDER
from known_changes import known_changes, provenance_lines
from provenance import ROOT

from hf_captioners.confidence.figure import calibration_figure

PAGE, FIGURE = ROOT / "docs" / "confidence.md", "figures/confidence.svg"
RESULTS, CORRECTIONS = FOLDER / "confidence.json", FOLDER / "correct_doubtful.json"
DEFAULT = "default"
NAMES = {DEFAULT: "default captioner", "show_attend_tell": "Show, Attend and Tell"}
KINDS = {
    "tokens": "tokens, calibrated",
    "beams": "tokens and hypotheses of the beam search (`--confidence`)",
    "samples": "tokens and 10 sampled captions",
    "beams_and_samples": "all of these (`--confidence samples`)",
}
HEAD = """# Confidence

A calibrated captioner says how sure it is of a caption and of each content word:

```bash
hf-captioners caption docs/photo.jpg --confidence
```

prints the caption, the probability that all its content words are right, and that of each word:

```text
a man is riding a dirt bike in the woods	0.24 (man 0.77, riding 0.62, dirt 0.71, bike 0.83, woods 0.62)
```

A word is *right* if one of the people who described the photograph used it, or a word with the same stem: the metric
`support` of [metrics](metrics.md). Articles, prepositions, pronouns, auxiliaries and conjunctions have no confidence.
The [default captioner](onnx.md#the-default-captioner) is calibrated. A captioner that is not says so, and gives no
number.

## What the number does not mean

- **Agreement is not truth.** A word that nobody used may be true: people name other things in a photograph, and use
  other words for them. A word that somebody used may be wrong of the object that the caption means: with one red shirt
  and one blue one, "red" is right for both.
- **It holds for images like those of the calibration.** A confidence of 0.8 means that 80 % of such words were right
  on these images. On drawings, X-rays or photographs at night it means nothing until you calibrate on them.
- **The confidence of a caption is that of all its content words together.** One doubtful word makes a caption
  doubtful, and long captions are doubted more than short ones. It says nothing about what the caption leaves out.
- **Words only.** Counts, relations and the order of words are not judged: "a dog chases a man" has the confidence of
  "a man chases a dog".
- **English only.** Captions in other languages cannot be calibrated.

## Get the confidence

| where | how |
|---|---|
| command line | `caption --confidence`; with `--output` or `--sidecar` see the next section |
| Python | `pipeline("image-captioning")(image, return_confidence=True)`, `CaptionBatches(confidence="search")` |
| HTTP | `serve --confidence`: the answer has `confidence` and `words` |
| `review` | doubtful words are underlined, and images can be ordered by doubt, if captions were written with it |
| `explain` | words have the colour of their confidence: `explain --confidence` |

`confidence` is a number from 0 to 1, null for a caption without content words. `words` is a list of `{"word":
"shirt", "confidence": 0.31}`, null of a word that the captioner did not choose, such as one of the prompt.

- `--confidence` takes what the search of the caption knows, and costs next to nothing. `--confidence samples` also
  draws sampled captions, which order words a little better (see below for both).
- `--min_confidence 0.3` leaves captions below it out, and says how many. No word is ever deleted.
- `--prefer_sure` takes the surest hypothesis of the beam search instead of the most probable one.

JSONL and Parquet have `confidence` and `words` for each image, CSV has `confidence`, and of several captions an image
`confidences` has all. Text files beside images have captions only.

```python
import hf_captioners
from transformers import pipeline

captioner = pipeline("image-captioning")
record = captioner("docs/photo.jpg", return_confidence=True)[0]
print([word["word"] for word in record["words"] if word["confidence"] < 0.65])  # ['riding', 'woods']
```

## Calibrate a captioner

```bash
hf-captioners calibrate my_captioner my_images --split validation
```

The images have English captions of people, five each if possible, and the captioner was not trained on them: 50 at
least, better 500. `confidence.json` and `confidence.svg` are written beside the weights, and a section is added to the
card. A calibration belongs to weights and tokenizer: with others, for example after further training, it is refused.
`export` carries it to an export in float32; one with 8-bit weights has other probabilities, and is calibrated itself.
It works for captioners of this library and for models of transformers in a local directory.

The estimator of a word is a logistic regression with beta calibration over: the probability of its tokens, the mean
log-probability of the caption, how often the word was right in the calibration, and the shares of beams and samples
that have it. The confidence of a caption is calibrated from the confidences of its words. Captions are searched as the
captioner is set; for greedy search, calibrate with `--num_beams 1`.
"""


def page() -> str:
    """Format the whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    own = results["captioners"][DEFAULT]
    lines = [
        "\n## Results\n",
        paragraph(
            f"The default captioner is calibrated on the {own['calibrated_on']['images']} even rows of Flickr8k's "
            f"validation photographs and measured on the {own['images']} odd ones. Its weights were chosen on all of "
            "them, so its captions may be a little better here than elsewhere. Intervals are 95 % intervals of the "
            "bootstrap over images; those of calibration errors are biased upwards."
        ),
        *provenance_lines("confidence", results["provenance"], known_changes()),
        f"![Reliability of words, and support of the surest captions]({FIGURE})\n",
        *targets(own),
        "\n### By what is known of a word\n",
        *kinds(own),
        *others(results["captioners"]),
        *corrections(),
    ]
    return HEAD + "\n".join(lines) + "\n"


def paragraph(text: str) -> str:
    """Wrap a paragraph into lines."""
    return textwrap.fill(text, 119, break_long_words=False, break_on_hyphens=False) + "\n"


def targets(own: Mapping[str, Any]) -> list[str]:
    """Format the table of targets and measurements."""
    search, samples = own["kinds"]["beams"], own["kinds"]["beams_and_samples"]
    sure, plain = own["prefer_sure"]["search"], own["plain"]
    gain, share = sure["gain_of_support"], sure["share_of_cider_d"]
    times = {mode: own["seconds"][mode] / own["seconds"]["plain"] for mode in ("search", "samples")}
    rows = [
        ("AUROC of words, `--confidence`", "0.72", measured(search, "auroc_words")),
        ("CPU time, `--confidence`", "at most 1.5 times", f"{times['search']:.2f} times"),
        ("AUROC of words, `--confidence samples`", "0.74", measured(samples, "auroc_words")),
        ("CPU time, `--confidence samples`", "", f"{times['samples']:.2f} times"),
        ("AUROC of captions", "0.78", measured(search, "auroc_captions")),
        ("calibration error of words", "at most 0.04", measured(search, "calibration_error_words")),
        ("calibration error of captions", "", measured(search, "calibration_error_captions")),
        ("support of the surest half, divided by that of all", "1.22", measured(search, "surest_half")),
        ("`--prefer_sure`: gain of support", "0.02", interval(gain["difference"], gain["low"], gain["high"])),
        ("`--prefer_sure`: share of CIDEr-D", "0.93", interval(share["value"], *share["interval"])),
        ("`--prefer_sure`: content words of a caption", "4", f"{sure['content_words']:.2f}"),
    ]
    return [
        "| measure | target | measured |",
        "|---|---|---|",
        *(f"| {name} | {target} | {value} |" for name, target, value in rows),
        "",
        paragraph(
            f"Captions without `--prefer_sure` have a support of {plain['support']:.3f}, a CIDEr-D of "
            f"{plain['cider_d']:.3f} and {plain['content_words']:.2f} content words. The captions of the calibration "
            "are those of the beam search. With `--prefer_sure` the calibration error of words is "
            f"{sure['calibration_error_words']:.3f}, and with greedy search (`--num_beams 1`) "
            f"{own['greedy']['calibration_error_words']:.3f}."
        ),
    ]


def kinds(own: Mapping[str, Any]) -> list[str]:
    """Format the table of kinds of evidence."""
    lines = [
        "| evidence | AUROC of words | calibration error of words | AUROC of captions | surest half |",
        "|---|---|---|---|---|",
        row("probabilities of the tokens, not calibrated", own["own_probabilities"]),
    ]
    return lines + [row(text, own["kinds"][kind]) for kind, text in KINDS.items() if kind in own["kinds"]]


def others(captioners: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Format the table of other captioners measured by the same commands."""
    names = [name for name in captioners if name != DEFAULT]
    if not names:
        return []
    columns = ("captioner", "support", "AUROC of words", "calibration error of words", "AUROC of captions")
    columns += ("surest half", "gain of `--prefer_sure`")
    lines = [
        "\n### Other captioners\n",
        "Trained on Flickr8k's training photographs, calibrated and measured on the same rows, with beam search:\n",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for name in (DEFAULT, *names):
        one = captioners[name]
        gain = one["prefer_sure"]["search"]["gain_of_support"]
        cells = row(f"{NAMES.get(name, name)} | {one['plain']['support']:.3f}", one["kinds"]["beams"])
        lines.append(f"{cells} {interval(gain['difference'], gain['low'], gain['high'])} |")
    return lines


def corrections() -> list[str]:
    """Format the section on corrections of the least confident captions; [] if they were not measured."""
    if not CORRECTIONS.is_file():
        return []
    results = json.loads(CORRECTIONS.read_text(encoding="utf-8"))
    before, runs = results["before"], results["runs"]
    lines = [
        "\n### Correct the doubtful captions first?\n",
        paragraph(
            f"Of {results['photographs']} photographs of COCO, those with the least confident captions are corrected "
            "first (a caption of a person each), or random ones. The default captioner is trained on them as `train "
            f"--model default` does, and scored on {results['test_photographs']} others, the same for all. Before "
            f"training: CIDEr-D {before['cider_d']:.3f}, support {before['support']:.3f}. Mean and standard deviation "
            "over draws; the draws of doubtful photographs differ in the seed of the training only."
        ),
        *provenance_lines("correct_doubtful", results["provenance"], known_changes()),
        "| photographs | draws | CIDEr-D, doubtful | CIDEr-D, random | support, doubtful | support, random |",
        "|---|---|---|---|---|---|",
    ]
    for count in sorted({run["images"] for run in runs}):
        of_count = [run for run in runs if run["images"] == count]
        orders = {order: [run for run in of_count if run["order"] == order] for order in ("doubtful", "random")}
        if min(map(len, orders.values())) < 2:
            continue
        cells = [spread([run[metric] for run in orders[order]]) for metric in before for order in orders]
        lines.append(f"| {count} | {len(orders['random'])} | {' | '.join(cells)} |")
    return lines


def row(name: str, figures: Mapping[str, Any]) -> str:
    """Format a table row with the measurements of one kind of evidence."""
    keys = ("auroc_words", "calibration_error_words", "auroc_captions", "surest_half")
    return f"| {name} | {' | '.join(measured(figures, key) for key in keys)} |"


def measured(figures: Mapping[str, Any], key: str) -> str:
    """Format a measurement with its interval."""
    return interval(figures[key]["value"], *figures[key]["interval"])


def interval(value: float, low: float, high: float) -> str:
    """Format a measurement with the bounds of its interval."""
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def spread(values: list[float]) -> str:
    """Format mean and standard deviation."""
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def figure() -> str:
    """Return the calibration figure of the default captioner as SVG."""
    own = json.loads(RESULTS.read_text(encoding="utf-8"))["captioners"][DEFAULT]
    return calibration_figure(own["kinds"]["beams"], f"Default captioner, {own['images']} photographs of Flickr8k")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    (PAGE.parent / FIGURE).write_text(figure(), encoding="utf-8")

"""Score the same captions with all evaluators in use, to measure how much scores depend on the evaluator.

    pip install nltk spacy
    python benchmarks/evaluator.py --data_dir $HF_CAPTIONERS_DATA_DIR --coco_captions captions_train2014.json

The captions are those of two published systems on the 5,000 images of COCO's Karpathy test split, with a caption of a
person that is scored against the others, and those of the default captioner on the 1,000 validation photographs of
Flickr8k, searched with different numbers of beams and sampled. Every setting scores all systems. The settings are the
tokenizer, final stops, document frequencies, the variant of CIDEr, the brevity penalty of BLEU, and the number of
references. `python benchmarks/write_evaluator.py` writes docs/evaluator.md.
"""

import argparse
import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from provenance import write_results

from hf_captioners.data import load_captions
from hf_captioners.default_model import default_model
from hf_captioners.metrics import CiderD, CiderOriginal, DocumentFrequency, bleu_counts, corpus_bleu
from hf_captioners.metrics.caption_tokenizers import caption_tokenizer
from hf_captioners.onnx import OnnxCaptioner

RESULTS = Path(__file__).parent / "results" / "evaluator.json"
COCO, FLICKR = "COCO, Karpathy test split", "Flickr8k, validation"
PTB, OWN_REFERENCES, CIDER_D = "PTB", "these references", "CIDEr-D"
CIDERS = {CIDER_D: CiderD, "CIDEr": CiderOriginal}
STOPS = {"kept": False, "removed": True}
MAX_REFERENCES = 5
STANDARD = {"tokenizer": PTB, "stops": "kept", "frequency": OWN_REFERENCES, "cider": CIDER_D, "references": "all"}
SEARCHES: dict[str, dict[str, Any]] = {
    "5 beams": {"num_beams": 5},
    "3 beams": {"num_beams": 3},
    "greedy": {"num_beams": 1},
    "sampled": {"do_sample": True, "num_beams": 1, "temperature": 0.5, "seed": 1},
}
Tokenizer = Callable[[Iterable[str]], list[str]]


@dataclass(frozen=True)
class CaptionSet:
    """Captions of several systems on the same images.

    Args:
        name: of the data set and split.
        references: all references of each image.
        systems: a caption of each image by the name of the system.
        training: references of the images of the training split, for document frequencies.
    """

    name: str
    references: list[list[str]]
    systems: dict[str, list[str]]
    training: list[list[str]]


def tokenizers() -> dict[str, Tokenizer]:
    """Return tokenizers by name, NLTK's and spaCy's as evaluators use them: on lower-case text."""
    import nltk
    import spacy

    treebank, english = nltk.TreebankWordTokenizer(), spacy.blank("en")
    return {
        PTB: caption_tokenizer("ptb"),
        "blanks": lambda texts: [" ".join(text.lower().split()) for text in texts],
        "NLTK": lambda texts: [" ".join(treebank.tokenize(text.lower())) for text in texts],
        "spaCy": lambda texts: [" ".join(token.text for token in english(text.lower().strip())) for text in texts],
    }


def read_json(path: Path) -> Any:
    """Read a JSON file, perhaps compressed."""
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def captions_by_image(annotations: Iterable[dict[str, Any]]) -> dict[int, list[str]]:
    """Return the captions of each image in COCO annotations."""
    found: dict[int, list[str]] = {}
    for annotation in annotations:
        found.setdefault(annotation["image_id"], []).append(annotation["caption"])
    return found


def coco(folder: Path, training: list[list[str]]) -> CaptionSet:
    """Load the published captions of Show, Edit and Tell, and those of a person."""
    references = captions_by_image(read_json(folder / "references_karpathy_test.json.gz")["annotations"])
    images = sorted(references)
    systems = {}
    for name, file in (("cross-entropy", "show_edit_tell_xe"), ("CIDEr-optimised", "show_edit_tell_rl")):
        captions = {row["image_id"]: row["caption"] for row in read_json(folder / f"{file}.json.gz")}
        systems[f"Show, Edit and Tell, {name}"] = [captions[image] for image in images]
    systems["a person"] = [references[image][0] for image in images]
    # A person's caption is not its own reference, so all systems are scored against the others.
    return CaptionSet(COCO, [references[image][1:] for image in images], systems, training)


def flickr8k(folder: Path, count: int) -> CaptionSet:
    """Caption photographs with the default captioner and several search settings."""
    rows = load_captions("caption_folder", data_dir=str(folder), split="validation").select(range(count))
    training = load_captions("caption_folder", data_dir=str(folder), split="train")["captions"]
    captioner = OnnxCaptioner(default_model().folder, threads=1)
    systems = {}
    for name, options in SEARCHES.items():
        records = captioner(list(rows["image"]), batch_size=16, max_new_tokens=20, **options)
        systems[f"default captioner, {name}"] = [record[0]["generated_text"] for record in records]
        print(name, systems[f"default captioner, {name}"][:3], flush=True)
    return CaptionSet(FLICKR, list(rows["captions"]), systems, list(training))


def without_stop(text: str) -> str:
    """Drop final full stops of a caption, and the blanks before them."""
    return text.rstrip().rstrip(".").rstrip()


class Evaluator:
    """Evaluator of a caption set's systems in every setting.

    Args:
        captions: the set.
        coco_training: captions of the images of COCO train2014, for document frequencies.
        words: the tokenizers.
    """

    def __init__(self, captions: CaptionSet, coco_training: list[list[str]], words: dict[str, Tokenizer]) -> None:
        self.captions, self.words = captions, words
        self.corpora = {OWN_REFERENCES: captions.references, "COCO train2014": coco_training}
        if captions.training is not coco_training:
            self.corpora["the training split"] = captions.training
        self.tokens = cache(self._tokens)
        self.frequency = cache(self._frequency)

    def _tokens(self, tokenizer: str, stops: str, part: str) -> Any:
        """Tokenise captions of a system, or references, to strings."""
        prepare = without_stop if STOPS[stops] else str
        if part in self.captions.systems:
            return self.words[tokenizer](prepare(text) for text in self.captions.systems[part])
        groups = self.corpora[part]
        flat = iter(self.words[tokenizer](prepare(text) for texts in groups for text in texts))
        return [list(itertools.islice(flat, len(texts))) for texts in groups]

    def _frequency(self, tokenizer: str, stops: str, corpus: str) -> DocumentFrequency:
        return DocumentFrequency.per_image(self.tokens(tokenizer, stops, corpus))

    def references(self, tokenizer: str, stops: str, number: int | str) -> list[list[str]]:
        """Return the first `count` references of each image."""
        references = self.tokens(tokenizer, stops, OWN_REFERENCES)
        return [texts[:number] for texts in references] if isinstance(number, int) else references

    def cider(self, setting: dict[str, Any]) -> dict[str, float]:
        """Return the CIDEr of each system in a setting."""
        tokenizer, stops = setting["tokenizer"], setting["stops"]
        references = self.references(tokenizer, stops, setting["references"])
        own = setting["frequency"] == OWN_REFERENCES
        frequency = None if own else self.frequency(tokenizer, stops, setting["frequency"])
        scorer = CIDERS[setting["cider"]](references, frequency)
        return {
            name: float(scorer.score(self.tokens(tokenizer, stops, name)).mean()) for name in self.captions.systems
        }

    def bleu(self, tokenizer: str, stops: str, brevity_penalty: bool) -> dict[str, float]:
        """Return the BLEU-4 of each system in a setting."""
        references = self.references(tokenizer, stops, "all")
        return {
            name: float(corpus_bleu(bleu_counts(self.tokens(tokenizer, stops, name), references), brevity_penalty)[3])
            for name in self.captions.systems
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the scores of all settings."""
        found = []
        for tokenizer, stops, corpus, cider in itertools.product(self.words, STOPS, self.corpora, CIDERS):
            setting = STANDARD | {"tokenizer": tokenizer, "stops": stops, "frequency": corpus, "cider": cider}
            found.append({"metric": "CIDEr", **setting, "scores": self.cider(setting)})
            print(self.captions.name, found[-1], flush=True)
        fewest = min(map(len, self.captions.references))
        for number in range(1, min(MAX_REFERENCES, fewest) + 1):
            setting = STANDARD | {"references": number}
            found.append({"metric": "CIDEr", **setting, "scores": self.cider(setting)})
        for tokenizer, stops, penalty in itertools.product(self.words, STOPS, (True, False)):
            setting = {"tokenizer": tokenizer, "stops": stops, "brevity_penalty": penalty}
            found.append({"metric": "BLEU-4", **setting, "scores": self.bleu(tokenizer, stops, penalty)})
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Score all sets in all settings, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with metrics/ and flickr8k/")
    parser.add_argument("--coco_captions", type=Path, required=True, help="captions_train2014.json of COCO")
    parser.add_argument("--images", type=int, default=1000, help="validation photographs of Flickr8k; default: 1000")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    words = tokenizers()
    training = list(captions_by_image(read_json(args.coco_captions)["annotations"]).values())
    sets = [flickr8k(args.data_dir / "flickr8k", args.images), coco(args.data_dir / "metrics", training)]
    results = [
        {"name": one.name, "images": len(one.references), "rows": Evaluator(one, training, words).rows()}
        for one in sets
    ]
    import nltk
    import spacy

    versions = {"nltk": nltk.__version__, "spacy": spacy.__version__}
    write_results(args.output, {"standard": STANDARD, "versions": versions, "sets": results})


if __name__ == "__main__":
    main()

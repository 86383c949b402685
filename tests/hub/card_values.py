"""Card facts in which every field has a value."""

from hf_captioners.hub.card_facts import (
    DataFacts,
    EvaluationFacts,
    PublishedFacts,
    SampleFacts,
    TrainingFacts,
)

DATA = {
    "name": "flickr8k",
    "split": "train",
    "images": 600,
    "captions": 3000,
    "of_images": 6000,
    "licence": "research only",
    "citation": "Hodosh et al., JAIR 2013",
    "homepage": "example.org",
    "description": "Photographs of people and animals.",
}


SAMPLE = {
    "image": "1.jpg",
    "file": "sample_eval_1.jpg",
    "caption": "a dog | runs",
    "references": ["A dog is running.", "A dog on grass."],
    "visual_scores": [("a", 0.25), ("dog", 0.5), ("|", 0.123), ("runs", 1.0)],
}


PUBLISHED = {
    "paper": "visualgpt",
    "table": "1",
    "row": "VisualGPT (tau = 0.2)",
    "regime": "1%",
    "published": {"bleu_4": [25.2, 1.11], "cider_d": [81.7], "spice": [16.0]},
    "measured": {"bleu_4": [24.9, 0.875], "cider_d": [80.04, 2.0]},
    "seeds": [0, 1, 2],
}


EVALUATION = {
    "data": DATA,
    "figures": {"bleu_4": 0.2512345, "cider_d": 0.7, "loss": 2.25, "length": 9.5},
    "variants": {"bleu_4": "BLEU-4, closest reference length", "cider_d": "CIDEr-D (clipped, sigma 6)"},
    "tokenizer": "ptb",
    "document_frequency": "the references of this set: 1000 images",
    "generation": {"num_beams": 5, "max_new_tokens": 20},
    "samples": [SAMPLE],
}


TRAINING = {
    "data": DATA,
    "evaluations": [EVALUATION],
    "reproduces": PUBLISHED,
    "arguments": {"learning_rate": 3e-4, "seed": 7},
    "other_arguments": {"bf16": False},
    "log": [
        {"step": 100, "epoch": 1.0, "loss": 2.5, "cider_d": 0.6},
        {"step": 200, "epoch": 2.0, "train_loss": 2.1, "loss": 2.25, "cider_d": 0.7, "bleu_4": 0.25},
    ],
    "saved_step": 200,
    "seconds": 7300.0,
    "hardware": "NVIDIA H100 80GB HBM3",
    "processes": 2,
    "versions": {"torch": "2.15.0"},
    "started_from": ["distilgpt2"],
    "adapter": "LoRA of rank 4",
    "changed_data": ["After checkpoint-3 it was resumed on changed data: <b>."],
    "converted_from": "best.pth (SHA-256 00)",
    "vocabulary": "9 of 99 tokens",
    "licence": "apache-2.0",
    "language": "en",
}


FIELDS = {
    DataFacts: DATA,
    SampleFacts: SAMPLE,
    EvaluationFacts: EVALUATION,
    PublishedFacts: PUBLISHED,
    TrainingFacts: TRAINING,
}


def facts(kind, left_out=frozenset(), prefix=""):
    """Return the facts without the fields in `left_out`."""
    values = {}
    for name, value in FIELDS[kind].items():
        path = f"{prefix}{name}"
        if path in left_out:
            continue
        if name == "data":
            value = facts(DataFacts, left_out, f"{path}.")
        elif name == "evaluations":
            value = [facts(EvaluationFacts, left_out, f"{path}.")]
        elif name == "samples":
            value = [facts(SampleFacts, left_out, f"{path}.")]
        elif name == "reproduces":
            value = facts(PublishedFacts, left_out, f"{path}.")
        values[name] = value
    return kind(**values)

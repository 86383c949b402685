"""Cards from facts: unknown facts are absent, known ones are shown."""

import dataclasses
import os
import re

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import yaml_dump
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from hf_captioners.architectures import ARCHITECTURES
from hf_captioners.data import list_datasets
from hf_captioners.hub.card_facts import (
    CheckpointFacts,
    DataFacts,
    EvaluationFacts,
    PublishedFacts,
    SampleFacts,
    TrainingFacts,
    sample_images,
)
from hf_captioners.hub.card_merging import read_card
from hf_captioners.hub.cards import PUBLISHED_DATA, render_card, write_card

from .captioner_cases import save_captioner
from .card_values import FIELDS, SAMPLE, TRAINING, facts

CHECKPOINT = {
    "architecture": ARCHITECTURES["visualgpt"],
    "model_type": "captioning_visualgpt",
    "parameters": 213400320,
    "vision": "resnet101",
    "image_size": (224, 224),
    "generation": {"num_beams": 5},
}
SHOWN = frozenset({SAMPLE["file"]})


def test_the_lists_above_are_complete():
    for kind, values in FIELDS.items():
        assert {field.name for field in dataclasses.fields(kind)} == values.keys(), kind
    others = {"adapter_of", "confidence", "weights_license"}
    assert {field.name for field in dataclasses.fields(CheckpointFacts)} == CHECKPOINT.keys() | others


def test_terms_of_weights_are_text_on_one_line():
    """Whatever a configuration states."""
    terms = {"license": "other\n---\n", "license_name": ["a"], "base_model": "a/b\nc"}
    terms |= {"summary": "<b>![x](y)", "notice": 1}
    card = render_card("a/b", CheckpointFacts(weights_license=terms))
    metadata = read_card(card, "card").metadata
    assert (metadata["license"], metadata["license_link"]) == ("other", "NOTICE")
    assert not {"license_name", "base_model"} & metadata.keys()
    assert "<b>" not in card and "![x]" not in card


def checkpoint(left_out=frozenset(), **more):
    return CheckpointFacts(**{name: value for name, value in CHECKPOINT.items() if name not in left_out} | more)


def paths(kind, prefix=""):
    inner = {"data": DataFacts, "evaluations": EvaluationFacts, "samples": SampleFacts, "reproduces": PublishedFacts}
    for name in FIELDS[kind]:
        yield f"{prefix}{name}"
        if name in inner:
            yield from paths(inner[name], f"{prefix}{name}.")


PATHS = [*paths(TrainingFacts), *CHECKPOINT]


def test_all_known_facts_are_shown():
    card = render_card("somebody/captioner", checkpoint(), facts(TrainingFacts), SHOWN)
    for text in (
        "# captioner\n",
        'pipeline(model="somebody/captioner", trust_remote_code=True)',
        "| parameters | 213,400,320 |",
        "| input resolution | 224 x 224 |",
        "## Evaluation on flickr8k (train)",
        "| CIDEr-D | 0.7000 | CIDEr-D (clipped, sigma 6) |",
        "| words per caption | 9.5000 | mean |",
        "without selection. After each word: its visual score",
        "| ![1.jpg](sample_eval_1.jpg) | a <sub>0.25</sub> dog <sub>0.50</sub> \\| <sub>0.12</sub> runs",
        " runs <sub>1.00</sub> | A dog is running.<br>A dog on grass. |",
        "Reproduces row VisualGPT (tau = 0.2) of table 1 of `visualgpt`, regime 1%:\n",
        "| BLEU-4 | 25.2 ± 1.11 | 24.9 ± 0.88 |\n| CIDEr-D | 81.7 | 80.0 ± 2.00 |\n\n",
        "Measured as mean ± standard deviation over the seeds 0, 1, 2.",
        "Trained on 600 images (10.0% of 6,000) with 3,000 captions of flickr8k (train).",
        "Arguments that differ from the defaults: `learning_rate=0.0003`, `seed=7`.",
        "| 100 | 1.00 |  | 2.5000 |  | 0.6000 |",
        "| **200** | **2.00** | **2.1000** | **2.2500** | **0.2500** | **0.7000** |",
        "The saved weights are those of the step in bold.",
        "Trained on NVIDIA H100 80GB HBM3, in 2 processes, in 2.0 hours.",
        "- Hodosh et al., JAIR 2013\n",
    ):
        assert text in card
    metadata = read_card(card, "here").metadata
    assert metadata["base_model"] == ["distilgpt2"] and metadata["license"] == "apache-2.0"
    assert metadata["language"] == "en" and metadata["metrics"] == ["bleu", "cider"]
    ((bleu, cider),) = (result["metrics"] for result in metadata["model-index"][0]["results"])
    assert cider["args"]["document_frequency"] == "the references of this set: 1000 images"
    assert "document_frequency" not in bleu["args"] and bleu["value"] == 0.251235
    (evaluation,) = ModelCard(card).data.eval_results[1:]
    assert (evaluation.metric_type, evaluation.dataset_name, evaluation.metric_value) == ("cider", "flickr8k", 0.7)


def test_captions_without_visual_scores_stand_alone():
    card = render_card("captioner", checkpoint(), facts(TrainingFacts, {"evaluations.samples.visual_scores"}), SHOWN)
    assert "without selection:\n" in card and "| a dog \\| runs |" in card and "<sub>" not in card


def test_a_row_of_one_run_and_images_that_are_not_shown():
    known = facts(TrainingFacts, {"evaluations.samples.visual_scores"})
    known.reproduces = PublishedFacts(row="[a]", published={"spice": [16.0]}, measured={"spice": [15.5]}, seeds=[3])
    card = render_card("captioner", checkpoint(), known)
    assert "row \\[a\\]:\n" in card and "| SPICE | 16.0 | 15.5 |" in card and "Measured with the seed 3." in card
    assert "| 1.jpg | a dog \\| runs |" in card and "sample_eval" not in card
    known.reproduces.measured = {"cider_d": [15.5]}
    assert "published" not in render_card("captioner", checkpoint(), known), "nothing to compare"


@settings(deadline=None, max_examples=60)
@given(left_out=st.sets(st.sampled_from(PATHS)))
@example(left_out=set())
@example(left_out=set(PATHS))
def test_what_is_missing_is_absent(left_out):
    """Any facts may be missing: the card has no empty places and never prints None or n/a."""
    card = render_card("captioner", checkpoint(left_out), facts(TrainingFacts, left_out), SHOWN)
    text = card.replace(re.search("<!--.*-->", card)[0], "")
    assert not re.search(r"None|N/A|\bnan\b|Undefined|\[\]|\{\}|\(\)|(?<!`)``(?!`)|: \.|, ,| \.|\n{4}", text), text
    parts = text.split("\n\n")
    tables = [part for part in parts if "|---|" in part]
    assert all(re.search(r"\|---\|\n\|", table) for table in tables), "a table without rows"
    headings = re.findall(r"^## .*\n+(?=## |<!--)", text, re.MULTILINE)
    assert not headings, "a heading without text"
    data = ModelCard(card).data.to_dict()
    assert None not in data.values() and data["pipeline_tag"] == "image-to-text"
    for name in ("hardware", "licence", "parameters", "vision"):
        value = (TRAINING | CHECKPOINT)[name]
        shown = f"{value:,}" if isinstance(value, int) else value
        assert (shown in card) == (name not in left_out), name
    row = {"reproduces", "reproduces.published", "reproduces.measured"}
    assert ("## Comparison with published results\n" in card) == (not row & left_out)
    sample = {"evaluations", "evaluations.figures", "evaluations.samples", "evaluations.samples.file"}
    assert ("](sample_eval_1.jpg)" in card) == (not sample & left_out)


@pytest.mark.parametrize(
    "data", [{"name": "iu_xray"}, {"name": "reports", "description": "Chest radiographs."}, {"name": "my_X-rays"}]
)
def test_x_rays_have_a_warning(data):
    for training in (
        TrainingFacts(data=DataFacts(**data)),
        TrainingFacts(evaluations=[EvaluationFacts(data=DataFacts(**data), figures={"cider_d": 0.3})]),
    ):
        card = render_card("captioner", checkpoint(), training)
        assert "**Not a medical device.**" in card and "Do not use them for patient care." in card
    assert "medical" not in render_card("captioner", checkpoint(), facts(TrainingFacts))


def test_other_kinds_of_checkpoints():
    regions = render_card("a/b", checkpoint({"vision", "image_size"}))
    assert "processor(regions=[features]" in regions and "the region features of an image" in regions
    foreign = render_card("a/b", CheckpointFacts(model_type="blip", vision="blip_vision_model"))
    assert 'pipeline("image-captioning", model="a/b")' in foreign and "custom_code" not in foreign
    adapter = render_card("a/b", CheckpointFacts(adapter_of="somebody/captioner"))
    metadata = read_card(adapter, "here").metadata
    assert (metadata["library_name"], metadata["base_model"]) == ("peft", ["somebody/captioner"])
    assert 'load_captioner("a/b")  # with somebody/captioner' in adapter


def test_local_directories_are_not_base_models(tmp_path):
    training = TrainingFacts(started_from=["gpt2", str(tmp_path), "timm:resnet50.a1_in1k", "org/vision"])
    metadata = read_card(render_card("captioner", checkpoint(), training), "here").metadata
    assert (metadata["base_model"], metadata["base_model_relation"]) == (["gpt2", "org/vision"], "finetune")


@pytest.fixture
def hub(loopback_hub, monkeypatch, tmp_path):
    loopback_hub.use_here(monkeypatch, tmp_path / "home")
    return loopback_hub


WRONG = {
    "license": ("Apache 2.0", ["mit"]),
    "license_name": ("My licence",),
    "license_link": ("somewhere",),
    "language": ("English", ["en", "German"]),
    "base_model": ("timm:resnet50", ["gpt2", "a/b/c"]),
    "base_model_relation": ("trained",),
    "datasets": ("flickr8k", ["my images"]),
    "library_name": ("HF captioners", ["transformers"]),
    "pipeline_tag": ("image-captioning",),
    "tags": ([""], [1]),
    "metrics": ("bleu", ["BLEU 4"]),
    "model-index": ([{"name": "a"}],),
}


def test_the_hub_accepts_the_card(hub):
    """By huggingface_hub's own validation, which asks the Hub; wrong values are refused."""
    known = facts(TrainingFacts)
    known.started_from = ["gpt2", "facebook/dinov2-small"]
    text = render_card("somebody/captioner", checkpoint(), known)
    card = ModelCard(text)
    card.validate()
    assert set(WRONG) - set(card.data.to_dict()) == {"license_name", "license_link"}, "every field is filled"
    data = card.data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "image-to-text")
    assert (data.license, data.language) == ("apache-2.0", "en")
    assert (data.base_model, data.datasets) == (["gpt2", "facebook/dinov2-small"], ["flickr8k"])
    assert data.tags == ["image-captioning", "hf-captioners", "visualgpt", "custom_code"]
    metadata = read_card(text, "card").metadata
    for name, values in WRONG.items():
        for value in values:
            with pytest.raises(ValueError, match=name.replace("-", "[-_]")):
                ModelCard(f"---\n{yaml_dump(metadata | {name: value})}---\n# A card\n").validate()
    terms = {"license": "other", "license_name": "own", "notice": "All rights.", "base_model": "somebody/other"}
    ModelCard(render_card("a/b", checkpoint(weights_license=terms), known)).validate()
    ModelCard(render_card("a/b", CheckpointFacts(adapter_of="somebody/captioner"), known)).validate()
    with pytest.raises(ValueError, match="license_name"):
        ModelCard(f"---\n{yaml_dump(metadata | {'license': 'other'})}---\n# A card\n").validate()


def test_data_of_ones_own_are_not_in_the_metadata():
    """A folder is no data set of the Hub; whose captions they are, only a person knows."""
    named = {*list_datasets()} - {"by_columns", "caption_folder", "containers", "scenes"}
    assert set(PUBLISHED_DATA) == named
    known = facts(TrainingFacts, {"language"})
    assert read_card(render_card("a/b", checkpoint(), known), "card").metadata["language"] == "en"
    known.data.name = "caption_folder"
    assert not {"datasets", "language"} & read_card(render_card("a/b", checkpoint(), known), "card").metadata.keys()


def blocks(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def test_snippets_are_python():
    for facts_of, number in (
        (checkpoint(), 2),
        (checkpoint({"vision"}), 2),
        (CheckpointFacts(), 1),
        (CheckpointFacts(adapter_of="a/b"), 1),
    ):
        found = blocks(render_card("a/b", facts_of))
        assert len(found) == number
        for block in found:
            compile(block, "card", "exec")


WITHOUT_THE_LIBRARY = """
import sys
sys.modules["hf_captioners"] = None  # importing it is an ImportError
"""


def test_both_forms_of_use_run_as_printed(fork_server, tmp_path):
    """In fresh processes: the first without the library, the second without the code of the checkpoint."""
    save_captioner("visualgpt", tmp_path / "captioner")
    write_card(tmp_path / "captioner")
    Image.linear_gradient("L").convert("RGB").save(tmp_path / "photo.jpg")
    card = (tmp_path / "captioner" / "README.md").read_text(encoding="utf-8")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    printed = []
    for block, head in zip(blocks(card), (WITHOUT_THE_LIBRARY, ""), strict=True):
        if not head:
            for path in (tmp_path / "captioner").glob("*.py"):
                path.unlink()
        (tmp_path / "use.py").write_text(head + block, encoding="utf-8")
        done = fork_server.run([tmp_path / "use.py"], cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        printed.append(done.stdout.splitlines()[-1])
    assert printed[0] == printed[1]


@pytest.mark.parametrize("last, shown", [(0.55, False), (0.95, True)])
def test_scores_that_hardly_differ_are_left_out(last, shown):
    training = facts(TrainingFacts)
    training.evaluations[0].samples[0].visual_scores = [("a", 0.5), ("dog", 0.52), ("runs", last)]
    assert ("<sub>0.52</sub>" in render_card("a/b", checkpoint(), training)) == shown


def test_facts_are_stored_and_read(tmp_path):
    known = facts(TrainingFacts)
    known.save(tmp_path)
    assert TrainingFacts.load(tmp_path) == known
    assert sample_images(tmp_path) == [], "no such file"
    for name in ("sample_eval_1.jpg", "secret.jpg"):
        (tmp_path / name).write_bytes(b"")
    assert sample_images(tmp_path) == [tmp_path / "sample_eval_1.jpg"]
    known.evaluations[0].samples[0].file = "secret.jpg"
    known.save(tmp_path)
    assert sample_images(tmp_path) == [], "only files that training writes"
    assert TrainingFacts.load(tmp_path / "elsewhere") is None
    (tmp_path / "card_facts.json").write_text('{"evaluations": 3}')
    with pytest.raises(ValueError, match="not of the form that training writes"):
        TrainingFacts.load(tmp_path)

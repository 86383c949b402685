"""The model card that a trainer writes, and the checkpoints that it pushes."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import HfApi, ModelCard
from PIL import Image
from transformers import AutoModelForImageTextToText, GPT2Config, GPT2LMHeadModel, pipeline

from hf_captioners import VisualGPTForConditionalGeneration
from hf_captioners.cli import main
from hf_captioners.hub import cards
from hf_captioners.hub.card_facts import PublishedFacts, TrainingFacts
from hf_captioners.hub.card_merging import read_card
from hf_captioners.hub.cards import make_card
from hf_captioners.training import CaptioningTrainingArguments, hub_trainer
from hf_captioners.training.card_writer import started_from, write_small_copy
from hf_captioners.training.hub_trainer import HubTrainer
from tests.training.conftest import make_captioner, make_trainer, processor, scenes, tokenizer  # noqa: F401
from tests.training.scst_settings import scst_trainer
from tests.variants import slow_unless

from .card_numbers import numbers_in_files, numbers_of
from .loopback_hub import TOKEN

WHOLE_CARD = r"""<!-- hf-captioners: generated \(\w{12} \w{12}\); .* is kept -->
# run

An image captioning model\. It generates a caption from an image\. Architecture: VisualGPT \(Chen et al\., .* CVPR 2022\)\.

\| property \| value \|
\|---\|---\|
\| parameters \| [\d,]+ \|
\| vision model \| vit \|
\| input resolution \| 32 x 32 \|

## Use

```python
from transformers import pipeline

captioner = pipeline\(model="run", trust_remote_code=True\)
print\(captioner\("photo\.jpg"\)\[0\]\["generated_text"\]\)
```

These lines run the code of this repository, .* runs no code of the repository:

```python
import hf_captioners
from transformers import pipeline

captioner = pipeline\("image-captioning", model="run"\)
print\(captioner\("photo\.jpg"\)\[0\]\["generated_text"\]\)
```

## Evaluation on scenes \(validation\)

\| metric \| value \| definition \|
\|---\|---\|---\|
(\| BLEU-\d \| \d\.\d{4} \| BLEU-\d, closest reference length \|
){4}\| ROUGE-L \| \d\.\d{4} \| ROUGE-L, beta 1\.2 \|
\| CIDEr-D \| \d\.\d{4} \| CIDEr-D \(clipped, sigma 6\) \|
\| distinct captions \| \d\.\d{4} \| share of distinct captions \|
\| words per caption \| \d+\.\d{4} \| mean \|
\| truncated captions \| \d\.\d{4} \| share of captions that end in a word such as `a` or `with` \|
\| length ratio \| \d\.\d{4} \| mean caption length divided by that of the references \|
\| loss \| \d\.\d{4} \| mean negative log-likelihood of the tokens of all references \|

Values are in natural units; papers print BLEU and CIDEr-D times 100\. Computed on 6 images with 30 reference captions\. Generation settings: `num_beams=1`, `max_new_tokens=5`\. Tokenizer: `ptb`\. Document frequencies of CIDEr-D: the references of this set: 6 images\.

The first images of this set, without selection\. After each word: its visual score, .* \(0 to 1\) .*:

\| image \| caption \| references \|
\|---\|---\|---\|
(\| IMAGE \| (\S+ (<sub>[01]\.\d\d</sub> )?)*\| (.+<br>){4}.+ \|
){5}PUBLISHED
## Training

Trained on 12 images with 60 captions of scenes \(train\)\. Drawn scenes .* Licence of the data: Apache-2\.0\.

Arguments that differ from the defaults: .*`learning_rate=0\.001`, .*`seed=7`.*\.

<details><summary>Other arguments</summary>

.*`max_grad_norm=1\.0`.*

</details>

\| step \| epoch \| training loss \| loss \| BLEU-4 \| CIDEr-D \|
\|---\|---\|---\|---\|---\|---\|
(\| (\*\*)?\d(\*\*)? \| (\*\*)?\d\.\d\d(\*\*)? (\| (\*\*)?\d\.\d{4}(\*\*)? ){4}\|
){2}
The saved weights are those of the step in bold\.

Trained on CPU \(.* cores\), in [\d.]+ (seconds|minutes|hours)\.

Versions: hf-captioners \S+, Python \S+, torch \S+, transformers \S+, .*\.

## Intended use and limits

This model drafts captions .* identify or assess people\.

## Citation

- Chen et al\., .* CVPR 2022
<!-- hf-captioners: end -->
"""  # noqa: E501

IMAGE = r"validation-\S+"
SHOWN_IMAGE = r"!\[validation-\S+\]\(sample_eval_\d\.jpg\)"
PUBLISHED = r"""
## Comparison with published results

Reproduces row VisualGPT of table 1 of `visualgpt`, regime 1%:

\| metric \| published \| measured \|
\|---\|---\|---\|
\| BLEU-4 \| 16\.4 ± 0\.65 \| 15\.0 ± 1\.25 \|
\| CIDEr-D \| 45\.1 \| 44\.2 ± 2\.00 \|

Values are in percent, as papers print them\. Measured as mean ± standard deviation over the seeds 1, 2\.
"""
ROW = {
    "paper": "visualgpt",
    "table": "1",
    "row": "VisualGPT",
    "regime": "1%",
    "published": {"bleu_4": [16.4, 0.65], "cider_d": [45.1], "spice": [10.9]},
    "measured": {"bleu_4": [15.0, 1.25], "cider_d": [44.2, 2.0]},
    "seeds": [1, 2],
}


@pytest.fixture(scope="module", autouse=True)
def every_score():
    """With random weights, gates hardly move; their scores are shown nevertheless."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cards, "MIN_SPREAD_OF_SCORES", 0.0)
        yield


@pytest.fixture
def trained(make_trainer, make_captioner):  # noqa: F811
    """A trainer after two epochs; with other seeds its captions have no words."""
    trainer = make_trainer(model=make_captioner(seed=1))
    trainer.train()
    trainer.save_model()
    return trainer


@pytest.mark.parametrize("everything", slow_unless(bool, [False, True]))
def test_the_whole_card(trained, hub, tmp_path, everything):
    """Every line is as expected, every number occurs in a file, and the Hub accepts the metadata."""
    run = tmp_path / "run"
    text = (run / "README.md").read_text()
    form = WHOLE_CARD.replace("IMAGE", IMAGE).replace("PUBLISHED", "")
    if everything:
        facts = TrainingFacts.load(run)
        facts.reproduces = PublishedFacts(**ROW)
        facts.save(run)
        text = make_card(run, with_images=True)
        form = WHOLE_CARD.replace("IMAGE", SHOWN_IMAGE).replace("PUBLISHED", PUBLISHED)
    card = read_card(text, "here")
    found = re.fullmatch(form, card.generated)
    assert found, card.generated
    known = numbers_in_files(run / name for name in ("card_facts.json", "config.json", "processor_config.json"))
    known |= numbers_in_files([run / "model.safetensors"])
    unknown = numbers_of(card.generated) - known
    assert not unknown, f"no file says {unknown}"
    ModelCard(text).validate()
    assert card.metadata["pipeline_tag"] == "image-to-text" and card.metadata["library_name"] == "transformers"
    assert {"hf-captioners", "image-captioning", "visualgpt"} <= set(card.metadata["tags"])


def test_the_saved_step_is_in_bold_with_its_own_figures(trained, tmp_path):
    """The best of two checkpoints is kept; figures and samples are those of its evaluation."""
    facts = TrainingFacts.load(tmp_path / "run")
    history = json.loads((tmp_path / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert facts.saved_step == history["best_global_step"]
    (logged,) = [
        entry for entry in history["log_history"] if entry["step"] == facts.saved_step and "eval_loss" in entry
    ]
    (evaluation,) = facts.evaluations
    assert {name: logged[f"eval_{name}"] for name in evaluation.figures} == evaluation.figures
    card = (tmp_path / "run" / "README.md").read_text()
    assert re.findall(r"\| \*\*(\d)\*\* \|", card) == [str(facts.saved_step)]
    captions = (tmp_path / "run" / "captions" / f"eval-{facts.saved_step:07d}.jsonl").read_text().splitlines()
    assert [sample.caption for sample in evaluation.samples] == [json.loads(line)["caption"] for line in captions[:5]]
    for step in (2, 4):
        inside = TrainingFacts.load(tmp_path / "run" / f"checkpoint-{step}")
        assert inside.saved_step == step and inside.log[-1]["step"] == step


def test_a_persons_text_survives_training(make_trainer, tmp_path):  # noqa: F811
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    trainer = make_trainer(num_train_epochs=1)
    trainer.train()
    card = (tmp_path / "run" / "README.md").read_text()
    assert card.endswith("\n# Mine\n") and "license: mit" in card and "image-captioning" in card


def test_a_card_that_cannot_be_written_stops_nothing(make_trainer, tmp_path, caplog):  # noqa: F811
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").write_text("---\ntags: [a\n---\n")
    trainer = make_trainer(num_train_epochs=1)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "was not written" in caplog.text
    assert (tmp_path / "run" / "README.md").read_text() == "---\ntags: [a\n---\n"


def test_what_was_only_evaluated_has_a_card(make_trainer, tmp_path, caplog):  # noqa: F811
    trainer = make_trainer()
    figures = trainer.evaluate()
    trainer.save_model()
    assert "was not written" not in caplog.text
    (evaluation,) = TrainingFacts.load(tmp_path / "run").evaluations
    assert evaluation.figures["cider_d"] == figures["eval_cider_d"]
    assert f"| CIDEr-D | {figures['eval_cider_d']:.4f} |" in (tmp_path / "run" / "README.md").read_text()


def test_a_part_of_a_data_set_is_reported(make_trainer, scenes):  # noqa: F811
    trainer = make_trainer()
    trainer.train_dataset.images.rows = scenes["train"].select(range(3))
    trainer.train_dataset.images.captions = trainer.train_dataset.images.captions[:3]
    facts = trainer.card.facts(trainer).data
    assert (facts.images, facts.of_images, facts.captions) == (3, 12, 15)


def test_a_resumed_run_does_not_know_its_time(make_trainer, tmp_path):  # noqa: F811
    first = make_trainer(num_train_epochs=1)
    first.train()
    assert TrainingFacts.load(tmp_path / "run" / "checkpoint-2").seconds > 0
    second = make_trainer()
    second.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    second.save_model()
    facts = TrainingFacts.load(tmp_path / "run")
    assert facts.seconds is None and [entry["step"] for entry in facts.log] == [2, 4]
    assert facts.evaluations, "of a checkpoint before the interruption"
    assert "seconds" not in (tmp_path / "run" / "README.md").read_text()


def test_training_pushes_whole_checkpoints(make_trainer, hub, tmp_path):  # noqa: F811
    """Every save is one commit, a captioner that loads, without other files of the run."""
    trainer = make_trainer(push_to_hub=True, hub_model_id="tester/trained", hub_always_push=True)
    trainer.train()
    trainer.push_to_hub()
    commits = hub.repository("tester/trained").branches["main"]
    assert [commit.title for commit in commits] == [
        "initial commit",
        "Training in progress, step 2",
        "Training in progress, step 4",
        "End of training",
    ]
    for commit in commits[1:]:
        assert {
            "model.safetensors",
            "processor_config.json",
            "README.md",
            "image_captioning.py",
        } <= commit.files.keys()
        assert not [path for path in commit.files if re.search(r"\.(bin|pt|pth|jsonl)$|/", path)]
    card = hub.repository("tester/trained").files()["README.md"].decode()
    assert '(model="tester/trained"' in card and "## Training" in card
    count = len(commits)
    trainer.push_to_hub()
    assert len(hub.repository("tester/trained").branches["main"]) == count, "an equal push changed something"
    captioner = pipeline("image-captioning", "tester/trained")
    assert type(captioner.model) is type(trainer.model)
    model = AutoModelForImageTextToText.from_pretrained("tester/trained", revision=commits[1].oid)
    assert model.config.model_type == "captioning_visualgpt"


def titles(hub, name):
    return [commit.title for commit in hub.repository(name).branches["main"]]


def test_a_save_during_a_push_is_pushed_too(make_trainer, hub, monkeypatch):  # noqa: F811
    """The first push ends only after the second save was queued; both become commits, in the order of the saves."""
    queued, saves = threading.Event(), []
    push_later, create_commit = HubTrainer._push_later, HfApi.create_commit

    def push_and_count(self, *args, **kwargs):
        future = push_later(self, *args, **kwargs)
        saves.append(future)
        if len(saves) == 2:
            queued.set()
        return future

    def create_slowly(self, *args, **kwargs):
        assert queued.wait(1800)
        return create_commit(self, *args, **kwargs)

    monkeypatch.setattr(HubTrainer, "_push_later", push_and_count)
    monkeypatch.setattr(HfApi, "create_commit", create_slowly)
    trainer = make_trainer(push_to_hub=True, hub_model_id="tester/trained")
    trainer.train()
    assert [future.done() for future in saves] == [True, True], "training ended before its pushes"
    steps = ["Training in progress, step 2", "Training in progress, step 4"]
    assert titles(hub, "tester/trained") == ["initial commit", *steps]
    future = trainer.push_to_hub(blocking=False)
    assert future.result().commit_message == "End of training"
    assert titles(hub, "tester/trained") == ["initial commit", *steps, "End of training"]


def test_a_failed_push_is_logged_and_the_next_one_is_made(make_trainer, hub, monkeypatch, caplog):  # noqa: F811
    push, calls = hub_trainer.push_checkpoint, []

    def push_the_second(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise OSError("the Hub is away")
        return push(*args, **kwargs)

    monkeypatch.setattr(hub_trainer, "push_checkpoint", push_the_second)
    make_trainer(push_to_hub=True, hub_model_id="tester/trained").train()
    assert "The push 'Training in progress, step 2' failed: the Hub is away" in caplog.text
    assert titles(hub, "tester/trained") == ["initial commit", "Training in progress, step 4"]


@pytest.mark.parametrize("with_images", slow_unless(bool, [False, True]))
def test_a_card_is_rendered_once_per_push(make_trainer, hub, monkeypatch, with_images):  # noqa: F811
    """Two saves in training and one at its end: each is rendered once, for the folders and for the Hub."""
    render, names = cards.render_card, []

    def count(name, *args, **kwargs):
        names.append(name)
        return render(name, *args, **kwargs)

    monkeypatch.setattr(cards, "render_card", count)
    trainer = make_trainer(push_to_hub=True, hub_model_id="tester/trained")
    trainer.train()
    assert names == ["tester/trained"] * 2
    trainer.push_to_hub(with_images=with_images)
    assert names == ["tester/trained"] * 3
    assert len(titles(hub, "tester/trained")) == 4
    card = hub.repository("tester/trained").files()["README.md"].decode()
    assert ("](sample_eval_1.jpg)" in card) == with_images


def test_images_are_pushed_only_when_asked_for(make_trainer, hub, tmp_path):  # noqa: F811
    trainer = make_trainer(num_train_epochs=1, hub_model_id="tester/trained")
    trainer.train()
    trainer.save_model()
    run = tmp_path / "run"
    names = {f"sample_eval_{number}.jpg" for number in range(1, 6)}
    assert names == {path.name for path in run.glob("*.jpg")}
    assert Image.open(run / "sample_eval_1.jpg").size == (32, 32)
    push = ["push", str(run), "tester/trained"]
    for arguments, expected in (([], set()), (["--images"], names), ([], set())):
        assert main([*push, *arguments]) == 0
        files = hub.repository("tester/trained").files()
        assert {name for name in files if name.endswith(".jpg")} == expected
        card = files["README.md"].decode()
        assert set(re.findall(r"!\[.*?\]\((.*?)\)", card)) == expected
    trainer.push_to_hub(with_images=True)
    assert names <= hub.repository("tester/trained").files().keys()


def test_thumbnails_carry_no_metadata(tmp_path):
    image = Image.new("RGBA", (800, 400), (255, 0, 0, 0))
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    image.save(tmp_path / "large.png", exif=exif, comment="secret")
    write_small_copy([str(tmp_path / "large.png")], tmp_path / "small.jpg")
    small = Image.open(tmp_path / "small.jpg")
    assert small.size == (384, 192) and small.getpixel((5, 5)) == (255, 255, 255) and not small.getexif()
    assert b"secret" not in (tmp_path / "small.jpg").read_bytes()


def test_self_critical_training_pushes_one_repository(make_captioner, processor, scenes, hub, tmp_path):  # noqa: F811
    """Every save is one commit of a whole captioner, whose card reports the rewards."""
    hub_fields = {"push_to_hub": True, "hub_model_id": "tester/rewarded", "hub_always_push": True}
    trainer = scst_trainer(make_captioner(), processor, scenes, tmp_path / "run", **hub_fields, num_train_epochs=1)
    trainer.train()
    trainer.push_to_hub()
    assert list(hub.repositories) == [("model", "tester/rewarded")]
    for commit in hub.repository("tester/rewarded").branches["main"][1:]:
        assert {"model.safetensors", "processor_config.json", "README.md"} <= commit.files.keys()
    card = hub.repository("tester/rewarded").files()["README.md"].decode()
    assert "## Evaluation on scenes (validation)" in card and "`num_samples=3`" in card
    assert card.count("# rewarded\n") == 1
    model = AutoModelForImageTextToText.from_pretrained("tester/rewarded")
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cross_entropy", "self_critical"])
def test_two_processes_leave_one_repository(make_captioner, processor, scenes, loopback_hub, tmp_path, kind):  # noqa: F811
    """Each save is one commit, not one per process, and the card reports both processes."""
    make_captioner().save_pretrained(tmp_path / "captioner")
    processor.save_pretrained(tmp_path / "captioner")
    for split in ("train", "validation"):
        scenes[split].save_to_disk(str(tmp_path / split))
    # `--multi_gpu` is also what starts several processes where there is no GPU.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = subprocess.run(
        [*launch, "-m", "tests.hub.pushing_processes", str(tmp_path), kind],
        env=os.environ | loopback_hub.environment(tmp_path / "home") | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(loopback_hub.repositories) == [("model", "tester/together")]
    commits = loopback_hub.repository("tester/together").branches["main"]
    assert [commit.title for commit in commits[1:]] == [
        "Training in progress, step 1",
        "Training in progress, step 2",
        "End of training",
    ]
    for commit in commits[1:]:
        assert {"model.safetensors", "processor_config.json", "README.md"} <= commit.files.keys()
    files = loopback_hub.repository("tester/together").files()
    assert files["model.safetensors"] == (tmp_path / "run" / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert card.count("# together\n") == 1 and "in 2 processes" in card
    assert "Computed on 6 images with 30 reference captions." in card


def test_training_refuses_before_it_begins(make_trainer, hub, monkeypatch):  # noqa: F811
    with pytest.raises(ValueError, match="hub_strategy='checkpoint'.*pickled optimizer states"):
        make_trainer(push_to_hub=True, hub_strategy="checkpoint")
    HfApi(token=TOKEN).create_repo("data", repo_type="dataset")
    with pytest.raises(ValueError, match="tester/data is a dataset"):
        make_trainer(push_to_hub=True, hub_model_id="tester/data")
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(PermissionError, match="hf auth login"):
        make_trainer(push_to_hub=True)


def test_the_card_names_the_language_model_and_the_vision_model(monkeypatch, tmp_path, tokenizer):  # noqa: F811
    """By their names on the Hub, also after saving; of a captioner that is trained further, the captioner alone."""
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    language = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, name_or_path="distilgpt2"))
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **options: create(name, **options))
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        language, vision_model="timm:test_resnet.r160_in1k", tokenizer=tokenizer
    )
    assert started_from(model.config) == ["distilgpt2", "timm/test_resnet.r160_in1k"]
    model.save_pretrained(tmp_path / "saved")
    loaded = VisualGPTForConditionalGeneration.from_pretrained(tmp_path / "saved")
    assert started_from(loaded.config) == ["distilgpt2", "timm/test_resnet.r160_in1k"]
    loaded.config._name_or_path = "somebody/captioner"
    assert started_from(loaded.config) == ["somebody/captioner"]


def test_the_card_states_the_licence(make_trainer, tmp_path):  # noqa: F811
    make_trainer(license="cc-by-4.0", language="de").save_model(str(tmp_path / "saved"))
    data = ModelCard.load(tmp_path / "saved" / "README.md").data
    assert (data.license, data.language) == ("cc-by-4.0", "de")
    with pytest.raises(ValueError, match="`license` is 'Apache 2.0', expected an identifier of the Hub"):
        CaptioningTrainingArguments(str(tmp_path), license="Apache 2.0", use_cpu=True)

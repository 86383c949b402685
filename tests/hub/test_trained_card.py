"""What a trainer says of a model in its card, and what it pushes."""

import json
import re

import pytest
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModelForImageTextToText, pipeline

from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.hub.card_merging import read_card
from tests.training.conftest import make_captioner, make_trainer, processor, scenes, tokenizer  # noqa: F401

from .card_numbers import numbers_in_files, numbers_of
from .loopback_hub import TOKEN

WHOLE_CARD = r"""<!-- hf-captioners writes what follows \(\w{12} \w{12}\); .* is kept -->
# run

An image captioner: it looks at a picture and writes a sentence\. Architecture: VisualGPT \(Chen et al\., .* CVPR 2022\)\.

\| property \| value \|
\|---\|---\|
\| parameters \| [\d,]+ \|
\| vision model \| vit \|
\| pictures are brought to \| 32 x 32 \|

## Use

```python
from transformers import pipeline

captioner = pipeline\(model="run", trust_remote_code=True\)
print\(captioner\("photo\.jpg"\)\[0\]\["generated_text"\]\)
```

With the library `hf_captioners` installed .* can be left out\.

## Evaluation on scenes \(validation\)

\| figure \| value \| what it is \|
\|---\|---\|---\|
(\| BLEU-\d \| \d\.\d{4} \| BLEU-\d, closest reference length \|
){4}\| CIDEr-D \| \d\.\d{4} \| CIDEr-D \(clipped, sigma 6\) \|
\| loss \| \d\.\d{4} \| mean negative log-likelihood of the tokens of all references \|

Natural units: papers print BLEU and CIDEr-D times 100\. Over 6 pictures with 30 reference captions\. Search: `num_beams=1`, `max_new_tokens=5`\. Tokenizer: `ptb`\. Document frequencies of CIDEr-D: the references of this set: 6 pictures\.

The first pictures of this set, not chosen:

\| picture \| caption \| first reference \|
\|---\|---\|---\|
(\| validation-\S+ \| .* \| .+ \|
){5}
## Training

Learnt from 12 pictures with 60 captions of scenes \(train\)\. Drawn scenes .* Licence of the data: Apache-2\.0\.

Arguments that differ from the defaults: .*`learning_rate=0\.001`, .*`seed=7`.*\.

<details><summary>Other arguments</summary>

.*`max_grad_norm=1\.0`.*

</details>

\| step \| epoch \| training loss \| loss \| BLEU-4 \| CIDEr-D \|
\|---\|---\|---\|---\|---\|---\|
(\| (\*\*)?\d(\*\*)? \| (\*\*)?\d\.\d\d(\*\*)? (\| (\*\*)?\d\.\d{4}(\*\*)? ){4}\|
){2}
The saved weights are those of the step in bold\.

Trained on CPU \(.* cores\), in \d+ seconds\.

Versions: hf-captioners \S+, Python \S+, torch \S+, transformers \S+, .*\.

## Intended use and limits

For writing drafts of captions .* identify people\.

## Citation

- Chen et al\., .* CVPR 2022
<!-- hf-captioners: end -->
"""  # noqa: E501


@pytest.fixture
def trained(make_trainer):  # noqa: F811
    """A trainer after two epochs."""
    trainer = make_trainer()
    trainer.train()
    trainer.save_model()
    return trainer


def test_the_whole_card(trained, hub, tmp_path):
    """Every line is as expected, every number stands in a file, and the Hub's own check accepts the metadata."""
    run = tmp_path / "run"
    text = (run / "README.md").read_text()
    card = read_card(text, "here")
    found = re.fullmatch(WHOLE_CARD, card.generated)
    if not found:  # say which line is the first that is not expected
        lines = card.generated.splitlines()
        known = [line for line in lines if any(re.fullmatch(form, line) for form in WHOLE_CARD.splitlines())]
        pytest.fail(f"unexpected: {[line for line in lines if line not in known]}")
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


def test_a_part_of_a_data_set_is_told(make_trainer, scenes):  # noqa: F811
    trainer = make_trainer()
    trainer.train_dataset.pictures.rows = scenes["train"].select(range(3))
    trainer.train_dataset.pictures.captions = trainer.train_dataset.pictures.captions[:3]
    facts = trainer.card.facts(trainer).data
    assert (facts.pictures, facts.of_pictures, facts.captions) == (3, 12, 15)


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
    """One commit a save, each a captioner that loads; nothing of the run's own files."""
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


def test_training_refuses_before_it_begins(make_trainer, hub, monkeypatch):  # noqa: F811
    with pytest.raises(ValueError, match="hub_strategy='checkpoint'.*pickled optimizer states"):
        make_trainer(push_to_hub=True, hub_strategy="checkpoint")
    HfApi(token=TOKEN).create_repo("data", repo_type="dataset")
    with pytest.raises(ValueError, match="tester/data is a dataset"):
        make_trainer(push_to_hub=True, hub_model_id="tester/data")
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(PermissionError, match="hf auth login"):
        make_trainer(push_to_hub=True)

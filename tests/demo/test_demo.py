"""The demonstration: its claims, its page, and the exit status when a claim does not hold."""

import re

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_captioners.cli import main
from hf_captioners.demo import page as demo_page
from hf_captioners.demo import running
from hf_captioners.demo.experiment import QUICK, Parts, Run, check_claims


def runs_of(pretrained: float, random: float, shuffled: float, model=None) -> list[Run]:
    return [
        Run(side, seed, ["a star"] * 10, value + 0.01 * seed, 0.2, shuffled, [(0.5, value / 2), (1.0, value)], model)
        for side, value in ((True, pretrained), (False, random))
        for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    ("figures", "held"),
    [((1.0, 0.8, 0.3), [True, True]), ((0.8, 1.0, 0.3), [False, True]), ((1.0, 0.8, 0.6), [True, False])],
)
def test_claims(figures, held):
    assert [holds for _, holds in check_claims(runs_of(*figures))] == held


@pytest.mark.parametrize(("figures", "status"), [((1.0, 0.8, 0.3), 0), ((0.8, 1.0, 0.3), 1), ((1.0, 0.8, 0.6), 1)])
def test_exit_status(figures, status, monkeypatch, tmp_path):
    prepared = iter(runs_of(*figures))
    monkeypatch.setattr(running, "prepare", lambda scale, seed: None)
    monkeypatch.setattr(running, "fine_tune", lambda *arguments: next(prepared))
    monkeypatch.setattr(running, "write_page", lambda path, *arguments: path)
    assert main(["demo", "--output_dir", str(tmp_path)]) == status


def test_page(captioner, scenes, tmp_path):
    """Images inside the file, a word for every word of a caption, both sides of the comparison."""
    model, processor = (auto.from_pretrained(captioner) for auto in (AutoModelForImageTextToText, AutoProcessor))
    parts = Parts(None, 3.2, None, {"colour": 0.9, "shape": 0.8}, processor, scenes, scenes)
    runs = runs_of(1.0, 0.8, 0.3, model)
    page = demo_page.write_page(tmp_path / "index.html", parts, runs, QUICK, 120.0).read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(scenes)
    assert page.count("<polyline") == 4
    assert page.count("<b>0</b> of 20") == 2 and "0 to 16 %" in page, "no caption is right"
    assert "Does not hold: at least 60% of the captions of the best run are entirely right: 0 of 10" in page
    attention = (tmp_path / "attention.html").read_text(encoding="utf-8")
    assert attention.count("<section>") == len(scenes) and 'href="attention.html"' in page
    assert "1.005" in page and "0.805" in page, "means of the two seeds"
    words = [[word for word, _ in demo_page.word_scores(runs[0], parts, index)] for index in range(len(scenes))]
    assert len(re.findall(r'class="word"', page)) == sum(len(row) for row in words)
    assert scenes[0]["captions"][0].rstrip(".") in page
    assert not re.search(r'(src|href)="http', page), "the page must be one file"


def test_right_captions_are_counted(scenes):
    """References are entirely right, so the claim holds for them; of half of them it does not."""
    references = [captions[0] for captions in scenes["captions"]]
    run = Run(True, 0, references, 1.0, 0.5, 0.2)
    assert demo_page.right_claim(run, scenes["scene"])[1]
    (row, _) = demo_page.table_rows([run, Run(False, 0, references, 1.0, 0.5, 0.2)], scenes["scene"])
    assert row["right"] == row["captions"] == len(scenes) and set(row["facts"].values()) == {1.0}
    run.captions = references[:5] + ["a star"] * 5
    text, holds = demo_page.right_claim(run, scenes["scene"])
    assert not holds and "5 of 10 (50%, 95 % interval 24% to 76%)" in text


def test_visual_scores(captioner, scenes):
    model, processor = (auto.from_pretrained(captioner) for auto in (AutoModelForImageTextToText, AutoProcessor))
    inputs = processor(images=scenes[0]["image"], return_tensors="pt")
    sequences = model.generate(**inputs, num_beams=2, num_return_sequences=2)
    scores = model.visual_scores(sequences, **inputs)
    assert scores.shape == (2, sequences.shape[1] - 1) and ((scores >= 0) & (scores <= 1)).all()
    gates = model(decoder_input_ids=sequences[:, :-1], output_gates=True, **inputs).gates[-1].visual
    assert scores[1, 2].item() == pytest.approx(gates[1, 2].mean().item())
    model.config.fusion = "residual"
    assert not model.has_visual_scores
    with pytest.raises(ValueError, match="no visual gates"):
        model.visual_scores(sequences, **inputs)

"""The demonstration: its claims, its page, and the exit status when a claim does not hold."""

import re
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_captioners.cli import main
from hf_captioners.default_model import list_models
from hf_captioners.demo import page as demo_page
from hf_captioners.demo import running
from hf_captioners.demo.claims import best_run, check_claims, right_claim
from hf_captioners.demo.experiment import QUICK, Parts, Run, Scale, fine_tune, prepare
from tests.browser import look_at, open_browser
from tests.directions import directions

SCENE = "1 small red star left on white"
RIGHT = ["a red star on the left"] * 10
WRONG = ["a blue star on the left"] * 10
WAITING_JOBS = """
import time
from hf_captioners.demo.running import jobs_in

def wait():
    print("working", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    with jobs_in(2) as run_jobs:
        run_jobs([wait, wait])
"""
FIGURES = [
    ((1.0, 0.8, 0.3), RIGHT, WRONG, [True, True, True]),
    ((1.0, 0.8, 0.3), RIGHT, RIGHT, [True, False, True]),
    ((0.8, 1.0, 0.3), RIGHT, WRONG, [True, True, True]),
    ((1.0, 0.8, 0.6), RIGHT, WRONG, [True, True, False]),
    ((1.0, 0.8, 0.3), RIGHT[:5] + WRONG[5:], WRONG, [False, True, True]),
]


def runs_of(pretrained: float, random: float, shuffled: float, model=None, captions=WRONG, others=WRONG) -> list[Run]:
    """Two runs of each start, `captions` from the language model and `others` from random weights."""
    return [
        Run(side, seed, said, value + 0.01 * seed, 0.2, shuffled, [(0.5, value / 2), (1.0, value)], model)
        for side, value, said in ((True, pretrained, captions), (False, random, others))
        for seed in (0, 1)
    ]


@pytest.mark.parametrize(("figures", "captions", "others", "held"), FIGURES)
def test_exit_status_and_page_have_the_same_claims(figures, captions, others, held, monkeypatch, tmp_path, capsys):
    """The command ends with 0 only if every claim holds that the page shows, and prints them."""
    runs, shown = runs_of(*figures, captions=captions, others=others), []
    assert [holds for _, holds in check_claims(runs, [SCENE] * 10)] == held
    parts = SimpleNamespace(unseen={"scene": [SCENE] * 10})
    monkeypatch.setattr(running, "prepare", lambda scale, seed, run_jobs: parts)
    monkeypatch.setattr(running, "jobs_in", lambda processes: nullcontext(lambda jobs: runs))
    monkeypatch.setattr(running, "write_page", lambda path, parts, runs, claims, *rest: shown.extend(claims))
    assert main(["demo", "--output_dir", str(tmp_path)]) == int(not all(held))
    assert [holds for _, holds in shown] == held
    printed = capsys.readouterr().out
    assert all(f"{'holds' if holds else 'DOES NOT HOLD'}: {text}" in printed for text, holds in shown)


def test_the_best_run_is_not_chosen_by_what_is_claimed_of_it():
    """CIDEr-D chooses among those from the language model, whatever is right."""
    runs = runs_of(1.0, 2.0, 0.3)
    runs[0].captions = RIGHT
    assert best_run(runs) is runs[1]


@pytest.fixture(scope="module")
def shown(captioner, scenes, tmp_path_factory):
    """The parts, the runs and the page of an untrained captioner."""
    model, processor = (auto.from_pretrained(captioner) for auto in (AutoModelForImageTextToText, AutoProcessor))
    parts = Parts(None, 3.2, None, {"colour": 0.9, "shape": 0.8}, processor, scenes, scenes)
    runs = runs_of(1.0, 0.8, 0.3, model, ["a star"] * 10)
    claims, path = check_claims(runs, scenes["scene"]), tmp_path_factory.mktemp("demo") / "index.html"
    return parts, runs, demo_page.write_page(path, parts, runs, claims, QUICK, 120.0)


@pytest.mark.slow
def test_two_jobs_at_a_time_are_those_of_one(tmp_path):
    """Two processes give the parts and the captions, in the order of the plan, that one process gives."""
    scale = Scale(labelled=64, texts=40, language_steps=5, images=10, epochs=1, unseen=4, runs=1)
    threads, found = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for count in (1, 2):
        with running.jobs_in(count) as run_jobs:
            parts, folder = prepare(scale, 0, run_jobs), tmp_path / str(count)
            found.append(run_jobs([partial(fine_tune, parts, scale, side, 1, folder) for side in (True, False)]))
    torch.set_num_threads(threads)
    one, two = found
    assert [(run.pretrained, run.seed, run.captions) for run in two] == [
        (run.pretrained, run.seed, run.captions) for run in one
    ]
    assert [type(run.model) for run in two] == [type(run.model) for run in one]


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path):
    """Its output ends when the last process that writes to it has ended."""
    (tmp_path / "jobs.py").write_text(WAITING_JOBS)
    started = subprocess.Popen([sys.executable, tmp_path / "jobs.py"], stdout=subprocess.PIPE, text=True)
    assert started.stdout.readline() and started.stdout.readline(), "two jobs at a time"
    started.kill()
    started.communicate(timeout=60)


def test_photographs_of_the_default_captioner(tmp_path):
    """Where both are installed: the wheel has no photographs."""
    assert all(path.is_file() for path in demo_page.PHOTOGRAPHS)
    if not list_models():
        pytest.skip("no default captioner is installed")
    captioner = list_models()[0]
    assert demo_page.captioned_photographs([tmp_path / "none.jpg"], captioner) == []
    found = demo_page.captioned_photographs(demo_page.PHOTOGRAPHS, captioner)
    assert [one["caption"] for one in found][0] == "a man is riding a dirt bike in the woods"
    assert len({one["image"] for one in found}) == 2 and all(
        one["image"].startswith("data:image/jpeg") for one in found
    )


def test_page(shown, scenes):
    """Images inside the file, a word for every word of a caption, both sides of the comparison."""
    parts, runs, path = shown
    page = path.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(scenes)
    assert page.count("data:image/jpeg;base64,") == 2 * bool(list_models())
    assert page.count("<polyline") == 4
    assert page.count("<b>0</b> of 20") == 2 and "0 to 16 %" in page, "no caption is right"
    assert "Does not hold: at least 60% of the captions of the best run are entirely right: 0 of 10" in page
    attention = path.with_name("attention.html").read_text(encoding="utf-8")
    assert attention.count("<section>") == len(scenes) and 'href="attention.html"' in page
    assert "1.005" in page and "0.805" in page, "means of the two seeds"
    words = [[word for word, _ in demo_page.word_scores(runs[0], parts, index)] for index in range(len(scenes))]
    assert len(re.findall(r'class="word"', page)) == sum(len(row) for row in words)
    sides = directions(page)
    assert all(sides[text] == {"auto"} for row in [*words, *scenes["captions"]] for text in row), "Arabic too"
    assert not re.search(r'(src|href)="http', page), "the page must be one file"


def test_pages_fit_a_phone(shown):
    """The page and the attention of its captions: nothing is cut off, images load, and the verdicts can be read."""
    with open_browser(width=390, height=844) as browser:
        text = look_at(browser, shown[2])
        assert "Does not hold: at least 60% of the captions" in text and "Holds: the captions describe" in text
        assert text.count("right: nothing") == 10 and "of these captions, and such small differences" in text
        browser.find_element("link text", "Attention of each word over the image").click()
        assert "The captioner of the demonstration captioned 10 images" in look_at(browser, browser.current_url)


def test_right_captions_are_counted(scenes):
    """References are entirely right, so the claim holds for them; of half of them it does not."""
    references = [captions[0] for captions in scenes["captions"]]
    run = Run(True, 0, references, 1.0, 0.5, 0.2)
    assert right_claim(run, scenes["scene"])[1]
    (row, _) = demo_page.table_rows([run, Run(False, 0, references, 1.0, 0.5, 0.2)], scenes["scene"])
    assert row["right"] == row["captions"] == len(scenes) and set(row["facts"].values()) == {1.0}
    run.captions = references[:5] + ["a star"] * 5
    text, holds = right_claim(run, scenes["scene"])
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

"""VisualGPT's text side equals the authors' code: encoding with its batch-dependent cut, and decoding."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from hf_captioners.metrics import DocumentFrequency, PTBTokenizer
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_captioning import without_repetitions
from hf_captioners.processing.processing_gpt2 import (
    prepare_gpt2_tokenizer,
    released_caption_words,
    released_rows,
    released_text,
    released_words,
)
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor
from hf_captioners.training.optimization import RunLength, noam
from hf_captioners.training.rewards import named_reward
from hf_captioners.training.rewards.references import TrainingReferences
from hf_captioners.training.rewards.weighted_sum import RewardRows, RewardSum
from hf_captioners.training.scst.loss import sample_baseline

from .figures import FIGURES, GIVEN

pytestmark = pytest.mark.parity
BOS, EOS, PAD = 47934, 50256, 47932


@pytest.fixture(scope="module")
def procedures():
    file = FIGURES / "visualgpt_procedures" / "procedures.json"
    assert file.is_file(), f"no figures in {file} (HF_CAPTIONERS_PARITY_DIR={GIVEN})"
    return json.loads(file.read_text(encoding="utf-8"))


def test_visualgpt_procedures_scst_reward(procedures, tmp_path, report_compared):
    """Rewards and baselines of five captions of each of three images, weighed by a corpus of ten documents."""
    case = procedures["scst_reward"]
    corpus = DocumentFrequency.per_caption(PTBTokenizer()(case["document_frequency_corpus"]))
    assert corpus.n_documents == case["documents"]
    corpus.save(tmp_path / "corpus.npz")
    captions, candidates = case["references_per_image"], case["candidates_per_image"]
    reward = named_reward("cider_d", TrainingReferences(captions, count_end=False), str(tmp_path / "corpus.npz"))
    completions = [text for texts in candidates for text in texts]
    row = [number for number, texts in enumerate(candidates) for _ in texts]
    rows = RewardRows(Dataset.from_dict({"captions": captions}))
    figures = RewardSum({"cider_d": reward}, None, rows)(completions, row, [True] * len(row))
    rewards = torch.tensor(case["rewards"])
    torch.testing.assert_close(figures.view(rewards.shape), rewards, atol=1e-5, rtol=0)
    baseline = sample_baseline("beam_mean", figures.view(rewards.shape))[:, 0]
    torch.testing.assert_close(baseline, torch.tensor(case["baseline"]), atol=1e-5, rtol=0)
    report_compared(rewards.numel() + baseline.numel())


def test_visualgpt_procedures_m2_learning_rate(procedures, report_compared):
    """The program multiplies a rate of 1 by these figures; its step s = 0 is the first."""
    compared = 0
    for case in procedures["m2_learning_rate"]:
        factor = noam(RunLength(steps_per_epoch=10**9, warmup_steps=case["warmup"], hidden_size=case["d_model"]))
        for step, rate in zip(case["scheduler_steps"], case["lr"], strict=True):
            assert factor(step) == pytest.approx(rate, rel=1e-12)
            compared += 1
    report_compared(compared)


@pytest.fixture(scope="module", params=["as it is", "of a converted checkpoint"])
def tokenizer(request, material):
    folder = material / "gpt2_tokenizer"
    if not folder.is_dir():
        pytest.skip(f"no GPT-2 tokenizer at {folder}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer if request.param == "as it is" else prepare_gpt2_tokenizer(tokenizer, BOS, EOS, PAD)


@pytest.fixture(scope="module")
def processor(material):
    tokenizer = prepare_gpt2_tokenizer(AutoTokenizer.from_pretrained(material / "gpt2_tokenizer"), BOS, EOS, PAD)
    assert len(tokenizer) == 50257
    return VisualGPTProcessor(CaptioningImageProcessor(), tokenizer, released_text=True, merge_repeated_words=True)


def test_visualgpt_procedures_numericalise(procedures, tokenizer, report_compared):
    compared = 0
    for case in procedures["numericalise"]:
        captions = case["captions_split_on_spaces"]
        before, after = released_rows(captions, tokenizer, BOS, EOS, PAD)
        assert [released_words(caption) for caption in captions] == case["words"]
        assert before == case["ids_before_truncation"]
        assert after == case["ids"]
        assert [EOS not in row for row in after] == case["eos_lost"]
        compared += sum(len(row) for row in [*before, *after]) + len(after)
    assert len(procedures["numericalise"]) >= 1 and any(any(c["eos_lost"]) for c in procedures["numericalise"])
    report_compared(compared)


def test_visualgpt_procedures_decode(procedures, tokenizer, report_compared):
    cases = procedures["decode"]
    for case in cases:
        words = released_caption_words(case["ids"], tokenizer, EOS, PAD)
        assert released_text(case["ids"], tokenizer) == case["raw_decode"]
        assert words == case["words"]
        assert " ".join(words) == case["joined"]
        assert " ".join(without_repetitions(words)) == case["after_removing_consecutive_duplicates"]
    report_compared(4 * len(cases))


def test_visualgpt_procedures_through_the_processor(procedures, processor, report_compared):
    compared = 0
    for case in procedures["numericalise"]:
        labels = processor(text_target=case["captions_split_on_spaces"], return_tensors="np")["labels"]
        for row, expected in zip(labels, case["ids"], strict=True):
            expected = [token if token != PAD else -100 for token in expected[1:]]
            np.testing.assert_array_equal(row, expected + [-100] * (len(row) - len(expected)))
            compared += len(row)
    for case in procedures["decode"]:
        assert processor.decode([BOS, *case["ids"]]) == case["after_removing_consecutive_duplicates"]
        compared += 1
    report_compared(compared)

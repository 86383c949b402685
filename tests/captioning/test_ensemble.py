"""Ensembles: one choice of every word, from members of any architecture with one vocabulary."""

import pytest
import torch

from hf_captioners import CaptionerEnsemble
from hf_captioners.captioning.ensemble import load_ensemble
from hf_captioners.cli import main
from hf_captioners.modeling.modeling_captioning import CaptioningPreTrainedModel
from hf_captioners.processing.word_tokenizer import word_tokenizer
from tests.hub.captioner_cases import case_of

OPTIONS = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
BEAMS = [
    {"num_beams": 3, "num_return_sequences": 3},
    {"num_beams": 3, "num_return_sequences": 2, "bookkeeping": "live"},
    {"num_beams": 2, "bookkeeping": "pool"},
    {"num_beams": 1},
]


@pytest.fixture(scope="module")
def case():
    return case_of("transformer")


@pytest.fixture(scope="module")
def members(case):
    """Two Transformers and an LSTM, whose caches differ."""
    lstm = case_of("show_attend_tell")
    return [case.make_model(seed=1), case.make_model(seed=2, norm_first=False), lstm.make_model(seed=3)]


def mean_logprobs(members, weights, inputs, captions):
    """By the definition: the log of the weighted mean of probabilities, all tokens at once."""
    with torch.no_grad():
        shares = [member(**inputs, decoder_input_ids=captions).logits.softmax(-1) for member in members]
    return sum(weight * share for weight, share in zip(weights, shares, strict=True)).log()


@pytest.mark.parametrize("options", BEAMS, ids=str)
def test_scores_are_those_of_the_mean_of_probabilities(case, members, options):
    """Cached search: the score of every caption equals that of all members reading it at once."""
    ensemble, inputs = CaptionerEnsemble(members, [2, 1, 1]), case.inputs("regions")
    out = ensemble.generate(**inputs, **OPTIONS, **options, length_penalty=0.0)
    count = options.get("num_return_sequences", 1)
    logprobs = mean_logprobs(members, [0.5, 0.25, 0.25], inputs, out.sequences[:, :-1])
    chosen = logprobs.gather(-1, out.sequences[:, 1:, None])[..., 0]
    eos = ensemble.config.eos_token_id
    ended = (out.sequences[:, 1:] == eos).cumsum(-1) - (out.sequences[:, 1:] == eos).long() > 0
    assert len(out.sequences) == count * 3
    total = chosen.masked_fill(ended, 0.0).sum(-1)
    if options["num_beams"] > 1:
        torch.testing.assert_close(out.sequences_scores, total, atol=1e-4, rtol=0)
    else:
        first = torch.stack(out.scores, 1).log_softmax(-1)
        torch.testing.assert_close(first[~ended], logprobs[~ended], atol=1e-4, rtol=0)
        assert torch.equal(first.argmax(-1)[~ended], out.sequences[:, 1:][~ended])


@pytest.mark.parametrize("options", BEAMS, ids=str)
def test_equal_members_write_as_one(case, members, options):
    inputs = case.inputs("pixels")
    alone = members[0].generate(**inputs, **OPTIONS, **options)
    ensemble = CaptionerEnsemble([members[0], members[0]], [1, 3])
    together = ensemble.generate(**inputs, **OPTIONS, **options)
    assert torch.equal(alone.sequences, together.sequences)


def test_members_are_encoded_once_and_weights_matter(case, members):
    inputs = case.inputs("regions")
    calls = []
    hooks = [one.get_encoder().register_forward_hook(lambda *_: calls.append(1)) for one in members[:2]]
    several = CaptionerEnsemble(members[:2]).generate(**inputs, num_beams=4, max_new_tokens=5)
    for hook in hooks:
        hook.remove()
    assert len(calls) == 2 and isinstance(several, torch.Tensor)
    logits = [
        CaptionerEnsemble(members[:2], weights)(**inputs, decoder_input_ids=case.captions(members[0])).logits
        for weights in ([1, 1], [9, 1])
    ]
    assert (logits[0] - logits[1]).abs().max() > 1e-2
    assert isinstance(CaptionerEnsemble(members), CaptioningPreTrainedModel)


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1], "expected 2 positive numbers"), ([1, 0], "expected 2 positive"), ([1, float("nan")], "positive")],
)
def test_wrong_weights(members, weights, message):
    with pytest.raises(ValueError, match=message):
        CaptionerEnsemble(members[:2], weights)


def test_other_vocabularies_are_refused(case, members, tmp_path):
    with pytest.raises(ValueError, match="has `vocab_size=30` and another one 29"):
        CaptionerEnsemble([members[0], case.make_model(vocab_size=29)])
    with pytest.raises(ValueError, match="at least one captioner"):
        CaptionerEnsemble([])
    with pytest.raises(ValueError, match="is a Linear, expected a captioner"):
        CaptionerEnsemble([torch.nn.Linear(1, 1)])
    other = case.make_processor()
    words = sorted(other.tokenizer.get_vocab().items(), key=lambda item: item[1])[4:]
    for name, processor in (("first", case.make_processor()), ("second", other)):
        case.make_model().save_pretrained(tmp_path / name)
        if name == "second":
            processor.tokenizer = word_tokenizer([word for word, _ in reversed(words)])
        processor.save_pretrained(tmp_path / name)
    with pytest.raises(ValueError, match="second has another vocabulary than .*first"):
        load_ensemble([str(tmp_path / "first"), str(tmp_path / "second")])


def test_the_command_line_takes_several_models(case, members, tmp_path, capsys):
    """`caption --model A --ensemble B` and `evaluate A DATA --ensemble B`; a further `--model` is the old name."""
    from PIL import Image

    for name, member in zip("ab", members, strict=False):
        member.save_pretrained(tmp_path / name)
        case.make_processor().save_pretrained(tmp_path / name)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    models = ["--model", str(tmp_path / "a"), "--ensemble", str(tmp_path / "b")]
    assert main(["caption", str(tmp_path / "red.png"), *models, "--weights", "2", "1"]) == 0
    caption = capsys.readouterr().out
    assert caption.strip()
    old = ["--model", str(tmp_path / "a"), "--model", str(tmp_path / "b")]
    assert main(["caption", str(tmp_path / "red.png"), *old, "--weights", "2", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out == caption and f"type --model {tmp_path / 'a'} --ensemble {tmp_path / 'b'}" in printed.err
    assert main(["caption", str(tmp_path / "red.png"), *models, "--weights", "2"]) == 2
    assert "expected 2 positive numbers" in capsys.readouterr().err
    scenes = ["scenes", "--data_options", 'num_images={"train": 2, "validation": 2, "test": 3}', "image_size=32"]
    typed = ["evaluate", str(tmp_path / "a"), *scenes, "--metrics", "bleu"]
    assert main([*typed, "--ensemble", str(tmp_path / "b")]) == 0
    table = capsys.readouterr().out
    assert "bleu_4" in table.lower()
    assert main([*typed, "--model", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == table

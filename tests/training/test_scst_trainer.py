"""A step of self-critical training, and whole small runs, for this library's captioners and for others."""

import numpy as np
import pytest
import torch
from transformers import BlipImageProcessor

from hf_captioners.features.region_source import Regions
from hf_captioners.features.regions_column import with_regions
from hf_captioners.loading import ImageTextProcessor, load_captioner
from hf_captioners.metrics import PTBTokenizer
from hf_captioners.training.scst import token_scores
from hf_captioners.training.scst.loss import chosen_logprobs, token_entropy
from hf_captioners.training.scst.sampling import CaptionSamples, CaptionSampling

from .scst_settings import log_of, scst_trainer, share_of_o
from .tiny_captioners import SIDE, tiny_blip, tiny_git, tiny_ved

FOREIGN = {"vision-encoder-decoder": tiny_ved, "blip": tiny_blip, "git": tiny_git}


@pytest.fixture
def make_any(make_captioner, processor, tokenizer):
    """Build a tiny captioner of this library or of transformers, with its processor."""

    def make(kind):
        if kind == "visualgpt":
            return make_captioner(), processor
        torch.manual_seed(0)
        images = BlipImageProcessor(size={"height": SIDE, "width": SIDE})
        return FOREIGN[kind](tokenizer), ImageTextProcessor(images, tokenizer)

    return make


@pytest.fixture
def make_trainer(make_any, scenes, tmp_path):
    def make(kind="visualgpt", model=None, **options):
        built, processor = make_any(kind)
        return scst_trainer(model or built, processor, scenes, options.pop("output_dir", tmp_path / "run"), **options)

    return make


KINDS = pytest.mark.parametrize("kind", ["visualgpt", *FOREIGN])


def batch_of(trainer, rows=(0, 3)):
    return trainer.data_collator([trainer.train_dataset[row] for row in rows])


@KINDS
@pytest.mark.parametrize("sampling", ["multinomial", "beams"])
def test_logits_belong_to_what_was_drawn(make_trainer, kind, sampling):
    """The log-probability of every drawn token is that of the model given the image and the tokens before it."""
    trainer = make_trainer(kind, sampling=sampling, cache_features=False)
    trainer.model.eval()
    batch = batch_of(trainer)
    images = {name: value for name, value in batch.items() if name != "row"}
    samples = trainer._draw(images)
    assert samples.sequences.shape[0] == 2 * 3 and samples.tokens.shape == samples.real.shape
    logits, _ = trainer.sampling.logits(trainer.model, images, samples)
    found = torch.zeros(samples.real.shape)
    found[samples.real] = chosen_logprobs(logits, samples.tokens[samples.real]).detach()
    name = "input_ids" if kind in ("blip", "git") else "decoder_input_ids"
    for row in range(6):
        own = {key: value[row // 3 : row // 3 + 1] for key, value in images.items()}
        for place in range(int(samples.real[row].sum())):
            with torch.no_grad():
                step = trainer.model(**own, **{name: samples.sequences[row : row + 1, : place + 1]}).logits[0, -1]
            expected = step.log_softmax(-1)[samples.tokens[row, place]]
            assert found[row, place].item() == pytest.approx(expected.item(), abs=1e-4)


@KINDS
def test_scores_in_pieces(make_trainer, kind, monkeypatch):
    """They are those of the whole logits, with the same gradient; the logits of few tokens are held at a time."""
    trainer = make_trainer(kind, cache_features=False)
    trainer.model.eval()
    images = {name: value for name, value in batch_of(trainer).items() if name != "row"}
    samples = trainer._draw(images)
    logits, _ = trainer.sampling.logits(trainer.model, images, samples)
    expected = chosen_logprobs(logits, samples.tokens[samples.real])
    layer = token_scores.output_layer(trainer.model)
    monkeypatch.setattr(token_scores, "LOGITS_AT_A_TIME", 4 * len(layer.weight))
    own, seen = layer.forward, []
    monkeypatch.setattr(layer, "forward", lambda states: seen.append(states.shape[:-1].numel()) or own(states))
    scores, _ = trainer.sampling.scores(trainer.model, images, samples, with_entropy=True)
    assert max(seen) <= 4 and sum(seen) == int(samples.real.sum())
    torch.testing.assert_close(scores.logprobs[samples.real], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropies[samples.real], token_entropy(logits), atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad(scores.logprobs.sum(), layer.weight)[0]
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), layer.weight)[0], atol=1e-4, rtol=1e-4)


def letters(completions, references, **columns):
    """A reward that differs from caption to caption."""
    return [sum(map(ord, text)) % 17 / 17 for text in completions]


@KINDS
@pytest.mark.parametrize("baseline", ["greedy", "leave_one_out", "moving_average"])
def test_the_loss_of_a_step_by_hand(make_trainer, kind, baseline):
    """Minus the mean over captions of (reward - baseline) times the log-probability, divided by the longest length."""
    trainer = make_trainer(kind, baseline=baseline, reward_funcs=[letters], cache_features=False)
    trainer.model.eval()
    trainer.moving_average.update(0.3)
    batch = batch_of(trainer)
    images = {name: value for name, value in batch.items() if name != "row"}
    samples = trainer._draw(images)
    trainer._draw = lambda given: samples
    loss = trainer.compute_loss(trainer.model, batch)
    rewards = torch.tensor(letters(trainer.encoder.decode(samples.sequences), None)).view(2, 3)
    assert rewards.std() > 0
    if baseline == "greedy":
        with torch.no_grad():
            generated = trainer.model.generate(**images, num_beams=1, do_sample=False, max_new_tokens=5)
        compared = torch.tensor(letters(trainer.encoder.decode(generated), None))[:, None]
    elif baseline == "leave_one_out":
        compared = (rewards.sum(1, keepdim=True) - rewards) / 2
    else:
        compared = torch.tensor(0.3)
    logits, _ = trainer.sampling.logits(trainer.model, images, samples)
    logprobs = torch.zeros(samples.real.shape)
    logprobs[samples.real] = chosen_logprobs(logits, samples.tokens[samples.real])
    expected = -((rewards - compared) * logprobs.sum(-1).view(2, 3)).mean() / 5
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert loss.requires_grad and abs(loss.item()) > 1e-3


def test_sampling_ignores_the_checkpoint_s_generation_settings(make_trainer):
    """The checkpoint's generation settings do not affect samples, and do not change."""
    trainer = make_trainer(num_samples=200, cache_features=False)
    mine = {"top_k": 3, "top_p": 0.5, "num_beams": 4, "repetition_penalty": 9.0, "temperature": 0.1, "min_length": 5}
    mine |= {"min_p": 0.5, "top_h": 0.1, "min_new_tokens": 4, "forced_eos_token_id": 7}
    trainer.model.generation_config.update(**mine)
    images = {name: value for name, value in batch_of(trainer).items() if name != "row"}
    first = trainer._draw(images).tokens[:, 0]
    assert len(first.unique()) > 150  # of 302, almost equally probable
    assert {name: getattr(trainer.model.generation_config, name) for name in mine} == mine


@pytest.mark.parametrize("options", [{}, {"sampling": "beams", "baseline": "greedy"}])
def test_sampling_captions_logs_nothing(make_trainer, caplog, options):
    """transformers warns about settings that a sampling method does not read."""
    trainer = make_trainer(num_samples=2, cache_features=False, **options)
    batch = batch_of(trainer)
    caplog.clear()
    with caplog.at_level("WARNING"):
        trainer.compute_loss(trainer.model, batch)
    assert not caplog.records


@pytest.mark.parametrize("with_dropout", [False, True])
def test_dropout_while_drawing_is_a_choice(make_trainer, with_dropout):
    trainer = make_trainer(sample_with_dropout=with_dropout, baseline="greedy", cache_features=False)
    trainer.model.train()
    modes = []
    trainer.model.model.decoder.register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    trainer.compute_loss(trainer.model, batch_of(trainer))
    assert modes == [with_dropout] * 5 + [False] * 5 + [True]  # samples, greedy, gradient
    assert trainer.model.training


@pytest.mark.parametrize(("with_dropout", "weights"), [(False, "float32"), (True, None)])
def test_captions_are_sampled_with_packed_weights(make_trainer, with_dropout, weights):
    trainer = make_trainer(sample_with_dropout=with_dropout, cache_features=False)
    used = []
    hook = lambda *_: used.append(trainer.model.packed_weights)  # noqa: E731
    trainer.model.model.decoder.register_forward_pre_hook(hook)
    trainer.compute_loss(trainer.model, batch_of(trainer))
    assert used == [weights] * 5 + [None]  # samples, gradient


def test_images_are_encoded_once_for_all_their_captions(make_trainer):
    trainer = make_trainer(cache_features=False)
    rows = []
    trainer.model.model.encoder.vision.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    trainer.compute_loss(trainer.model, batch_of(trainer))
    assert rows == [2, 2]  # once to draw, once for the gradient


def test_samples_end_at_their_first_end_token():
    sequences = torch.tensor([[1, 5, 2, 2, 0], [1, 2, 5, 5, 5], [1, 5, 6, 7, 8]])
    samples = CaptionSamples.of(sequences, end=2, padding=9)
    assert samples.sequences.tolist() == [[1, 5, 2, 9, 9], [1, 2, 9, 9, 9], [1, 5, 6, 7, 8]]
    assert samples.real.sum(1).tolist() == [2, 1, 4]
    assert samples.ended.tolist() == [True, True, False]


@pytest.mark.parametrize("kind", ["visualgpt", *(pytest.param(kind, marks=pytest.mark.slow) for kind in FOREIGN)])
def test_the_reward_rises(make_trainer, kind, tmp_path):
    """Its mean over the last tenth of the steps exceeds that over the first by more than the standard deviations."""
    trainer = make_trainer(
        kind,
        reward_funcs=[share_of_o],
        learning_rate=5e-3,
        num_train_epochs=15,
        per_device_train_batch_size=6,
        num_samples=6,
        eval_strategy="no",
        save_strategy="no",
    )
    trainer.train()
    rewards = torch.tensor(log_of(trainer, "reward"))
    tenth = len(rewards) // 10
    first, last = rewards[:tenth], rewards[-tenth:]
    assert tenth >= 3 and last.mean() - first.mean() > first.std() + last.std()
    trainer.save_model(tmp_path / "saved")
    assert type(load_captioner(str(tmp_path / "saved"))[0]) is type(trainer.model)


def test_what_is_logged(make_trainer, scenes):
    seen = []

    def watch(completions, references, **columns):
        seen.append((completions, references, columns))
        return [len(text) / 10 for text in completions]

    trainer = make_trainer(
        reward_funcs=["cider_d", watch], reward_weights=[1.0, 0.5], num_train_epochs=1, entropy_weight=0.01
    )
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "reward" in entry)
    names = {"reward_cider_d", "reward_watch", "baseline", "advantage_std", "unfinished", "entropy", "visual_gate"}
    assert names | {"distinct", "length", "bad_endings"} <= entry.keys()
    assert entry["reward"] == pytest.approx(entry["reward_cider_d"] + 0.5 * entry["reward_watch"])
    assert entry["entropy"] == pytest.approx(5.7, abs=0.1)  # log(302): the model is fresh
    assert 0.4 < entry["visual_gate"] < 0.6
    completions, references, columns = seen[0]
    assert len(completions) == 4 * 3 == len(columns["ended"])
    for row, captions, image_id in zip(columns["row"], references, columns["image_id"], strict=True):
        assert captions == scenes["train"][row]["captions"] and image_id == scenes["train"][row]["image_id"]
    assert entry["reward_watch"] == pytest.approx(sum(len(text) for text in completions) / 10 / 12)
    evaluated = [entry for entry in trainer.state.log_history if "eval_cider_d" in entry]
    assert [entry["step"] for entry in evaluated] == [0, 3]
    assert {"eval_distinct", "eval_length", "eval_length_ratio", "eval_bad_endings"} <= evaluated[0].keys()


def test_the_log_counts_words_as_the_metrics_do(make_trainer):
    """Full stops are no words and do not hide a truncated end; case does not distinguish captions."""
    trainer = make_trainer()
    trainer.encoder.decode = lambda sequences: ["A dog on a .", "a dog on a", "A cat sits."]
    sequences, real = torch.zeros(3, 4, dtype=torch.long), torch.ones(3, 3, dtype=torch.bool)
    statistics = trainer._reward(CaptionSamples(sequences, real, real[:, 0]), [0]).result().statistics
    assert statistics == pytest.approx({"distinct": 2 / 3, "length": 11 / 3, "bad_endings": 2 / 3})


@pytest.mark.parametrize("baseline", ["leave_one_out", "greedy"])
def test_a_step_tokenises_its_captions_once(make_trainer, monkeypatch, baseline):
    """Three metrics as rewards, a function and the statistics: one call of one tokenizer per set of captions."""
    calls = []
    tokenize = PTBTokenizer.__call__

    def count(self, captions):
        calls.append((self, len(captions)))
        return tokenize(self, captions)

    trainer = make_trainer(reward_funcs=["cider_d", "bleu_4", "rouge_l", letters], baseline=baseline)
    batch = batch_of(trainer)
    monkeypatch.setattr(PTBTokenizer, "__call__", count)
    tokenizers = set()
    for _ in range(2):  # a second step uses the same tokenizer
        calls.clear()
        trainer.compute_loss(trainer.model, batch)
        assert [number for _, number in calls] == [2 * 3] + [2] * (baseline == "greedy")
        tokenizers |= {id(tokenizer) for tokenizer, _ in calls}
    assert len(tokenizers) == 1


def test_suppressed_tokens_have_no_probability(make_trainer):
    """The gradient is that of the distribution from which captions are sampled."""
    trainer = make_trainer(cache_features=False, entropy_weight=0.1)
    trainer.model.eval()
    images = {name: value for name, value in batch_of(trainer).items() if name != "row"}
    never = [7, 11]
    trainer.model.generation_config.suppress_tokens = never
    samples = trainer._draw(images)
    logits, _ = trainer.sampling.logits(trainer.model, images, samples)
    assert logits.softmax(-1)[:, never].max() == 0
    trainer.model.generation_config.suppress_tokens = None
    whole, _ = trainer.sampling.logits(trainer.model, images, samples)
    share = 1 - whole.softmax(-1)[:, never].sum(-1, keepdim=True)
    torch.testing.assert_close(logits.softmax(-1)[:, 20:], whole.softmax(-1)[:, 20:] / share)
    trainer.model.generation_config.suppress_tokens = never
    loss = trainer.compute_loss(trainer.model, batch_of(trainer))
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in trainer.model.parameters() if weight.grad is not None)


def test_captioners_that_couple_a_batch_are_refused(make_trainer, make_captioner, monkeypatch):
    captioner = make_captioner()
    monkeypatch.setattr(type(captioner), "captions_depend_on_batch", True)
    with pytest.raises(ValueError, match="depends on the other captions of its batch"):
        make_trainer(model=captioner)


def test_rewards_of_one_name_are_refused(make_trainer):
    with pytest.raises(ValueError, match="Several rewards are called <lambda>"):
        make_trainer(reward_funcs=[lambda completions, **_: [0.0], lambda completions, **_: [1.0]])


def test_regions_are_not_read_for_rewards(make_any, scenes, tmp_path):
    class Source(dict):
        name, feature_size = "features", 3

    model, processor = make_any("visualgpt")
    ids = [image_id for part in scenes.values() for image_id in part["image_id"]]
    source = Source({image_id: Regions(np.ones((2, 3), np.float32)) for image_id in ids})
    rows = {name: with_regions(part, source) for name, part in scenes.items()}
    seen = []

    def watch(completions, references, **columns):
        seen.append(columns)
        return [0.0] * len(completions)

    trainer = scst_trainer(model, processor, rows, tmp_path, reward_funcs=[watch])
    trainer.rewards(["a"], [2], [True])
    assert "regions" not in seen[0] and seen[0]["image_id"] == [scenes["train"]["image_id"][2]]


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


def test_divergence_is_measured_from_the_start(make_trainer, make_captioner):
    trainer = make_trainer(model=without_dropout(make_captioner()), kl_weight=0.1, learning_rate=1e-2)
    trainer.train()
    divergences = log_of(trainer, "kl")
    assert divergences[0] < 1e-6 < 1e-4 < divergences[-1]
    before = trainer._reference.state_dict()
    assert all(torch.equal(weight, before[name]) for name, weight in make_captioner().state_dict().items())


def test_an_entropy_bonus_alone_raises_entropy(make_trainer, make_captioner):
    """With a constant reward, and logits far from uniform."""
    model = make_captioner()
    torch.nn.init.normal_(model.lm_head.weight, std=0.3)

    def nothing(completions, references, **columns):
        return [0.0] * len(completions)

    trainer = make_trainer(model=model, reward_funcs=[nothing], entropy_weight=1.0, learning_rate=1e-3)
    trainer.train()
    entropies = log_of(trainer, "entropy")
    assert entropies[-1] > entropies[0] + 0.05


def test_an_image_without_captions_is_refused(make_any, scenes, tmp_path):
    captioner, processor = make_any("visualgpt")
    captions = [*scenes["train"]["captions"][:4], [], *scenes["train"]["captions"][5:]]
    train = scenes["train"].remove_columns("captions").add_column("captions", captions)
    with pytest.raises(ValueError, match="1 training images have no caption.*row 4"):
        scst_trainer(captioner, processor, {**scenes, "train": train}, tmp_path)


def test_a_wrong_reward_stops_the_run(make_trainer):
    def broken(completions, references, **columns):
        return [float("nan")] * len(completions)

    with pytest.raises(ValueError, match="'broken' returned nan for completion 0"):
        make_trainer(reward_funcs=[broken]).train()


def test_sampling_knows_the_end_token_of_each_kind(make_any):
    for kind in ("visualgpt", *FOREIGN):
        model, processor = make_any(kind)
        sampling = CaptionSampling(model, model, processor, 5)
        assert sampling.ends == [processor.tokenizer.eos_token_id], kind


def test_a_captioner_of_new_parts_goes_through_cross_entropy_first(make_captioner, make_trainer):
    trainer = make_trainer(max_steps=1, eval_strategy="no", captions_per_image=1)
    trainer.model.is_untrained = True
    assert make_captioner().is_untrained and trainer.model.double().is_untrained
    with pytest.raises(ValueError, match="samples random words.*scst_after_patience=5"):
        trainer.train()
    trainer.model.float()
    trainer.args.scst_after_epochs = 0.1
    trainer.train()
    trainer.args.scst_after_epochs = None
    assert not trainer.model.is_untrained

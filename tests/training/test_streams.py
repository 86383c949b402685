"""Training on streams: order, processes, loading workers, resume, and what is refused."""

import itertools
from collections import Counter

import pytest
import torch

from hf_captioners.data import load_captions
from hf_captioners.training.streams import SKIPPED, StreamedPairs, in_memory, mixed, rows_of

from .scst_settings import log_of, scst_trainer

STEPS = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
IMAGES, CAPTIONS = 12, 5


@pytest.fixture
def streams(scenes, tmp_path):
    """The drawn scenes as streams of four shards."""
    return {split: rows.to_iterable_dataset(num_shards=4) for split, rows in scenes.items()}


def pairs_of(rows, count, **options):
    settings = {"seed": 7, "batch_size": 4, "buffer_size": 8} | options
    return list(itertools.islice(StreamedPairs(rows, **settings), count))


def keys(pairs):
    return [(pair["image"].tobytes(), pair["caption"]) for pair in pairs]


def test_every_pass_has_every_pair_once_in_an_order_of_its_own(streams, scenes):
    whole = IMAGES * CAPTIONS
    pairs = keys(pairs_of(streams["train"], 2 * whole))
    first, second = pairs[:whole], pairs[whole:]
    assert len(set(first)) == whole and Counter(first) == Counter(second)
    assert first != second
    assert pairs == keys(pairs_of(streams["train"], 2 * whole)), "the seed gives the order"
    assert first != keys(pairs_of(streams["train"], whole, seed=8))
    one = pairs_of(streams["train"], IMAGES, captions_per_image=1)
    assert len({image for image, _ in keys(one)}) == IMAGES
    known = {caption for captions in scenes["train"]["captions"] for caption in captions}
    assert {caption for _, caption in first} <= known


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_the_batches_of_one(streams, processes):
    sequence = keys(pairs_of(streams["train"], 8 * 4 * processes, batch_size=4 * processes))
    shares = [keys(pairs_of(streams["train"], 32, process=number, processes=processes)) for number in range(processes)]
    joined = [pair for batch in range(8) for share in shares for pair in share[batch * 4 : (batch + 1) * 4]]
    assert joined == sequence


def test_loading_workers_do_not_change_the_order(streams):
    alone = StreamedPairs(streams["train"], 7, 4)
    both = []
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(alone, 4, collate_fn=keys, num_workers=workers)
        both.append(list(itertools.islice(loader, 20)))
    assert both[0] == both[1]


def test_a_worker_in_a_later_pass_does_not_change_the_order_of_another(streams, monkeypatch):
    alone = StreamedPairs(streams["train"], 7, 4)
    expected = keys(itertools.islice(alone, 2 * IMAGES * CAPTIONS))

    def beside_another(rows):
        alone.rows.set_epoch(5)  # in shared memory: what one worker sets, all see
        return rows_of(rows)

    monkeypatch.setattr("hf_captioners.training.streams.rows_of", beside_another)
    assert keys(itertools.islice(alone, 2 * IMAGES * CAPTIONS)) == expected


def test_skipped_batches_are_counted_only(streams):
    whole, later = StreamedPairs(streams["train"], 7, 4), StreamedPairs(streams["train"], 7, 4)
    later.skipped_batches = 3
    whole, later = (list(itertools.islice(one, 24)) for one in (whole, later))
    assert all(pair == {SKIPPED: True} for pair in later[:12])
    assert keys(later[12:]) == keys(whole[12:])


def test_a_buffer_of_one_keeps_the_order():
    import numpy as np

    assert list(mixed(range(5), 1, np.random.default_rng(0))) == list(range(5))
    assert sorted(mixed(range(50), 7, np.random.default_rng(0))) == list(range(50))


def state_of(trainer):
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


@pytest.mark.slow
def test_a_killed_run_goes_on_exactly(make_trainer, streams, tmp_path):
    def trainer(output, **fields):
        options = STEPS | {"captions_per_image": None, "load_best_model_at_end": False} | fields
        return make_trainer(
            train_rows=streams["train"],
            eval_rows=streams["validation"],
            output_dir=str(tmp_path / output),
            gradient_accumulation_steps=2,
            **options,
        )

    whole = trainer("whole")
    whole.train()
    assert whole.state.global_step == 6
    assert [entry["step"] for entry in whole.state.log_history if "eval_cider_d" in entry] == [3, 6]
    trainer("killed", max_steps=3).train()
    again = trainer("killed")
    decoded = []
    encode = again.encoder.encode_images
    again.encoder.encode_images = lambda images: decoded.append(len(images)) or encode(images)
    again.train(resume_from_checkpoint=True)
    for name, weight in state_of(whole).items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    assert sum(decoded) == 3 * 2 * 6, "three steps of two batches of six pairs; features of evaluation are stored"


def test_a_stream_learns_and_is_described(make_trainer, streams, tmp_path):
    trainer = make_trainer(train_rows=streams["train"], **STEPS | {"eval_strategy": "no", "save_strategy": "no"})
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    trainer.save_model()
    card = (tmp_path / "run/README.md").read_text()
    assert "Trained on" not in card or "None" not in card.split("Trained on")[1][:80]
    assert "`stream_buffer_size" not in card, "the default"
    assert trainer.evaluate(streams["validation"])["eval_cider_d"] >= 0
    assert len(trainer.caption(streams["validation"])) == 6


def test_rows_of_evaluation_are_read_once(streams, scenes):
    read = in_memory(streams["validation"])
    assert read["captions"][:] == scenes["validation"]["captions"][:]
    assert read[0]["image"].size == scenes["validation"][0]["image"].size


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_steps": -1}, "has no length: set `max_steps`"),
        ({"eval_strategy": "epoch"}, "set `eval_strategy` to 'steps' with `eval_steps`"),
        ({"save_strategy": "epoch"}, "set `save_strategy` to 'steps' with `save_steps`"),
        ({"group_captions": True}, "leave `group_captions` False"),
        ({"train_sampling_strategy": "group_by_length"}, "cannot be sorted"),
        ({"lr_scheduler_type": "step_decay"}, "another `lr_scheduler_type`"),
    ],
)
def test_what_does_not_fit_is_refused(make_trainer, streams, fields, said):
    with pytest.raises(ValueError, match=said):
        make_trainer(train_rows=streams["train"], **STEPS | {"load_best_model_at_end": False} | fields)


def test_columns_are_checked(make_trainer, streams):
    with pytest.raises(ValueError, match="expected `captions`.* Rename yours"):
        make_trainer(train_rows=streams["train"].remove_columns("captions"), **STEPS)


def test_a_streamed_folder_is_the_stored_one(tmp_path, scenes):
    counts = {"train": 12, "validation": 6}
    rows = load_captions("scenes", num_images=counts, image_size=32, split="train", streaming=True)
    pairs = pairs_of(rows, IMAGES * CAPTIONS)
    assert Counter(pair["caption"] for pair in pairs) == Counter(
        caption for captions in scenes["train"]["captions"] for caption in captions
    )


REWARDED = {"max_steps": 4, "eval_strategy": "no", "save_strategy": "steps", "save_steps": 2, "stream_buffer_size": 5}


@pytest.fixture
def make_rewarded(make_captioner, processor, scenes, tmp_path):
    """Build a self-critical trainer on streams with a further column, and a list of what its reward saw."""

    def make(output, **fields):
        seen = []

        def first_letter(completions, references, images, topic, **columns):
            seen.extend(zip((image.tobytes() for image in images), references, topic, strict=True))
            return [
                float(text < min(texts)) + len(text) / 100 for text, texts in zip(completions, references, strict=True)
            ]

        named = {
            name: rows.add_column("topic", [texts[0] for texts in rows["captions"]]) for name, rows in scenes.items()
        }
        streams = {name: rows.to_iterable_dataset(num_shards=3) for name, rows in named.items()}
        options = {"save_only_model": False, "load_best_model_at_end": False} | REWARDED | fields
        return scst_trainer(make_captioner(), processor, streams, tmp_path / output, [first_letter], **options), seen

    return make


def test_rewards_of_a_stream_see_the_columns_of_their_image(make_rewarded, scenes):
    trainer, seen = make_rewarded("run")
    trainer.train()
    known = {row["image"].tobytes(): row["captions"] for row in scenes["train"]}
    assert len(seen) == 4 * 4 * 3, "four steps of four images with three captions"
    assert all(known[image] == references and topic == references[0] for image, references, topic in seen)
    assert {image for image, _, _ in seen[:36]} == set(known), "every image once in the first pass"
    assert len(log_of(trainer, "reward")) == 4


@pytest.mark.slow
def test_rewards_of_a_stream_go_on_after_a_kill(make_rewarded):
    whole, seen = make_rewarded("whole", gradient_accumulation_steps=2)
    whole.train()
    make_rewarded("killed", gradient_accumulation_steps=2, max_steps=2)[0].train()
    again, later = make_rewarded("killed", gradient_accumulation_steps=2)
    again.train(resume_from_checkpoint=True)
    assert later == seen[len(seen) // 2 :]
    assert log_of(again, "reward") == pytest.approx(log_of(whole, "reward"), abs=1e-6)
    for name, weight in state_of(whole).items():
        assert torch.allclose(weight, again.model.state_dict()[name], atol=1e-6), name


def test_a_stream_has_no_epochs_before_rewards(make_rewarded):
    with pytest.raises(ValueError, match="no epochs to begin with: train with cross-entropy first"):
        make_rewarded("run", scst_after_epochs=1)

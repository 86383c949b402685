"""Properties of every data set: streams, shares of processes, copies, a full disk."""

import errno

import pytest
from datasets import Dataset, load_from_disk
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

from hf_captioners.data import DataReport, list_datasets, load_captions
from hf_captioners.data.loading import option_names

SMALL = {"num_images": {"train": 150}, "image_size": 32, "split": "train"}


@pytest.fixture
def stream(load):
    return load("scenes", streaming=True, **SMALL)


def ids(rows):
    return [row["image_id"] for row in rows]


def test_shuffling_with_a_seed_repeats(stream):
    first, again, other = (ids(stream.shuffle(seed=seed, buffer_size=50)) for seed in (1, 1, 2))
    assert first == again != other and sorted(first) == sorted(other) == sorted(ids(stream))


@pytest.mark.parametrize("world", [2, 3])
def test_processes_see_disjoint_shares(stream, world):
    shares = [ids(split_dataset_by_node(stream, rank, world)) for rank in range(world)]
    assert sorted(sum(shares, [])) == sorted(ids(stream))
    assert min(map(len, shares)) > 150 / world * 0.8


def test_loader_workers_share_the_work(stream):
    batches = DataLoader(stream.remove_columns("image"), batch_size=None, num_workers=2)
    assert sorted(ids(batches)) == sorted(ids(stream))


def test_streams_can_be_resumed(stream):
    position = iter(stream)
    first = [next(position)["image_id"] for _ in range(40)]
    state = stream.state_dict()
    stream.load_state_dict(state)
    assert first + ids(stream) == ids(load_captions("scenes", streaming=True, **SMALL))


def test_a_copy_on_disk_keeps_its_images(load, tmp_path, image):
    for name in ("a.png", "b.jpg"):
        image(tmp_path / "own" / name)
    (tmp_path / "own" / "captions.txt").write_text("a.png\tA dog\nb.jpg\tA cat\n")
    dataset = load("caption_folder", tmp_path / "own", "train")
    expected = [row["image"].tobytes() for row in dataset]
    dataset.save_to_disk(tmp_path / "copy")
    for name in ("a.png", "b.jpg"):
        (tmp_path / "own" / name).unlink()
    copy = load_from_disk(tmp_path / "copy")
    assert copy.features == dataset.features and [row["image"].tobytes() for row in copy] == expected


def test_a_full_disk_is_reported_and_leaves_no_files(load, monkeypatch, tmp_path):
    import datasets.arrow_writer as arrow_writer

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(arrow_writer.ArrowWriter, "write_table", full)
        with pytest.raises(OSError, match="No space left on device"):
            load("scenes", **SMALL)
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    assert len(load("scenes", **SMALL)) == 150


def test_passes_over_a_stream_note_a_problem_once(load, tmp_path, image):
    image(tmp_path / "own" / "a.png")
    (tmp_path / "own" / "captions.txt").write_text("a.png\tA dog\ngone.png\tA cat\nbroken\n")
    report = DataReport()
    stream = load("caption_folder", tmp_path / "own", "train", streaming=True, report=report)
    for _ in range(3):
        assert ids(stream) == ["a.png"]
    assert report.counts() == {"malformed row": 1, "missing image": 1} and report.kept == {"train": 3}


def test_every_data_set_says_its_options():
    for name in list_datasets():
        options = set(option_names(name))
        assert "check_images" in options and "data_dir" not in options, name


def test_rows_are_mapped_and_not_held_in_memory(load):
    dataset = load("scenes", **SMALL)
    assert isinstance(dataset, Dataset) and dataset.cache_files

"""The features that all runs share: computed once, within a limit, and safe for several processes at once."""

import os
import subprocess
import sys
import time

import pytest

from hf_captioners.cli import main
from hf_captioners.features.cache import FeatureCache
from hf_captioners.features.feature_store import FeatureStore
from hf_captioners.features.shared_cache import SharedCache
from hf_captioners.training.images import CaptionedImages

FOUR, EIGHT = range(4), range(4, 12)


@pytest.fixture
def shared(tmp_path):
    return SharedCache(tmp_path / "shared")


@pytest.fixture
def computed(monkeypatch):
    """The numbers of images whose features are computed, a batch each."""
    found, extract = [], FeatureCache._extract

    def counted(self, batch):
        found.append(len(batch["pixel_values"]))
        return extract(self, batch)

    monkeypatch.setattr(FeatureCache, "_extract", counted)
    return found


def cache_of(folder, model, processor, shared, **options):
    return FeatureCache(folder, model, processor, batch_size=4, shard_bytes=1, shared=shared, **options)


def rows_of(scenes, numbers):
    return CaptionedImages(scenes["train"].select(numbers)).rows


def shards_in(folder):
    return sorted(folder.rglob("regions-*.safetensors"))


def test_runs_with_the_same_images_and_vision_model_compute_features_once(
    tmp_path, make_captioner, make_trainer, scenes, computed, monkeypatch
):
    """Each in its own folder; a folder that is typed, or a limit of 0, is used as before."""
    monkeypatch.setattr("hf_captioners.features.shared_cache.default_folder", lambda: tmp_path / "shared")
    settings = {"num_train_epochs": 1, "max_steps": 1}
    model = make_captioner(seed=7)
    for run in ("first", "second"):
        trainer = make_trainer(make_captioner(seed=7), output_dir=str(tmp_path / run), **settings)
        trainer.train()
        assert not (tmp_path / run / "features").exists()
        assert trainer._feature_cache.folder.parent == tmp_path / "shared"
    before = sum(computed)
    assert before == len(scenes["train"]) + len(scenes["validation"])
    for name, options in (("typed", {"feature_cache_dir": str(tmp_path / "typed")}), ("own", {"feature_cache_gb": 0})):
        output = tmp_path / f"run_{name}"
        make_trainer(model, output_dir=str(output), **options, **settings).train()
        assert shards_in(tmp_path / "typed" if name == "typed" else output / "features")
    assert sum(computed) == 3 * before


def test_what_no_run_used_for_longest_goes_first(tmp_path, make_captioner, processor, scenes, shared, computed):
    first, second = (make_captioner(seed=seed) for seed in (1, 2))
    cache = cache_of(tmp_path / "a", first, processor, shared)
    cache.features_of(rows_of(scenes, FOUR))
    cache.features_of(rows_of(scenes, EIGHT))
    old, *others = shards_in(shared.folder)
    for age, shard in enumerate(reversed([*others, old]), 1):  # the first one was used last
        os.utime(shard, (time.time() - 100 * age,) * 2)
    size = old.stat().st_size
    shared.limit = 3 * size + size // 2
    assert len(others) == 2
    del cache
    cache_of(tmp_path / "b", second, processor, shared).features_of(rows_of(scenes, EIGHT))
    left = shards_in(shared.folder)
    assert sum(shard.stat().st_size for shard in left) <= shared.limit
    assert old in left and not set(others) & set(left)
    computed.clear()
    again = cache_of(tmp_path / "c", first, processor, SharedCache(shared.folder)).features_of(rows_of(scenes, FOUR))
    assert not computed and len(again) == 4


def test_a_run_keeps_what_it_uses(tmp_path, make_captioner, processor, scenes, shared):
    """Others remove nothing of a store that a living process has opened, and it keeps what it has read itself."""
    first, second = (make_captioner(seed=seed) for seed in (1, 2))
    cache = cache_of(tmp_path / "a", first, processor, shared)
    features = cache.features_of(rows_of(scenes, FOUR))
    (used,) = shards_in(shared.folder)
    shared.limit = used.stat().st_size * 2 + 10
    other = cache_of(tmp_path / "b", second, processor, shared)
    other.features_of(rows_of(scenes, EIGHT))
    assert used.exists() and features[0]["region_features"].shape[1] == 16
    assert shared.empty()[1] == 2
    folder = other.folder
    del other
    cache.features_of(rows_of(scenes, EIGHT))
    assert used.exists() and not folder.exists(), "the room for the eight images"
    del cache
    assert shared.empty()[1] == 0 and not shards_in(shared.folder)


def test_features_that_exceed_the_limit_are_the_runs_own(tmp_path, make_captioner, processor, scenes, shared, caplog):
    shared.limit = 2_000
    model = make_captioner()
    cache = cache_of(tmp_path / "own", model, processor, shared)
    assert len(cache.features_of(rows_of(scenes, EIGHT))) == 8
    assert "more than the 0.0 GB of the cache that all runs share (`feature_cache_gb`)" in caplog.text
    assert len(shards_in(tmp_path / "own")) == 2 and not shards_in(shared.folder)
    resumed = cache_of(tmp_path / "own", model, processor, SharedCache(shared.folder))
    assert resumed.folder == cache.folder, "a run goes on with the features that it has"


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, make_captioner, processor, scenes, caplog):
    (tmp_path / "file").write_text("")
    cache = cache_of(tmp_path / "own", make_captioner(), processor, SharedCache(tmp_path / "file" / "features"))
    assert len(cache.features_of(rows_of(scenes, FOUR))) == 4 and shards_in(tmp_path / "own")
    assert "cannot be used" in caplog.text


HOLDER = """
import sys
from pathlib import Path
from hf_captioners.features.shared_cache import SharedCache
lock = SharedCache(sys.argv[1]).use(Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_holds_nothing(tmp_path, make_captioner, processor, scenes, shared):
    cache = cache_of(tmp_path / "a", make_captioner(), processor, shared)
    cache.features_of(rows_of(scenes, FOUR))
    folder = cache.folder
    del cache
    command = [sys.executable, "-c", HOLDER, str(shared.folder), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert shared.empty() == (0, 1) and [store.in_use for store in shared.stores()] == [True]
        holder.kill()
    (store,) = shared.stores()
    assert not store.in_use and not list(folder.glob(".use-*"))
    assert shared.empty() == (store.size, 0) and not folder.exists()


FILLER = """
import sys
import pickle
from hf_captioners.features.shared_cache import SharedCache
from hf_captioners.features.cache import FeatureCache
model, processor, rows = pickle.load(open(sys.argv[1], "rb"))
shared = SharedCache(sys.argv[2], limit=int(sys.argv[4]))
cache = FeatureCache(sys.argv[3], model, processor, batch_size=2, shard_bytes=1, shared=shared)
features = cache.features_of(rows)
print(len([features[row] for row in range(len(features))]))
"""


@pytest.mark.slow
def test_processes_that_fill_and_empty_the_cache_at_once(tmp_path, make_captioner, processor, scenes, shared):
    import pickle

    for number, rows in enumerate((range(8), range(4, 12), range(2, 10))):
        with open(tmp_path / f"{number}.pickle", "wb") as file:
            pickle.dump((make_captioner(seed=number % 2), processor, rows_of(scenes, rows)), file)
    processes = []
    for number in range(6):
        arguments = [tmp_path / f"{number % 3}.pickle", shared.folder, tmp_path / f"own_{number}", 12_000]
        command = [sys.executable, "-c", FILLER, *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    while any(process.poll() is None for process in processes):
        shared.empty()
        time.sleep(0.05)
    for process in processes:
        out, errors = process.communicate()
        assert process.returncode == 0 and out == "8\n", errors
    for store in shared.stores():
        assert len(FeatureStore(store.folder).ids()) == store.images


def test_the_command_lists_and_empties(tmp_path, make_captioner, processor, scenes, monkeypatch, capsys):
    folder = tmp_path / "shared"
    monkeypatch.setattr("hf_captioners.features.shared_cache.default_folder", lambda: folder)
    assert main(["cache"]) == 0
    assert f"0.0 MB  in {folder}\n" in capsys.readouterr().out
    cache = cache_of(tmp_path / "a", make_captioner(), processor, SharedCache())
    cache.features_of(rows_of(scenes, FOUR))
    assert main(["cache"]) == 0
    line, total, advice = capsys.readouterr().out.splitlines()
    assert "4 images  in use  vit, layer -1, own grid" in line and cache.folder.name in line
    assert total.endswith(f"in {folder}") and "hf-captioners cache --empty" in advice
    assert main(["cache", "--empty"]) == 0
    assert "1 of them in use were kept" in capsys.readouterr().out
    del cache
    assert main(["cache"]) == 0
    assert "4 images  last used today  vit" in capsys.readouterr().out
    (tmp_path / "shared" / "notes.txt").write_text("mine")
    assert main(["cache", "--empty"]) == 0
    assert capsys.readouterr().out.startswith("Removed 0.0 MB of features")
    assert not shards_in(folder) and (tmp_path / "shared" / "notes.txt").exists()
    assert main(["cache", "--feature_cache_dir", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err

"""Folders of strangers: links and special files under the names that commands read and write."""

import contextlib
import io
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hf_captioners.cli import main
from hf_captioners.data import load_captions
from hf_captioners.data.generated_captions import require_captions_of_people
from hf_captioners.data.held_out import HeldOut
from hf_captioners.data.image_download import DownloadSettings, download_images
from hf_captioners.features.feature_store import StoreDescription
from hf_captioners.features.feature_store_writer import FeatureStoreWriter
from hf_captioners.features.region_source import Regions
from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.hub.cards import write_card
from hf_captioners.review.table import ReviewTable
from hf_captioners.training.data_record import resumed_data

from .isolated import Attempt
from .watched_files import CANARIES

IMAGES = ("000.png", "001.png", "sub/002.png")
ROW = '{"file_name": "000.png", "captions": ["a box"]}\n'


def caption(material: Any, typed: Path, *arguments: str) -> None:
    """Run `hf-captioners caption` with a pipeline that is loaded already."""
    printed = io.StringIO()
    command = ["caption", str(typed), "--model", material.captioner, "--device", "cpu", "--num_beams", "1"]
    with (
        contextlib.redirect_stderr(printed),
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch("hf_captioners.captioning.batches.load_pipeline", lambda *_, **__: material.pipeline),
    ):
        status = main([*command, "--max_new_tokens", "3", "--workers", "0", *arguments])
    if status:
        raise ValueError(f"exit status {status}: {printed.getvalue()}")


def caption_beside(material: Any, typed: Path, rng: random.Random) -> None:
    """Write text files beside the images."""
    mode = rng.choice(([], ["--append"], ["--prepend"], ["--overwrite"], ["--skip_existing"], ["--resume"]))
    caption(material, typed, "--sidecar", *mode)


def caption_into(material: Any, typed: Path, rng: random.Random) -> None:
    """Write a table into the folder."""
    ending = rng.choice(("jsonl", "csv"))
    caption(
        material, typed, "--output", str(typed / f"out.{ending}"), *rng.choice(([], ["--overwrite"], ["--resume"]))
    )


def review(material: Any, typed: Path, rng: random.Random) -> None:
    """Show all captions, and keep one."""
    table = ReviewTable(typed)
    for number in range(len(table.images)):
        table.captions(number)
    table.keep(0, ["kept"])
    assert table.rows()[table.names[0]] == ["kept"]


def read_data(material: Any, typed: Path, rng: random.Random) -> None:
    """Read the folder as `train` does."""
    require_captions_of_people(typed)
    splits = load_captions("caption_folder", data_dir=str(typed), cache_dir=str(typed.parents[1] / "cache"))
    assert all(captions for rows in splits.values() for captions in rows["captions"])


def score(material: Any, typed: Path, rng: random.Random) -> None:
    """Compare the captions of the folder with themselves."""
    printed = io.StringIO()
    output = typed.parent / "scores.jsonl"
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        status = main(["score", str(typed), str(typed), "--metrics", "bleu", "--per_image", str(output)])
    if status:
        raise ValueError(f"exit status {status}: {printed.getvalue()}")


def download(material: Any, typed: Path, rng: random.Random) -> None:
    """Download into the folder an image that cannot be had."""
    settings = DownloadSettings(workers=1, timeout=0.2, retries=0)
    download_images([("new", "http://127.0.0.1:9/x.png")], typed, settings)


def store_features(material: Any, typed: Path, rng: random.Random) -> None:
    """Begin a store of features in the folder."""
    with FeatureStoreWriter(typed, StoreDescription("extractor", "1", 4), patience=0.1) as writer:
        writer.add("new", Regions(np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)))


def held_out(material: Any, typed: Path, rng: random.Random) -> None:
    """Read the held-out images of a captioner, and write them again."""
    with contextlib.suppress(FileNotFoundError):
        HeldOut.load(typed)
    HeldOut(["a"], 1).save(typed)


def card(material: Any, typed: Path, rng: random.Random) -> None:
    """Write the card of a captioner."""
    TrainingFacts(language="en").save(typed)
    write_card(typed, "owner/name")


def record_data(material: Any, typed: Path, rng: random.Random) -> None:
    """Compare the data of a run with those that it began with."""
    resumed_data(typed, str(typed / "checkpoint-1"), {})


# Actions, and the names that they read or write in a folder.
ACTIONS: dict[Callable[[Any, Path, random.Random], None], tuple[str, ...]] = {
    caption_beside: (
        *("000.txt", "sub/002.txt", ".generated_captions.jsonl", "sub/.generated_captions.jsonl"),
        *("sidecars.txt.jsonl.partial", ".sidecars.txt.jsonl.lock", "sub"),
    ),
    caption_into: ("out.jsonl", "out.jsonl.partial", ".out.jsonl.lock", "out.csv", "out.csv.partial", ".out.csv.lock"),
    review: ("metadata.jsonl", ".metadata.jsonl.lock", "000.txt", "sub/002.txt", "captions.csv", "sub"),
    read_data: ("metadata.jsonl", "captions.txt", "000.txt", "001.txt", ".generated_captions.jsonl", "train"),
    score: ("metadata.jsonl", "captions.csv", "metadata.json"),
    download: ("downloads.jsonl", ".downloads.jsonl.lock", "new.png"),
    store_features: ("store.json", "regions-000-00000.safetensors", ".writer-000.lock"),
    held_out: ("held_out.json",),
    card: ("README.md", "card_facts.json"),
    record_data: ("training_data.json",),
}


def plant(path: Path, outside: Path, rng: random.Random) -> str:
    """Put a link or a special file in the place of a file or folder, and return what it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    targets = {
        "a link to a file": outside / "secret.txt",
        "a link to a large file": outside / "secret.bin",
        "a relative link": Path(os.path.relpath(outside / "secret.txt", path.parent)),
        "a dangling link": outside / "new.txt",
        "a link to a folder": outside,
        "a link to a missing folder": outside / "new" / "new.txt",
        "a loop": path,
        "a link to a device": Path("/dev/zero"),
        "a link to standard output": Path("/dev/stdout"),
    }
    kind = rng.choice((*targets, "a link to a link", "a named pipe", "a socket", "a folder", "a file"))
    if kind in targets:
        path.symlink_to(targets[kind])
    elif kind == "a link to a link":
        (path.parent / "between").symlink_to(outside / "secret.txt")
        path.symlink_to("between")
    elif kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
            server.bind(path.name)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.write_text(ROW)
    return kind


def attack_folder_of_a_stranger(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Plant links and special files in a folder, and give it to a command."""
    typed = folder / "typed"
    for name in IMAGES:
        (typed / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(material.images / "scene_000.png", typed / name)
    action = rng.choices(list(ACTIONS), [len(names) for names in ACTIONS.values()])[0]
    if action in (read_data, score, review) and rng.random() < 0.5:
        (typed / "metadata.jsonl").write_text(ROW)
    names = rng.sample(ACTIONS[action], min(len(ACTIONS[action]), rng.choice((1, 1, 2))))
    planted = []
    for name in sorted(names, key=len, reverse=True):  # the files of `sub` before `sub` itself
        planted.append(f"{name}: {plant(typed / name, folder.parent / CANARIES, rng)}")
    given = typed
    if rng.random() < 0.2:  # a typed folder may be a link itself
        given = folder / "link"
        given.symlink_to("typed")
    return Attempt(f"{action.__name__} with {', '.join(planted)}", lambda: action(material, given, rng), (str(given),))


def prepare_folders(material: Any) -> None:
    """Caption an image, so that what captioning imports is there."""
    material.pipeline(str(material.images / "scene_000.png"))

"""Odd names of images, several writers of one table, and data that change while a run is interrupted."""

import json
import os
import random
import tarfile
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_captioners.captioning.image_list import find_images, views_of
from hf_captioners.data import DataReport, load_captions
from hf_captioners.data.containers import located, names_in
from hf_captioners.data.generated_captions import generated_digests, record_generated
from hf_captioners.metrics.caption_files import match_captions, read_captions
from hf_captioners.output_files import quoted_name
from hf_captioners.processing.image_reading import read_image
from hf_captioners.review.table import ReviewTable
from hf_captioners.training.data_record import resumed_data

from .isolated import Attempt
from .mutators import ODD_VALUES

# Parts of names; some differ in case or in the form of Unicode only.
PARTS = (
    *("a", "A", "b c", " lead", "tab\tx", "new\nline", '"quoted"', 'quote"d', "#1", "a#0", "comma,x", "per%20cent"),
    *("caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9"), "\u212b", "\u00c5", "\ud55c", "\u1112\u1161\u11ab"),
    *("\u202e", "\U0001f415", "-rf", "~", "$HOME", "`id`", "x" * 200, "back\\slash", ".hidden", "a.txt", "..", "..."),
)
ENDINGS = (".png", ".PNG", ".jpg")


def other_form(name: str, rng: random.Random) -> str:
    """Return a name in another form that means the same image."""
    kind = rng.choice(("same", "dot", "slashes", "composed", "decomposed", "quoted", "up and down"))
    if kind == "dot":
        return f"./{name}"
    if kind == "slashes":
        return f".//{name.replace('/', '//')}"
    if kind in ("composed", "decomposed"):
        return unicodedata.normalize("NFC" if kind == "composed" else "NFD", name)
    if kind == "quoted":
        return json.dumps(name)
    return f"sub/../{name}" if kind == "up and down" else name


def make_images(folder: Path, source: Path, rng: random.Random) -> list[str]:
    """Make images with odd names; return the names, each image once."""
    names: dict[str, str] = {}
    for _ in range(rng.randint(2, 8)):
        name = rng.choice(("", "", "sub/")) + rng.choice(PARTS) + rng.choice(ENDINGS)
        names.setdefault(unicodedata.normalize("NFC", name), name)
    for name in names.values():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(source.read_bytes())
    (folder / "sub").mkdir(exist_ok=True)
    return sorted(name for name in names.values() if not os.path.basename(name).startswith("."))


def attack_names(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Write a table with other forms of odd names; every reader must find the same images, and each of them once."""
    typed = folder / "typed"
    names = make_images(typed, material.images / "scene_000.png", rng)
    forms = {name: other_form(name, rng) for name in names}
    rows = [{"file_name": form, "captions": [f"caption of {name}"]} for name, form in forms.items()]
    table = typed / "metadata.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def compare() -> None:
        report = DataReport()
        cache = folder.parent / "cache"
        loaded = load_captions(
            "caption_folder", data_dir=str(typed), split="train", report=report, cache_dir=str(cache)
        )
        found = {row["file_name"]: row["captions"] for row in loaded.remove_columns("image")}
        assert found == {name: [f"caption of {name}"] for name in names}, (found, report.problems)
        review = ReviewTable(typed)
        assert review.rows() == found, review.rows()
        for number, name in enumerate(review.names):
            review.keep(number, [f"corrected {name}"])
        again = load_captions("caption_folder", data_dir=str(typed), split="train", cache_dir=str(cache))
        corrected = {row["image_id"]: row["captions"] for row in again.remove_columns("image")}
        assert corrected == {name: [" ".join(f"corrected {name}".split())] for name in names}, corrected
        assert sorted(find_images([str(typed)])) == sorted(str(typed / name) for name in names)
        lines = [quoted_name(forms[name]) if set(forms[name]) & set('\n"') else forms[name] for name in names]
        (folder / "list.txt").write_text("".join(f"typed/{line}\n" if line[0] != '"' else "" for line in lines))
        for name in find_images([str(folder / "list.txt")]) if (folder / "list.txt").stat().st_size else ():
            assert views_of(name) == [name] and os.path.isfile(name), (name, views_of(name))
        scored = match_captions(read_captions(table), read_captions(table))
        assert len(scored.images) == len(names) and not scored.missing and not scored.extra, scored
        compare_shard(typed, names, forms, folder)

    return Attempt(f"{forms}", compare, (str(typed),))


def compare_shard(typed: Path, names: list[str], forms: dict[str, str], folder: Path) -> None:
    """Check that a tar shard of images has all of them, each once, whatever the form of their names."""
    with tarfile.open(folder / "0.tar", "w") as tar:
        for name in names:
            tar.add(typed / name, forms[name] if not forms[name].startswith('"') else name)
    found = names_in(folder / "0.tar")
    assert len(found) == len(names), found
    for name in found:
        assert views_of(name) == [name], name
        assert read_image(located(name)).size == read_image(typed / names[0]).size
    with tarfile.open(folder / "twice.tar", "w") as tar:
        tar.add(typed / names[0], "a.png")
        tar.add(typed / names[0], "./a.png")
    try:
        names_in(folder / "twice.tar")
    except ValueError as error:
        assert "twice.tar has two images named a.png" in str(error)
    else:
        raise AssertionError("one of two images of one name is lost")


def in_processes(*tasks: Callable[[], None]) -> None:
    """Run tasks at the same time, each in a process of its own."""
    children = []
    for task in tasks:
        child = os.fork()
        if not child:
            try:
                task()
                os._exit(0)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(codes), f"writers ended with {codes}"


def attack_with_two_writers(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a table from two or three processes at once; no change may be lost."""
    typed, seed = folder / "typed", rng.random()
    typed.mkdir()
    count, writers = rng.randint(4, 30), rng.choice((2, 2, 3))
    for number in range(count):
        (typed / f"{number:03}.png").write_bytes((material.images / "scene_000.png").read_bytes())
    is_review = rng.random() < 0.7
    parts = [range(first, count, writers) for first in range(writers)]

    def keep(part: range) -> None:
        table, pauses = ReviewTable(typed), random.Random(f"{seed} {part}")
        for number in part:
            time.sleep(pauses.choice((0, 0, 0.001, 0.003)))
            table.keep(number, [f"caption {number}"], shown=[])

    def record(part: range) -> None:
        for number in part:
            record_generated(typed, {f"{number:03}.txt": str(number), f"{number:03}.b.txt": "x" * 300})

    def write() -> None:
        in_processes(*(lambda part=part: (keep if is_review else record)(part) for part in parts))
        if is_review:
            expected = {f"{number:03}.png": [f"caption {number}"] for number in range(count)}
            assert ReviewTable(typed).rows() == expected, "captions were lost"
        else:
            found = generated_digests(typed)
            assert all(found.get(f"{number:03}.txt") == {str(number)} for number in range(count)), "lines were lost"

    what = "review" if is_review else "records of generated captions"
    return Attempt(f"{what}: {writers} writers of {count} rows", write, (str(typed),))


def attack_edited_data(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Change a folder while its run is interrupted; a resumed run must say so, and go on if nothing was changed."""
    typed, output = folder / "typed", folder / "run"
    typed.mkdir()
    output.mkdir()
    rows: list[dict[str, Any]] = [
        {"file_name": f"{number}.png", "captions": [f"caption {number}", "x"][: rng.randint(1, 2)]}
        for number in range(6)
    ]
    image = (material.images / "scene_000.png").read_bytes()
    for row in rows:
        (typed / row["file_name"]).write_bytes(image)

    def load() -> dict[str, Any]:
        (typed / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        cache = str(folder.parent / "cache")
        return {"training": load_captions("caption_folder", data_dir=str(typed), split="train", cache_dir=cache)}

    def content(data: dict[str, Any]) -> list[Any]:
        table = data["training"].remove_columns("image").to_list()
        return [(row["image_id"], row["captions"], (typed / row["file_name"]).stat().st_size) for row in table]

    def resume() -> None:
        begun = load()
        resumed_data(output, None, begun)
        before = content(begun)
        for _ in range(rng.choice((1, 1, 2))):
            edit(rows, typed, rng)
        data = load()
        is_same = content(data) == before
        try:
            resumed_data(output, str(output / "checkpoint-1"), data)
        except ValueError as error:
            assert not is_same, f"nothing was changed, and: {error}"
            raise
        assert is_same, "the data were changed, and nobody said so"

    return Attempt("data edited before a run is resumed", resume, (str(output),))


def edit(rows: list[dict[str, Any]], typed: Path, rng: random.Random) -> None:
    """Change rows of a table or an image in one place, perhaps so that nothing changes."""
    kind = rng.choice(("remove", "swap", "order of captions", "caption", "form", "file", "add", "nothing", "column"))
    row = rng.choice(rows)
    if kind == "remove" and len(rows) > 2:
        rows.remove(row)
    elif kind == "swap":
        rows.insert(rng.randrange(len(rows)), rows.pop(rows.index(row)))
    elif kind == "order of captions":
        row["captions"].reverse()
    elif kind == "caption":
        texts = [value for value in ODD_VALUES if isinstance(value, str) and value.strip() and value.isprintable()]
        row["captions"][0] = rng.choice(texts)
    elif kind == "form":
        row["file_name"] = f"./{row['file_name']}"
    elif kind == "file":
        with open(typed / row["file_name"], "ab") as file:
            file.write(b"\0")
    elif kind == "add":
        name = f"{rng.randrange(10**6)}.png"
        (typed / name).write_bytes((typed / row["file_name"]).read_bytes())
        rows.append({"file_name": name, "captions": ["new"]})
    elif kind == "column":
        row["note"] = "x"

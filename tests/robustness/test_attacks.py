"""The short form of `make attack`: some attacks of every class, and proof that the harness finds faults."""

import collections
import contextlib
import gc
import os
import pickle
import random
import subprocess
import time
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from hf_captioners.hub import serving
from tests.variants import slow_unless

from .attack import STATE, planned, read_done, run_attacks, summary, table
from .attacked_images import attack_image
from .attacks import ATTACKS
from .isolated import Attempt, attempt_in_child
from .killed_jobs import Job, kill_and_resume
from .material import Material
from .mutators import CHANGES, mutated, mutated_json
from .outcomes import FAILED, REFUSED, RESULT
from .watched_files import CANARIES, canaries_work
from .watched_files import SECRET as CANARY

FEW = {name: 9 for name in ATTACKS if not name.startswith("kill")}
KILLED = (
    "kills: caption",
    "kills: extract-features",
    "kills: convert",
    "kills: load_captions",
    "kills: download-images",
    "kills: caption --backend onnx",
    "killed workers: caption --shard",
)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return Material(tmp_path_factory.mktemp("attacks") / "material")


def prepare(name, material, request):
    """Prepare the attacks of a class, with the exported captioner of all tests."""
    if name == "uploads to the page of a Space":
        pytest.importorskip("gradio", reason="its page needs the extra `space`")
    if name == "exported captioners":
        material.kept["exported"] = request.getfixturevalue("exported")
    ATTACKS[name].prepare(material)


@pytest.mark.parametrize("name", FEW)
def test_attacks(name, material, tmp_path, request):
    """Seeds differ from those of the long form. At least one file is refused, so the attacks reach the library.

    Odd names and several writers are no faults: all of their results must be right.
    """
    prepare(name, material, request)
    kinds = collections.Counter()
    for number in range(FEW[name]):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = ATTACKS[name].run(material, f"short/{name}/{number}", folder)
        assert outcome.kind != FAILED, f"{outcome.what}: {outcome.reason}"
        kinds[outcome.kind] += 1
    assert kinds[RESULT if name in ("names of images", "two writers") else REFUSED], kinds


def unguarded_page(name, template=serving._template):
    """Return a template; the page of a Space reads uploads as Gradio does."""
    return template(name).replace('type="filepath"', 'type="pil"').replace("image.preprocess = uploaded_file\n", "")


def any_class(unpickler, module, name):
    """Return the class or function of a name in a pickle, as `pickle.load` does."""
    return pickle.Unpickler.find_class(unpickler, module, name)


# The library as it was, or without one of its guards, and the class of attacks that finds it within some attempts.
PLANTED = {
    "images of all formats of Pillow": ("images", {"processing.image_reading.open_image": PIL.Image.open}),
    "errors of Pillow": ("images", {"processing.image_reading.named_faults": lambda _: contextlib.nullcontext()}),
    "captions that are no text": (
        "tables",
        {"metrics.caption_files._captions": lambda row, *_: [row.get("captions", row.get("caption"))]},
    ),
    "arrays as numpy reads them": (
        "feature files",
        {"features.formats.folder.read_array": lambda path, *_: np.load(path)},
    ),
    "pickles with any class": ("pickles and torch files", {"hub.safe_unpickling.SafeUnpickler.find_class": any_class}),
    "checkpoints with any class": (
        "pickles inside whole checkpoints",
        {"hub.safe_unpickling.SafeUnpickler.find_class": any_class},
    ),
    "containers that expand": (
        "Parquet and Arrow files",
        {
            "data.arrow_containers.EXPANDED_FLOOR": 2**50,
            "data.arrow_containers.require_no_compression": lambda _: None,
        },
    ),
    "cards with any text": (
        "checkpoints, configurations, cards",
        {"hub.cards.inert_text": lambda text, links=False: str(text)},
    ),
    "faults of exports without a name": (
        "exported captioners",
        {"onnx.onnx_captioner.naming": lambda *_: contextlib.nullcontext()},
    ),
    "downloads of any content": ("downloads", {"data.image_download.why_undecodable": lambda _: None}),
    "uploads as Gradio reads them": ("uploads to the page of a Space", {"hub.serving._template": unguarded_page}),
    "writes through links": (
        "links and special files",
        {"output_files.require_safe_target": lambda *_, **__: None, "output_files.NO_FOLLOW": 0},
    ),
    "reads through links": ("links and special files", {"output_files.require_link_inside": lambda *_, **__: None}),
    "names that must be equal": ("names of images", {"image_names.path_form": lambda name: name}),
    "names in one form of Unicode": ("names of images", {"image_names.plain_form": lambda name: name}),
    "tables without a lock": (
        "two writers",
        {
            "review.table.only_writer_of": lambda *_: contextlib.nullcontext(),
            "output_files._state_of": lambda path: slow_state(path),
        },
    ),
    "changed data": ("edited data", {"training.data_record.changes_between": lambda *_: []}),
}
MAX_ATTEMPTS = 60


def slow_state(path):
    """The same state for all files; the pause before a table is replaced lets other writers come between."""
    time.sleep(0.01)
    return (1,) if path.exists() else None


@pytest.mark.parametrize("fault", slow_unless(lambda fault: fault != "containers that expand", PLANTED))
def test_a_planted_fault_is_found(fault, material, tmp_path, monkeypatch, request):
    name, changes = PLANTED[fault]
    prepare(name, material, request)
    for place, value in changes.items():
        monkeypatch.setattr(f"hf_captioners.{place}", value)
    for number in range(MAX_ATTEMPTS):
        folder = tmp_path / str(number) / "attack"
        folder.mkdir(parents=True)
        if ATTACKS[name].run(material, f"planted/{fault}/{number}", folder).kind == FAILED:
            return
    raise AssertionError(f"{MAX_ATTEMPTS} attacks did not find it")


def test_the_folder_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_attacks([1], 1, ["images"], Path("attack"))
    (outcome,) = read_done(tmp_path / "attack" / STATE).values()
    assert outcome.kind != FAILED, outcome.reason


@pytest.mark.parametrize("name", slow_unless(lambda name: name not in KILLED[3:], KILLED))
def test_kills(name, material, tmp_path):
    ATTACKS[name].prepare(material)
    outcome = ATTACKS[name].run(material, f"short/{name}", tmp_path)
    assert outcome.kind == RESULT, f"{outcome.what}: {outcome.reason}"


def attempt(run, name="x.png"):
    return lambda material, rng, folder: Attempt("an attack", run, (name,))


def busy():
    while True:
        pass


def fail(error):
    raise error


# Bytes well above the limit of an attack: pages that the kernel takes back meanwhile hide some of what is measured.
TOO_MUCH = 2**30

SECRET = f"../{CANARIES}/secret.txt"
FAULTS = {
    "a result": (lambda: 1, RESULT, ""),
    "an error that names the file": (lambda: fail(ValueError("x.png cannot be read")), REFUSED, "x.png"),
    "an error without the name": (lambda: fail(ValueError("cannot be read")), FAILED, "has none of x.png"),
    "an error of a library": (lambda: fail(KeyError("x.png")), FAILED, "not one of ours: KeyError"),
    "a subclass of a permitted error": (lambda: b"\xff".decode(), FAILED, "UnicodeDecodeError"),
    "a wrong result": (lambda: fail(AssertionError("x.png")), FAILED, "AssertionError"),
    "memory": (lambda: len(bytearray(TOO_MUCH)), FAILED, "MB"),
    "a crash": (lambda: os.kill(os.getpid(), 11), FAILED, "SIGSEGV"),
    "an end": (lambda: os._exit(0), FAILED, "exit status 0"),
    "a started program": (lambda: subprocess.run(["gs"], check=False), FAILED, "started subprocess.Popen"),
    "a program started by other means": (lambda: os.posix_spawn("/bin/true", ["true"], {}), FAILED, "posix_spawn"),
    "a file outside that Python reads": (lambda: Path(SECRET).read_text(), FAILED, "an open of "),
    "a file outside that C reads": (lambda: Tokenizer.from_file(SECRET), FAILED, "secret.txt was read"),
    "a file outside that C maps": (lambda: safe_open(SECRET, "np"), FAILED, "secret.txt was read"),
    "a file outside that is written": (lambda: Path(SECRET).open("ab").close(), FAILED, "for writing"),
    "a file outside that is made": (lambda: Path(SECRET).with_name("new").touch(), FAILED, "canaries has"),
    "a file outside that is removed": (lambda: Path(SECRET).unlink(), FAILED, "os.remove of"),
    "a file outside that is replaced": (lambda: os.replace("missing", SECRET), FAILED, "os.rename of"),
    "a file of the machine": (lambda: Path("/etc/passwd").read_bytes(), FAILED, "an open of /etc/passwd"),
    "a copy of a file outside": (lambda: Path("x").write_bytes(CANARY), FAILED, "has the text of a canary"),
    "a file that was executed": (lambda: Path("executed").touch(), FAILED, "the file was executed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_harness_tells_permitted_outcomes_from_others(fault, material, tmp_path):
    run, kind, said = FAULTS[fault]
    folder = tmp_path / "attack"
    folder.mkdir()
    if " C " in fault and not canaries_work(folder):
        pytest.skip("this file system does not note when files are read")
    outcome = attempt_in_child(attempt(run), material, "1", folder)
    assert (outcome.kind, outcome.what) == (kind, "an attack") and said in outcome.reason, outcome


def test_memory_counts_though_garbage_of_the_parent_could_be_freed(material, tmp_path):
    folder = tmp_path / "attack"
    folder.mkdir()
    gc.disable()
    try:
        garbage = [bytearray(2**29)]
        garbage.append(garbage)
        del garbage
        outcome = attempt_in_child(attempt(lambda: [gc.collect(), bytearray(TOO_MUCH)]), material, "1", folder)
    finally:
        gc.enable()
        gc.collect()
    assert outcome.kind == FAILED and "MB" in outcome.reason, outcome


def test_a_hang_is_stopped(material, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.robustness.isolated.CPU_SECONDS", 0)
    monkeypatch.setattr("tests.robustness.outcomes.CPU_SECONDS", 0)
    folder = tmp_path / "attack"
    folder.mkdir()
    outcome = attempt_in_child(attempt(busy), material, "1", folder)
    assert outcome.kind == FAILED and "SIGXCPU" in outcome.reason and outcome.seconds < 5


def test_attacks_are_the_same_for_the_same_seed(material, tmp_path):
    whole = os.urandom(1000)
    for change in (lambda rng: mutated(whole, rng, [b"other"]), lambda rng: mutated_json({"a": [1, "x"]}, rng)):
        assert change(random.Random("5")) == change(random.Random("5"))
        assert len({change(random.Random(seed))[0] for seed in range(50)}) > 30
    for change in CHANGES:
        assert isinstance(change(b"", random.Random(0), []), bytes), "empty files can be changed"
    assert (
        attack_image(material, random.Random(3), tmp_path).what
        == attack_image(material, random.Random(3), tmp_path).what
    )


def count_slowly(material, folder):
    """A job that is resumed at its last line."""
    path = folder / "out"
    done = path.read_text().count("\n") if path.exists() else 0
    for number in range(done, 40):
        with open(path, "a") as file:
            file.write(f"{number}\n")
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
    return 0


def count_wrongly(material, folder):
    """A job that is begun anew without removing what is there."""
    (folder / "out").open("a").write("begun\n")
    return count_slowly(material, folder)


def count_and_look_outside(material, folder):
    """A job that reads a file of the machine."""
    Path("/etc/passwd").read_bytes()
    return count_slowly(material, folder)


def outputs(folder):
    return {"out": (folder / "out").read_bytes()} if (folder / "out").exists() else {}


KILLED_FAULTS = {count_slowly: "", count_wrongly: "out differs", count_and_look_outside: "an open of "}


@pytest.mark.parametrize("run", KILLED_FAULTS)
def test_kills_are_counted_and_differences_found(run, material, tmp_path):
    outcome = kill_and_resume(Job(run, outputs), material, random.Random(0), tmp_path / "attack")
    assert outcome.kind == (FAILED if KILLED_FAULTS[run] else RESULT) and 1 <= outcome.attempts <= 3, outcome
    assert KILLED_FAULTS[run] in outcome.reason and bool(outcome.reason) == bool(KILLED_FAULTS[run])


def test_the_table_counts_what_is_done_once(tmp_path):
    state = tmp_path / "attacks.jsonl"
    state.write_text('{"key": "images/1/0", "kind": "result"}\n{"key": "images/1/1", "kind": "failed"}\n{"key": "im')
    done = read_done(state)
    assert len(done) == 2 and state.read_text().endswith("}\n")
    rows = summary(done, [1], 3, ["images"])
    assert {name: rows["images"][name] for name in ("tried", "read", "failed")} == {"tried": 2, "read": 1, "failed": 1}
    assert "images" in table(rows) and len(list(planned([1, 2], 3, ["images"]))) == 6

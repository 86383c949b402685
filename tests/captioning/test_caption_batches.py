"""`CaptionBatches`: the callable of the command line, of `datasets.map` and of engines."""

import io
import os
import pickle
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Features, Image, Value

from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import caption_batches, load_pipeline
from hf_captioners.captioning.image_list import find_images
from hf_captioners.captioning.read_ahead import read_ahead, workers_for


@pytest.fixture(scope="module")
def paths(images, run_folder):
    """Ten images, of which the third is cut off."""
    found = find_images([str(images)])
    cut = run_folder / "cut.png"
    cut.write_bytes(Path(found[2]).read_bytes()[:100])
    return [*found[:2], str(cut), *found[3:]]


@pytest.fixture(scope="module")
def pipeline(captioner):
    return load_pipeline(captioner, device="cpu")


@pytest.fixture(scope="module")
def columns(pipeline, paths):
    return CaptionBatches(pipeline, num_beams=1)({"image": paths, "number": list(range(10))})


def test_every_form_of_an_image_has_the_same_caption(pipeline, paths, columns):
    """Other columns stay; the damaged image has the reason instead of a caption; the pipeline captions equally."""
    assert list(columns) == ["image", "number", "caption", "score", "error"]
    assert columns["image"] == paths and columns["number"] == list(range(10))
    assert [place for place, error in enumerate(columns["error"]) if error] == [2]
    assert "cut.png cannot be read" in columns["error"][2]
    assert columns["caption"][2] is None and columns["score"][2] is None
    whole = [path for path in paths if "cut" not in path]
    expected = pipeline(whole, batch_size=9, num_beams=1, return_scores=True)
    assert [text for text in columns["caption"] if text is not None] == [one[0]["generated_text"] for one in expected]
    assert [one for one in columns["score"] if one is not None] == [one[0]["score"] for one in expected]
    contents = [Path(path).read_bytes() for path in paths]
    opened = [PIL.Image.open(io.BytesIO(content)) for content in contents]
    arrays = [None if "cut" in path else np.asarray(PIL.Image.open(path)) for path in paths]
    forms = [contents, [{"bytes": one, "path": "other"} for one in contents], opened, arrays]
    for form in [*forms, [{"bytes": None, "path": path} for path in paths], [[path] for path in paths]]:
        found = CaptionBatches(pipeline, column="photo", num_beams=1)({"photo": form})
        assert found["caption"] == columns["caption"], form[0]
        assert [bool(error) for error in found["error"]] == [bool(error) for error in columns["error"]]


def test_several_captions_studies_and_no_images(pipeline, paths, columns):
    several = CaptionBatches(pipeline, num_beams=2, num_return_sequences=2)({"image": paths[:3]})
    assert [len(texts) for texts in several["caption"][:2]] == [2, 2] and several["caption"][2] is None
    assert several["score"][0][0] != several["score"][0][1]
    study = CaptionBatches(pipeline, num_beams=1)({"image": [paths[:2], "\t".join(paths[:2]), paths[3]]})
    assert study["caption"][0] == study["caption"][1] and study["error"] == [None, None, None]
    assert CaptionBatches(pipeline)({"image": []}) == {"image": [], "caption": [], "score": [], "error": []}
    assert CaptionBatches(pipeline)({"image": paths[2:3]})["caption"] == [None]
    with pytest.raises(KeyError, match=r"columns \['photo'\], expected the images in 'image'"):
        CaptionBatches(pipeline)({"photo": []})


@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("order", [1, -1])
def test_a_data_set_with_a_damaged_image(captioner, paths, columns, batch_size, order):
    """Images stay as they are stored, and the damaged one, at which decoding would end, gets its reason.

    It may be in the first batch, or in a later one than those that tell `datasets` the types of the new columns.
    """
    paths = paths[::order]
    rows = Dataset.from_dict({"image": paths, "name": paths}, Features({"image": Image(), "name": Value("string")}))
    caption = CaptionBatches(captioner, device="cpu", num_beams=1)
    found = rows.map(caption, batched=True, batch_size=batch_size)
    assert found["caption"] == columns["caption"][::order] and found["name"] == paths
    assert [error is None for error in found["error"]] == [text is not None for text in found["caption"]]
    assert found.features["image"] == Image()
    stored = found.cast_column("image", Image(decode=False))["image"]
    assert stored == rows.cast_column("image", Image(decode=False))["image"]


def test_it_is_pickled_without_its_model(captioner, paths, columns, tmp_path):
    """And engines keep no results of a model whose files have changed."""
    caption = CaptionBatches(captioner, device="cpu", num_beams=1)
    before = pickle.dumps(caption)
    assert caption({"image": paths})["caption"] == columns["caption"]
    assert pickle.dumps(caption) == before and len(before) < 2000
    assert pickle.loads(before)({"image": paths})["caption"] == columns["caption"]
    (tmp_path / "config.json").write_text("{}")
    first = pickle.dumps(CaptionBatches(str(tmp_path)))
    os.utime(tmp_path / "config.json", (1, 1))
    assert pickle.dumps(CaptionBatches(str(tmp_path))) != first


def test_processes_that_read_ahead_change_nothing(pipeline, paths):
    alone, ahead = (
        list(caption_batches(pipeline, paths, batch_size=3, workers=workers, num_beams=1)) for workers in (0, 2)
    )
    assert alone == ahead and len(ahead) == 4
    with pytest.raises(ValueError, match="`workers` is -1, expected 0"):
        workers_for(3, -1)
    assert (workers_for(1), workers_for(2, 5), workers_for(2, 0)) == (0, 2, 0)


def wait_for(condition, seconds=60):
    """Wait until a condition holds; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {seconds} seconds"
        time.sleep(0.02)


def test_reading_ahead_is_bounded_and_in_order(tmp_path):
    """Two processes with two waiting batches each: at most four more than were taken, and one in each hand."""

    def prepare(number):
        (tmp_path / str(number)).touch()
        return number

    def begun():
        return {int(path.name) for path in tmp_path.iterdir()}

    ahead = read_ahead(prepare, range(30), workers=2)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    wait_for(lambda: len(begun()) >= 3 + 4)
    time.sleep(0.2)  # one more would begin at once
    assert begun() == set(range(3 + 4))
    assert list(ahead) == list(range(3, 30))


def test_processes_end_with_their_parent(tmp_path):
    """Also when it is killed: they would hold the locks of its output files."""

    def prepare(number):
        (tmp_path / "worker").write_text(str(os.getpid()))
        return number

    child = os.fork()
    if not child:
        ahead = read_ahead(prepare, range(100), workers=1)
        next(ahead)
        (tmp_path / "ready").touch()
        time.sleep(60)
        os._exit(0)
    try:
        wait_for((tmp_path / "ready").exists)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    worker = int((tmp_path / "worker").read_text())
    wait_for(lambda: not is_running(worker))


@pytest.mark.parametrize("batches", [1, 30])
def test_a_process_that_is_killed_is_told(batches):
    """Also where it was killed before the last batches were handed out."""

    def prepare(number):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildProcessError, match="A process that prepares images was killed, often .* `workers`"):
        list(read_ahead(prepare, range(batches), workers=1))


def test_a_process_that_is_killed_while_it_answers_is_told():
    """A part of the result is in the pipe then."""

    def prepare(number):
        def send_half(self, content):
            os.write(self.fileno(), bytes(content)[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

        Connection._send = send_half  # in this process only
        return number

    with pytest.raises(ChildProcessError, match="A process that prepares images was killed"):
        list(read_ahead(prepare, range(8), workers=2))


class OddError(Exception):
    """An exception that cannot be pickled with its own arguments."""

    def __init__(self, name, reason):
        super().__init__(f"{name}: {reason}")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError("far away"), ConnectionError),
        (EOFError("cut"), EOFError),
        (OddError("a", "cut"), RuntimeError),
    ],
)
def test_exceptions_of_the_preparation_are_raised(error, expected):
    def prepare(number):
        raise error

    with pytest.raises(expected, match=str(error)) as caught:
        list(read_ahead(prepare, range(3), workers=2))
    assert type(caught.value) is expected and "In the process that prepares images" in caught.value.__notes__[0]


def test_batches_larger_than_a_pipe_do_not_block():
    batches = [bytes([number]) * 1_000_000 for number in range(12)]
    assert list(read_ahead(bytes, batches, workers=2)) == batches


def is_running(process):
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"

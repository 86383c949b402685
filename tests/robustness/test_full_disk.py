"""Training on a disk that fills up says so, and ends as if nothing had happened when it is resumed."""

import errno
import resource
from contextlib import contextmanager

import pytest
from safetensors import SafetensorError

from hf_captioners.cli import main
from hf_captioners.output_files import WriteError, explain_write_errors

QUICK = "--use_cpu --disable_tqdm true --generation_num_beams 1 --generation_max_new_tokens 3 --captions_per_image 1"


@contextmanager
def files_at_most(size):
    """Limit the size of files of this process, in bytes: libraries meet it as they meet a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_cannot_be_written_is_explained_and_the_run_resumes(images, captioner, tmp_path, capsys):
    """The limit is reached first by the weights, then by the larger state of the optimizer."""
    arguments = [
        "train",
        "--train_dir",
        str(images),
        "--validation_dir",
        str(images),
        "--model",
        captioner,
        "--recipe",
        "none",
    ]
    arguments += ["--max_steps", "2", "--save_strategy", "steps", "--save_steps", "1", "--eval_strategy", "no"]
    arguments += ["--per_device_train_batch_size", "4", *QUICK.split(), "--output_dir"]
    whole, full = tmp_path / "whole", tmp_path / "full"
    assert main([*arguments, str(whole)]) == 0
    weights = (whole / "model.safetensors").stat().st_size
    assert (whole / "checkpoint-1" / "optimizer.pt").stat().st_size > weights + 1000
    for limit in (weights // 2, weights + 1000):
        capsys.readouterr()
        with files_at_most(limit):
            assert main([*arguments, str(full), "--resume"]) == 2
        error = capsys.readouterr().err
        assert f"{full} could not be written" in error and "free space" in error and "--resume" in error
    assert main([*arguments, str(full), "--resume"]) == 0
    assert (full / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . PytorchStreamWriter failed writing file data/0"),
        RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 1671872 vs 1671764"),
    ],
)
def test_every_library_s_error_of_a_full_disk_is_explained(tmp_path, error):
    with (
        pytest.raises(WriteError, match=f"{tmp_path} could not be written.*Free some"),
        explain_write_errors(tmp_path, "Free some."),
    ):
        raise error


@pytest.mark.parametrize("error", [ValueError("no"), FileNotFoundError(errno.ENOENT, "no file"), RuntimeError("no")])
def test_other_errors_stay_as_they_are(tmp_path, error):
    with pytest.raises(type(error), match="no") as raised, explain_write_errors(tmp_path, "Free some."):
        raise error
    assert raised.value is error

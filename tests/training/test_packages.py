"""Optional packages are asked for before anything else is done."""

from importlib.util import find_spec

import pytest

from hf_captioners.cli import main
from hf_captioners.training import packages
from hf_captioners.training.packages import require_packages
from hf_captioners.training.parser import argument_list


@pytest.fixture
def without(monkeypatch):
    """Hide modules."""

    def hide(*names):
        hidden = {name.partition(".")[0] for name in names}
        found = lambda name: None if name.partition(".")[0] in hidden else find_spec(name)  # noqa: E731
        monkeypatch.setattr(packages, "find_spec", found)

    return hide


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ["--report_to", "tensorboard"],
            "`--report_to tensorboard` needs the package tensorboard: pip install tensorb",
        ),
        (["--report_to", "none", "wandb"], "`--report_to wandb` needs the package wandb: pip install wandb"),
        (["--report_to", "trackio"], "pip install trackio"),
        (
            ["--optim", "paged_adamw_8bit"],
            "`--optim paged_adamw_8bit` needs the package bitsandbytes: pip install bi",
        ),
        (["--use_peft"], "`--use_peft` needs the package peft: pip install 'hf-captioners[peft]'"),
        (["--features", "trainval.hdf5"], "needs the package h5py: pip install 'hf-captioners[regions]'"),
    ],
)
def test_before_data_are_read(typed, message, without, tmp_path, monkeypatch, capsys):
    without("tensorboard", "tensorboardX", "wandb", "trackio", "bitsandbytes", "peft", "h5py")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainval.hdf5").write_bytes(b"")

    def read(*_, **__):
        raise AssertionError("data were read")

    monkeypatch.setattr("hf_captioners.data.loading.make_reader", read)
    assert main(["train", "--train_dir", ".", "--output_dir", "run", *typed]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_from_python_too(without, tmp_path):
    from hf_captioners.training import CaptioningTrainingArguments
    from hf_captioners.training.data_arguments import DataArguments
    from hf_captioners.training.running import train_captioner
    from hf_captioners.training.starting import ModelArguments

    without("wandb")
    arguments = CaptioningTrainingArguments(str(tmp_path / "run"), report_to="wandb", use_cpu=True)
    with pytest.raises(ImportError, match="`report_to=wandb` needs the package wandb: pip install wandb"):
        train_captioner(ModelArguments(), DataArguments(train_dir="nowhere"), arguments)


def test_what_needs_nothing(without):
    without("tensorboard", "tensorboardX", "peft", "bitsandbytes")
    require_packages({"report_to": ["none"], "optim": "adamw_torch", "use_peft": False, "features": "stored"})
    require_packages({"report_to": "all", "optim": "rmsprop", "deepspeed": None, "use_peft": "false"})
    require_packages({})


def test_every_tool_of_report_to_is_known():
    choices = set(argument_list()["report_to"].choices)
    assert choices - {"all", "none", "kubeflow"} == set(packages.TRACKERS), "kubeflow needs an address, no package"


def test_every_optimizer_that_needs_a_package_is_known():
    names = argument_list()["optim"].choices
    needy = {name for name in names if any(name.startswith(one) for one in packages.OPTIMIZERS)}
    plain = {"adafactor", "adagrad", "adamw_torch", "adamw_torch_fused", "adamw_torch_npu_fused", "adamw_torch_xla"}
    assert set(names) - needy == plain | {"arctic_adam", "arctic_rmsprop", "adadelta", "rmsprop", "sgd"}

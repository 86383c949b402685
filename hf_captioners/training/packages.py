"""Optional packages that training arguments need, checked before data is read."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, NamedTuple


class Package(NamedTuple):
    """An optional package: its modules and the command that installs it.

    Attributes:
        modules: modules of which one is enough.
        installed_by: what to type after `pip install`.
    """

    modules: Sequence[str]
    installed_by: str

    @property
    def is_installed(self) -> bool:
        """True if any of the package's modules can be imported."""
        for module in self.modules:
            with suppress(ModuleNotFoundError):  # a parent of the module is missing
                if find_spec(module) is not None:
                    return True
        return False


TRACKERS = {
    "azure_ml": Package(["azureml.core.run"], "azureml-sdk"),
    "clearml": Package(["clearml"], "clearml"),
    "codecarbon": Package(["codecarbon"], "codecarbon"),
    "comet_ml": Package(["comet_ml"], "comet-ml"),
    "dagshub": Package(["dagshub"], "dagshub mlflow"),
    "dvclive": Package(["dvclive"], "dvclive"),
    "flyte": Package(["flytekit"], "flytekit"),
    "mlflow": Package(["mlflow"], "mlflow"),
    "neptune": Package(["neptune"], "neptune"),
    "swanlab": Package(["swanlab"], "swanlab"),
    "tensorboard": Package(["tensorboard", "tensorboardX"], "tensorboard"),
    "trackio": Package(["trackio"], "trackio"),
    "wandb": Package(["wandb"], "wandb"),
}
"""Packages of the tools of `report_to`."""

BITSANDBYTES = Package(["bitsandbytes"], "bitsandbytes")
# By the beginning of the name of an optimizer, the longest one first; others need no package.
OPTIMIZERS = {
    "adamw_8bit": BITSANDBYTES,
    "adamw_bnb_8bit": BITSANDBYTES,
    "ademamix": BITSANDBYTES,
    "lion_": BITSANDBYTES,
    "paged_": BITSANDBYTES,
    "rmsprop_bnb": BITSANDBYTES,
    "adamw_torch_4bit": Package(["torchao"], "torchao"),
    "adamw_torch_8bit": Package(["torchao"], "torchao"),
    "adamw_anyprecision": Package(["torchdistx"], "torchdistx"),
    "galore_": Package(["galore_torch"], "git+https://github.com/jiaweizzhao/GaLore"),
    "apollo_": Package(["apollo_torch"], "git+https://github.com/zhuhanqing/APOLLO"),
    "lomo": Package(["lomo_optim"], "lomo-optim"),
    "adalomo": Package(["lomo_optim"], "lomo-optim"),
    "grokadamw": Package(["grokadamw"], "grokadamw"),
    "schedule_free_": Package(["schedulefree"], "schedulefree"),
    "stable_adamw": Package(["optimi"], "torch-optimi"),
}
"""Packages of optimizers of transformers, by the beginnings of their names."""

# Arguments that need a package where they are set.
SWITCHES = {
    "use_peft": Package(["peft"], "'hf-captioners[peft]'"),
    "use_liger_kernel": Package(["liger_kernel"], "liger-kernel"),
    "deepspeed": Package(["deepspeed"], "deepspeed"),
}
HDF5 = (".hdf5", ".h5")
H5PY = Package(["h5py"], "'hf-captioners[regions]'")


def require_packages(values: Mapping[str, Any]) -> None:
    """Check that the optional packages for some training arguments are installed.

    Args:
        values: arguments by name, as they were typed or as the dataclasses hold them; others are not looked at.

    Raises:
        ImportError: one is not; the message names the argument and what installs the package.
    """
    trackers = values.get("report_to") or []
    for name in [trackers] if isinstance(trackers, str) else trackers:
        if name in TRACKERS:
            _require(TRACKERS[name], f"`report_to={name}`")
    optimizer = str(getattr(values.get("optim"), "value", values.get("optim")))
    begins = max((name for name in OPTIMIZERS if optimizer.startswith(name)), key=len, default=None)
    if begins is not None:
        _require(OPTIMIZERS[begins], f"`optim={optimizer}`")
    for name, package in SWITCHES.items():
        if values.get(name) not in (None, False, "false", "False"):
            _require(package, f"`{name}`")
    if str(values.get("features")).endswith(HDF5):
        _require(H5PY, f"`features={values['features']}`")


def _require(package: Package, argument: str) -> None:
    if not package.is_installed:
        name = package.modules[0].partition(".")[0]
        raise ImportError(f"{argument} needs the package {name}: pip install {package.installed_by}")

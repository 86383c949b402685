"""Uses of other libraries with a tiny captioner: each is a function that fails where a captioner does not work.

Every function takes the test case of an architecture (`tests/hub/captioner_cases.py`) and an empty folder, and returns
the cell of the table in docs/peers.md: what was equal, or how large the difference is.
"""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig, QuantoConfig, TorchAoConfig
from transformers.pytorch_utils import Conv1D

from tests.modeling.common_case import WAYS_IN
from tests.modeling.common_deployment import map_to_disk

EXACT = "equal"
TOLERANCE = 1e-4  # of logits, times their largest magnitude
LARGEST_ERROR = 0.1  # of logits of 8 bits, of their norm
SEARCH = {"num_beams": 2, "max_new_tokens": 6, "min_new_tokens": 6}


def inputs_of(case: Any, model: Any, way_in: str) -> dict[str, Any]:
    """Return images or regions, and captions."""
    return {**case.inputs(way_in), "decoder_input_ids": case.captions(model)}


def outputs_of(case: Any, model: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return logits and generated tokens by both ways in."""
    found = []
    for way_in in WAYS_IN:
        with torch.no_grad():
            logits = model(**inputs_of(case, model, way_in)).logits
        found.append((logits, model.generate(**case.inputs(way_in), **SEARCH)))
    return found


def assert_equal_outputs(actual: list[Any], expected: list[Any]) -> None:
    """Assert logits within `TOLERANCE`, and the same captions."""
    for (logits, captions), (other_logits, other_captions) in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            logits.float(), other_logits, atol=TOLERANCE * max(1, float(other_logits.abs().max())), rtol=0
        )
        assert torch.equal(captions, other_captions), "captions"


def assert_other_logits(actual: list[Any], expected: list[Any]) -> None:
    """Assert that logits differ, so that an adapter has an effect."""
    assert all(not torch.allclose(one[0], other[0], atol=1e-5) for one, other in zip(actual, expected, strict=True))


# PEFT


def adapter_config(method: str, model: Any) -> Any:
    """Return the configuration of a method for all linear maps but those of the vision part and of the vocabulary."""
    peft = import_module("peft")
    kinds = torch.nn.Linear if method == "loha" else torch.nn.Linear | Conv1D  # LoHa knows no Conv1D
    targets = [
        name
        for name, part in model.named_modules()
        if isinstance(part, kinds) and not name.startswith(("lm_head", "model.encoder.vision"))
    ]
    return {
        "lora": lambda: peft.LoraConfig(r=2, target_modules=targets),
        "dora": lambda: peft.LoraConfig(r=2, target_modules=targets, use_dora=True),
        "loha": lambda: peft.LoHaConfig(r=2, target_modules=targets),
        "ia3": lambda: peft.IA3Config(target_modules=targets, feedforward_modules=[]),
    }[method]()


def train_step(case: Any, model: Any) -> None:
    """Take a large step of what is trainable, on images and on regions."""
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.3)
    for way_in in WAYS_IN:
        model(**case.inputs(way_in), labels=case.labels(model)).loss.backward()
    optimizer.step()
    model.eval()


def adapt(method: str, case: Any, folder: Path) -> str:
    """`get_peft_model`: train, save, load, a second adapter, switch off, merge."""
    peft, model = import_module("peft"), case.make_model()
    plain = outputs_of(case, model)
    adapted = peft.get_peft_model(copy.deepcopy(model), adapter_config(method, model))
    train_step(case, adapted)
    trained = outputs_of(case, adapted)
    assert_other_logits(trained, plain)
    adapted.save_pretrained(folder)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(model), folder).eval()
    assert_equal_outputs(outputs_of(case, again), trained)
    again.add_adapter("second", adapter_config(method, model))
    again.set_adapter("second")
    train_step(case, again)
    assert_other_logits(outputs_of(case, again), trained)
    again.set_adapter("default")
    assert_equal_outputs(outputs_of(case, again.eval()), trained)
    with again.disable_adapter():
        assert_equal_outputs(outputs_of(case, again), plain)
    merged = again.merge_and_unload()
    assert type(merged) is type(model)
    assert_equal_outputs(outputs_of(case, merged), trained)
    return EXACT


@contextmanager
def published_peft() -> Any:
    """Let transformers accept the installed PEFT: its limit may name a version that is not published yet."""
    with mock.patch("transformers.integrations.peft.MIN_PEFT_VERSION", import_module("peft").__version__):
        yield


def adapt_inside(method: str, case: Any, folder: Path) -> str:
    """`add_adapter` of transformers: train, save, load, a second adapter, switch off.

    `load_adapter` of transformers leaves the magnitudes of DoRA as they are; `PeftModel.from_pretrained` loads them.
    """
    model = case.make_model()
    plain = outputs_of(case, model)
    with published_peft():
        adapted = copy.deepcopy(model)
        adapted.add_adapter(adapter_config(method, model))
        train_step(case, adapted)
        trained = outputs_of(case, adapted)
        assert_other_logits(trained, plain)
        adapted.save_pretrained(folder)
        assert not (folder / "config.json").exists()
        if method == "dora":
            loaded = import_module("peft").PeftModel.from_pretrained(copy.deepcopy(model), folder).eval()
            assert_equal_outputs(outputs_of(case, loaded), trained)
            again = adapted
        else:
            again = copy.deepcopy(model)
            again.load_adapter(folder)
        assert_equal_outputs(outputs_of(case, again.eval()), trained)
        again.add_adapter(adapter_config(method, model), adapter_name="second")
        again.set_adapter("second")
        train_step(case, again)
        assert_other_logits(outputs_of(case, again), trained)
        again.set_adapter("default")
        assert_equal_outputs(outputs_of(case, again.eval()), trained)
        again.disable_adapters()
        assert_equal_outputs(outputs_of(case, again), plain)
    return f"{EXACT}, by `PeftModel`" if method == "dora" else EXACT


# accelerate


def offload(case: Any, folder: Path) -> str:
    """`device_map`: modules that are not split on disk, the rest on the CPU."""
    model = case.make_model()
    model.save_pretrained(folder / "captioner")
    loaded = AutoModelForImageTextToText.from_pretrained(
        folder / "captioner", device_map=map_to_disk(model), offload_folder=folder / "offloaded"
    )
    assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu", "meta"}
    assert_equal_outputs(outputs_of(case, loaded), outputs_of(case, model))
    return EXACT


def offload_automatically(case: Any, folder: Path) -> str:
    """`device_map="auto"` with memory for about two thirds of the captioner: the rest is on disk."""
    model = case.make_model()
    model.save_pretrained(folder / "captioner")
    room = int(0.7 * sum(weight.numel() * weight.element_size() for weight in model.state_dict().values()))
    loaded = AutoModelForImageTextToText.from_pretrained(
        folder / "captioner", device_map="auto", max_memory={"cpu": room}, offload_folder=folder / "offloaded"
    )
    assert "disk" in loaded.hf_device_map.values()
    assert_equal_outputs(outputs_of(case, loaded), outputs_of(case, model))
    return EXACT


# Weights of 8 bits


def quantization_config(library: str) -> Any:
    """Return the configuration of 8 bit weights on a CPU."""
    if library == "torchao":
        return TorchAoConfig(import_module("torchao.quantization").Int8WeightOnlyConfig())
    return BitsAndBytesConfig(load_in_8bit=True) if library == "bitsandbytes" else QuantoConfig(weights="int8")


def eight_bits(library: str, case: Any, folder: Path) -> str:
    """Load with weights of 8 bits: logits are close, captions are written; return the largest error."""
    model = case.make_model()
    model.save_pretrained(folder / "captioner")
    loaded = AutoModelForImageTextToText.from_pretrained(
        folder / "captioner", quantization_config=quantization_config(library)
    )
    errors = []
    for (logits, captions), (expected, other) in zip(outputs_of(case, loaded), outputs_of(case, model), strict=True):
        errors.append(float((logits.float() - expected).norm() / expected.norm()))
        assert captions.shape == other.shape
    assert 0 < max(errors) < LARGEST_ERROR, errors
    return f"{100 * max(errors):.1f} %"


# Two processes


def launch(kind: str, folder: Path) -> dict[str, str]:
    """Run `two_processes.py` with torchrun on gloo: the outcome of each architecture, or its error."""
    output = folder / f"{kind}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "tests.peers.two_processes", kind, str(output)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return dict(json.loads(output.read_text(encoding="utf-8")))


ROOT = Path(__file__).resolve().parents[2]
PROCESSES = {"ddp": "two processes: DDP", "fsdp2": "two processes: FSDP2"}
METHODS = {"lora": "LoRA", "dora": "DoRA", "loha": "LoHa", "ia3": "IA3"}
LIBRARIES = {"bitsandbytes": "bitsandbytes", "torchao": "torchao", "quanto": "optimum.quanto"}
# By the name of the check: the package that it needs, and the function.
CHECKS: dict[str, tuple[str, Callable[[Any, Path], str]]] = {}
for method, title in METHODS.items():
    CHECKS[f"{title}: `get_peft_model`"] = ("peft", lambda case, folder, method=method: adapt(method, case, folder))
    CHECKS[f"{title}: `add_adapter`"] = (
        "peft",
        lambda case, folder, method=method: adapt_inside(method, case, folder),
    )
CHECKS["`device_map`: cpu and disk"] = ("accelerate", offload)
CHECKS['`device_map="auto"`'] = ("accelerate", offload_automatically)
for library, package in LIBRARIES.items():
    CHECKS[f"{library}, 8 bits"] = (package, lambda case, folder, library=library: eight_bits(library, case, folder))

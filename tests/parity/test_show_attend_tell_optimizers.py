"""Four updates under each rule of Show, Attend and Tell's program."""

import pytest
from safetensors.torch import load_file
from torch.optim import SGD

from hf_captioners.training.optimization import OPTIMIZERS

from .figures import FIGURES, GIVEN, Comparison

pytestmark = pytest.mark.parity
FOLDER = FIGURES / "show_attend_tell_arctic" / "optimizers"
# The learning rate argument of the program reaches only sgd; the others have their own inside.
RULES = {
    "sgd": ((SGD, {}), 0.01),
    "adam": (OPTIMIZERS["arctic_adam"], 2e-4),
    "rmsprop": (OPTIMIZERS["arctic_rmsprop"], 1e-4),
    "adadelta": (OPTIMIZERS["adadelta"], 1.0),
}


@pytest.mark.parametrize("rule", RULES)
def test_show_attend_tell_arctic_optimizers(rule, report_compared):
    assert (FOLDER / "expected.safetensors").is_file(), f"no figures in {FOLDER} (HF_CAPTIONERS_PARITY_DIR={GIVEN})"
    inputs = load_file(FOLDER / "inputs.safetensors")
    comparison = Comparison(load_file(FOLDER / "expected.safetensors"))
    start = {name.removeprefix("start/"): value for name, value in inputs.items() if name.startswith("start/")}
    parameters = {name: value.double().clone().requires_grad_() for name, value in start.items()}
    (kind, options), rate = RULES[rule]
    optimizer = kind(parameters.values(), lr=rate, **options)
    updates = sorted({int(name.split("/")[0].removeprefix("grad")) for name in inputs if name.startswith("grad")})
    for update in updates:
        for name, parameter in parameters.items():
            parameter.grad = inputs[f"grad{update}/{name}"].double()
        optimizer.step()
        for name, parameter in parameters.items():
            comparison.close(f"{rule}.after{update}/{name}", parameter, atol=1e-6, rtol=1e-6)
    assert not comparison.differences, "\n".join(comparison.differences)
    assert {name for name in comparison.expected if name.startswith(f"{rule}.")} == comparison.names
    moved = max((parameters[name] - start[name]).abs().max() for name in start)
    assert moved > 1e-4, "nothing moved: the comparison could not fail"
    report_compared(comparison.compared)

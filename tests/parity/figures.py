"""Loading of figures computed with the authors' code, and counted comparisons with them."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

GIVEN = os.environ.get("HF_CAPTIONERS_PARITY_DIR")
FIGURES = Path(GIVEN) if GIVEN else Path(__file__).parent / "fixtures"
# A different summation order changes float32 results by at most this share of max(1, the largest magnitude).
FLOAT32_TOLERANCE = 3e-5


def variants(family: str, *, start: str = "") -> list[str]:
    """Return the names `family/variant` of all folders with figures whose variant begins with `start`, or
    `family/missing`."""
    found = sorted(f"{family}/{path.parent.name}" for path in (FIGURES / family).glob(f"{start}*/config.json"))
    return found or [f"{family}/missing"]


@dataclass
class Figures:
    """Figures of one folder: sizes, weights, inputs and expected tensors."""

    name: str
    config: dict
    weights: dict[str, Tensor]
    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]

    @classmethod
    def load(cls, name: str) -> "Figures":
        """Read a folder; a missing one is a failure, never a skip."""
        folder = FIGURES / name
        assert (folder / "config.json").is_file(), f"no figures in {folder} (HF_CAPTIONERS_PARITY_DIR={GIVEN})"
        config = json.loads((folder / "config.json").read_text())
        tensors = {}
        for part in ("weights", "inputs", "expected"):
            # Variants of one set of weights name its files; figures of a function have no weights.
            given = config.get(part)
            path = folder / (given if str(given).endswith(".safetensors") else f"{part}.safetensors")
            tensors[part] = load_file(path) if path.exists() or part != "weights" else {}
        return cls(name, config, **tensors)


@dataclass
class Comparison:
    """Comparison of named tensors that counts the figures and lists the differences."""

    expected: dict[str, Tensor]
    compared: int = 0
    names: set[str] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)

    def close(
        self, name: str, actual: Tensor, *, atol: float | None = None, rtol: float = 0.0, where: Tensor | None = None
    ) -> None:
        """Compare `|actual - expected| <= atol + rtol |expected|` at the positions where `where` is True.

        `atol` defaults to the float32 tolerance of the tensor's magnitude; a missing expected tensor is a difference.
        """
        if name not in self.expected:
            self.differences.append(f"{name}: not among the expected tensors")
            return
        expected = self.expected[name].float()
        actual = actual.detach().float().reshape(expected.shape)
        if atol is None:
            atol = FLOAT32_TOLERANCE * max(1.0, expected.abs().max().item())
        if where is not None:
            expected, actual = expected[where], actual[where]
        error = (actual - expected).abs() - rtol * expected.abs()
        self._note(
            name, expected.numel(), not bool((error <= atol).all()), f"off by {error.max():.3g}, allowed {atol:.3g}"
        )

    def equal(self, name: str, actual: Tensor, expected: Tensor) -> None:
        """Compare exactly, for token ids."""
        self._note(
            name, expected.numel(), not torch.equal(actual, expected), f"{actual.tolist()} != {expected.tolist()}"
        )

    def _note(self, name: str, count: int, wrong: bool, message: str) -> None:
        self.compared += count
        self.names.add(name)
        if wrong:
            self.differences.append(f"{name}: {message}")

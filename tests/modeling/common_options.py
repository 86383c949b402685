"""Checks of the configuration options that the test class of an architecture declares."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.comparisons import assert_computed_alike, place_weights

from .common_case import IMAGES, CaptionerCase
from .common_training import gradients


class OptionChecks(CaptionerCase):
    """Every declared option trains, is saved and captions; every declared change and dropout has an effect."""

    # Fields of the captioners that train, are saved and caption, and what all of them have beside these fields.
    options: list[dict[str, Any]] = []
    option_fields: dict[str, Any] = {}
    # Fields that change some logit by more than `min_change`, and parts of the names of weights that they may add.
    changes: list[dict[str, Any]] = []
    min_change = 1e-3
    added: tuple[str, ...] = ()
    # All rates of dropout of the parts after the vision part, beside those of `without_draws`.
    dropouts: list[str] = []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the checks once for each entry of the lists above."""
        for name in ("option", "change", "dropout"):
            if metafunc.function.__name__.startswith(f"test_every_{name}_"):
                metafunc.parametrize(name, getattr(self, f"{name}s"), ids=name_of)

    def check_option(self, model: Any, inputs: dict[str, Tensor], outputs: Any) -> None:
        """Check what an option does beyond this; the outputs have gates and attention weights."""

    def unread(self, model: Any) -> tuple[str, ...]:
        """Return parts of the names of parameters that may get no gradient."""
        return ()

    def regions(self, model: Any) -> dict[str, Tensor]:
        """Return region features, with the vectors of each image that the model reads."""
        generator = torch.Generator().manual_seed(3)
        sizes = model.config.required_vectors.items()
        return self.inputs("regions") | {name: torch.randn(IMAGES, size, generator=generator) for name, size in sizes}

    def test_every_option_runs(self, option, tmp_path):
        """Gradients, captions, and equal logits after loading, with aligned weights and with unaligned ones."""
        model = self.make_model(**self.option_fields | option)
        inputs, labels = self.regions(model), self.labels(model)
        _, found = gradients(model.train(), **inputs, labels=labels)
        trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        silent = {name for name in trainable if found[name] is None or not found[name].any()}
        assert not {name for name in silent if not any(part in name for part in self.unread(model))}
        outputs = model.eval()(**inputs, labels=labels, output_gates=True, output_attentions=True)
        assert torch.isfinite(outputs.logits).all()
        assert len(model.generate(**inputs, num_beams=2, max_new_tokens=4)) == IMAGES
        model.save_pretrained(tmp_path)
        again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values()), report
        for offset in (0, 8):
            place_weights(again, offset)
            assert_computed_alike(again(**inputs, labels=labels).logits, outputs.logits)
        self.check_option(model, inputs, outputs)

    def test_every_change_matters(self, model, change):
        """The same weights give other logits."""
        changed, weights = self.make_model(**change), model.state_dict()
        missing = changed.load_state_dict(weights, strict=False).missing_keys
        assert not [name for name in missing if not any(part in name for part in self.added)]
        inputs = {**self.regions(model), "decoder_input_ids": self.captions(model)}
        assert (changed(**inputs).logits - model(**inputs).logits).abs().max() > self.min_change

    def test_every_dropout_matters(self, dropout):
        """It changes the training loss, which is always the same without any."""
        off = self.without_draws | dict.fromkeys(self.dropouts, 0.0)
        plain, dropping = (self.make_model(**off | {dropout: rate}).train() for rate in (0.0, 0.5))
        inputs = {**self.regions(plain), "labels": self.labels(plain)}
        first, second, other = (gradients(one, seed, **inputs)[0] for seed, one in enumerate((plain, plain, dropping)))
        assert_computed_alike(second, first)
        assert (other - first).abs() > 1e-5


def name_of(entry: Any) -> str:
    """Return the name of an entry in the names of tests."""
    return entry if isinstance(entry, str) else "-".join(f"{name}={value}" for name, value in entry.items())

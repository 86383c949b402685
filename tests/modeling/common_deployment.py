"""Checks of adapters, offloading, waiting for a device, compilers and exporters."""

import sys
from contextlib import nullcontext

import pytest
import torch
from transformers import AutoModelForImageTextToText

from hf_captioners.training.scst.sampling import CaptionSampling
from tests.comparisons import assert_computed_alike

from .common_case import IMAGES, TOKENS, WAYS_IN, CaptionerCase, assert_close, both_inputs, clone
from .common_training import assert_same_gradients, gradients_of
from .pretended_device import DEVICE, is_there, pretended_device, put


class AdapterChecks(CaptionerCase):
    """Checks of adapters of PEFT."""

    @both_inputs
    def test_lora(self, model, way_in, tmp_path):
        """Only adapters learn; the loss falls; saved and loaded adapters give the same logits and captions."""
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="SEQ_2_SEQ_LM")
        adapted = peft.get_peft_model(clone(model), config).train()
        names = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
        assert names and all("lora_" in name for name in names)
        inputs = {**self.inputs(way_in), "labels": self.labels(model)}
        optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=1e-2)
        losses = []
        for step in range(8):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = adapted(**inputs).loss
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        assert losses[-1] < losses[0]
        adapted.eval().save_pretrained(tmp_path)
        again = peft.PeftModel.from_pretrained(clone(model), tmp_path).eval()
        assert_close(again(**inputs).logits, adapted(**inputs).logits, atol=1e-5)
        assert not torch.allclose(again(**inputs).logits, model(**inputs).logits, atol=1e-2)
        options = {**self.inputs(way_in), "num_beams": 2, "max_new_tokens": 5}
        assert torch.equal(again.generate(**options), adapted.generate(**options))

    def test_adapter_inside_the_model(self, model, tmp_path, monkeypatch):
        """An adapter that transformers adds to the model is saved alone, and loaded into the model."""
        peft = pytest.importorskip("peft")
        # transformers asks for a version of PEFT that is not published yet.
        monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", peft.__version__)
        inputs = {**self.inputs("regions"), "decoder_input_ids": self.captions(model)}
        adapted = clone(model)
        adapted.add_adapter(peft.LoraConfig(target_modules="all-linear", init_lora_weights=False))
        adapted.save_pretrained(tmp_path)
        assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in tmp_path.iterdir()}
        assert not (tmp_path / "config.json").exists()
        again = clone(model)
        again.load_adapter(tmp_path)
        expected = adapted.eval()(**inputs).logits
        assert_close(again.eval()(**inputs).logits, expected)
        assert not torch.allclose(expected, model(**inputs).logits, atol=1e-2)

    def test_linear_maps_read_at_most_three_dimensions(self, model):
        """As the quantised linear maps of bitsandbytes do, which multiply inputs of four dimensions wrongly."""
        seen, hooks = {}, []
        for name, part in model.named_modules():
            if isinstance(part, torch.nn.Linear):
                note = lambda part, inputs, name=name: seen.setdefault(name, set()).add(inputs[0].ndim)  # noqa: E731
                hooks.append(part.register_forward_pre_hook(note))
        try:
            model.generate(**self.inputs("pixels"), num_beams=2, max_new_tokens=3)
            model(**self.inputs("regions"), labels=self.labels(model))
        finally:
            for hook in hooks:
                hook.remove()
        assert seen and {name: sizes for name, sizes in seen.items() if max(sizes) > 3} == {}


def map_to_disk(model):
    """Return a `device_map` with the modules that are not split on disk, and everything else on the CPU."""
    unsplittable = {
        name: "disk" for name, module in model.named_modules() if type(module).__name__ in model._no_split_modules
    }
    owners = {name.rpartition(".")[0] or name for name in model.state_dict()}
    owners |= dict(model.named_buffers(recurse=False)).keys()
    others = {name: "cpu" for name in owners if not name.startswith(tuple(f"{one}." for one in unsplittable))}
    return unsplittable | others


class PlacementChecks(CaptionerCase):
    """Check 28 of the common suite, as far as a machine without accelerator can test it."""

    def test_device_map(self, model, checkpoint, place):
        loaded = AutoModelForImageTextToText.from_pretrained(checkpoint, device_map={"": "cpu"})
        inputs = {**self.inputs("pixels"), "decoder_input_ids": self.captions(model)}
        assert_computed_alike(loaded(**inputs).logits, model(**inputs).logits)

    def test_disk_offload(self, model, checkpoint, tmp_path):
        """Modules of `_no_split_modules` are on disk and loaded when they run; the rest is in memory."""
        loaded = AutoModelForImageTextToText.from_pretrained(
            checkpoint, device_map=map_to_disk(model), offload_folder=tmp_path
        )
        assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu", "meta"}
        for way_in in WAYS_IN:
            inputs = {**self.inputs(way_in), "decoder_input_ids": self.captions(model)}
            assert_close(loaded(**inputs).logits, model(**inputs).logits)

    def test_unsplittable_modules_exist(self, model):
        """Every name in `_no_split_modules` is a class in the model."""
        assert set(model._no_split_modules) <= {type(module).__name__ for module in model.modules()}


class WaitChecks(CaptionerCase):
    """A GPU is waited for once in a training forward, and once in each step of a search."""

    STEPS, BESIDES = 6, 8
    # Waits of the vision part in code of its library.
    waits_of_vision = 0

    @pytest.mark.parametrize(("way_in", "captions"), [("pixels", 1), ("regions", 3)])
    def test_training_forward_waits_once(self, model, way_in, captions):
        """For the check of the values of features; gradients, loss and everything else need none."""
        model, inputs = put(clone(model).train()), put(self.inputs(way_in))
        labels = put(self.labels(model, rows=captions * IMAGES))
        with pretended_device() as device:
            model(**inputs, labels=labels).loss.backward()
        expected = 1 + (self.waits_of_vision if way_in == "pixels" else 0)
        assert sum(device.waits.values()) == expected and not device.copies, (device.waits, device.copies)

    @both_inputs
    def test_a_search_waits_once_a_step(self, model, way_in):
        """No step copies numbers of the host; those of the configuration are copied before the first one."""
        model, inputs = put(clone(model)), put(self.inputs(way_in))
        options = {"num_beams": 3, "min_new_tokens": self.STEPS, "max_new_tokens": self.STEPS}
        with pretended_device() as device:
            tokens = model.generate(**inputs, **options)
        allowed = self.STEPS + self.BESIDES + (self.waits_of_vision if way_in == "pixels" else 0)
        assert is_there(tokens) and sum(device.waits.values()) <= allowed, device.waits
        if way_in == "pixels":
            return
        with pretended_device() as longer:
            model.generate(**inputs, **{name: 2 * count if "new" in name else 3 for name, count in options.items()})
        assert longer.copies == device.copies
        assert sum((longer.waits - device.waits).values()) <= self.STEPS, longer.waits - device.waits

    def test_the_scoring_pass_waits_twice(self, model):
        """Of self-critical training: for the check of the features, and for the number of sampled tokens."""
        model, inputs = put(clone(model).train()), put(self.inputs("regions"))
        sampling = CaptionSampling(model, model, self.make_processor(), self.STEPS)
        sampling._has_plain_logits = True  # asked once in a run
        with pretended_device() as device:
            samples = sampling.multinomial(inputs, nullcontext(), 2, 1.0, with_dropout=False)
        with pretended_device() as device:
            scores, _ = sampling.scores(model, inputs, samples)
            scores.logprobs.mean().backward()
        assert sum(device.waits.values()) <= 2, device.waits

    def test_a_wait_is_counted(self, model):
        """Otherwise these checks could not fail."""
        layer = next(module for module in clone(model).modules() if isinstance(module, torch.nn.Linear))
        states = put(torch.randn(2, layer.in_features))
        with pretended_device() as device:
            output = put(layer)(states)
            assert output.device == DEVICE and not device.waits
            assert output.sum().item() == output.cpu().sum().item() and not is_there(output.cpu())
            output[output > 0]
            with pytest.raises(AssertionError, match="two devices"):
                output + torch.ones(2, 1)
        assert sum(device.waits.values()) == 4, device.waits


class CompilerChecks(CaptionerCase):
    """Check 29 of the common suite."""

    @pytest.fixture(autouse=True)
    def forget_compiled(self):
        """All captioners share methods, which are compiled for a few classes at most."""
        yield
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

    @pytest.mark.slow
    @pytest.mark.parametrize(("way_in", "backend"), [("pixels", "aot_eager"), ("regions", "inductor")])
    def test_compiled_forward(self, model, way_in, backend):
        """The forward is one graph without breaks, also with the backend that generates C++."""
        inputs = {**self.inputs(way_in), "decoder_input_ids": self.captions(model)}
        compiled = torch.compile(clone(model), fullgraph=True, backend=backend)
        with torch.no_grad():
            assert_close(compiled(**inputs, use_cache=False).logits, model(**inputs).logits)

    @pytest.mark.slow
    @both_inputs
    def test_compiled_gradients(self, model, way_in):
        inputs = {**self.inputs(way_in), "labels": self.labels(model)}
        compiled, expected = clone(model), clone(model)
        torch.compile(compiled, fullgraph=True, backend="aot_eager")(**inputs).loss.backward()
        expected(**inputs).loss.backward()
        assert_same_gradients(gradients_of(compiled), gradients_of(expected))

    @pytest.mark.slow
    @both_inputs
    def test_exported_program(self, model, way_in):
        """A program exported with dynamic numbers of images and tokens computes the logits of different sizes.

        A recurrent decoder iterates over the tokens, so their number is fixed in the program.
        """
        inputs, length = self.inputs(way_in), TOKENS if model._is_stateful else 9
        free = {0: torch.export.Dim.AUTO} | ({} if model._is_stateful else {1: torch.export.Dim.AUTO})
        program = torch.export.export(
            WithoutCache(model),
            (inputs, self.captions(model)),
            dynamic_shapes=(
                {name: {0: torch.export.Dim.AUTO} for name in inputs},
                free,
            ),
            strict=False,
        )
        other, captions = self.inputs(way_in, images=5, seed=1), self.captions(model, rows=5, length=length)
        found = program.module()(other, captions)
        assert_close(found, model(**other, decoder_input_ids=captions).logits)


class WithoutCache(torch.nn.Module):
    """Captioner as a function of tensors."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: dict[str, torch.Tensor], captions: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs, decoder_input_ids=captions, use_cache=False).logits

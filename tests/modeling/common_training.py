"""Checks of the loss, of gradients, and of the parameters that training changes."""

from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional

from hf_captioners.modeling import losses_captioning
from hf_captioners.modeling.layers_attention import AttentionOnAttention, MultiHeadAttention
from hf_captioners.modeling.layers_recurrent import LSTMCell
from tests.comparisons import assert_computed_alike

from .common_case import IMAGES, TOKENS, CaptionerCase, assert_close, both_inputs, clone, row

# Parts of a backbone that its last hidden state does not depend on.
UNREAD_BY_REGIONS = ("pooler",)


def gradients(model: Any, seed: int = 0, **inputs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """Return the loss in the current mode, and gradients by parameter; buffers (running averages) do not change."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad()
    torch.manual_seed(seed)
    loss = model(**inputs).loss
    loss.backward()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return loss.detach(), gradients_of(model)


def gradients_of(model: Any) -> dict[str, torch.Tensor | None]:
    """Return a copy of the gradients by parameter."""
    named = model.named_parameters()
    return {name: None if parameter.grad is None else parameter.grad.clone() for name, parameter in named}


def assert_same_gradients(actual: dict, expected: dict, atol: float = 1e-6) -> None:
    """Assert equality within rounding, relative to the largest entry of each tensor; None equals None."""
    for name, gradient in expected.items():
        assert (actual[name] is None) == (gradient is None), name
        if gradient is not None:
            assert_close(actual[name], gradient, atol=atol + 1e-4 * gradient.abs().max().item())


def parts_of(model: Any) -> dict[str, int]:
    """Return parameters whose rows belong to several parts, by name, with their number: heads of attention, gates of a
    cell, halves of a gated projection."""
    parts = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            for part in "qkv":
                projection = getattr(module, f"{part}_proj", None)  # prepared keys are projected elsewhere
                if projection is not None:
                    size = module.value_dim if part == "v" else module.key_dim
                    parts[f"{name}.{part}_proj.weight"] = projection.out_features // size
        elif isinstance(module, LSTMCell):
            parts |= {f"{name}.{weight}": 4 for weight, value in module.named_parameters() if value.shape[0] % 4 == 0}
        elif isinstance(module, AttentionOnAttention):
            parts[f"{name}.projection.weight"] = 2
    return parts


class LossChecks(CaptionerCase):
    """Checks of the loss against a computation by hand."""

    def mean_by_hand(self, logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
        """Return the divergence from 1 - s at the target and s spread over the rest, averaged over real targets."""
        real = labels != -100
        expected = torch.full_like(logits, smoothing / (logits.shape[-1] - 1))
        expected.scatter_(-1, labels.clamp(min=0)[..., None], 1 - smoothing)
        nll = functional.kl_div(logits.log_softmax(-1), expected, reduction="none").sum(-1)
        return nll[real].mean()

    @both_inputs
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_loss_by_hand(self, way_in, smoothing):
        model = self.make_model(label_smoothing=smoothing)
        labels = self.labels(model)
        outputs = model(**self.inputs(way_in), labels=labels)
        assert_close(outputs.loss, self.mean_by_hand(outputs.logits, labels, smoothing))

    def test_decoder_inputs_come_from_labels(self, model):
        labels = self.labels(model)
        inputs = model.prepare_decoder_input_ids_from_labels(labels)
        assert (inputs[:, 0] == model.config.decoder_start_token_id).all()
        real = labels[:, :-1] != -100
        assert torch.equal(inputs[:, 1:][real], labels[:, :-1][real])
        assert (inputs[:, 1:][~real] == model.config.pad_token_id).all()
        given = model(**self.inputs("regions"), decoder_input_ids=inputs, labels=labels).loss
        assert_computed_alike(given, model(**self.inputs("regions"), labels=labels).loss)

    def test_padding_of_labels_changes_nothing(self, model):
        inputs, labels = self.inputs("regions"), self.labels(model)
        longer = functional.pad(labels, (0, 4), value=-100)
        assert_close(model(**inputs, labels=longer).loss, model(**inputs, labels=labels).loss)

    def test_summed_loss(self, model):
        labels, inputs = self.labels(model), self.inputs("regions")
        summed = self.make_model(loss_reduction="sum")(**inputs, labels=labels).loss
        assert_close(summed, model(**inputs, labels=labels).loss * (labels != -100).sum(), atol=1e-4)

    def test_training_makes_no_logits(self, monkeypatch):
        """In training, logits are computed at real targets only, in pieces, with the loss and gradients of all."""
        model = self.make_model().train()
        inputs = {**self.inputs("regions"), "labels": self.labels(model)}
        sizes: list[int] = []
        hook = model.lm_head.register_forward_hook(lambda module, args, logits: sizes.append(logits.numel()))
        assert model(**inputs).logits is None
        assert sizes == [int((inputs["labels"] != -100).sum()) * model.config.vocab_size]
        assert model(**inputs, return_logits=True).logits.shape == (IMAGES, TOKENS, model.config.vocab_size)
        assert model.eval()(**inputs).logits is not None
        loss, expected = (gradients(model.train(), **inputs, return_logits=flag) for flag in (False, True))
        assert_close(loss[0], expected[0])
        assert_same_gradients(loss[1], expected[1])
        monkeypatch.setattr(losses_captioning, "LOGITS_AT_A_TIME", 2 * model.config.vocab_size)
        sizes.clear()
        loss = gradients(model.train(), **inputs)  # with a hook on the head: every piece is computed by the head
        assert max(sizes) == 2 * model.config.vocab_size and len(sizes) > 2
        assert_close(loss[0], expected[0])
        assert_same_gradients(loss[1], expected[1])
        hook.remove()
        found = mock.Mock(wraps=losses_captioning.linear_cross_entropy)
        monkeypatch.setattr(losses_captioning, "linear_cross_entropy", found)
        loss = gradients(model, **inputs)
        assert found.call_count == (0 if model.loss_reads_tokens else 1)
        assert_close(loss[0], expected[0])
        assert_same_gradients(loss[1], expected[1])
        with torch.autocast("cpu", torch.bfloat16):
            model(**inputs).loss.backward()
        assert found.call_count == (0 if model.loss_reads_tokens else 1)  # the head computes in half precision

    def test_padding_takes_no_steps(self, monkeypatch):
        """In training, recurrent decoders run no step for padding, with the loss and gradients of all steps."""
        model = self.make_model(**self.without_draws).train()
        cells = [module for module in model.model.decoder.modules() if isinstance(module, LSTMCell)]
        if not model.model.decoder.skips_padding:
            assert not cells or model.config.model_type == "captioning_zodiac_aoanet", (
                "a recurrent decoder runs padding"
            )
            return
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            elif isinstance(module, MultiHeadAttention):
                module.dropout = 0.0
        rows: list[int] = []
        cells[0].register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
        for captions in (1, 2):
            labels = functional.pad(self.labels(model, captions * IMAGES).flip(0), (0, 2), value=-100)
            inputs = {**self.inputs("regions"), "labels": labels}
            rows.clear()
            loss, found = gradients(model, **inputs)
            longest = (labels != -100).sum(1).view(IMAGES, captions).amax(1)
            assert sum(rows) == captions * int(longest.sum()) < labels.numel()
            with monkeypatch.context() as patched:
                patched.setattr(type(model.model.decoder), "skips_padding", False)
                expected = gradients(model, **inputs)
            assert sum(rows) == captions * int(longest.sum()) + labels.numel()
            assert_close(loss, expected[0])
            assert_same_gradients(found, expected[1])

    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_accumulated_batches_equal_one(self, as_tensor):
        """Batches of one with `num_items_in_batch` sum to the gradient of one large batch."""
        model = self.make_model()
        inputs, labels = self.inputs("regions"), self.labels(model)
        loss, expected = gradients(model, **inputs, labels=labels)
        count = (labels != -100).sum()
        model.zero_grad()
        total = torch.zeros(())
        for index in range(IMAGES):
            part = model(
                **row(inputs, index),
                labels=labels[index : index + 1],
                num_items_in_batch=count if as_tensor else int(count),
            ).loss
            part.backward()
            total += part.detach()
        assert_close(total, loss)
        assert_same_gradients(gradients_of(model), expected)


class TrainingChecks(CaptionerCase):
    """Checks 16 to 18 of the common suite."""

    @both_inputs
    @pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "trained"])
    def test_every_trainable_parameter_gets_a_gradient(self, way_in, frozen):
        model = self.make_model(freeze_vision=frozen).train()
        _, found = gradients(model, **self.inputs(way_in), labels=self.labels(model))
        vision = {name for name in found if name.startswith("model.encoder.vision.")}
        assert vision and all(found[name] is None for name in vision) == (frozen or way_in == "regions")
        unread = vision if way_in == "regions" else {name for name in vision if is_unread(name)}
        trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert bool(trainable & vision) != frozen
        silent = {name for name in trainable - unread if found[name] is None or not found[name].any()}
        assert not silent, f"no gradient reaches {sorted(silent)}"

    def test_every_head_and_gate_gets_a_gradient(self):
        """Several share one matrix, which hides one that has no effect."""
        model = self.make_model().train()
        _, found = gradients(model, **self.inputs("regions"), labels=self.labels(model))
        parts = parts_of(model) | self.joined_parts
        if not parts:
            pytest.skip("no matrix of several heads or gates is known: name those of your cells in `joined_parts`")
        for name, number in parts.items():
            reached = found[name].unflatten(0, (number, -1)).flatten(1).any(1)
            assert reached.all(), f"{name}: no gradient reaches parts {(~reached).nonzero().flatten().tolist()}"

    def test_training_lowers_the_loss(self):
        model = self.make_model().train()
        inputs = {**self.inputs("pixels"), "labels": self.labels(model)}
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for step in range(32):
            losses.append(gradients(model, seed=step, **inputs)[0].item())
            optimizer.step()
        assert losses[-1] < 0.7 * losses[0], losses

    def test_frozen_backbone_does_not_move(self):
        model = self.make_model().train()
        vision = model.model.encoder.vision
        before = clone(vision).state_dict()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        gradients(model, **self.inputs("pixels"), labels=self.labels(model))
        optimizer.step()
        assert all(torch.equal(tensor, before[name]) for name, tensor in vision.state_dict().items())

    @both_inputs
    @pytest.mark.parametrize("reentrant", [None, False, True])
    def test_activation_checkpointing_keeps_gradients(self, way_in, reentrant):
        """Same loss and gradients with the same random numbers; layers run twice and nothing is cached."""
        model = self.make_model(freeze_vision=False).train()
        inputs = {**self.inputs(way_in), "labels": self.labels(model), "use_cache": True}  # must be ignored
        runs = count_runs(model)
        loss, expected = gradients(model, **inputs)
        plain = sum(runs)
        options = {} if reentrant is None else {"activation_checkpointing_kwargs": {"use_reentrant": reentrant}}
        model.activation_checkpointing_enable(**options)
        runs.clear()
        again, found = gradients(model, **inputs)
        assert sum(runs) > plain, "no layer ran again in the backward pass"
        assert_close(again, loss)
        assert_same_gradients(found, expected)

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_inputs_may_require_gradients(self, checkpointing):
        """Adapters on a frozen model need this."""
        model = self.make_model().train()
        model.requires_grad_(False)
        model.enable_input_require_grads()
        if checkpointing:
            model.activation_checkpointing_enable()
        embedded: list[torch.Tensor] = []
        model.get_input_embeddings().register_forward_hook(lambda module, args, output: embedded.append(output))
        model(**self.inputs("regions"), labels=self.labels(model)).loss.backward()
        assert embedded[0].requires_grad
        embedded.clear()
        model.disable_input_require_grads()
        assert not model(**self.inputs("regions"), labels=self.labels(model)).loss.requires_grad


def is_unread(name: str) -> bool:
    """Return whether regions do not depend on a parameter of the backbone."""
    return any(part in name.split(".") for part in UNREAD_BY_REGIONS)


def count_runs(model: Any) -> list[int]:
    """Return a list that grows with every run of the captioner's layers, also in the backward pass."""
    runs: list[int] = []
    names = {name for name in model._no_split_modules if name != "VisionBackbone"}
    layers = [module for module in model.modules() if type(module).__name__ in names]
    for layer in layers:
        inner = next(layer.children())  # hooks of the layer itself stay outside of what runs again
        inner.register_forward_hook(lambda module, args, output: runs.append(1))
    return runs

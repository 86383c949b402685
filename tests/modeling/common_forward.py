"""Checks of the forward pass: shapes, masks, batches, caches, attention implementations, embeddings."""

import copy
import inspect
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText
from transformers.utils import ModelOutput

from tests.comparisons import assert_computed_alike

from .common_case import FEATURE_SIZE, IMAGES, TOKENS, CaptionerCase, assert_close, both_inputs, clone, row


class OutputChecks(CaptionerCase):
    """Checks 11, 13 to 15, 19, 21 and 31 of the common suite."""

    def test_forward_signature(self, model):
        for part in (model, model.model, model.get_encoder()):
            assert next(iter(inspect.signature(part.forward).parameters)) == model.main_input_name == "pixel_values"

    @both_inputs
    def test_determinism(self, model, way_in):
        inputs = {**self.inputs(way_in), "decoder_input_ids": self.captions(model)}
        logits = model(**inputs).logits
        assert logits.shape == (IMAGES, TOKENS, model.config.vocab_size)
        assert torch.isfinite(logits).all()
        assert_computed_alike(model(**inputs).logits, logits)

    @both_inputs
    def test_tuple_outputs(self, model, way_in):
        """`return_dict=False` returns the same values without names."""
        model = self.make_model(attn_implementation="eager")
        inputs = {**self.inputs(way_in), "decoder_input_ids": self.captions(model)}
        asked = {"output_attentions": True, "output_hidden_states": True, "output_gates": True, "use_cache": False}
        for part, labels in ((model, {"labels": self.labels(model)}), (model.model, {})):
            named, plain = part(**inputs, **labels, **asked), part(**inputs, **labels, **asked, return_dict=False)
            assert isinstance(plain, tuple)
            assert_same_values(plain, named.to_tuple())

    def test_recorded_states(self):
        """Numbers, shapes and meaning of hidden states and attentions; every row of attentions is a distribution."""
        model = self.make_model(attn_implementation="eager")
        inputs = self.inputs("regions")
        outputs = model(
            **inputs,
            decoder_input_ids=self.captions(model),
            output_attentions=True,
            output_hidden_states=True,
        )
        regions = inputs["region_features"].shape[1]
        assert len(outputs.decoder_hidden_states) >= 2
        for states, length in ((outputs.encoder_hidden_states, regions), (outputs.decoder_hidden_states, TOKENS)):
            assert {state.shape for state in states} == {(IMAGES, length, states[0].shape[-1])}
        assert torch.equal(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state)
        assert_close(model.lm_head(outputs.decoder_hidden_states[-1]), outputs.logits)
        hidden = ~inputs["region_mask"]
        for recorded, keys in (
            (outputs.encoder_attentions, regions + self.encoder_slots),
            (outputs.decoder_attentions, TOKENS),
            (outputs.cross_attentions, regions),
        ):
            for weights in recorded or ():
                assert weights.shape[0] == IMAGES and weights.shape[-1] == keys
                assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        for weights in (*(outputs.encoder_attentions or ()), *outputs.cross_attentions):
            assert weights[..., :regions].movedim(-1, 1)[hidden].abs().max() < 1e-6
        for weights in outputs.encoder_attentions or ():
            assert (weights[..., regions:] > 0).all(), "slots that are no regions are never hidden"
        for weights in outputs.decoder_attentions or ():
            assert weights.triu(1).abs().max() < 1e-6, "a token attends to a later one"

    def test_states_are_recorded_on_request_only(self, model):
        outputs = model(**self.inputs("regions"), decoder_input_ids=self.captions(model))
        recorded = (
            "decoder_hidden_states",
            "decoder_attentions",
            "cross_attentions",
            "encoder_hidden_states",
            "gates",
        )
        assert [name for name in recorded if outputs.get(name) is not None] == []

    def test_gradients_reach_recorded_states(self):
        model = self.make_model(attn_implementation="eager")
        outputs = model(
            **self.inputs("regions"),
            decoder_input_ids=self.captions(model),
            output_attentions=True,
            output_hidden_states=True,
        )
        encoder = (*outputs.encoder_hidden_states, *(outputs.encoder_attentions or ()))
        encoder = tuple(state for state in encoder if state.requires_grad)  # an encoder may pass regions on unchanged
        decoder = (*outputs.decoder_hidden_states, *(outputs.decoder_attentions or ()))
        recorded = (*encoder, *decoder, *outputs.cross_attentions)
        for state in recorded:
            state.retain_grad()
        outputs.logits.square().sum().backward()
        reaches = getattr(outputs, "locations", None) is None  # hard attention uses single regions, without gradient
        used = recorded if reaches else recorded[: -len(outputs.cross_attentions)]
        assert all(state.grad.shape == state.shape and state.grad.abs().sum() > 0 for state in used)

    def test_gradients_reach_attentions_in_training(self):
        """Also where padding takes no steps: its weights have no gradient."""
        model = self.make_model(attn_implementation="eager", **self.without_draws).train()
        labels = self.labels(model)
        outputs = model(**self.inputs("regions"), labels=labels, output_attentions=True)
        for weights in outputs.cross_attentions:
            weights.retain_grad()
        outputs.loss.backward()
        for weights in outputs.cross_attentions:
            of_heads = weights.grad.abs().flatten(1, -3).sum(1) if weights.ndim > 3 else weights.grad.abs()
            by_token = of_heads.sum(-1)  # [B, T]
            assert weights.grad.shape == weights.shape and (by_token > 0)[labels != -100].all()
            if not model.captions_depend_on_batch:
                assert by_token[labels == -100].max() == 0

    def test_regions_of_images_may_be_computed_before(self, model):
        """The outputs of `get_region_features` replace the images."""
        images, captions = self.inputs("pixels"), self.captions(model)
        regions = model.get_region_features(**images)
        assert regions.region_features.shape[::2] == (IMAGES, model.config.region_feature_size)
        assert regions.region_boxes.min() >= 0 and regions.region_boxes.max() <= 1
        expected = model(**images, decoder_input_ids=captions).logits
        assert_close(model(**regions, decoder_input_ids=captions).logits, expected)

    @both_inputs
    def test_encoder_outputs_may_be_given(self, model, way_in):
        inputs, captions = self.inputs(way_in), self.captions(model)
        with torch.no_grad():
            encoded = model.get_encoder()(**inputs, output_hidden_states=True)
        assert isinstance(encoded, ModelOutput)
        expected = model(**inputs, decoder_input_ids=captions).logits
        for given in (encoded, copy.deepcopy(encoded)):
            out = model(encoder_outputs=given, decoder_input_ids=captions)
            assert_close(out.logits, expected)
            assert len(out.encoder_hidden_states) == len(encoded.hidden_states)
        with pytest.raises(ValueError, match=r"`encoder_outputs` is a tuple of \d entries, expected what the encoder"):
            model(encoder_outputs=encoded.to_tuple(), decoder_input_ids=captions)

    def test_logits_to_keep(self, model):
        inputs = {**self.inputs("regions"), "decoder_input_ids": self.captions(model)}
        every = model(**inputs).logits
        assert_close(model(**inputs, logits_to_keep=2).logits, every[:, -2:])

    def test_captions_share_their_image(self, model):
        """K captions per image over the states of B images = the same rows over repeated images."""
        inputs, captions = self.inputs("regions"), self.captions(model, rows=2 * IMAGES)
        shared = model(**inputs, decoder_input_ids=captions).logits
        repeated = {name: tensor.repeat_interleave(2, dim=0) for name, tensor in inputs.items()}
        assert_close(shared, model(**repeated, decoder_input_ids=captions).logits)
        with pytest.raises(ValueError, match="cannot be divided among"):
            model(**inputs, decoder_input_ids=captions[:-1])


class BadInputChecks(CaptionerCase):
    """Checks that messages state the problem and the value."""

    def test_images_or_regions_not_both_not_neither(self, model):
        captions = self.captions(model)
        with pytest.raises(ValueError, match="got both"):
            model(**self.inputs("pixels"), **self.inputs("regions"), decoder_input_ids=captions)
        with pytest.raises(ValueError, match="got neither"):
            model(decoder_input_ids=captions)

    def test_captions_are_missing(self, model):
        with pytest.raises(ValueError, match="`decoder_input_ids` is missing"):
            model(**self.inputs("regions"))

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("region_features", lambda features: features.fill_(torch.nan), r"NaN or infinite.*row\(s\) \[0, 1, 2\]"),
            ("region_features", lambda features: features[:, :0], "zero regions"),
            ("region_features", lambda features: features[..., 1:], "has 23 features.*trained on 24"),
            ("region_features", lambda features: features[0], r"shape \(5, 24\), expected"),
            ("region_mask", lambda mask: mask[:, 1:], r"`region_mask` has the shape \(3, 4\), expected \(3, 5\)"),
            ("region_mask", lambda mask: mask.fill_(False), r"hides every region of row\(s\) \[0, 1, 2\]"),
            ("region_boxes", lambda boxes: boxes[..., :3], r"`region_boxes` has the shape \(3, 5, 3\)"),
            ("region_boxes", lambda boxes: boxes * 480, r"`region_boxes` leaves the image in row\(s\).*boxes / \["),
            ("region_boxes", lambda boxes: boxes[..., [2, 1, 0, 3]], r"has x2 < x1 or y2 < y1 in row\(s\)"),
            ("region_boxes", lambda boxes: boxes * torch.nan, "`region_boxes` holds NaN or infinite values"),
        ],
        ids=[
            "nan",
            "no_regions",
            "feature_size",
            "no_batch",
            "mask_shape",
            "all_hidden",
            "box_shape",
            "boxes_in_pixels",
            "turned_boxes",
            "nan_boxes",
        ],
    )
    def test_wrong_regions(self, model, name, change, message):
        inputs = self.inputs("regions")
        inputs[name] = change(inputs[name])
        with pytest.raises(ValueError, match=message):
            model(**inputs, decoder_input_ids=self.captions(model))

    def test_boxes_outside_by_rounding_are_clamped(self, model):
        """Up to 0.01 beyond the image; boxes of hidden regions are not looked at."""
        inputs = self.inputs("regions")
        inputs["region_boxes"] = inputs["region_boxes"] * 1.009
        inputs["region_boxes"][~inputs["region_mask"]] = torch.nan
        found = model.get_encoder().get_region_features(**inputs)
        assert found.region_boxes.dtype == torch.float32 and found.region_boxes.min() >= 0
        assert found.region_boxes.max() <= 1

    def test_boxes_stay_in_float32(self):
        """Boxes of a grid and given boxes in models of low precision, bit for bit."""
        for dtype in (torch.bfloat16, torch.float16):
            model, regions = self.make_model().to(dtype), self.inputs("regions")
            images = model.get_encoder().get_region_features(**self.inputs("pixels"))
            exact = self.make_model().get_encoder().get_region_features(**self.inputs("pixels"))
            assert images.region_features.dtype == dtype
            assert torch.equal(images.region_boxes, exact.region_boxes)
            given = model.get_encoder().get_region_features(**regions)
            assert torch.equal(
                given.region_boxes[regions["region_mask"]], regions["region_boxes"][regions["region_mask"]]
            )

    def test_unknown_inputs_are_refused(self, model):
        """With the nearest name, in every part and in `generate`; None has no effect."""
        inputs, captions = self.inputs("regions"), self.captions(model)
        mask = inputs.pop("region_mask")
        for part in (model, model.model):
            with pytest.raises(TypeError, match="`regoin_mask` is not an input of.*did you mean `region_mask`"):
                part(**inputs, regoin_mask=mask, decoder_input_ids=captions)
            part(**inputs, regoin_mask=None, decoder_input_ids=captions)
        with pytest.raises(TypeError, match="`regoin_mask` is not an input of"):
            model.get_encoder()(**inputs, regoin_mask=mask)
        with pytest.raises(ValueError, match="regoin_mask"):
            model.generate(**inputs, regoin_mask=mask)

    def test_wrong_images(self, model):
        """Features instead of images, and images for a captioner without a backbone."""
        captions = self.captions(model)
        with pytest.raises(ValueError, match=r"`pixel_values` has the shape \(3, 5, 24\)"):
            model(pixel_values=self.inputs("regions")["region_features"], decoder_input_ids=captions)
        blind = self.make_model(vision_config=None)
        with pytest.raises(ValueError, match="no vision model"):
            blind(**self.inputs("pixels"), decoder_input_ids=captions)


class MaskChecks(CaptionerCase):
    """Checks 12, 37 and 40 of the common suite: hidden inputs and other rows of the batch change nothing."""

    @both_inputs
    def test_row_alone_equals_row_in_batch(self, model, way_in):
        inputs, captions = self.inputs(way_in), self.captions(model)
        together = model(**inputs, decoder_input_ids=captions).logits
        for index in range(IMAGES):
            alone = model(**row(inputs, index), decoder_input_ids=captions[index : index + 1]).logits
            assert_close(together[index], alone[0])

    @pytest.mark.parametrize("garbage", [0.0, 1e4, -1e30, torch.nan])
    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_masked_regions_change_nothing(self, garbage, attention):
        model = self.make_model(attn_implementation=attention)
        inputs, captions = self.inputs("regions"), self.captions(model)
        expected = model(**inputs, decoder_input_ids=captions).logits
        padding = ~inputs["region_mask"][..., None]
        for name in ("region_features", "region_boxes"):
            inputs[name] = inputs[name].masked_fill(padding, garbage)
        assert_close(model(**inputs, decoder_input_ids=captions).logits, expected)

    def test_real_regions_matter(self, model):
        """The counterpart: every region that is not masked changes the logits."""
        inputs, captions = self.inputs("regions"), self.captions(model)
        expected = model(**inputs, decoder_input_ids=captions).logits
        for index in range(IMAGES):
            features = inputs["region_features"].clone()
            last = int(inputs["region_mask"][index].sum()) - 1
            features[index, last] += 1
            changed = model(**inputs | {"region_features": features}, decoder_input_ids=captions).logits
            difference = (changed - expected).abs().amax((1, 2))
            assert difference[index] > 1e-4 and difference.sum() == difference[index]

    def test_later_tokens_change_nothing(self, model):
        inputs, captions = self.inputs("regions"), self.captions(model)
        expected = model(**inputs, decoder_input_ids=captions).logits
        changed = captions.clone()
        changed[:, 3:] = self.captions(model, seed=1)[:, 3:]
        assert_close(model(**inputs, decoder_input_ids=changed).logits[:, :3], expected[:, :3])

    @both_inputs
    def test_left_padded_prompts_equal_unpadded(self, model, way_in):
        inputs, captions = self.inputs(way_in), self.captions(model)
        expected = model(**inputs, decoder_input_ids=captions).logits
        padding = self.words(model, IMAGES, 3, seed=5)
        mask = torch.cat((torch.zeros_like(padding), torch.ones_like(captions)), dim=1)
        padded = {"decoder_input_ids": torch.cat((padding, captions), dim=1), "decoder_attention_mask": mask}
        assert_close(model(**inputs, **padded).logits[:, 3:], expected)

    @both_inputs
    @pytest.mark.parametrize("steps", [[1] * TOKENS, [3, 1, 2], [2, TOKENS - 2]], ids=str)
    def test_cached_steps_equal_parallel(self, model, way_in, steps):
        """Steps of any length with the cache of the first step."""
        inputs, captions, cache, logits = self.inputs(way_in), self.captions(model), None, []
        expected = model(**inputs, decoder_input_ids=captions, use_cache=False)
        assert expected.cache is None
        encoded = model.get_encoder()(**inputs)
        for part in captions.split(steps, dim=1):
            outputs = model(encoder_outputs=encoded, decoder_input_ids=part, cache=cache, use_cache=True)
            cache = outputs.cache
            logits.append(outputs.logits)
        assert cache.get_seq_length() == TOKENS
        assert_close(torch.cat(logits, dim=1), expected.logits)

    def test_cached_steps_with_left_padding(self, model):
        inputs, captions, cache, logits = self.inputs("regions"), self.captions(model), None, []
        mask = torch.ones_like(captions)
        mask[0, :2] = mask[1, :1] = 0
        expected = model(**inputs, decoder_input_ids=captions, decoder_attention_mask=mask).logits
        for step in range(TOKENS):
            outputs = model(
                **inputs,
                decoder_input_ids=captions[:, step : step + 1],
                decoder_attention_mask=mask[:, : step + 1],
                cache=cache,
                use_cache=True,
            )
            cache = outputs.cache
            logits.append(outputs.logits)
        real = mask.bool()
        assert_close(torch.cat(logits, dim=1)[real], expected[real])


class AttentionChecks(CaptionerCase):
    """Checks 22 to 24 and 30 of the common suite."""

    def masked_inputs(self, model: Any, way_in: str) -> dict[str, torch.Tensor]:
        """Return captions with left padding, and padded regions."""
        captions = self.captions(model)
        mask = torch.ones_like(captions)
        mask[0, :2] = 0
        return {**self.inputs(way_in), "decoder_input_ids": captions, "decoder_attention_mask": mask}

    @both_inputs
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
    def test_eager_equals_sdpa(self, model, way_in, dtype):
        inputs = self.masked_inputs(model, way_in)
        eager, sdpa = (
            self.make_model(attn_implementation=name).to(dtype)(**inputs).logits for name in ("eager", "sdpa")
        )
        real = inputs["decoder_attention_mask"].bool()
        assert eager.dtype == dtype
        scale = eager.abs().max().item()
        assert_close(eager[real], sdpa[real], atol=2e-5 if dtype == torch.float32 else 0.1 * scale)

    @pytest.mark.slow
    def test_flex_equals_eager(self, model):
        """Forward only: PyTorch has no backward pass of flex attention on CPU."""
        if not model._supports_flex_attn:
            pytest.skip("the architecture has no flex attention")
        inputs = self.masked_inputs(model, "regions")
        real = inputs["decoder_attention_mask"].bool()
        flex, eager = (
            self.make_model(attn_implementation="flex_attention"),
            self.make_model(attn_implementation="eager"),
        )
        with torch.no_grad():
            assert_close(flex(**inputs).logits[real], eager(**inputs).logits[real], atol=2e-5)

    def test_attention_implementation_is_set_everywhere(self):
        """Every part, the backbone too, reports the implementation that was asked for, and computes with it."""
        model = self.make_model(attn_implementation="sdpa")
        inputs = self.masked_inputs(model, "pixels")
        real = inputs["decoder_attention_mask"].bool()
        expected = model(**inputs).logits[real]
        assert implementations(model) == {"sdpa"}
        model.set_attn_implementation("eager")
        assert implementations(model) == {"eager"}
        assert_close(model(**inputs).logits[real], expected, atol=2e-5)
        attentions = model(**inputs, output_attentions=True).cross_attentions
        assert all(weights is not None for weights in attentions)

    def test_every_part_has_its_own_attention_implementation(self):
        """A dictionary names the parts, when a model is built and when it is changed."""
        config = self.make_config(vision_config=copy.deepcopy(self.vision), region_feature_size=FEATURE_SIZE)
        parts = {name: "eager" for name in config.sub_configs if getattr(config, name) is not None}
        model = AutoModelForImageTextToText.from_config(config, attn_implementation={"": "sdpa", **parts})
        expected = {"": "sdpa", **parts}
        for change in (expected, dict.fromkeys(expected, "sdpa") | {"": "eager"}):
            if change is not expected:
                model.set_attn_implementation(change)
            named = {name: getattr(model.config, name)._attn_implementation for name in parts}
            assert {"": model.config._attn_implementation, **named} == change
            model(**self.masked_inputs(model, "pixels"))

    @pytest.mark.parametrize("refused", ["flash_attention_2", "foo"])
    def test_refused_attention_implementation_changes_nothing(self, refused):
        model = self.make_model(attn_implementation="sdpa")
        inputs = self.masked_inputs(model, "pixels")
        expected, before = model(**inputs).logits, implementations(model)
        with pytest.raises(ValueError, match="Flash Attention 2|is not supported"):
            model.set_attn_implementation(refused)
        assert implementations(model) == before and "sdpa" in before
        assert_computed_alike(model(**inputs).logits, expected)

    def test_attention_maps(self):
        """Each generated token has a distribution over the visible regions, with several captions per image too."""
        model = self.make_model(attn_implementation="eager")
        inputs = self.inputs("regions")
        sequences = model.generate(**inputs, num_beams=2, num_return_sequences=2, max_new_tokens=5)
        maps = model.attention_maps(sequences, **inputs)
        assert maps.shape == (2 * IMAGES, sequences.shape[1] - 1, inputs["region_features"].shape[1])
        assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))
        hidden = ~inputs["region_mask"].repeat_interleave(2, dim=0)
        assert maps.transpose(1, 2)[hidden].abs().max() < 1e-6

    def test_relevance_maps(self):
        """Gradient times attention: nothing of hidden regions; no gradient is left; frozen captioners have it too."""
        model = self.make_model(attn_implementation="eager")
        inputs = self.inputs("regions")
        sequences = self.captions(model)
        maps = model.relevance_maps(sequences, **inputs)
        assert maps.shape == (IMAGES, TOKENS - 1, inputs["region_features"].shape[1]) and not maps.requires_grad
        sums = maps.sum(-1)
        assert (torch.isclose(sums, torch.ones(())) | (sums == 0)).all() and sums.mean() > 0.5
        assert maps.transpose(1, 2)[~inputs["region_mask"]].abs().max() < 1e-6
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not torch.allclose(maps, model.attention_maps(sequences, **inputs), atol=1e-3)
        with torch.no_grad():
            assert_close(model.requires_grad_(False).relevance_maps(sequences, **inputs), maps)

    @both_inputs
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
    def test_half_precision_is_close(self, model, way_in, dtype):
        """Inputs are cast to the model's own precision; the loss is computed in float32."""
        inputs = {**self.inputs(way_in), "labels": self.labels(model)}
        expected, half = model(**inputs), clone(model).to(dtype)(**inputs)
        assert half.logits.dtype == dtype
        assert_close(half.logits.float(), expected.logits, atol=0.1 * expected.logits.abs().max().item())
        assert half.loss.dtype == torch.float32
        assert_close(half.loss, expected.loss, atol=0.05 * expected.loss.item())

    @both_inputs
    def test_double_precision_is_close(self, model, way_in):
        inputs = {**self.inputs(way_in), "decoder_input_ids": self.captions(model)}
        expected, double = model(**inputs).logits, clone(model).double()(**inputs).logits
        assert double.dtype == torch.float64
        assert_close(double.float(), expected, atol=2e-5 * max(1, expected.abs().max().item()))


class EmbeddingChecks(CaptionerCase):
    """Check 20 of the common suite."""

    def test_embeddings_can_be_replaced(self):
        model = self.make_model(tie_word_embeddings=False)
        for get, put in (
            ("get_input_embeddings", "set_input_embeddings"),
            ("get_output_embeddings", "set_output_embeddings"),
        ):
            new = clone(getattr(model, get)())
            getattr(model, put)(new)
            assert getattr(model, get)() is new
        assert model.model.get_input_embeddings() is model.get_input_embeddings()

    @pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
    @pytest.mark.parametrize("change", [5, -2])
    def test_resize_embeddings(self, tied, change, place, tmp_path):
        model = self.make_model(tie_word_embeddings=tied)
        inputs = {**self.inputs("regions"), "decoder_input_ids": self.captions(model).clamp(max=20)}
        before, size = model(**inputs).logits, model.config.vocab_size + change
        model.resize_token_embeddings(size, mean_resizing=False)
        after = model(**inputs).logits
        kept = min(size, before.shape[-1])
        assert after.shape[-1] == size == model.config.vocab_size
        assert_close(after[..., :kept], before[..., :kept])
        assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
        model.save_pretrained(tmp_path)
        assert_computed_alike(type(model).from_pretrained(tmp_path)(**inputs).logits, after)


def implementations(model: Any) -> set[str]:
    """Return the attention implementations of the parts of a model and their configurations."""
    configs = [part.config for part in model.modules() if hasattr(part, "config")]
    subs = [getattr(config, name) for config in configs for name in getattr(config, "sub_configs", {})]
    return {config._attn_implementation for config in (*configs, *filter(None, subs))}


def assert_same_values(actual: Any, expected: Any) -> None:
    """Assert that nested tuples hold tensors that are equal up to rounding."""
    if isinstance(expected, torch.Tensor):
        assert_computed_alike(actual, expected)
    elif isinstance(expected, tuple):
        assert isinstance(actual, tuple) and len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            assert_same_values(ours, theirs)
    else:
        assert type(actual) is type(expected)

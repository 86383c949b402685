"""Checks of studies: several views of one thing are one set of regions, whatever else is in the batch."""

from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from .common_case import IMAGE_SIZE, IMAGES, CaptionerCase, assert_close, clone
from .common_training import assert_same_gradients, gradients_of

VIEWS = 2
COUNTS = [2, 1, 2]


class ViewChecks(CaptionerCase):
    """Views of a study through the vision part, the searches, the gradient and the processor."""

    def views(self) -> Tensor:
        """Return two views per image `[B, 2, C, H, W]`."""
        return self.inputs("pixels", images=IMAGES * VIEWS)["pixel_values"].unflatten(0, (IMAGES, VIEWS))

    def regions_of_views(self, model: Any, views: Tensor) -> dict[str, Tensor]:
        """Return the regions of both views of each study, encoded independently and concatenated."""
        alone = [model.get_region_features(view) for view in views.unbind(1)]
        joined = {name: torch.cat([regions[name] for regions in alone], dim=1) for name in alone[0]}
        numbers = torch.arange(VIEWS).repeat_interleave(alone[0].region_features.shape[1])
        return joined | {"region_views": numbers.expand(IMAGES, -1)}

    def test_two_views_are_the_regions_of_both(self, model):
        """Equal logits, boxes within each view, and equal captions of a beam search."""
        views, captions = self.views(), self.captions(model)
        regions = self.regions_of_views(model, views)
        found = model.get_region_features(views)
        assert found.keys() == regions.keys()
        for name, values in regions.items():
            assert_close(found[name], values)
        expected = model(**regions, decoder_input_ids=captions).logits
        assert_close(model(pixel_values=views, decoder_input_ids=captions).logits, expected)
        first = model(pixel_values=views[:, 0], decoder_input_ids=captions).logits
        assert (first - expected).abs().amax((1, 2)).min() > 1e-4, "the second view does not matter"
        options = {"num_beams": 3, "max_new_tokens": 6}
        assert torch.equal(model.generate(pixel_values=views, **options), model.generate(**regions, **options))

    def test_one_and_two_views_in_a_batch(self, model):
        """Each study as alone, also if the padding of the batch is a real image; logits and captions."""
        views, captions = self.views(), self.captions(model)
        view_mask = torch.arange(VIEWS) < torch.tensor(COUNTS)[:, None]
        together = model(pixel_values=views, view_mask=view_mask, decoder_input_ids=captions).logits
        options = {"num_beams": 2, "min_new_tokens": 4, "max_new_tokens": 4}
        written = model.generate(pixel_values=views, view_mask=view_mask, **options)
        for index, count in enumerate(COUNTS):
            study = views[index : index + 1, :count]
            alone = study if count > 1 else study[:, 0]
            expected = model(pixel_values=alone, decoder_input_ids=captions[index : index + 1]).logits
            assert_close(together[index : index + 1], expected)
            assert torch.equal(written[index : index + 1], model.generate(pixel_values=alone, **options))

    def test_a_backbone_learns_from_all_views(self):
        """Gradients of the vision part are those of the regions of both views; a view that is masked gives none."""
        model = self.make_model(freeze_vision=False)
        views, labels = self.views(), self.labels(model)
        joined = clone(model)
        model(pixel_values=views, labels=labels).loss.backward()
        joined(**self.regions_of_views(joined, views), labels=labels).loss.backward()
        vision = [gradient for name, gradient in gradients_of(model).items() if "vision" in name]
        assert any(gradient is not None and gradient.any() for gradient in vision)
        assert_same_gradients(gradients_of(model), gradients_of(joined))
        views = views.clone().requires_grad_()
        view_mask = torch.arange(VIEWS) < torch.tensor(COUNTS)[:, None]
        model(pixel_values=views, view_mask=view_mask, labels=labels).loss.backward()
        has_gradient = views.grad.flatten(2).abs().amax(-1) > 0  # [B, V]
        assert torch.equal(has_gradient, view_mask)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [((IMAGES, 3), r"`view_mask` has the shape \(3, 3\)"), ((IMAGES, VIEWS), "hides every region")],
    )
    def test_wrong_views(self, model, shape, message):
        mask = torch.zeros(shape, dtype=torch.bool)
        with pytest.raises(ValueError, match=message):
            model(pixel_values=self.views(), view_mask=mask, decoder_input_ids=self.captions(model))

    def test_processor_puts_views_together(self, model):
        """Studies of two views and of one; the outputs of the processor are inputs of the model."""
        processor = self.make_processor()
        gradient = Image.linear_gradient("L").resize((IMAGE_SIZE, IMAGE_SIZE)).convert("RGB")
        other = gradient.transpose(Image.Transpose.ROTATE_90)
        inputs = processor(images=[[gradient, other], [other]], return_tensors="pt")
        assert inputs["view_mask"].tolist() == [[True, True], [True, False]]
        both = processor(images=[gradient, other], return_tensors="pt")["pixel_values"]
        assert torch.equal(inputs["pixel_values"][0], both) and torch.equal(inputs["pixel_values"][1, 0], both[1])
        captions = self.captions(model, rows=2)
        logits = model(**inputs, decoder_input_ids=captions).logits
        assert_close(logits[:1], model(pixel_values=both[None], decoder_input_ids=captions[:1]).logits)
        assert_close(logits[1:], model(pixel_values=both[1:], decoder_input_ids=captions[1:]).logits)

    @pytest.mark.parametrize("package", ["with", "without"])
    def test_fresh_pipeline_captions_studies(self, fresh_process, model, package):
        """In a fresh process, a batch of studies of two views and one gives the captions of each alone."""
        processor, image = self.make_processor(), Image.open(fresh_process["image"])
        studies = [[image, image.transpose(Image.Transpose.ROTATE_90)], [image]]
        texts = []
        for study in studies:
            tokens = model.generate(**processor(images=[study], return_tensors="pt"), max_new_tokens=6)
            texts += processor.post_process_image_text_to_text(tokens)
        assert [records[0]["generated_text"] for records in fresh_process[package]["studies"]] == texts

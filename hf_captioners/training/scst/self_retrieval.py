"""Reward `self_retrieval`: how well a caption identifies its image among the images of the batch."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from hf_captioners.modeling.modeling_captioning import IGNORED_LABEL
from hf_captioners.pipelines.image_captioning import is_native_processor
from hf_captioners.processing.image_reading import read_image
from hf_captioners.training.collator import CaptionCollator, CaptionEncoder, caption_encoder
from hf_captioners.training.rewards.functions import SELF_RETRIEVAL, caption_texts

PAIRS_AT_ONCE = 256
"""Largest number of pairs of image and caption in one pass, unless one image has more captions."""


class SelfRetrieval:
    """Probability (0 to 1) of the caption's own image among the batch's images.

    A captioner gives the likelihood of every caption for every image. By Bayes' rule, with images that are equally
    probable before the caption is read, the probability of image i given caption c is p(c | i) / sum_j p(c | j).
    Captions that fit every image get 1 / B. With only one image in the batch, all captions are skipped.

    Args:
        model: the captioner that judges; it is not changed. None: the trainer sets a frozen copy of the captioner that
            self-critical training starts from, so that the reward cannot be raised by changing the judge.
        processing_class: its processor.
        images_column: column of the images, one per caption. Rows with equal images count as one image.

    Attributes:
        is_open: whether the trainer chooses the captioner that judges.

    Source: Luo et al. (CVPR 2018) and Liu et al. (ECCV 2018), who train with the ability to retrieve the image; here a
        captioner is the retriever.

    Example:

    ```python
    from hf_captioners.training.scst.self_retrieval import SelfRetrieval

    reward = SelfRetrieval(model, processor)
    rows = images["train"].select([0, 1])
    values = reward(["a red circle", "two blue stars"], images=[rows[0]["image"], rows[1]["image"]])
    assert len(values) == 2 and all(0 <= value <= 1 for value in values)
    ```
    """

    __name__ = SELF_RETRIEVAL

    def __init__(self, model: PreTrainedModel | None, processing_class: Any, images_column: str = "images") -> None:
        self.model, self.processing_class, self.images_column = model, processing_class, images_column
        self.is_open = model is None

    def __call__(self, completions: Sequence[Any], images: Sequence[Any] | None = None, **columns: Any) -> list[Any]:
        """Compute the rewards of completions.

        Args:
            completions: N captions, as texts or as messages.
            images: the image of each, `PIL.Image`s, or a list of one image or of several views.
            **columns: other columns; that of the images if it has a different name.

        Raises:
            TypeError: there are no images.
            RuntimeError: there is no captioner that judges yet.
        """
        sources = images if self.images_column == "images" else columns.get(self.images_column)
        if sources is None:
            raise TypeError(
                f"The reward {SELF_RETRIEVAL!r} reads images from the column {self.images_column!r}, and the columns "
                f"are {', '.join(columns)}. Choose one: images_column=NAME."
            )
        if self.model is None:
            raise RuntimeError(f"The reward {SELF_RETRIEVAL!r} has no captioner before `train` is called.")
        different, own = _different_images(sources)
        if len(different) < 2:
            return [None] * len(completions)
        likelihood = self.log_likelihood(caption_texts(completions), different)  # [images, N]
        return likelihood.softmax(0)[torch.tensor(own), torch.arange(len(own))].tolist()

    @torch.no_grad()
    def log_likelihood(self, captions: Sequence[str], images: Sequence[Any]) -> Tensor:
        """Return log p(caption | image) `[images, captions]`, summed over all tokens including the end token."""
        assert self.model is not None
        self.model.eval()
        encoder = caption_encoder(self.processing_class, self.model)
        at_once = max(1, PAIRS_AT_ONCE // len(captions))  # images
        parts = [images[first : first + at_once] for first in range(0, len(images), at_once)]
        return torch.cat([self._of_images(encoder, captions, part) for part in parts])

    def _of_images(self, encoder: CaptionEncoder, captions: Sequence[str], images: Sequence[Any]) -> Tensor:
        assert self.model is not None
        items = [
            {"images" if isinstance(image, list) else "image": image, "row": row, "caption": caption}
            for row, image in enumerate(images)
            for caption in captions
        ]
        # Captioners of this library read an image once for all captions.
        batch = CaptionCollator(encoder, share_images=is_native_processor(self.processing_class))(items)
        batch = {name: value.to(self.model.device) for name, value in batch.items()}
        labels = batch["labels"]
        logits = self.model(**batch).logits[:, -labels.shape[1] :].float()
        if getattr(encoder, "shifts_inside", False):  # the logits at a token are those of the next label
            logits, labels = logits[:, :-1], labels[:, 1:]
        nll = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), labels, ignore_index=IGNORED_LABEL, reduction="none"
        )
        return -nll.sum(1).view(len(images), len(captions)).cpu()


def _different_images(images: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return the distinct images, and the index of each given image among them."""
    places: dict[tuple[Any, ...], int] = {}
    different: list[Any] = []
    indices: list[int] = []
    for image in images:
        views = [read_image(view) for view in (image if isinstance(image, (list, tuple)) else [image])]
        key = tuple(_content(view) for view in views)
        if key not in places:
            places[key] = len(different)
            different.append(views[0] if len(views) == 1 else views)
        indices.append(places[key])
    return different, indices


def _content(image: Image.Image) -> tuple[Any, ...]:
    return image.size, image.mode, image.tobytes()

"""Attribute detector: the words that captions of an image are likely to have (Fang et al., CVPR 2015, section 3)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_attribute_detector import AttributeDetectorConfig
from .inputs_captioning import read_inputs
from .layers_attributes import AttributeNetwork, WordScores, attribute_nll, noisy_or
from .modeling_captioning import CaptioningEncoder, CaptioningPreTrainedModel


@dataclass
class AttributeDetectorOutput(ModelOutput):
    """Output of an attribute detector for B images, R regions and W words.

    Args:
        loss: with `labels`: the negative log-likelihood, summed over words, averaged over images.
        probabilities: `[B, W]`.
        log_probabilities, log_absence: log p and log (1 - p), `[B, W]`.
        region_logits: `[B, R, W]`, the scores of every region.
    """

    loss: Tensor | None = None
    probabilities: Tensor | None = None
    log_probabilities: Tensor | None = None
    log_absence: Tensor | None = None
    region_logits: Tensor | None = None


class AttributeDetectorPreTrainedModel(CaptioningPreTrainedModel):
    """Base class of the attribute detector: initialisation of weights."""

    config: AttributeDetectorConfig
    base_model_prefix = ""
    _no_split_modules = ["AttributeNetwork", "VisionBackbone"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, WordScores):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)


class AttributeDetectorModel(AttributeDetectorPreTrainedModel, CaptioningEncoder):
    """Detector of attributes (words) in images or regions.

    >>> import torch
    >>> from hf_captioners import AttributeDetectorConfig, AttributeDetectorModel
    >>> config = AttributeDetectorConfig(words=["dog", "grass"], region_feature_size=8)
    >>> detector = AttributeDetectorModel(config).eval()
    >>> detector(region_features=torch.zeros(1, 3, 8)).probabilities.shape
    torch.Size([1, 2])
    """

    accepts_loss_kwargs = False  # else the Trainer of transformers would pass a count of items among the inputs

    def __init__(self, config: AttributeDetectorConfig) -> None:
        super().__init__(config)
        if not config.words:
            raise ValueError(
                "`words` is empty: a detector needs its attributes, AttributeDetectorConfig(words=[...])."
            )
        self.network = AttributeNetwork(config)
        self.post_init()

    @classmethod
    def from_pretrained_parts(cls, vision_model: Any = None, **config_fields: Any) -> "AttributeDetectorModel":
        """Build a new attribute detector over a pretrained vision model.

        Args:
            vision_model: see `load_vision_model`; None for a detector of region features.
            config_fields: fields of `AttributeDetectorConfig`.

        Returns:
            The detector in evaluation mode; all parts but the vision model are newly initialised.

        Raises:
            ValueError: weights of the vision model are missing.
        """
        from .loading_vision import load_vision_model_for  # a saved detector is loaded without it

        vision, fields = load_vision_model_for(vision_model, config_fields)
        detector = cls(cls.config_class(**fields))
        if vision is not None:
            detector.load_vision_weights(vision)
        return detector.eval()

    @can_return_tuple
    def forward(  # type: ignore[override]
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **inputs: Any
    ) -> AttributeDetectorOutput:
        """Return the probability of each word in each image and, with `labels`, the loss.

        Args:
            pixel_values: `[B, C, H, W]`, see `CaptioningEncoder.get_region_features`.
            labels: `[B, W]`, 1 where a caption of the image has the word, 0 elsewhere.
            **inputs: what else `get_region_features` reads.

        Raises:
            TypeError: there is no such input.
            ValueError: see `CaptioningEncoder.get_region_features`; or the labels have another shape.
        """
        regions = self.get_region_features(pixel_values, **read_inputs(inputs, self))
        assert regions.region_features is not None
        logits = self.network(regions.region_features)
        presence = noisy_or(logits, regions.region_mask)
        loss = None
        if labels is not None:
            if labels.shape != presence.log_present.shape:
                raise ValueError(
                    f"`labels` has the shape {tuple(labels.shape)}, expected {tuple(presence.log_present.shape)} "
                    "(images, words): 1 where a caption of the image has the word."
                )
            loss = attribute_nll(presence, labels).sum(1).mean()
        return AttributeDetectorOutput(
            loss=loss,
            probabilities=presence.probabilities,
            log_probabilities=presence.log_present,
            log_absence=presence.log_absent,
            region_logits=logits,
        )

    def encode_regions(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: the detector has no encoder states.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("An attribute detector has no encoder states; call it for `probabilities`.")

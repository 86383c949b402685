"""The mean of the weights before and after training, which keeps what a captioner knew where its new data are few."""

import torch
from torch import nn


class StartWeights:
    """Copy of the weights that a model has before its training.

    Source: Wortsman et al., CVPR 2022, "Robust fine-tuning of zero-shot models" (WiSE-FT), Eq. 1.

    Args:
        model: the model; its trained weights are copied.
        share: share of these weights in the mean, the alpha of the paper being 1 minus it.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self.share = share
        self.weights = {name: one.detach().clone() for name, one in model.named_parameters() if one.requires_grad}

    @torch.no_grad()
    def average_into(self, model: nn.Module) -> None:
        """Replace the trained weights of the model by their mean with those before."""
        for name, weight in model.named_parameters():
            if name in self.weights:
                weight.lerp_(self.weights[name].to(weight.device), self.share)

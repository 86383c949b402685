"""Maps of a captioner over the regions of an image, for each token of a caption: attention and relevance."""

from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from .layers_joined_weights import gradient_of_weights


def over_regions(weights: Tensor) -> Tensor:
    """Return the mean `[B * K, T, R]` of weights `[B * K, ..., T, R]` over heads and encoder levels."""
    return weights.flatten(1, -3).mean(1) if weights.ndim > 3 else weights


class ExplanationMixin:
    """Maps over regions, from the cross-attention of the decoder's last layer."""

    def last_attention(self, outputs: ModelOutput) -> Tensor | None:
        """Return the cross-attention weights `[B * K, ..., T, R]` of the decoder's last layer."""
        return outputs.cross_attentions[-1]

    def required_attention(self, outputs: ModelOutput) -> Tensor:
        """Return the weights of `last_attention`.

        Raises:
            ValueError: the attention implementation computes no weights.
        """
        weights = self.last_attention(outputs)
        if weights is None:
            raise ValueError(
                f"{self.config._attn_implementation!r} attention computes no weights; call "  # type: ignore[attr-defined]
                '`model.set_attn_implementation("eager")` first.'
            )
        return weights

    @torch.no_grad()
    def attention_maps(self, sequences: Tensor, **images: Any) -> Tensor:
        """Return the attention of the decoder's last layer over the regions for each generated token.

        Args:
            sequences: `[B * K, T]` as `generate()` returns them, begin token first.
            images: `pixel_values`, or `region_features` with mask and boxes, or `encoder_outputs`, of B images.

        Returns:
            `[B * K, T - 1, R]`: weights of the regions for every token after the first, averaged over heads and
            encoder levels. Entries after the end token are meaningless.

        Raises:
            ValueError: if the attention implementation computes no weights.
        """
        outputs = self(decoder_input_ids=sequences[:, :-1], output_attentions=True, **images)  # type: ignore[operator]
        return over_regions(self.required_attention(outputs))

    @torch.enable_grad()
    def relevance_maps(self, sequences: Tensor, **images: Any) -> Tensor:
        """Return the relevance of the regions for each generated token: gradient times attention of the last layer.

        The gradient is that of the token's log-probability with respect to the attention weights of its step. Negative
        products are set to 0 (Chefer et al., ICCV 2021, "Generic Attention-model Explainability", Eq. 5), and the mean
        is taken over heads and encoder levels. The model should be in evaluation mode.

        Args:
            sequences: `[B * K, T]` as `generate()` returns them, begin token first.
            images: `pixel_values`, or `region_features` with mask and boxes, or `encoder_outputs`, of B images.

        Returns:
            `[B * K, T - 1, R]`: shares of the regions for every token after the first. They sum to 1, or are all 0
            where more attention to any region would make the token less probable. Entries after the end token are
            meaningless.

        Raises:
            ValueError: the attention implementation computes no weights, or hard attention uses single regions.
        """
        with torch.no_grad():
            encoded = images.pop("encoder_outputs", None) or self.get_encoder()(**images)  # type: ignore[attr-defined]
        # Gradients are computed down to the encoder's outputs, also where all parameters are frozen.
        leaves = {
            name: value.detach().requires_grad_() if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in encoded.items()
        }
        outputs = self(  # type: ignore[operator]
            decoder_input_ids=sequences[:, :-1],
            encoder_outputs=type(encoded)(**leaves),
            output_attentions=True,
            use_cache=False,
        )
        weights = self.required_attention(outputs)
        chosen = outputs.logits.float().log_softmax(-1).gather(-1, sequences[:, 1:, None])[..., 0]  # [B * K, T - 1]
        maps = []
        for step in range(chosen.shape[1]):
            gradient = gradient_of_weights(chosen[:, step].sum(), weights)
            positive = (gradient * weights)[..., step : step + 1, :].clamp(min=0)  # [B * K, ..., 1, R]
            maps.append(over_regions(positive).detach())
        relevance = torch.cat(maps, dim=1)
        return relevance / relevance.sum(-1, keepdim=True).clamp(min=torch.finfo(relevance.dtype).tiny)

"""Base classes of captioners with a GPT-2 decoder: block with cross-attention, decoder, and loading of GPT-2 weights.

Source: Chen et al., CVPR 2022, section 4, and the baselines of its released code.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, GPT2Model
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from .configuration_gpt2 import GPT2CaptioningConfig
from .layers_attention import AttentionOnAttention, BeamFoldingCrossAttention, MultiHeadAttention
from .layers_transformer import (
    DecoderStep,
    LayerOutput,
    LevelGates,
    MultiLevelEncoder,
    RegionEncoderLayer,
    TransformerTextDecoder,
)
from .modeling_captioning import CaptioningForConditionalGeneration, CaptioningPreTrainedModel

logger = logging.get_logger(__name__)

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class GPT2CaptioningPreTrainedModel(CaptioningPreTrainedModel):
    """Base class of captioners with a GPT-2 decoder: initialisation of weights."""

    config: GPT2CaptioningConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the released code: encoder by Xavier, decoder as GPT-2, gates as nn.Linear."""
        super()._init_weights(module)
        if isinstance(module, Conv1D):
            init.normal_(module.weight, std=self.config.text_config.initializer_range)
            init.zeros_(module.bias)
        elif isinstance(module, (MultiHeadAttention, RegionEncoderLayer, MultiLevelEncoder)):
            for child in module.children():
                if isinstance(child, nn.Linear):
                    init.xavier_uniform_(child.weight)
                    init.zeros_(child.bias)
            if isinstance(module, BeamFoldingCrossAttention):  # its output is a Conv1D of GPT-2 in the released code
                init.normal_(module.o_proj.weight, std=self.config.text_config.initializer_range)
        elif isinstance(module, (LevelGates, AttentionOnAttention)):
            for child in module.modules():
                if isinstance(child, nn.Linear):
                    bound = 1 / math.sqrt(child.in_features)  # as nn.Linear
                    init.uniform_(child.weight, -bound, bound)
                    init.uniform_(child.bias, -bound, bound)


class GPT2CrossAttentionBlock(GradientCheckpointingLayer):
    """GPT-2 block with cross-attention to encoder levels after self-attention.

    As in the released code of VisualGPT, `ln_1` also normalises the query and the levels of cross-attention. A
    subclass implements `combine`, what follows cross-attention.
    """

    def __init__(self, config: GPT2CaptioningConfig, layer_idx: int) -> None:
        super().__init__()
        text, width = config.text_config, config.hidden_size
        self.cross_levels = list(config.cross_levels)
        self.ln_1 = nn.LayerNorm(width, eps=text.layer_norm_epsilon)
        self.attn = GPT2Attention(text, layer_idx=layer_idx)
        self.crossattention = BeamFoldingCrossAttention(
            config, width, text.num_attention_heads, dropout=config.cross_attention_dropout, layer_idx=layer_idx
        )
        self.stream_dropout = nn.Dropout(0.0)
        if config.residual_dropout_on == "stream":
            # The released code drops the sum of stream and branch, so GPT-2's own dropout of the branches is off.
            self.stream_dropout.p = text.resid_pdrop
            self.attn.resid_dropout.p = 0.0

    def combine(self, stream: Tensor, query: Tensor, attended: Tensor, step: DecoderStep) -> tuple[Tensor, Any]:
        """Combine the hidden states with the attended levels; implemented by the architecture.

        Args:
            stream: `[B * K, T, D]`, after self-attention.
            query: `[B * K, T, D]`, the normalised stream.
            attended: `[B * K, T, N, D]`, cross-attention to each level.
            step: masks of this step.

        Returns:
            The output `[B * K, T, D]` of the block, and its gates or None.
        """
        raise NotImplementedError

    def forward(self, hidden: Tensor, levels: Tensor, step: DecoderStep) -> LayerOutput:
        """Run self-attention, cross-attention and `combine` on text rows.

        Args:
            hidden: `[B * K, T, D]`.
            levels: of the encoder, `[B, E, R, D]`; those of `cross_levels` are read, once for each image.
            step: masks and cache of this step.
        """
        branch, self_weights = self.attn(self.ln_1(hidden), cache=step.cache, attention_mask=step.causal_mask)
        stream = self.stream_dropout(hidden + branch)
        query = self.ln_1(stream)
        attended, cross_weights = self.crossattention(
            query,
            lambda: self.ln_1(levels[:, self.cross_levels]),  # [B, N, R, D]
            len(self.cross_levels),
            step.memory_masks["region"],
            step.cache,
        )
        stream, gates = self.combine(stream, query, attended, step)
        return stream, self_weights, cross_weights, gates


class GPT2TextDecoder(TransformerTextDecoder):
    """GPT-2 decoder with cross-attention to encoder levels; weights have the names of GPT-2.

    A subclass sets `block_class`. `cross_attentions` of its output are `[B * K, N, H, T, R]` per layer.
    """

    config: GPT2CaptioningConfig
    block_class: ClassVar[type[GPT2CrossAttentionBlock]]
    _input_embed_layer = "wte"

    def __init__(self, config: GPT2CaptioningConfig) -> None:
        super().__init__(config)
        text = config.text_config
        if text._attn_implementation is None:  # GPT2Attention reads it there
            text._attn_implementation = config._attn_implementation
        self.wte = nn.Embedding(text.vocab_size, text.hidden_size)
        self.wpe = nn.Embedding(text.max_position_embeddings, text.hidden_size)
        self.dropout = nn.Dropout(text.embd_pdrop)
        self.h = nn.ModuleList([self.block_class(config, layer_idx=i) for i in range(text.num_hidden_layers)])
        self.ln_f = nn.LayerNorm(text.hidden_size, eps=text.layer_norm_epsilon)
        self.post_init()

    token_embedding = property(lambda self: self.wte)
    position_embedding = property(lambda self: self.wpe)
    decoder_layers = property(lambda self: self.h)
    final_norm = property(lambda self: self.ln_f)
    mask_config = property(lambda self: self.config.text_config)


class GPT2CaptioningForConditionalGeneration(CaptioningForConditionalGeneration):
    """Captioner with a pretrained GPT-2 as decoder; the head over the vocabulary is tied to its token embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.wte.weight"}

    @classmethod
    def from_pretrained_parts(
        cls,
        language_model: Any,
        vision_model: Any = None,
        tokenizer: Any = None,
        decoder_layers: int | None = None,
        **config_fields: Any,
    ) -> "GPT2CaptioningForConditionalGeneration":
        """Build a captioner from a GPT-2 checkpoint, with a new region encoder.

        Args:
            language_model: name or directory of a GPT-2 checkpoint, or a `GPT2Model` or `GPT2LMHeadModel`.
            vision_model: see `load_vision_model`; None for a captioner of region features.
            tokenizer: the captioner's tokenizer (`prepare_gpt2_tokenizer`). The configuration takes its begin, end and
                padding ids. Tokens that the language model does not have get a copy of the end token's embedding.
            decoder_layers: number of first layers of the language model to keep; default: all.
            config_fields: fields of the configuration.

        Returns:
            The captioner in evaluation mode; newly initialised parts are logged.

        Raises:
            ValueError: if the language model is not a GPT-2, or has fewer layers than `decoder_layers`.
        """
        from .loading_vision import load_vision_model_for  # a saved captioner is loaded without it

        gpt2 = load_gpt2(language_model)
        vision, fields = load_vision_model_for(vision_model, config_fields)
        model = cls(cls.config_class(**(text_fields(gpt2, tokenizer, decoder_layers) | fields)))
        model.load_language_weights(gpt2)
        if vision is not None:
            model.get_encoder().load_vision_weights(vision)
        model.is_untrained = True
        return model.eval()

    def load_language_weights(self, gpt2: GPT2Model) -> list[str]:
        """Copy the weights of a GPT-2 into the decoder.

        Returns:
            Names of the decoder parameters that GPT-2 does not have; they keep their initial values and are logged.

        Raises:
            ValueError: if the sizes differ.
        """
        decoder_weights = self.model.decoder.state_dict()
        weights = {name: weight for name, weight in gpt2.state_dict().items() if name in decoder_weights}
        added = self.config.vocab_size - gpt2.config.vocab_size
        if added > 0:  # GPT-2 reads its end token between documents, so it suits as a begin token
            end = weights["wte.weight"][gpt2.config.eos_token_id]
            weights["wte.weight"] = torch.cat((weights["wte.weight"], end.expand(added, -1)))
        for name in (name for name, weight in weights.items() if weight.shape != decoder_weights[name].shape):
            raise ValueError(
                f"The language model has different sizes: `{name}` is {list(weights[name].shape)}, expected "
                f"{list(decoder_weights[name].shape)}. Build the captioner with "
                "`from_pretrained_parts(language_model=...)`."
            )
        new = sorted(self.model.decoder.load_state_dict(weights, strict=False).missing_keys)
        modules = sorted({".".join(name.split(".")[2:-1]) for name in new})
        logger.warning(
            f"{len(weights)} tensors of the decoder come from the language model. Newly initialised, to be trained: "
            f"{len(new)} tensors of the decoder ({', '.join(modules)} of each layer) and the visual encoder."
        )
        return new


def load_gpt2(source: Any) -> GPT2Model:
    """Load the GPT-2 model without its head, from a model, a name or a directory.

    Raises:
        ValueError: if the model is not a GPT-2.
    """
    if isinstance(source, nn.Module):
        trunk = getattr(source, "transformer", source)
        if isinstance(trunk, GPT2Model):
            return trunk
        raise ValueError(f"`language_model` is a {type(source).__name__}, expected a GPT-2.")
    gpt2_config_of(source)
    return GPT2Model.from_pretrained(source, dtype=torch.float32)


def gpt2_config_of(source: Any) -> Any:
    """Return the configuration of a GPT-2 checkpoint, a name or directory.

    Raises:
        ValueError: if the model is not a GPT-2.
    """
    config = AutoConfig.from_pretrained(source)
    if config.model_type != "gpt2":
        raise ValueError(f"`{source}` holds a {config.model_type!r} model, the decoder needs a 'gpt2' language model.")
    return config


def text_fields(gpt2: GPT2Model, tokenizer: Any, decoder_layers: int | None) -> dict[str, Any]:
    """Return the configuration fields that a language model and a tokenizer determine, such as the special token ids.

    Raises:
        ValueError: if the language model has fewer layers than `decoder_layers`.
    """
    gpt2_config = gpt2.config
    layers = gpt2_config.n_layer if decoder_layers is None else decoder_layers
    if not 1 <= layers <= gpt2_config.n_layer:
        raise ValueError(f"`decoder_layers` is {layers}, the language model has {gpt2_config.n_layer} layers.")
    special = {name: getattr(gpt2_config if tokenizer is None else tokenizer, name) for name in SPECIAL_IDS}
    if special["pad_token_id"] is None:
        special["pad_token_id"] = special["eos_token_id"]
    dropped = {*SPECIAL_IDS, "architectures", "dtype", "transformers_version"}  # the name stays: cards state it
    text = {key: value for key, value in gpt2_config.to_dict().items() if key not in dropped}
    text |= {"n_layer": layers, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if tokenizer is not None:
        text["vocab_size"] = max(len(tokenizer), gpt2_config.vocab_size)
    return special | {"text_config": text}

"""Configuration of ZoDIAC in AoANet ("ZoDIAC: Zoneout Dropout Injection Attention Calculation", "ZoDIAC + AoA")."""

from typing import Literal

from .configuration_attention_lstm import RefiningLSTMConfig
from .configuration_captioning import rate


class ZodiacAoANetConfig(RefiningLSTMConfig):
    """Configuration of ZoDIAC in AoANet: a refining encoder and an attention LSTM with intensity attention.

    | row of Tables 1 to 3 | fields |
    |---|---|
    | ZoDIAC + AoA (sigmoid) | the defaults |
    | ZoDIAC + AoA (tanh) | `intensity_gate="tanh"` |
    | as the paper's text says of AoA | `pre_gelu=False`, `zodiac_dropout=0.3` |

    Args:
        vocab_size (`int`, defaults to 10000): V.
        embedding_size (`int`, defaults to 1024): E, width of the word embeddings.
        hidden_size (`int`, defaults to 1024): D, width of regions, states and contexts.
        num_heads (`int`, defaults to 8): H, of all attentions.
        head_scale (`int`, defaults to 1): factor of the width of queries, keys and values (code: `multi_head_scale`).
        region_norm (`str`, defaults to `"none"`): batch normalisation of the regions before their projection
            (`"batch_input"`), or before and after it (`"batch"`; code: `use_bn` 0, 1, 2).
        refiner (`str`, defaults to `"aoa"`): layers that refine the regions: `"aoa"`, with attention on attention;
            `"attention"`, with an output projection; `"none"`.
        refiner_layers (`int`, defaults to 6): number of refining layers (code: 6).
        refiner_ffn_dim (`int`, *optional*): width inside of a feed-forward layer, without an activation, in every
            refining layer; None: there is none, as published (code with `use_ff`: 2,048).
        decoder_type (`str`, defaults to `"aoa"`): the context of a step from attended vector and state:
            `"aoa"`, a second `"lstm"`, or `"base"`, a rectified linear map.
        global_vector (`str`, defaults to `"mean"`): the vector of the image that the LSTM reads: `"mean"` of the
            refined regions; `"projected"`, a rectified projection of the mean of the regions as they come in;
            `"given"`, a rectified projection of `global_features` `[B, global_feature_size]`.
        global_feature_size (`int`, defaults to 2048): width of `global_features`.
        output_residual (`bool`, defaults to False): add the state of the LSTM to the context before the words are
            predicted (code: `out_res`).
        intensity_gate, zoneout_factor, gelu: see `ZodiacConfig`; defaults `"sigmoid"`, 1.0 and True.
        pre_gelu (`bool`, defaults to True): apply GELU to regions and states before the projections (code; the paper
            removes it from AoA).
        intensity_pool (`str`, defaults to `"mean"`): what the intensities are pooled over: `"mean"`, the visible map
            of each head, of one image or one step of a caption; `"sum"`, the same summed over heads (and over regions,
            in the refiner); `"released"`, one number for the whole batch, with which captions depend on the batch.
            Without a region mask the released number is a mean.
        dropout (`float`, defaults to 0.5): rate on words, regions, projected global vectors and the output.
        context_dropout (`float`, defaults to 0.5): rate on the previous context (code: `ctx_drop` 1).
        zodiac_dropout (`float`, defaults to 0.2): rate on the attended values (code: 0.2; paper: 0.3).
        residual_dropout (`float`, defaults to 0.1): rate on the outputs of the refiner's sub-layers.
        aoa_dropout (`float`, defaults to 0.3): rate on the input of attention on attention in the refiner.

    Raises:
        ValueError: if a value is out of range.
    """

    model_type = "captioning_zodiac_aoanet"

    vocab_size: int = 10000
    intensity_gate: Literal["sigmoid", "tanh", "none"] = "sigmoid"
    zoneout_factor: float | int = 1.0
    pre_gelu: bool = True
    gelu: bool = True
    intensity_pool: Literal["mean", "sum", "released"] = "mean"
    zodiac_dropout: float | int = rate(default=0.2)

    @property
    def attended_size(self) -> int:
        """Width of the attended vectors that the decoder's attention returns."""
        return self.hidden_size * self.head_scale

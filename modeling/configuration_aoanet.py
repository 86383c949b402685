"""Configuration of AoANet (Huang et al., ICCV 2019, "Attention on Attention for Image Captioning")."""

from typing import Literal

from .configuration_attention_lstm import RefiningLSTMConfig
from .configuration_captioning import positive, rate


class AoANetConfig(RefiningLSTMConfig):
    """Configuration of AoANet: a refining encoder and an attention LSTM, both with attention on attention.

    | model | fields |
    |---|---|
    | AoANet, as published | the defaults, with the recipe's `label_smoothing=0.2` |
    | without the refining encoder | `refiner="none"`, `context_dropout=0.0` |
    | multi-head attention alone in the encoder | `refiner="attention"` |
    | without attention on attention in the decoder | `decoder_type="base"`, or `"lstm"` |

    Args:
        vocab_size (`int`, defaults to 10369): V (code for COCO: 10,369 words, and one id for begin, end and padding).
        embedding_size (`int`, defaults to 1024): E, width of the word embeddings.
        hidden_size (`int`, defaults to 1024): D, width of regions, states and contexts.
        num_heads (`int`, defaults to 8): H, of all dot attentions.
        head_scale (`int`, defaults to 1): factor of the width of queries, keys and values (code: `multi_head_scale`).
        region_norm (`str`, defaults to `"none"`): batch normalisation of the regions before their projection
            (`"batch_input"`), or before and after it (`"batch"`; code: `use_bn` 0, 1, 2). In training, its statistics
            couple the images of a batch.
        refiner (`str`, defaults to `"aoa"`): layers that refine the regions (section 3.2.1): `"aoa"`, with attention
            on attention; `"attention"`, multi-head attention with an output projection; `"none"`.
        refiner_layers (`int`, defaults to 6): number of refining layers (paper and code: 6).
        refiner_ffn_dim (`int`, *optional*): width inside of a feed-forward layer in every refining layer; None: there
            is none, as published (code with `use_ff`: 2,048).
        decoder_type (`str`, defaults to `"aoa"`): the context of a step from attended vector and state:
            `"aoa"` (section 3.2.2), a second `"lstm"`, or `"base"`, a rectified linear map.
        attention_type (`str`, defaults to `"dot"`): attention of the decoder: `"dot"` with several heads, `"additive"`
            with one (code: `use_multi_head` 2 and 0).
        attention_size (`int`, defaults to 512): A, hidden width of additive attention.
        query_norm (`bool`, defaults to True): normalise the query of the decoder's dot attention (code).
        global_vector (`str`, defaults to `"mean"`): the vector of the image that the LSTM reads: `"mean"` of the
            refined regions; `"projected"`, a rectified projection of the mean of the regions as they come in;
            `"given"`, a rectified projection of `global_features` `[B, global_feature_size]` (code with
            `mean_feats` 0).
        global_feature_size (`int`, defaults to 2048): width of `global_features`.
        output_residual (`bool`, defaults to False): add the state of the LSTM to the context before the words are
            predicted (code: `out_res`).
        dropout (`float`, defaults to 0.5): rate on words, regions, projected global vectors and the output.
        context_dropout (`float`, defaults to 0.5): rate on the previous context (code: `ctx_drop` 1; without the
            refiner 0).
        attention_dropout (`float`, defaults to 0.1): rate on the weights of dot attentions.
        residual_dropout (`float`, defaults to 0.1): rate on the outputs of the refiner's sub-layers.
        aoa_dropout (`float`, defaults to 0.3): rate on the input of attention on attention in the refiner; the
            decoder's has none (code).

    Raises:
        ValueError: if a value is out of range.
    """

    model_type = "captioning_aoanet"

    vocab_size: int = 10369
    attention_type: Literal["dot", "additive"] = "dot"
    attention_size: int = positive(default=512)
    query_norm: bool = True
    attention_dropout: float | int = rate(default=0.1)

    @property
    def attended_size(self) -> int:
        """Width of the attended vectors that the decoder's attention returns."""
        return self.hidden_size * (self.head_scale if self.attention_type == "dot" else 1)

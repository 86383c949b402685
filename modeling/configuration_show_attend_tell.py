"""Configuration of Show, Attend and Tell (Xu et al., ICML 2015, "Show, Attend and Tell: Neural Image Caption
Generation with Visual Attention")."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from transformers import AutoConfig

from .configuration_captioning import CaptioningConfig, Integers, positive, rate, within


class ShowAttendTellConfig(CaptioningConfig):
    """Configuration of Show, Attend and Tell with soft or hard attention.

    Every point where the paper, the authors' program (arctic-captions) and the common PyTorch re-implementation differ
    is a field.

    | model | fields |
    |---|---|
    | "Soft-Attention" of Table 1 | the defaults |
    | "Hard-Attention" of Table 1 | `attention_type="hard"` |
    | the authors' program | the values marked "program" below |
    | the re-implementation | the values marked "re-implementation" below |

    Args:
        vocab_size (`int`, defaults to 10000): V (paper: 10,000).
        embedding_size (`int`, defaults to 512): m, width of the word embeddings.
        hidden_size (`int`, defaults to 512): n, width of the LSTM (program: 1,800 for COCO; re-implementation: 512).
        num_layers (`int`, defaults to 1): LSTM layers, each with its own attention.
        attention_type (`str`, defaults to `"soft"`): `"soft"` uses the weighted mean of the regions (section 4.2),
            `"hard"` one sampled region (section 4.1).
        attention_size (`int`, defaults to 512): A, hidden width of the attention (program: the width of the regions).
        attention_layers (`int`, defaults to 1): layers that project a region before its score (program: 2).
        attention_activation (`str`, defaults to `"tanh"`): `"tanh"` (program), `"relu"` (re-implementation).
        attention_score_scale (`float`, defaults to 1.0): factor of the attention scores (the program's
            `temperature`).
        visual_gate (`str`, defaults to `"scalar"`): beta of section 4.2.1: one number per step (paper, program), one
            per feature (`"vector"`, re-implementation), or `"none"`.
        initial_state_layers (`int`, defaults to 1): rectified layers between the mean region and the first state
            (program: 1; re-implementation: 0).
        initial_state_activation (`str`, defaults to `"tanh"`): activation of the first state (re-implementation:
            `"linear"`).
        output_layer (`str`, defaults to `"deep"`): `"deep"` is Eq. 18; `"linear"` reads only the LSTM state
            (re-implementation).
        output_previous_word, output_context (`bool`, default True): add the previous word E y and the context L_z z
            in the deep output layer (Eq. 18).
        output_activation (`str`, defaults to `"tanh"`): activation of the deep output layer (program); Eq. 18 is
            `"linear"`.
        output_hidden_layers (`int`, defaults to 0): further rectified layers in the deep output layer.
        dropout (`float`, defaults to 0.5): rate on the first state's layers, on the LSTM's output and inside the deep
            output layer (codes: 0.5).
        zero_begin_embedding (`bool`, defaults to False): use a fixed zero vector as the first input (program) instead
            of the begin token's embedding.
        probability_floor (`float`, defaults to 0.0): added to a probability before its logarithm in the loss
            (program: 1e-8).
        doubly_stochastic_weight (`float`, defaults to 1.0): lambda of Eq. 26, for soft attention (codes: 1).
        doubly_stochastic_reduction (`str`, defaults to `"mean"`): how (1 - sum_t alpha_ti)^2 is reduced. `"mean"` over
            captions and locations (re-implementation). `"caption_sum"`: sum over locations, mean over captions (Eq.
            26). `"batch_sum"`: mean over locations, sum over the batch, including padding steps (program); it grows
            with the batch size.
        location_sampling_probability (`float`, defaults to 0.5): probability that hard attention samples in training;
            otherwise it uses the mean as soft attention does (paper: 0.5).
        location_sampling_unit (`str`, defaults to `"caption"`): unit of that random choice (paper: each image,
            program: `"batch"`).
        location_reward (`str`, defaults to `"caption_mean"`): the log-likelihood that rewards a sampled location.
            `"caption_mean"`: mean per token of the caption (program). `"caption_sum"`: sum over the caption, which
            makes the estimate of the lower bound's gradient unbiased (Eq. 22). `"token"`: of the location's own word,
            without a baseline (program with `RL_sumCost=False`).
        location_reward_weight (`float`, defaults to 1.0): lambda_r of Eq. 25 (program: 0.1).
        location_entropy_weight (`float`, defaults to 0.002): lambda_e of Eq. 25 (program: 0.002).
        location_loss_reduction (`str`, defaults to `"as_likelihood"`): `"as_likelihood"` reduces these two terms
            as `loss_reduction` reduces the likelihood. `"batch_sum"` sums them over the batch, including padding
            steps, and divides a caption's negative log-likelihood by the length of the batch (program).
        location_baseline_decay (`float`, defaults to 0.9): decay of the moving-average baseline.
        location_decoding (`str`, defaults to `"expectation"`): location used outside of training: the weighted mean
            (program), a sampled region (`"sampling"`), or the most probable one (`"argmax"`).

    Raises:
        ValueError: if a value is out of range.
    """

    model_type = "captioning_show_attend_tell"
    attribute_map = {"num_hidden_layers": "num_layers"}
    decoder_inputs: ClassVar[Mapping[str, str]] = {"locations": "text"}
    sub_configs = {"vision_config": AutoConfig}

    region_mask_rule: Literal["explicit"] = "explicit"
    token_mask_rule: Literal["explicit"] = "explicit"
    vocab_size: int = 10000
    embedding_size: int = 512
    hidden_size: int = 512
    num_layers: int = positive(default=1)
    attention_type: Literal["soft", "hard"] = "soft"
    attention_size: int = 512
    attention_layers: int = positive(default=1)
    attention_activation: Literal["tanh", "relu"] = "tanh"
    attention_score_scale: float | int = 1.0
    visual_gate: Literal["scalar", "vector", "none"] = "scalar"
    initial_state_layers: int = 1
    initial_state_activation: Literal["tanh", "linear"] = "tanh"
    output_layer: Literal["deep", "linear"] = "deep"
    output_previous_word: bool = True
    output_context: bool = True
    output_activation: Literal["tanh", "linear"] = "tanh"
    output_hidden_layers: int = 0
    dropout: float | int = rate(default=0.5)
    zero_begin_embedding: bool = False
    probability_floor: float | int = 0.0
    doubly_stochastic_weight: float | int = within(0.0)(default=1.0)
    doubly_stochastic_reduction: Literal["mean", "caption_sum", "batch_sum"] = "mean"
    location_sampling_probability: float | int = within(0.0, 1.0)(default=0.5)
    location_sampling_unit: Literal["caption", "batch"] = "caption"
    location_reward: Literal["caption_sum", "caption_mean", "token"] = "caption_mean"
    location_reward_weight: float | int = within(0.0)(default=1.0)
    location_entropy_weight: float | int = within(0.0)(default=0.002)
    location_loss_reduction: Literal["as_likelihood", "batch_sum"] = "as_likelihood"
    location_baseline_decay: float | int = rate(default=0.9)
    location_decoding: Literal["expectation", "sampling", "argmax"] = "expectation"
    bos_token_id: int | None = 1
    eos_token_id: int | Integers | None = 2
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    def validate_tied_widths(self) -> None:
        """Check that the output layer is as wide as the word embeddings if their matrices are tied."""
        if self.tie_word_embeddings and self.output_size != self.embedding_size:
            raise ValueError(
                "`tie_word_embeddings=True` needs an output layer as wide as the word embeddings, got "
                f'{self.output_size} and {self.embedding_size}: use `output_layer="deep"`, or '
                f"`hidden_size={self.embedding_size}`."
            )

    @property
    def output_size(self) -> int:
        """Input width of the projection to the vocabulary."""
        return self.embedding_size if self.output_layer == "deep" else self.hidden_size

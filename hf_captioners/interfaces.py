"""Types of the public interface: loaded captioners, processors and captioning options.

`load_captioner` returns models and processors of many families, which have no class of their own in common. The types
below say what all of them offer.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

if TYPE_CHECKING:
    from transformers import BatchFeature, GenerationMixin, PreTrainedModel

    class Captioner(PreTrainedModel, GenerationMixin):
        """A loaded captioner: a `PreTrainedModel` of transformers with `generate()`."""

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            """Generate tokens `[B, T]`, or an output with further fields, as in transformers."""

else:
    Captioner = Any  # transformers, and with it torch, is not imported for a name


@runtime_checkable
class Processor(Protocol):
    """Processor of a captioner of any family: image processor and tokenizer in one object."""

    image_processor: Any
    tokenizer: Any

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> "BatchFeature":
        """Prepare images, texts, or both for the captioner."""

    def decode(self, tokens: Any, **options: Any) -> str:
        """Decode token ids `[T]` to a text."""

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]:
        """Decode token ids `[B, T]` to texts."""

    def save_pretrained(self, save_directory: str | PathLike[str], **options: Any) -> Any:
        """Save the processor into a directory."""


class GenerationOptions(TypedDict, total=False):
    """Options of `generate()` that change captions: transformers' `GenerationConfig` and this library's."""

    # Length
    max_length: int | None
    max_new_tokens: int | None
    min_length: int | None
    min_new_tokens: int | None
    early_stopping: bool | str | None
    max_time: float | None
    stop_strings: str | list[str] | None
    # Search and sampling
    do_sample: bool | None
    num_beams: int | None
    num_beam_groups: int | None
    num_return_sequences: int | None
    diversity_penalty: float | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    top_h: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    penalty_alpha: float | None
    low_memory: bool | None
    dola_layers: str | list[int] | None
    constraints: Any
    force_words_ids: Any
    # Logits
    repetition_penalty: float | None
    encoder_repetition_penalty: float | None
    length_penalty: float | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    bad_words_ids: list[list[int]] | None
    renormalize_logits: bool | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | list[int] | None
    remove_invalid_values: bool | None
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: list[int] | None
    begin_suppress_tokens: list[int] | None
    sequence_bias: Any
    token_healing: bool | None
    guidance_scale: float | None
    watermarking_config: Any
    # Special tokens
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    decoder_start_token_id: int | list[int] | None
    # Cache and compilation
    use_cache: bool | None
    cache_implementation: str | None
    cache_config: Any
    max_cache_len: int | None
    return_cache: bool | None
    prefill_chunk_size: int | None
    compile_config: Any
    disable_compile: bool | None
    continuous_batching_config: Any
    # Assisted generation
    num_assistant_tokens: int | None
    num_assistant_tokens_schedule: str | None
    assistant_confidence_threshold: float | None
    assistant_early_exit: int | None
    assistant_ensemble_weight: float | None
    assistant_lookbehind: int | None
    target_lookbehind: int | None
    prompt_lookup_num_tokens: int | None
    max_matching_ngram_size: int | None
    speculation_type: str | None
    use_mtp: bool | None
    # This library's, see `CaptionGenerationMixin`
    bookkeeping: Literal["transformers", "live", "pool"]
    pool_length_penalty: Literal["avg", "wu"] | None
    pool_length_alpha: float
    pool_groups: int
    pool_diversity: float
    pool_temperature: float
    no_immediate_repetition: bool
    bad_ending_ids: Sequence[int] | None
    trigram_penalty: float


class CaptioningOptions(GenerationOptions, total=False):
    """Options of one call of a captioning pipeline, see `ImageCaptioningPipeline`."""

    prompt: str | None
    instruction: str | None
    timeout: float | None
    max_bytes: float | None
    return_scores: bool | None
    return_token_scores: bool | None
    return_ended: bool | None
    seed: int | None
    generate_kwargs: Mapping[str, Any] | None
    # Objects that `generate()` of transformers takes beside its options
    generation_config: Any
    logits_processor: Any
    stopping_criteria: Any
    prefix_allowed_tokens_fn: Any

"""Show, Attend and Tell from a vision model and the words of the captions to learn."""

from collections.abc import Iterable

from transformers import AutoTokenizer

from hf_captioners.data.word_tokenizer import build_word_tokenizer
from hf_captioners.modeling.modeling_show_attend_tell import ShowAttendTellForConditionalGeneration
from hf_captioners.processing.processing_show_attend_tell import ShowAttendTellProcessor

from .starting import StartingPoint, load_vision_part, reading


def start(
    parts: StartingPoint, captions: Iterable[str] = ()
) -> tuple[ShowAttendTellForConditionalGeneration, ShowAttendTellProcessor]:
    """Build model and processor; the unknown token is never written.

    Args:
        captions: what the vocabulary is made of, unless a tokenizer is given.

    Raises:
        ValueError: a part is missing or of another kind, or there are no captions.
    """
    if parts.language_model is not None:
        raise ValueError(
            f"`--language_model {parts.language_model}` has no place in Show, Attend and Tell, which learns its words "
            "from the captions; leave it out."
        )
    vision, images = load_vision_part(parts)
    if parts.tokenizer is not None:
        with reading(parts.tokenizer):
            tokenizer = AutoTokenizer.from_pretrained(parts.tokenizer)
    else:
        tokenizer = build_word_tokenizer(captions, at_least=parts.min_word_count, size=parts.vocabulary_size)
    model = ShowAttendTellForConditionalGeneration.from_pretrained_parts(
        vision_model=vision, tokenizer=tokenizer, **parts.config_fields()
    )
    model.generation_config.update(
        max_length=None, max_new_tokens=20, num_beams=5, suppress_tokens=[tokenizer.unk_token_id]
    )
    return model, ShowAttendTellProcessor(images, tokenizer)

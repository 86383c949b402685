"""Tests of transformers' common suite that do not apply to captioners, with the capability that is missing.

An entry whose test passes is reported, and fails the run.
"""

from fnmatch import fnmatch
from typing import NamedTuple

MODELS, PROCESSOR, IMAGES = ("pixels", "regions"), ("processor",), ("image processor",)
SUITES = (*MODELS, *PROCESSOR)


RECURRENT, ZODIAC = ("aoanet", "image_transformer", "zodiac_aoanet"), ("zodiac", "zodiac_aoanet")


class Entry(NamedTuple):
    """Tests that do not apply.

    Args:
        test: name of the test; `*` stands for any characters.
        suites: the suites in which it does not apply.
        reason: the capability that captioners lack, or the assumption of the test.
        architectures: those it does not apply to; None: all.
    """

    test: str
    suites: tuple[str, ...]
    reason: str
    architectures: tuple[str, ...] | None = None


NOT_APPLICABLE = [
    Entry("test_training_overfit", MODELS, "it trains causal language models only, and refuses images"),
    Entry(
        "test_attn_implementation_composite_models",
        MODELS,
        "no language model with a configuration of its own: the test sets the implementation on a copy",
        ("aoanet", "eta", "image_transformer", "m2_transformer", "transformer", "zodiac", "zodiac_aoanet"),
    ),
    Entry("test_attention_outputs", MODELS, "a recurrent decoder has no self-attention to return", RECURRENT),
    Entry("test_attention_outputs", MODELS, "it returns `attribute_attentions` too, and the test counts", ("eta",)),
    Entry(
        "test_attention_outputs",
        MODELS,
        "its cross-attention has no memory slots, and the test expects as many keys as in the encoder",
        ("m2_transformer",),
    ),
    Entry("test_hidden_states_output", MODELS, "its encoder has no layers", ("show_attend_tell",)),
    Entry(
        "test_retain_grad_hidden_states_attentions",
        MODELS,
        "a recurrent decoder has no self-attention to keep the gradient of",
        RECURRENT,
    ),
    Entry(
        "test_retain_grad_hidden_states_attentions",
        ("regions",),
        "its encoder returns the given regions, which have no gradient",
        ("show_attend_tell",),
    ),
    Entry("test_model_input_names", PROCESSOR, "regions, views and captions are inputs that the test does not give"),
    Entry(
        "test_processor_from_and_save_pretrained*",
        PROCESSOR,
        "a saved processor names its code in `auto_map`, as all code outside of transformers",
    ),
    Entry("test_processor_text_has_no_visual", PROCESSOR, "no prompt without an image in a batch of images"),
    Entry(
        "test_call_arguments_not_in_processor_kwargs",
        PROCESSOR,
        "`text_target`, the captions to learn, is an argument of its own",
    ),
    Entry(
        "test_tokenizer_decode_defaults",
        PROCESSOR,
        "`decode` returns captions without special tokens",
        ("aoanet", "eta", "image_transformer", "m2_transformer", "show_attend_tell", *ZODIAC, "transformer"),
    ),
    Entry("test_call_numpy_4_channels", IMAGES, "images have three channels"),
    Entry("test_valid_kwargs_set", IMAGES, "both image processors share the class of their settings"),
]


def reason_of(architecture: str, suite: str, test: str) -> str | None:
    """Return why a test does not apply to an architecture; None if it applies."""
    for entry in NOT_APPLICABLE:
        is_named = entry.architectures is None or architecture in entry.architectures
        if suite in entry.suites and is_named and fnmatch(test, entry.test):
            return entry.reason
    return None

"""Decoding options as users type them, checked before a model is loaded."""

import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_captioners.names import did_you_mean

logger = logging.getLogger(__name__)
MAX_NEW_SEEDS = 2**31  # short enough to be typed
# Set by the pipeline, or about other outputs than captions.
NOT_OPTIONS = {"return_dict_in_generate", "transformers_version", "is_assistant"}


def known_options() -> set[str]:
    """Return the names of the `generate()` options that change captions."""
    from transformers import GenerationConfig

    from hf_captioners.modeling.generation_captioning import SEARCH_OPTIONS

    names = set(GenerationConfig().to_dict()) | set(vars(GenerationConfig())) | set(SEARCH_OPTIONS)
    return {name for name in names - NOT_OPTIONS if not name.startswith(("_", "output_"))}


def check_generation_options(options: Mapping[str, Any], argument: str = "generate") -> None:
    """Check the names of decoding options, and the values that must be numbers.

    Args:
        options: values by name.
        argument: name of the argument that has them, for messages.

    Raises:
        ValueError: a name is unknown (the message has the nearest one), or a value is wrong.
    """
    if not options:
        return
    from hf_captioners.loading import expected_of_generation

    names = known_options()
    for name, value in options.items():
        if name not in names:
            raise ValueError(
                f"`{argument}` has {name!r}, which is no option of generate().{did_you_mean(name, names)} See the "
                "documentation of transformers' GenerationConfig."
            )
        if value is not None and (expected := expected_of_generation(name, value)):
            raise ValueError(f"`{argument}` has {name}={value}, expected {expected}.")


def options_of_evaluation(pipeline: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decoding options for an evaluation: beam search, unless the user asks for sampling.

    Args:
        pipeline: see `load_pipeline`; its own generation configuration may sample.
        options: those that were typed.
    """
    if "do_sample" in options or not default_option(pipeline, "do_sample"):
        return dict(options)
    return {"do_sample": False, "num_return_sequences": 1, **options}


def with_seed(pipeline: Any, options: Mapping[str, Any], seed: int | None = None) -> dict[str, Any]:
    """Return options with a random `seed` if the job samples; options without `seed` otherwise.

    Args:
        pipeline: see `load_pipeline`.
        options: of the job.
        seed: the seed that was asked for. None: a new one, so that the job can be repeated.

    Raises:
        ValueError: the seed is out of range.
    """
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"`--seed` is {seed}, expected a whole number from 0 to {2**63 - 1}.")
    samples = options.get("do_sample", default_option(pipeline, "do_sample"))
    config = getattr(pipeline.model, "config", None)
    if not samples and getattr(config, "location_decoding", None) != "sampling":
        if seed is not None:
            logger.warning(f"`--seed {seed}` has no effect: nothing is sampled, see `--generate do_sample=true`.")
        return dict(options)
    return {**options, "seed": secrets.randbelow(MAX_NEW_SEEDS) if seed is None else seed}


def default_option(pipeline: Any, name: str) -> Any:
    """Return a default decoding option of a captioner, exported or not."""
    config = getattr(pipeline.model, "generation_config", None)
    return pipeline.captioner.facts["generation"].get(name) if config is None else getattr(config, name, None)


def bad_words_ids(tokenizer: Any, words: Iterable[str]) -> list[list[int]]:
    """Return the token ids of forbidden words, for the option `bad_words_ids` of `generate()`.

    Args:
        tokenizer: of the captioner.
        words: words, or several words with blanks between them.

    Returns:
        The tokens of each word as typed, in lower case and with a capital, at the begin of a caption and inside.
        Words that the vocabulary does not have cannot occur, and have none.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        forms = dict.fromkeys((word.strip(), word.strip().lower(), word.strip().capitalize()))
        for text in [f"{blank}{form}" for form in forms for blank in ("", " ")]:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if ids and tokenizer.unk_token_id not in ids:
                sequences[tuple(ids)] = None
    return [list(ids) for ids in sequences]


def bad_word_in(caption: str, words: Sequence[str]) -> str | None:
    """Return the first of some forbidden words in a caption, ignoring case; None if there is none."""
    for word in words:
        if re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", caption, re.IGNORECASE):
            return word
    return None

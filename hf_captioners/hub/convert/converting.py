"""Conversion of an authors' checkpoint: read, build, save and compare.

To add an architecture, add a file `{name}.py` to this folder that defines `convert(checkpoint, settings) -> Released`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoModelForImageTextToText

from hf_captioners.architectures import ARCHITECTURES, get_architecture
from hf_captioners.hub.card_facts import TrainingFacts
from hf_captioners.hub.cards import write_card
from hf_captioners.hub.safe_unpickling import UnsafePickleError
from hf_captioners.output_files import as_json, new_folder, require_new_folder, require_writable_folder, write_text

from .parity_report import parity_report, sha256_of
from .released import Released
from .vocabulary import make_processor

SHOWN_KEYS = 12


@dataclass(frozen=True)
class Conversion:
    """Result of a conversion: captioner, processor and parity report.

    Attributes:
        model: the captioner, in evaluation mode.
        processor: its processor; None if no vocabulary was given.
        released: what was read from the checkpoint.
        report: the comparison, see `parity_report`; None if none was asked for.
    """

    model: Any
    processor: Any
    released: Released
    report: dict[str, Any] | None


def convert_checkpoint(
    architecture: str,
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    vocabulary: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    report: str | os.PathLike[str] | None = None,
    expected: str | os.PathLike[str] | None = None,
) -> Conversion:
    """Convert an authors' checkpoint into a captioner of this library. No code in the checkpoint is run.

    ```python
    convert_checkpoint("visualgpt", "VisualGPT_best.pth", "converted", vocabulary="gpt2", settings={"n_head": 4})
    ```

    Args:
        architecture: one of `list_converters()`.
        checkpoint: file of the authors' program.
        output: new directory of the captioner. It appears only when it is complete.
        vocabulary: vocabulary of the checkpoint: a word map (`.json`), a pickled dictionary (`.pkl`) or one word per
            line (`.txt`); for VisualGPT the name or directory of GPT-2's tokenizer. Default: the words that the
            checkpoint has (an infos file of ImageCaptioning.pytorch); without any no processor is saved.
        settings: values that the file does not contain, such as `n_head` or `srau_threshold`.
        report: JSON file to write the comparison to, see `parity_report`.
        expected: `.safetensors` file with log-probabilities of the authors' program, for the report.

    Returns:
        The captioner, its processor and the comparison.

    Raises:
        ValueError: no converter has this name, the file is unsafe or of a different program, weights or the vocabulary
            do not fit, a setting is missing, or `expected` is given without `report`.
        FileExistsError: the output directory is not empty.
        OSError: a file cannot be read or written.
    """
    if expected and not report:
        raise ValueError("`expected` is part of the report: pass the file of the report too (`report`).")
    if expected and not Path(expected).is_file():
        raise FileNotFoundError(f"There is no file {expected}.")
    if report:
        require_writable_folder(Path(report).parent)
    require_new_folder(Path(output))
    released = read_released(architecture, checkpoint, settings or {})
    model = build_captioner(released, checkpoint)
    source = None if vocabulary is None else os.fspath(vocabulary)
    has_words = source is not None or released.words is not None
    processor = make_processor(architecture, released, source) if has_words else None
    save_captioner(model, processor, checkpoint, output)
    comparison = None
    if report:
        comparison = parity_report(released, model, checkpoint, output, expected)
        write_text(report, as_json(comparison) + "\n")
    return Conversion(model, processor, released, comparison)


def list_converters() -> list[str]:
    """Return the names of the architectures whose authors' checkpoints can be converted."""
    return sorted(name for name in ARCHITECTURES if find_spec(f"{__package__}.{name}") is not None)


def read_released(architecture: str, checkpoint: str | os.PathLike[str], settings: Mapping[str, Any]) -> Released:
    """Read an authors' checkpoint. No code in it is run.

    Args:
        architecture: one of `list_converters()`.
        checkpoint: the file.
        settings: values that the file does not contain, such as `n_head`.

    Raises:
        ValueError: no converter has this name, the file is unsafe or of a different program, or a setting is missing.
        OSError: the file cannot be read.
    """
    name = get_architecture(architecture).name
    if name not in list_converters():
        raise ValueError(f"{name} has no converter; choose one of {', '.join(list_converters())}.")
    path = Path(checkpoint)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    with _named(path):
        return import_module(f"{__package__}.{name}").convert(path, dict(settings))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Context that adds the file's name to errors: damaged weights and options raise errors of many types."""
    try:
        yield
    except UnsafePickleError:
        raise
    except Exception as error:
        if isinstance(error, (ValueError, OSError)) and str(path) in str(error):
            raise
        reason = (str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")[:1000]
        end = "" if reason.endswith((".", "?")) else "."
        raise ValueError(f"{path} cannot be converted: {reason}{end}") from error


def build_captioner(released: Released, checkpoint: str | os.PathLike[str]) -> Any:
    """Build a captioner with the converted configuration and weights.

    Args:
        released: what was read from the checkpoint.
        checkpoint: the file, for error messages.

    Raises:
        ValueError: weights are unknown, missing or of the wrong size; the message lists all of them.
    """
    model = AutoModelForImageTextToText.from_config(released.config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()
    missing = sorted(set(shapes) - set(released.weights) - tied - released.may_lack)
    misshapen = [
        f"{name} is {list(tensor.shape)}, expected {list(shapes[name])}"
        for name, tensor in released.weights.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    ]
    unknown = released.unknown + sorted(set(released.weights) - set(shapes))
    problems = {"Unknown keys": unknown, "Missing weights": missing, "Weights of the wrong size": misshapen}
    if any(problems.values()):
        listed = [f"{problem} ({len(keys)}): {_shorten(keys)}." for problem, keys in problems.items() if keys]
        raise ValueError(f"{checkpoint} does not fit a {type(model).__name__}. {' '.join(listed)}")
    model.load_state_dict(released.weights, strict=False)
    model.tie_weights()
    for name, value in released.generation.items():  # `update` would leave out names that transformers does not know
        setattr(model.generation_config, name, value)
    return model.eval()


def save_captioner(
    model: Any, processor: Any, checkpoint: str | os.PathLike[str], output: str | os.PathLike[str]
) -> None:
    """Save model, processor and card to a new directory, which appears only when it is complete.

    Args:
        model: the captioner.
        processor: its processor, or None.
        checkpoint: the authors' file; the card states its name and SHA-256.
        output: the directory.

    Raises:
        FileExistsError: the directory is not empty.
    """
    with new_folder(output) as folder:
        model.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
        TrainingFacts(converted_from=f"{Path(checkpoint).name} (SHA-256 {sha256_of(checkpoint)})").save(folder)
        write_card(folder, Path(output).resolve().name)


def _shorten(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else ""
    return ", ".join(keys[:SHOWN_KEYS]) + more

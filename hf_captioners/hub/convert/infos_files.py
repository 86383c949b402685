"""Reader of `infos*.pkl`, in which the ImageCaptioning.pytorch family saves options and vocabulary.

The family: ImageCaptioning.pytorch, AoANet, Image Transformer, ZoDIAC. The file is a pickled dictionary with `opt` (an
`argparse.Namespace`) and `vocab` (from the id as text to the word). Nothing in it is executed.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hf_captioners.hub.safe_unpickling import Record, program_dictionary


@dataclass(frozen=True)
class Infos:
    """Options and vocabulary of an infos file.

    Attributes:
        path: the file.
        options: the options of the training script, by name.
        words: the vocabulary by id; ids begin with 1, and 0 begins, ends and pads a caption.
    """

    path: Path
    options: dict[str, Any]
    words: dict[int, str]

    def option(self, *names: str) -> Any:
        """Return the value of the first of these option names that the file has.

        Raises:
            ValueError: it has none of them.
        """
        for name in names:
            if self.options.get(name) is not None:
                return self.options[name]
        near = get_close_matches(names[0], [name for name in self.options if isinstance(name, str)], n=1)
        hint = f"; the nearest one is `{near[0]}`" if near else ""
        raise ValueError(f"{self.path} has no option `{'` or `'.join(names)}`{hint}.")


def find_infos(checkpoint: Path, given: str | None = None) -> Path:
    """Return the path of a checkpoint's infos file: the given path, or the only one in its folder.

    Both have the same suffix: `infos_NAME-best.pkl` belongs to `model-best.pth`, `infos_12.pkl` to `model_12.pth`.

    Args:
        checkpoint: the file with the weights.
        given: the infos file, as set by `settings`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: there are several.
    """
    if given is not None:
        if not Path(given).is_file():
            raise FileNotFoundError(f"There is no file {given} (`settings`).")
        return Path(given)
    candidates = sorted(checkpoint.parent.glob("infos*.pkl"))
    suffix = checkpoint.stem.removeprefix("model")
    suffixes = {path.stem.removeprefix("model") for path in checkpoint.parent.glob("model?*.pth")} | {"-best", "_best"}
    of_others = tuple(suffixes - {suffix})
    fitting = [
        path for path in candidates if path.stem.endswith(suffix) and not path.stem.endswith(of_others)
    ] or candidates
    if not fitting:
        raise FileNotFoundError(
            f"There is no infos*.pkl beside {checkpoint}; it has the options and the vocabulary. Pass it: "
            "`settings`: infos=FILE"
        )
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting)
        raise ValueError(
            f"There are several infos files beside {checkpoint}: {names}. Choose one with `settings`: infos=FILE"
        )
    return fitting[0]


def read_infos(path: Path) -> Infos:
    """Read options and vocabulary from an infos file.

    Raises:
        UnsafePickleError: it names an object that is not on the list.
        ValueError: it has no options or vocabulary, or they have another form.
        OSError: it cannot be read.
    """
    content = program_dictionary(path)
    options, vocabulary = content.get("opt"), content.get("vocab")
    if isinstance(options, Record):
        options = options.state or {}
    if not isinstance(options, dict) or not isinstance(vocabulary, dict):
        raise ValueError(
            f"{path} has the entries {', '.join(map(str, content)) or 'none'}, expected the keys opt (an "
            "argparse.Namespace) and vocab (a dictionary)."
        )
    return Infos(path, dict(options), words_by_id(path, vocabulary))


def words_by_id(path: Path, vocabulary: dict[Any, Any]) -> dict[int, str]:
    """Return the vocabulary of an infos file, word by integer id.

    Raises:
        ValueError: an entry is not of the form `{"1": "a"}`.
    """
    words = {}
    for index, word in vocabulary.items():
        if not str(index).isdecimal() or not isinstance(word, str):
            raise ValueError(f'{path}: the vocabulary has the entry {index!r}: {word!r}, expected the form "1": "a".')
        words[int(index)] = word
    return words

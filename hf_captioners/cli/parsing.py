"""Command line parser: reports a mistake on one line with the nearest valid name."""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hf_captioners.names import did_you_mean, nearest_name, read_named_values

FLAG = re.compile(r"--?[a-zA-Z][\w-]*(=.*)?", re.DOTALL)
# What people type for another name, with the names that it may stand for; the first one that a command has is told.
OTHER_NAMES = {
    "batch_size": ("per_device_train_batch_size",),
    "per_device_train_batch_size": ("batch_size",),
    "beams": ("num_beams", "generation_num_beams"),
    "num_beams": ("generation_num_beams",),
    "beam_size": ("num_beams", "generation_num_beams"),
    "max_length": ("max_new_tokens", "generation_max_new_tokens"),
    "max_new_tokens": ("generation_max_new_tokens",),
    "lr": ("learning_rate",),
    "steps": ("max_steps",),
    "epochs": ("num_train_epochs",),
    "metrics": ("eval_metrics",),
    "metric": ("metrics", "eval_metrics"),
    "rewards": ("reward_funcs",),
    "option": ("data_options",),
    "options": ("data_options",),
    "data_option": ("data_options",),
    "config": ("model_config",),
    "device": ("use_cpu",),
    "cpu": ("use_cpu", "device"),
    "use_cpu": ("device",),
    "gpu": ("device", "use_cpu"),
    "precision": ("dtype", "bf16"),
    "dtype": ("bf16",),
    "fp16": ("dtype",),
    "bf16": ("dtype",),
    "torch_dtype": ("dtype",),
    "images": ("train_dir", "data_dir"),
    "data": ("train_dir", "data_dir"),
    "data_dir": ("train_dir",),
    "train_data": ("train_dir",),
    "output_dir": ("output",),
    "output": ("output_dir",),
    "out": ("output", "output_dir"),
    "lm": ("language_model",),
    "encoder": ("vision_model",),
    "backbone": ("vision_model",),
    "vocab_size": ("vocabulary_size",),
    "continue": ("resume",),
    "lora": ("use_peft",),
    "peft": ("use_peft",),
    "lora_rank": ("lora_r",),
    "force": ("overwrite",),
}
# What people type for another value.
OTHER_VALUES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "single": "float32"}
OTHER_VALUES |= {"fp64": "float64", "double": "float64"}
AT_LINE = re.compile(r"\S+:\d+: ")
PARAMETER = re.compile(r"(?<!Did you mean )`(\w+)(?:=([^`\s]*))?`")


def with_dashes(text: str, flags: Mapping[str, str], of_files: bool = False) -> str:
    """Replace parameters by flags in a library message: `batch_size=8` becomes `--batch_size 8`.

    Args:
        text: the message; names of parameters stand in backticks.
        flags: flags by the names of parameters; one that ends in `=`, `--data_options name=`, has its value there.
        of_files: also of messages that begin with a line of a file; the keys of recipes are no flags.
    """

    if not of_files and AT_LINE.match(text):  # of a file, whose keys are no flags
        return text

    def replaced(match: re.Match[str]) -> str:
        flag = flags.get(match[1])
        if flag is None:
            return match[0]
        if flag.endswith("="):
            return f"`{flag}{'...' if match[2] is None else match[2]}`"
        return f"`{flag}`" if match[2] is None else f"`{flag} {match[2]}`"

    return PARAMETER.sub(replaced, text)


def positive(text: str) -> int:
    """Parse a positive integer.

    Raises:
        ValueError: it is none.
    """
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


EXPECTED = {int: "a whole number", float: "a number", positive: "a whole number, at least 1"}


class CommandParser(argparse.ArgumentParser):
    """Argument parser of a command.

    Flags may be typed with dashes instead of underscores.

    Args:
        few: the flags that `--help` shows, by the titles of groups; `--help_all` shows all. None: `--help` does.
        **options: see `argparse.ArgumentParser`.
    """

    def __init__(self, few: Mapping[str, Sequence[str]] | None = None, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**{**options, "allow_abbrev": False})
        self.few = few
        if few is not None:
            missing = argparse.SUPPRESS
            self.add_argument("--help_all", action=_HelpAll, nargs=0, default=missing, help="show all flags and exit")

    def flags(self) -> dict[str, str]:
        """Return the flags of a command and its subcommands by destination name."""
        flags: dict[str, str] = {}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    flags |= parser.flags()
            elif action.option_strings and action.option_strings[0].startswith("--"):
                flags.setdefault(action.dest, action.option_strings[0])
                flags |= {flag[2:]: flag for flag in action.option_strings}
        return flags

    def format_help(self) -> str:
        """Return the text of `--help`."""
        if self.few is None:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage or f"{self.prog} [--NAME VALUE ...]", [], [])
        formatter.add_text(self.description)
        for title, names in self.few.items():
            formatter.start_section(title)
            of_name = {action.dest: action for action in reversed(self._actions)}
            formatter.add_arguments([of_name[name] for name in names])
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Print an error on one line and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Check the names of all flags first, then parse as `argparse` does."""
        if args is not None and not any(isinstance(one, argparse._SubParsersAction) for one in self._actions):
            args = self._with_free_values(self._with_valid_flags(list(args)))
        return super().parse_known_args(args, namespace)

    def _with_valid_flags(self, args: list[str]) -> list[str]:
        checked: list[str] = []
        for place, text in enumerate(args):
            if text == "--" or (self._takes_rest() and not FLAG.fullmatch(text)):
                return [*checked, *args[place:]]
            checked.append(self._with_valid_name(text) if FLAG.fullmatch(text) else text)
        return checked

    def _with_free_values(self, args: list[str]) -> list[str]:
        """Move the last values of a list flag to missing positional arguments: `--metrics bleu a b`."""
        if "--" in args or self._takes_rest():
            return args
        lacking = sum(action.nargs in (None, "+") for action in self._get_positional_actions())
        values: list[int] = []  # places of the values of the last list but its first one
        most, taken = 0.0, 0  # values that the last flag takes, and has
        for place, text in enumerate(args):
            if FLAG.fullmatch(text):
                name, sign, _ = text.partition("=")
                most, taken = 0.0 if sign else values_of(self._option_string_actions[name]), 0
                values = [] if most == math.inf else values
            elif taken >= most:
                lacking -= 1
            else:
                taken += 1
                values += [place] if most == math.inf and taken > 1 else []
        free = values[-lacking:] if 0 < lacking <= len(values) else []
        kept = [text for place, text in enumerate(args) if place not in free]
        return [*kept, "--", *(args[place] for place in free)] if free else args

    def _takes_rest(self) -> bool:
        return any(one.nargs == argparse.REMAINDER for one in self._actions)

    def _with_valid_name(self, text: str) -> str:
        name, sign, value = text.partition("=")
        for spelling in (name, name.replace("-", "_").replace("__", "--", 1)):
            if spelling in self._option_string_actions:
                return spelling + sign + value
        self.error(f"There is no flag `{name}`.{self._hint(name.lstrip('-'))}")

    def _hint(self, name: str) -> str:
        flags = [flag[2:] for flag in self._option_string_actions if flag.startswith("--")]
        synonyms = [synonym for synonym in OTHER_NAMES.get(name.replace("-", "_"), ()) if synonym in flags]
        shown = [flag for names in (self.few or {}).values() for flag in names]
        synonym = next((synonym for synonym in synonyms if synonym in shown), next(iter(synonyms), None))
        near = synonym or nearest_name(name, flags)
        return f" `{self.prog} --help` lists them." if near is None else f" Did you mean `--{near}`?"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = None if action.choices is None else [str(one) for one in action.choices]
        if choices is not None and str(value) not in choices:
            what = "command" if isinstance(action, argparse._SubParsersAction) or not action.option_strings else ""
            typed = f"There is no {what} {value!r}" if what else f"`{action.option_strings[0]}` is {value!r}"
            meant = OTHER_VALUES.get(str(value).lower(), str(value))
            raise argparse.ArgumentError(
                None, f"{typed}, expected one of {', '.join(choices)}.{did_you_mean(meant, choices)}"
            )

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        read = self._registry_get("type", action.type, action.type)
        try:
            return read(arg_string)
        except (TypeError, ValueError) as error:
            name = f"`{action.option_strings[0]}`" if action.option_strings else f"`{action.dest}`"
            expected = EXPECTED.get(read)
            reason = f"{name} is {arg_string!r}, expected {expected}." if expected else str(error)
            raise argparse.ArgumentError(None, reason) from error

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; unknown arguments are an error."""
        parsed, remaining = self.parse_known_args(args, namespace)
        if remaining:
            self.error(f"{' '.join(map(repr, remaining))} is not expected here. See `{self.prog} --help`.")
        return parsed


def values_of(action: argparse.Action) -> float:
    """Return the maximum number of values of a flag."""
    if isinstance(action.nargs, int):
        return action.nargs
    return math.inf if action.nargs in ("+", "*") else 1


class _HelpAll(argparse.Action):
    """Action that prints the help of all flags and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.few = None
        parser.print_help()
        parser.exit()


def add_data_options_argument(
    parser: argparse.ArgumentParser, help: str = "options of the data set, for example image_dir=photos"
) -> None:
    """Add the repeatable argument `--data_options`, see `data_options_of`."""
    parser.add_argument("--data_options", nargs="*", action="extend", default=[], metavar="NAME=VALUE", help=help)


def add_links_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that allows symbolic links in data folders."""
    parser.add_argument(
        "--follow_links",
        action="store_true",
        help="read tables and text files that are symbolic links out of their folder; default: refuse them",
    )


def data_options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the data set options from `--data_options` and `--follow_links`.

    Raises:
        ValueError: an option is not of the form NAME=VALUE, or typed twice.
    """
    options = read_named_values(args.data_options, "data_options")
    return options | ({"follow_links": True} if args.follow_links else {})


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """Add the flag that allows recipes to import code, see `Recipe.load`."""
    parser.add_argument(
        "--allow_code",
        action="store_true",
        help="run code that recipes from files name, such as rewards and metrics module:function",
    )

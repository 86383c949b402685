"""`hf-captioners <command>`: one file a command, imported when it is asked for.

A command's file has `NAME`, `HELP`, `add_arguments(parser)` and `run(args) -> int`, imports nothing heavy at its top,
and may have `parent_parsers()`, parsers whose arguments it takes over.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from hf_captioners._version import __version__
from hf_captioners.reproduce.recipe import with_recipe

# What a person types -> the file of this folder.
COMMANDS = {
    "train": "train",
    "caption": "caption",
    "score": "score",
    "evaluate": "evaluate",
    "explain": "explain",
    "check-data": "check_data",
    "extract-features": "extract_features",
    "push": "push",
    "convert": "convert",
    "reproduce": "reproduce",
    "demo": "demo",
    "env": "env",
}


def load_command(name: str) -> ModuleType:
    """The module of a command."""
    return import_module(f"{__name__}.{COMMANDS[name]}")


def command_list() -> str:
    """One line a command: its name and what it does, or why it cannot be loaded."""
    lines, width = [], max(map(len, COMMANDS))
    for name in COMMANDS:
        try:
            text = load_command(name).HELP
        except ImportError as error:
            text = f"(cannot be loaded: {error})"
        lines.append(f"  {name:<{width}} {text}")
    return "\n".join(["commands:", *lines])


def top_parser() -> argparse.ArgumentParser:
    """The parser of what stands before the command's own arguments."""
    parser = argparse.ArgumentParser(
        prog="hf-captioners",
        description="Train, use and judge image captioners.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hf-captioners {__version__}")
    parser.add_argument("--traceback", action="store_true", help="on an error, show where it happened")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="see below")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="of the command; see: hf-captioners COMMAND --help"
    )
    return parser


def command_parser(name: str, command: ModuleType) -> argparse.ArgumentParser:
    """The parser of one command."""
    parents = command.parent_parsers() if hasattr(command, "parent_parsers") else []
    parser = argparse.ArgumentParser(
        prog=f"hf-captioners {name}", description=command.HELP, parents=parents, allow_abbrev=False
    )
    command.add_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: what was typed behind `hf-captioners`; default: this process's arguments.

    Returns:
        The exit status: 0 done, 1 done in part, 2 not done because of an error, which is told on stderr.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = top_parser()
    if not argv or argv[0] in ("-h", "--help"):
        parser.epilog = command_list()
        parser.print_help()
        return 0
    top = parser.parse_args(argv)
    try:
        command = load_command(top.command)
        args = command_parser(top.command, command).parse_args(with_recipe(top.arguments))
        return command.run(args)
    except KeyboardInterrupt:
        print("hf-captioners: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        if top.traceback:
            raise
        print(f"hf-captioners {top.command}: error: {error}", file=sys.stderr)
        return 2

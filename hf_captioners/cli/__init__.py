"""`hf-captioners <command>`: one module per command, imported when the command is run.

The module of a command has `NAME`, `HELP`, `add_arguments(parser)` and `run(args) -> int`, and optionally `FEW`, the
flags that `--help` shows where there are many, and `EXAMPLES`. It imports nothing heavy at its top: a command parses
arguments, checks names, calls the library and prints.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from hf_captioners._version import __version__
from hf_captioners.cli.memory import keep_freed_memory

from .data_messages import log_with_flags, option_flags
from .interruption import raise_at_signals, report_interruption
from .parsing import CommandParser, with_dashes
from .quiet import silence_libraries

# Name of the command -> module of this package.
COMMANDS = {
    "train": "train",
    "caption": "caption",
    "review": "review",
    "serve": "serve",
    "score": "score",
    "evaluate": "evaluate",
    "calibrate": "calibrate",
    "explain": "explain",
    "check-data": "check_data",
    "download-images": "download_images",
    "extract-features": "extract_features",
    "attributes": "attributes",
    "cache": "cache",
    "push": "push",
    "convert": "convert",
    "export": "export",
    "trim-vocabulary": "trim_vocabulary",
    "reproduce": "reproduce",
    "demo": "demo",
    "env": "env",
}
REPORTED_ERRORS = (ValueError, OSError, ImportError)


def load_command(name: str) -> ModuleType:
    """Import the module of a command."""
    return import_module(f"{__name__}.{COMMANDS[name]}")


def command_list() -> str:
    """Return one line per command: its name and purpose, or why it cannot be imported."""
    lines, width = [], max(map(len, COMMANDS))
    for name in COMMANDS:
        try:
            text = load_command(name).HELP
        except ImportError as error:
            text = f"(cannot be loaded: {error})"
        lines.append(f"  {name:<{width}} {text}")
    return "\n".join(["commands:", *lines])


def top_parser() -> CommandParser:
    """Return the parser of arguments before the command name."""
    parser = CommandParser(prog="hf-captioners", description="Train, use and evaluate image captioners.")
    parser.add_argument("--version", action="version", version=f"hf-captioners {__version__}")
    _add_common_arguments(parser)
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="see below")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the command, see: hf-captioners COMMAND --help"
    )
    return parser


def _add_common_arguments(parser: CommandParser, default: object = False) -> None:
    parser.add_argument("--traceback", action="store_true", default=default, help="print the traceback of an error")
    parser.add_argument(
        "--verbose", action="store_true", default=default, help="show the warnings, reports and bars of libraries too"
    )


def command_parser(name: str, command: ModuleType) -> CommandParser:
    """Return a command's parser."""
    parser = CommandParser(
        few=getattr(command, "FEW", None),
        prog=f"hf-captioners {name}",
        description=command.HELP,
        epilog=getattr(command, "EXAMPLES", None),
    )
    command.add_arguments(parser)
    _add_common_arguments(parser, argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after `hf-captioners`. Default: those of this process.

    Returns:
        The exit status: 0 done, 1 done in part, 2 not done because of an error, which is printed on stderr.
    """
    keep_freed_memory()
    is_program = argv is None
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = top_parser()
    if not argv or argv[0] in ("-h", "--help"):
        parser.epilog = command_list()
        parser.print_help()
        return 0
    top = parser.parse_args(argv)
    flags: dict[str, str] = {}
    try:
        command = load_command(top.command)
        parser = command_parser(top.command, command)
        flags = parser.flags()
        args = parser.parse_args(top.arguments)
        for name in ("traceback", "verbose"):
            setattr(top, name, vars(args).pop(name, False) or getattr(top, name))
        if is_program:  # not where Python code calls a command
            raise_at_signals()
            log_with_flags(flags)
            if not top.verbose:
                silence_libraries()
        return command.run(args)
    except KeyboardInterrupt as interruption:
        return report_interruption(interruption, argv)
    except reported_errors() as error:
        if top.traceback:
            raise
        reason = "" if isinstance(error, REPORTED_ERRORS) else "there is no connection to the Hub: "
        names = option_flags() | flags if "data_options" in flags else flags
        print(f"hf-captioners {top.command}: error: {reason}{with_dashes(str(error), names)}", file=sys.stderr)
        return 2


def reported_errors() -> tuple[type[Exception], ...]:
    """Return the exception types that are reported on one line, connection errors of the Hub included."""
    errors = sys.modules.get("huggingface_hub.errors")
    return REPORTED_ERRORS if errors is None else (*REPORTED_ERRORS, errors.HTTPError)

"""Command line wording of data messages: options of data sets become flags."""

import logging
import sys
from collections.abc import Mapping

from .parsing import with_dashes

LOGGER = "hf_captioners"  # parent of all loggers of the package
READERS_MODULE = "hf_captioners.data.loading"


def option_flags() -> dict[str, str]:
    """Return the flag of each data set option: `--data_options file_column=`.

    Only of readers that are imported, since others have said nothing: a mistake in a flag imports none.
    """
    loading = sys.modules.get(READERS_MODULE)
    if loading is None:
        return {}
    imported = [name for name, (module, _) in loading.READERS.items() if f"hf_captioners.data.{module}" in sys.modules]
    return {option: f"--data_options {option}=" for name in imported for option in loading.option_names(name)}


def with_option_flags(text: str, flags: Mapping[str, str] | None = None) -> str:
    """Rewrite a message about data for the command line: options become flags.

    Args:
        text: the message.
        flags: flags of the command by the names of their values, which come first. None: none.
    """
    text = with_dashes(text, option_flags() | dict(flags or {}), of_files=True)
    report = sys.modules.get("hf_captioners.data.report")
    return text if report is None else text.replace(report.WHOLE_LIST, report.WHOLE_LIST_TYPED)


class FlagFormatter(logging.Formatter):
    """Log formatter that writes flags in place of parameter names.

    Args:
        flags: see `with_option_flags`.
    """

    def __init__(self, flags: Mapping[str, str]) -> None:
        super().__init__("%(message)s")
        self.flags = flags

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log record."""
        return with_option_flags(super().format(record), self.flags)


def log_with_flags(flags: Mapping[str, str]) -> None:
    """Print the package's warnings on stderr, with flags in place of parameter names."""
    handler = logging.StreamHandler()
    handler.setFormatter(FlagFormatter(flags))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.propagate = False

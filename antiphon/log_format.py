"""Log lines that are safe for terminals and line parsers."""

from __future__ import annotations

import json
import logging


class PrintableFormatter(logging.Formatter):
    """Escapes non-printable characters as JSON does.

    That includes line ends in a message, control characters (also C1) and bidirectional overrides,
    since messages may quote client input. Only the lines of a traceback start new lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format a message as one line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Format a traceback, one line for each of its lines."""
        return "\n".join(printable(each) for each in super().formatException(ei).split("\n"))


def printable(text: str) -> str:
    """Replace each non-printable character by its JSON escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def configure_logging(level: str, form: str) -> None:
    """Log to stderr from `level` up, with `form` as the format of `logging`."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])

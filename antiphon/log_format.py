"""Formats log lines so that they are safe for terminals and for programs that parse them."""

from __future__ import annotations

import json
import logging


class PrintableFormatter(logging.Formatter):
    """Escapes non-printable characters the way JSON does.

    Messages can quote client input, so line breaks, control characters (including C1) and
    bidirectional overrides are escaped. Only tracebacks take up more than one line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format a message as a single line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """Format a traceback. Each of its lines becomes a separate line in the log."""
        return "\n".join(printable(each) for each in super().formatException(ei).split("\n"))


def printable(text: str) -> str:
    """Replace each non-printable character with its JSON escape sequence."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def configure_logging(level: str, form: str) -> None:
    """Log to stderr. `level` is the minimum level, and `form` is a format string for `logging`."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])

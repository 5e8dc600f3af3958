"""Log lines that a reader's terminal and a parser of lines take as they are."""

from __future__ import annotations

import json
import logging


class PrintableFormatter(logging.Formatter):
    """Escapes what is not printable, as JSON does: line ends of a message, control characters
    (C1 too) and those that reverse text. Messages may quote what clients sent.

    Only the lines of a traceback are lines of their own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """One line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: logging._SysExcInfoType) -> str:
        """The lines of a traceback."""
        return "\n".join(printable(each) for each in super().formatException(ei).split("\n"))


def printable(text: str) -> str:
    """The text with each character that is not printable as its JSON escape."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def configure_logging(level: str, form: str) -> None:
    """Log to stderr from `level` on, in a format of `logging`."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])

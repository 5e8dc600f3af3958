"""Errors of a line that are not its stage's word."""

from __future__ import annotations

from antiphon.errors import Unavailable


class ConnectionCancelled(Exception):
    """The connection was cancelled at this end, or its channel was closed."""


class WindowExceeded(Unavailable):
    """The stage has sent more than the window of a line, which is an error of its code."""

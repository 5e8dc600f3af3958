"""Errors on a session's connection to a stage that weren't reported by the stage itself."""

from __future__ import annotations

from antiphon.errors import Unavailable


class ConnectionCancelled(Exception):
    """The gateway cancelled the connection, or its channel was closed."""


class WindowExceeded(Unavailable):
    """The stage has sent more than a line's window allows. This is a bug in the stage."""

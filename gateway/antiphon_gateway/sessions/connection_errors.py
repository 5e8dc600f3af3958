"""Errors of a session's connection to a stage that the stage itself did not report."""

from __future__ import annotations

from antiphon.errors import Unavailable


class ConnectionCancelled(Exception):
    """The connection was cancelled by the gateway, or its channel was closed."""


class WindowExceeded(Unavailable):
    """The stage sent more than the window of a line allows. This is a bug in the stage."""

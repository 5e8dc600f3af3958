"""Server-sent events."""

from __future__ import annotations


def server_sent(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"

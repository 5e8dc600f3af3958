"""Server-sent events."""

from __future__ import annotations

COMMENT = b": keepalive\n\n"
"""What clients ignore, and proxies take for a sign of life."""
CONTENT_TYPE = "text/event-stream; charset=utf-8"


def server_sent(data: bytes) -> bytes:
    """One event."""
    return b"data: " + data + b"\n\n"


def is_server_sent(content_type: str) -> bool:
    """Whether it is the type of server-sent events."""
    return content_type == CONTENT_TYPE

"""Server-sent events."""

from __future__ import annotations

COMMENT = b": keepalive\n\n"
"""A comment, which clients ignore. It prevents proxies from closing an idle connection."""
CONTENT_TYPE = "text/event-stream; charset=utf-8"


def server_sent(data: bytes) -> bytes:
    """Return a single event."""
    return b"data: " + data + b"\n\n"


def is_server_sent(content_type: str) -> bool:
    """Return whether the content type is that of server-sent events."""
    return content_type == CONTENT_TYPE

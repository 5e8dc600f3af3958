"""Bytes that conversations keep between their requests, bounded over all of them. Pure."""

from __future__ import annotations

from antiphon.errors import ResourceExhausted


class KeptBytes:
    """So many bytes, shared by all conversations."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def check(self, more_bytes: int) -> None:
        """Raise `ResourceExhausted` when there is no room for so many more."""
        if more_bytes > 0 and self.held_bytes + more_bytes > self._limit_bytes:
            raise ResourceExhausted(
                f"the conversations hold {self.held_bytes} bytes together, and {more_bytes} more "
                f"are above gateway.max_conversation_bytes ({self._limit_bytes}); try again, or "
                "delete items",
                retry_after_s=1.0,
            )


class KeptShare:
    """What one conversation keeps."""

    def __init__(self, kept: KeptBytes) -> None:
        self._kept = kept
        self._size = 0

    def check(self, more_bytes: int) -> None:
        """Raise `ResourceExhausted` when there is no room for so many more."""
        self._kept.check(more_bytes)

    def resize(self, size_bytes: int) -> None:
        """It keeps so many now."""
        self._kept.held_bytes += size_bytes - self._size
        self._size = size_bytes

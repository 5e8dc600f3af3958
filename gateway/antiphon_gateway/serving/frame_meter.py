"""Limits the HTTP/2 frames that a client sends.

gRPC's C core doesn't limit most of them. A header block that never ends, or many large ones, can
keep its threads so busy that calls on other connections stall. In tests, other clients' calls were
also cancelled, for unknown reasons, when many calls were started and immediately reset. Other kinds
of floods only cost CPU time. The meter looks only at the nine bytes at the start of each frame.

The rates apply to all connections from an address together, so it doesn't help to open new ones.
They are high enough for a proxy that serves many clients. They also allow a ping for each response
received, which is how grpc-go estimates bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_BLOCK_BYTES = 64 << 10
"""The maximum size of a header block. gRPC itself accepts up to 16 KiB of metadata."""
MAX_CONTINUATIONS = 16
"""The maximum number of CONTINUATION frames in a header block."""
SMALL_DATA_BYTES = 1 << 10
"""Smaller DATA frames are counted. Larger ones are limited by flow control."""

_HEAD_BYTES = 9
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9


@dataclass(frozen=True, slots=True)
class FrameRate:
    """A token bucket, with the rate per second and the maximum burst."""

    what: str
    per_s: int
    burst: int


SMALL_DATA = FrameRate("small DATA frames", 20_000, 50_000)
HEADERS = FrameRate("HEADERS frames", 500, 1_000)
CONTINUATION = FrameRate("CONTINUATION frames", 100, 500)
HEADER_BYTES = FrameRate("bytes of header blocks", 512 << 10, 512 << 10)
RESET = FrameRate("RST_STREAM frames", 500, 1_000)
SETTINGS = FrameRate("SETTINGS frames", 200, 2_000)
PING = FrameRate("PING frames", 2_000, 5_000)
WINDOW = FrameRate("WINDOW_UPDATE frames", 20_000, 50_000)
OTHER = FrameRate("other frames", 200, 2_000)

_RATES: Mapping[int, FrameRate] = {
    _HEADERS: HEADERS,
    3: RESET,
    4: SETTINGS,
    6: PING,
    8: WINDOW,
    _CONTINUATION: CONTINUATION,
}


class FrameFlood(Exception):
    """Raised if a client exceeds a limit on frames."""


class FrameBudget:
    """The frames that an address is still allowed to send."""

    def __init__(self) -> None:
        # For each type of frame, the remaining amount and the time at which it was computed.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, rate: FrameRate, amount: int, now_s: float) -> None:
        """Subtract from the remaining amount. Raises `FrameFlood` if there isn't enough left."""
        left, since_s = self._left.get(rate.what, (float(rate.burst), now_s))
        left = min(left + (now_s - since_s) * rate.per_s, rate.burst) - amount
        if left < 0:
            raise FrameFlood(f"more than {rate.per_s} {rate.what} per second")
        self._left[rate.what] = left, now_s


class FrameMeter:
    """Counts the frames of one connection against the budget of its address."""

    def __init__(self, budget: FrameBudget) -> None:
        self._budget = budget
        self._preface = len(PREFACE)
        self._head = b""
        # The number of bytes that are still missing from the current frame.
        self._payload_bytes = 0
        # The size of the most recent header block.
        self._block_bytes = 0
        self._continuations = 0

    def add(self, data: bytes, now_s: float) -> None:
        """Count the frames that start in these bytes. `now_s` can come from any monotonic clock.

        Raises `FrameFlood` if a limit is exceeded.
        """
        at = min(self._preface, len(data))
        self._preface -= at
        size = len(data)
        while at < size:
            if self._payload_bytes:
                step = min(self._payload_bytes, size - at)
                self._payload_bytes -= step
                at += step
                continue
            head = self._head + data[at : at + _HEAD_BYTES - len(self._head)]
            at += len(head) - len(self._head)
            if len(head) < _HEAD_BYTES:
                self._head = head
                return
            self._head = b""
            self._payload_bytes = int.from_bytes(head[:3])
            self._count(head[3], self._payload_bytes, now_s)

    def _count(self, kind: int, size: int, now_s: float) -> None:
        """Count a frame of `size` bytes."""
        if kind == _DATA:
            if size < SMALL_DATA_BYTES:
                self._budget.take(SMALL_DATA, 1, now_s)
            return
        if kind in (_HEADERS, _CONTINUATION):
            self._count_block(kind, size)
            self._budget.take(HEADER_BYTES, size, now_s)
        self._budget.take(_RATES.get(kind, OTHER), 1, now_s)

    def _count_block(self, kind: int, size: int) -> None:
        """Count a frame that is part of a header block."""
        if kind == _HEADERS:
            self._block_bytes = self._continuations = 0
        else:
            self._continuations += 1
        self._block_bytes += size
        if self._continuations > MAX_CONTINUATIONS or self._block_bytes > MAX_BLOCK_BYTES:
            raise FrameFlood("a header block is too long")

"""The messages between the gateway and its decode server. Each message is one line of JSON.

The lines are sent over a Unix stream socket, because macOS doesn't support Unix sockets that
preserve message boundaries.
"""

from __future__ import annotations

import os
import socket
from collections import deque

import msgspec

MAX_LINE_BYTES = 16 << 10
_READ_BYTES = 16 << 10
_MAX_DESCRIPTORS = 32
MAX_REPORT_BYTES = 4 << 10

REJECTED, FAILED, NOT_STARTED, COSTLY = 3, 4, 5, 6
"""The exit statuses of a child process.

With `REJECTED` and `FAILED`, its `DecodeReport` contains what is wrong with the file or what
failed. `NOT_STARTED` means that its program could not be started. `COSTLY` means that the file
declares more than `cost_samples` samples.
"""


DESCRIPTORS = 3
"""The number of file descriptors sent with a `DecodeRequest`."""


class DecodeRequest(msgspec.Struct, frozen=True, tag=True):
    """Decode a file in a new child process.

    `DESCRIPTORS` file descriptors are attached: the file, an empty file for mono float32 samples,
    and an empty file for a `DecodeReport`. `name` describes the file. A `program` is started with
    the file as its standard input and the samples as its standard output. If there is none,
    libsndfile decodes the file. The samples have the rate `rate_hz` and are at most `most_s`
    seconds long. SIGPROF ends the child after `cpu_s` seconds. If the header of the file declares
    more than `cost_samples` samples, counting all channels, it is not decoded.
    """

    number: int
    name: str
    rate_hz: int
    most_s: float
    program: tuple[str, ...]
    cpu_s: float
    cost_samples: int
    memory_bytes: int
    out_bytes: int
    niceness: int


class KillChild(msgspec.Struct, frozen=True, tag=True):
    """End a child process, if it is still running."""

    number: int


class ChildStarted(msgspec.Struct, frozen=True, tag=True):
    """Contains the process ID of a child."""

    number: int
    pid: int


class ChildEnded(msgspec.Struct, frozen=True, tag=True):
    """Contains a child's exit status. If a signal terminated the child, this is the negative signal
    number.
    """

    number: int
    status: int


class DecodeReport(msgspec.Struct, frozen=True):
    """Why a child rejected its file, or what failed. If the file is too long, `seconds` is set."""

    message: str
    seconds: float = 0.0


ToServer = DecodeRequest | KillChild
FromServer = ChildStarted | ChildEnded


class ClosedStream(OSError):
    """The other end has closed the stream or has sent a line that is too long."""


class MessageLines:
    """Reads lines from a Unix stream, together with the file descriptors that are
    attached to them.
    """

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._rest = b""
        self._descriptors: deque[int] = deque()

    def read(self) -> list[bytes]:
        """Receive data once and return all lines that are now complete.

        Raises `ClosedStream` at the end of the stream.
        """
        data, descriptors, _, _ = socket.recv_fds(self._source, _READ_BYTES, _MAX_DESCRIPTORS)
        self._descriptors.extend(descriptors)
        if not data or len(self._rest) > MAX_LINE_BYTES:
            raise ClosedStream("the other end has closed the stream")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def take_descriptors(self) -> list[int]:
        """Return the descriptors of the next `DecodeRequest`. The caller must close them.

        They are supposed to arrive together with the line. If they haven't, `ClosedStream` is
        raised.
        """
        if len(self._descriptors) < DESCRIPTORS:
            raise ClosedStream("the file descriptors of a request are missing")
        return [self._descriptors.popleft() for _ in range(DESCRIPTORS)]

    def close(self) -> None:
        """Close all descriptors that haven't been taken by a request."""
        while self._descriptors:
            os.close(self._descriptors.popleft())


def send_line(
    sink: socket.socket, message: msgspec.Struct, descriptors: tuple[int, ...] = ()
) -> None:
    """Send a message as one line, along with file descriptors.

    Raises `OSError` if the other end is gone or if a non-blocking socket doesn't have room for the
    whole line. In either case, the stream can't be used any more.
    """
    line = msgspec.json.encode(message) + b"\n"
    sent = socket.send_fds(sink, [line], descriptors) if descriptors else sink.send(line)
    while sent < len(line):
        sent += sink.send(line[sent:])

"""The messages between the gateway and its decode server. Each of them is one JSON packet."""

from __future__ import annotations

import msgspec

MAX_PACKET_BYTES = 16 << 10
MAX_REPORT_BYTES = 4 << 10

REJECTED, FAILED, NOT_STARTED, COSTLY = 3, 4, 5, 6
"""The exit statuses of a child process.

With `REJECTED` and `FAILED`, its `DecodeReport` contains what is wrong with the file or what
failed. `NOT_STARTED` means that its program could not be started. `COSTLY` means that the file
declares more than `cost_samples` samples.
"""


class DecodeRequest(msgspec.Struct, frozen=True, tag=True):
    """Decode a file in a new child process.

    Three file descriptors are attached: the file, an empty file for mono float32 samples, and an
    empty file for a `DecodeReport`. `name` describes the file. A `program` is started with the file
    as its standard input and the samples as its standard output. If there is none, libsndfile
    decodes the file. The samples have the rate `rate_hz` and are at most `most_s` seconds long.
    SIGPROF ends the child after `cpu_s` seconds. If the header of the file declares more than
    `cost_samples` samples, counting all channels, it is not decoded.
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
    """End a child process if it is still running."""

    number: int


class ChildStarted(msgspec.Struct, frozen=True, tag=True):
    """Contains the process ID of a child."""

    number: int
    pid: int


class ChildEnded(msgspec.Struct, frozen=True, tag=True):
    """Contains the exit status of a child, or the negative number of the signal that ended it."""

    number: int
    status: int


class DecodeReport(msgspec.Struct, frozen=True):
    """The reason why a child rejected its file, or what failed. If the file is too long, `seconds`
    is set.
    """

    message: str
    seconds: float = 0.0


ToServer = DecodeRequest | KillChild
FromServer = ChildStarted | ChildEnded

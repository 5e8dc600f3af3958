"""The messages between the gateway and its decode server: one JSON packet each."""

from __future__ import annotations

import msgspec

MAX_PACKET_BYTES = 16 << 10
MAX_REPORT_BYTES = 4 << 10

REJECTED, FAILED, NOT_STARTED, COSTLY = 3, 4, 5, 6
"""Exit statuses of a child: its `DecodeReport` says what is wrong with the file, or what failed;
its program could not be started; the file states more than `cost_samples`."""


class DecodeRequest(msgspec.Struct, frozen=True, tag=True):
    """Decode a file in a new child process.

    Three descriptors are attached: the file, an empty file for mono float32 samples, and an empty
    file for a `DecodeReport`. `name` describes the file. A `program` is started with the file as
    its standard input and the samples as its standard output; without one, libsndfile decodes.
    Samples have `rate_hz`, and last at most `most_s`. SIGPROF ends the child after `cpu_s`. A file
    whose header declares more than `cost_samples`, over all channels, is not decoded.
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
    """End a child process, if it still runs."""

    number: int


class ChildStarted(msgspec.Struct, frozen=True, tag=True):
    """The process id of a child."""

    number: int
    pid: int


class ChildEnded(msgspec.Struct, frozen=True, tag=True):
    """A child's exit status; minus a signal's number where that ended it."""

    number: int
    status: int


class DecodeReport(msgspec.Struct, frozen=True):
    """Why a child rejected its file (`seconds` where it is too long), or what failed in it."""

    message: str
    seconds: float = 0.0


ToServer = DecodeRequest | KillChild
FromServer = ChildStarted | ChildEnded

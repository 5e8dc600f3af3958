"""A file format for chunks sent between stages, with their times.

The file starts with a magic number, followed by records. Each record consists of a length (uint32),
a time (float64), and an `antiphon.v1.Chunk` of that length. Numbers are little-endian. The time is
in seconds since the start of the session.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from antiphon.errors import DataLoss, FailedPrecondition, InvalidArgument
from antiphon.v1 import chunk_pb2
from antiphon_tools.load.upstream import Feed, Timed

MAGIC = b"antiphon chunks 1\n"
_RECORD = struct.Struct("<Id")


def write_recording(path: Path, chunks: Iterable[Timed]) -> int:
    """Write chunks in the given order and return how many were written. Raises `OSError`."""
    count = 0
    with path.open("wb") as file:
        file.write(MAGIC)
        for each in chunks:
            data = each.chunk.SerializeToString()
            file.write(_RECORD.pack(len(data), each.at_s) + data)
            count += 1
    return count


def read_recording(path: Path) -> Iterator[Timed]:
    """Yield the chunks in order.

    Raises `InvalidArgument` if the file cannot be read or is not a recording, and `DataLoss` if it
    is truncated.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error
    if not data.startswith(MAGIC):
        raise InvalidArgument(f"{path}: is not a recording of chunks")
    place = len(MAGIC)
    while place < len(data):
        start = place + _RECORD.size
        if start > len(data):
            raise DataLoss(f"{path}: is truncated at byte {place}")
        size, at_s = _RECORD.unpack_from(data, place)
        place = start + size
        if place > len(data):
            raise DataLoss(f"{path}: is truncated at byte {start}")
        try:
            yield Timed(at_s, chunk_pb2.Chunk.FromString(data[start:place]))
        except DecodeError as error:
            raise DataLoss(f"{path}: has no valid chunk at byte {start}") from error


def feeds_of(path: Path, edges: Iterable[str]) -> tuple[Feed, ...]:
    """Return the chunks sent to the consumer of these edges, one feed per recorded session.

    Times start at 0 with the first such chunk of a session. Raises `FailedPrecondition` if the
    recording has no such chunks, and the errors of `read_recording`.
    """
    wanted = frozenset(edges)
    sessions: dict[str, list[Timed]] = {}
    for each in read_recording(path):
        if each.chunk.edge in wanted:
            sessions.setdefault(each.chunk.session_id, []).append(each)
    if not sessions:
        raise FailedPrecondition(f"{path}: has no chunks of the edges {', '.join(sorted(wanted))}")
    return tuple(
        tuple(Timed(each.at_s - chunks[0].at_s, each.chunk) for each in chunks)
        for chunks in sessions.values()
    )

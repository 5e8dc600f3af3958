"""What a session needs of its connection to one stage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from antiphon.v1 import chunk_pb2, session_pb2
from antiphon_gateway.fleet.replica import Replica


class StageLine(Protocol):
    """A session on one replica, open from construction; ends with `half_close` or `cancel`.

    The replica's slot is taken while a segment is open, until its report or refusal.
    """

    @property
    def role(self) -> str:
        """The stage's role."""

    @property
    def gone(self) -> bool:
        """Whether the replica was lost after it had reported its segment."""

    def open_segment(
        self, opening: session_pb2.SegmentOpen, chunks: Iterable[chunk_pb2.Chunk]
    ) -> None:
        """Open another segment, once all stages are done with the one before it."""

    def send(self, request: session_pb2.SessionRequest) -> None:
        """Send a message about the open segment.

        The latest credit of an edge, and the latest progress, replace earlier ones that still wait.
        A stage that has reported gets no `gone`. Raises `ResourceExhausted` for a chunk if too many
        bytes of chunks wait already.
        """

    def half_close(self) -> None:
        """End what is sent; the stage then ends the stream. May be repeated."""

    def cancel(self) -> None:
        """End the stream at once; the stage frees everything. May be repeated."""

    def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """What the stage sends, until the stream ends or the replica is `gone`.

        Raises the typed error of a broken stream, and `Unavailable` if the replica is lost.
        """


OpenLine = Callable[[Replica, session_pb2.SessionOpen], StageLine]
"""Opens a session on a replica."""

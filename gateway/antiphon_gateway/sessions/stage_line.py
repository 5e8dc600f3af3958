"""The interface of a session's connection to one of its stages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from antiphon.v1 import chunk_pb2, session_pb2
from antiphon_gateway.fleet.replica import Replica


class StageLine(Protocol):
    """A session on one replica. It is open from construction until `half_close` or `cancel` is
    called.

    While a segment is open, it occupies one of the replica's slots, until the replica reports or
    refuses the segment.
    """

    @property
    def role(self) -> str:
        """The stage's role."""

    @property
    def gone(self) -> bool:
        """Whether the replica was lost after sending its report on the segment."""

    def open_segment(
        self, opening: session_pb2.SegmentOpen, chunks: Iterable[chunk_pb2.Chunk]
    ) -> None:
        """Open another segment. All stages must have completed the previous one."""

    def send(self, request: session_pb2.SessionRequest) -> None:
        """Send a message for the current segment.

        Credit for an edge replaces any credit that hasn't been sent yet. The same applies to
        progress. A `gone` message isn't sent to a stage that has already reported. Raises
        `ResourceExhausted` if too many bytes of chunks are waiting to be sent.
        """

    def half_close(self) -> None:
        """Stop sending, which makes the stage end the stream. This can be called more than once."""

    def cancel(self) -> None:
        """End the stream right away, so that the stage frees all resources. This can be called more
        than once.
        """

    def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """Yield the stage's messages until the stream ends or the replica is `gone`.

        If the stream breaks, its typed error is raised. If the replica is lost, `Unavailable` is
        raised.
        """


OpenLine = Callable[[Replica, session_pb2.SessionOpen], StageLine]
"""A function that opens a session on a replica."""

"""The outgoing requests on a session's line. This module performs no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from antiphon.errors import ResourceExhausted
from antiphon.v1 import chunk_pb2, session_pb2

MAX_WAITING_BYTES = 8 << 20
"""The maximum number of bytes of live audio that can be waiting for a stage that isn't reading.
This is about two minutes of audio.
"""


class LineRequests:
    """A queue that returns requests in order, with two exceptions. Credit and progress messages are
    sent last and replace earlier ones that are still in the queue.

    `done` is set when no more requests follow. `has_all_input` is true if the session has only one
    segment and all of the segment's input is in the opening message.
    """

    def __init__(self, role: str, opening: session_pb2.SessionOpen) -> None:
        self.done = False
        self.has_all_input = opening.first_segment.last and not opening.first_segment.live
        self._role = role
        self._pending = deque([session_pb2.SessionRequest(open=opening)])
        self._credits: dict[str, session_pb2.SessionRequest] = {}
        self._progress: session_pb2.SessionRequest | None = None
        self._waiting_bytes = 0

    def begin_segment(
        self, opening: session_pb2.SegmentOpen, chunks: Iterable[chunk_pb2.Chunk]
    ) -> None:
        """Queue the opening message and the input of another segment. Any credit for the previous
        segment is discarded.
        """
        self._credits.clear()
        self._pending.append(session_pb2.SessionRequest(segment_open=opening))
        self._pending.extend(session_pb2.SessionRequest(chunk=chunk) for chunk in chunks)

    def add(self, request: session_pb2.SessionRequest) -> None:
        """Queue a message for the current segment.

        Raises `ResourceExhausted` if a chunk would bring the queue above `MAX_WAITING_BYTES`.
        """
        match request.WhichOneof("message"):
            case "credit":
                self._credits[request.credit.edge] = request
            case "progress":
                self._progress = request
            case "chunk":
                self._waiting_bytes += request.chunk.payload.size_bytes
                if self._waiting_bytes > MAX_WAITING_BYTES:
                    raise ResourceExhausted(
                        f"the stage {self._role} doesn't read the audio that the user is "
                        f"speaking; {MAX_WAITING_BYTES} bytes are waiting",
                        stage=self._role,
                    )
                self._pending.append(request)
            case _:
                self._pending.append(request)

    def take(self) -> Iterator[session_pb2.SessionRequest]:
        """Remove and yield all requests, including those that are added while iterating."""
        while self._pending:
            request = self._pending.popleft()
            if request.HasField("chunk"):
                size_bytes = request.chunk.payload.size_bytes
                self._waiting_bytes -= min(self._waiting_bytes, size_bytes)
            yield request
        while self._credits:
            _, credit = self._credits.popitem()
            yield credit
        progress, self._progress = self._progress, None
        if progress is not None:
            yield progress

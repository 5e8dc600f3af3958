"""What waits to be sent on a session's line. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from antiphon.errors import ResourceExhausted
from antiphon.v1 import chunk_pb2, session_pb2

MAX_WAITING_BYTES = 8 << 20
"""Of a live segment's samples, two minutes, that wait to be sent to a stage that takes none."""


class LineRequests:
    """Requests in their order. Besides its start and end, a segment has its live input, and the
    latest credit of each edge and the latest progress, which replace earlier ones.

    `done` is set when no more follow. `has_all_input` states that of segments and input: the only
    segment came with the opening, and so did its input.
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
        """Add a further segment's opening and input; credit of the one before it is void."""
        self._credits.clear()
        self._pending.append(session_pb2.SessionRequest(segment_open=opening))
        self._pending.extend(session_pb2.SessionRequest(chunk=chunk) for chunk in chunks)

    def add(self, request: session_pb2.SessionRequest) -> None:
        """Add a message about the open segment.

        Raises `ResourceExhausted` for a chunk if more than `MAX_WAITING_BYTES` wait.
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
                        f"the stage {self._role} does not take the input that comes while it is "
                        f"recorded; {MAX_WAITING_BYTES} bytes of it wait",
                        stage=self._role,
                    )
                self._pending.append(request)
            case _:
                self._pending.append(request)

    def take(self) -> Iterator[session_pb2.SessionRequest]:
        """Remove and return the requests one by one, including those added during the iteration."""
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

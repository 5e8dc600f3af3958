"""The stage's side of the messages on a `RunSessions` stream, which can outlive its calls. This
module performs no I/O.

A client whose first request is `hello` can continue the stream on a new call, as described in
`antiphon.transport.numbered_stream`. Otherwise, the stream ends with its call, and its messages are
neither numbered nor kept.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.runtime.server.line_table import LineTable
from antiphon.transport.numbered_stream import NumberedStream
from antiphon.v1 import stage_pb2


class NumberedLines:
    """Numbers the requests and responses of a line table. `on_ready` is called when `take` has
    something to return.
    """

    def __init__(self, table: LineTable, on_ready: Callable[[], None]) -> None:
        self.said_goodbye = False
        """Whether the client has said goodbye, which ends all sessions."""
        self._table = table
        self._on_ready = on_ready
        self.stream: NumberedStream[stage_pb2.LineResponse] = NumberedStream()
        self._may_continue = self._continues = False

    @property
    def may_continue(self) -> bool:
        """Whether the stream can continue on a new call."""
        return self._may_continue and not self.said_goodbye

    def begin(self, request: stage_pb2.LineRequest) -> None:
        """Start a call with its `hello` request. Raises `DataLoss` if the stream can't be continued
        from the client's position.
        """
        self._may_continue = True
        if request.hello.resume:
            self.stream.rewind(request.received)
            self._continues = True
            self._on_ready()

    def handle(self, request: stage_pb2.LineRequest) -> None:
        """Handle a request. Raises `DataLoss` if its message count is wrong, and the errors of
        `LineTable.handle`.
        """
        if self._may_continue and not self._count(request):
            return
        if request.HasField("goodbye"):
            self.said_goodbye = True
        else:
            self._table.handle(request)

    def take(self) -> stage_pb2.LineResponse | None:
        """Return the next response, or None if there is nothing to send."""
        if not self._may_continue:
            messages = self._table.take()
            return stage_pb2.LineResponse(messages=messages) if messages else None
        response = self._next()
        if response is not None:
            response.received = self.stream.count()
        return response

    def _count(self, request: stage_pb2.LineRequest) -> bool:
        """Update the message counts from a request and return whether the request contains a
        message.
        """
        stream, was_full = self.stream, self.stream.is_full
        stream.confirmed(request.received)
        has_message = request.WhichOneof("message") is not None
        if has_message:
            stream.arrived(request.ByteSize())
        if was_full or stream.owes_count:
            self._on_ready()
        return has_message

    def _next(self) -> stage_pb2.LineResponse | None:
        stream = self.stream
        if self._continues:
            self._continues = False
            return stage_pb2.LineResponse(resumed=True)
        if (response := stream.again()) is not None:
            return response
        if not stream.is_full and (messages := self._table.take()):
            response = stage_pb2.LineResponse(messages=messages)
            stream.sent(response, response.ByteSize())
            return response
        return stage_pb2.LineResponse() if stream.owes_count else None

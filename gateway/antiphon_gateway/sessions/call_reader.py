"""Reads function calls from the edge `tool_calls`, on which they arrive piece by piece. This module
performs no I/O.
"""

from __future__ import annotations

from antiphon.errors import DataLoss
from antiphon.values.chunk import Chunk
from antiphon.values.conversation import ToolCall
from antiphon.wire.tool_calls import CallPiece, call_pieces_from_tensors
from antiphon_gateway.sessions.events import ToolCallPiece, ToolCallsProduced


class CallReader:
    """Assembles the function calls of one segment. Their IDs begin with `id_prefix`."""

    def __init__(self, id_prefix: str) -> None:
        self._id_prefix = id_prefix
        self._count = 0
        # The name of the current call and its arguments so far.
        self._name = ""
        self._arguments: list[str] = []

    def read(self, chunk: Chunk) -> ToolCallsProduced | None:
        """Convert a chunk to an event. Raises `DataLoss` if the chunk is invalid."""
        joined: list[CallPiece] = []
        for piece in call_pieces_from_tensors(chunk.tensors):
            if joined and not (joined[-1].ends or piece.name):
                before = joined.pop()
                piece = CallPiece(before.name, before.arguments + piece.arguments, piece.ends)
            joined.append(piece)
        pieces = tuple(map(self._piece, joined))
        if chunk.finish_reason is not None and self._name:
            raise DataLoss("tool_calls: ended before the end of a call", edge="tool_calls")
        return ToolCallsProduced(pieces) if pieces else None

    def _piece(self, piece: CallPiece) -> ToolCallPiece:
        if bool(piece.name) is bool(self._name):
            what = (
                ("starts before the end of another call")
                if piece.name
                else "continues before it has started"
            )
            raise DataLoss(f"tool_calls: a call {what}", edge="tool_calls")
        name = self._name = self._name or piece.name
        self._arguments.append(piece.arguments)
        index, call_id = self._count, f"{self._id_prefix}_{self._count}"
        call = None
        if piece.ends:
            call = ToolCall(call_id, name, "".join(self._arguments))
            self._count, self._name, self._arguments = index + 1, "", []
        return ToolCallPiece(index, call_id, name, piece.arguments, bool(piece.name), call)

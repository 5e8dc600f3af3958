"""Stages that follow a script, of a model that calls functions."""

from __future__ import annotations

import asyncio
from typing import Any

from antiphon.errors import UnusableOutput
from antiphon.v1 import stage_pb2
from antiphon.values.conversation import ToolCall
from antiphon.values.segment import FinishReason
from antiphon.wire.tool_calls import CallPiece, call_pieces_to_tensors
from tests.contract.fake_stages import EDGES, THINKER, FakeStages, Session

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks at a thing.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "say"}},
]
CALLS = (ToolCall("", "look", '{"at": "sky"}'), ToolCall("", "say", "{}"))


def with_tools(fakes: FakeStages) -> None:
    """Let the stages describe a thinker that takes tools."""
    edges = (*EDGES, ("tool_calls", THINKER, ""))
    for stage in fakes.by_role.values():
        del stage.description.pipeline_edges[:]
        stage.description.pipeline_edges.extend(
            stage_pb2.PipelineEdge(name=n, producer=p, consumer=c) for n, p, c in edges
        )
    fakes[THINKER].description.input_kinds.append("tools")


async def say_and_call(
    session: Session, *, text: str = "I look.", finish: FinishReason = FinishReason.STOP
) -> None:
    """Says the text, then calls two functions, in a chunk of each."""
    await session.opened()
    if "text" in session.segment.outputs:
        await session.text(text)
    if "tool_calls" in session.segment.outputs:
        for position, call in enumerate(CALLS):
            piece = CallPiece(call.name, call.arguments, ends=True)
            tensors = call_pieces_to_tensors([piece])
            await session.chunk("tool_calls", tensors, position=position)
    for edge in ("text", "tool_calls"):
        if edge in session.segment.outputs:
            await session.chunk(edge, position=2, finish=finish)
    await session.report(finish, input_positions=20, output_positions=9)


class CallInPieces:
    """Calls a function, each piece of its arguments when the one before has been read: `read` says
    that it was. The call ends, or with `fails` proves to be none."""

    PIECES = ('{"at"', ': "sky"', "}")

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self._read = asyncio.Semaphore(0)

    def read(self) -> None:
        """A piece has been read."""
        self._read.release()

    async def __call__(self, session: Session) -> None:
        await session.opened()
        await session.text("I look.")
        for position, arguments in enumerate(self.PIECES):
            piece = CallPiece("" if position else "look", arguments)
            await session.chunk("tool_calls", call_pieces_to_tensors([piece]), position=position)
            await self._read.acquire()
        if self._fails:
            await session.error(UnusableOutput("the call is none", edge="tool_calls"))
            return
        end = call_pieces_to_tensors([CallPiece("", "", ends=True)])
        await session.chunk("tool_calls", end, position=3, finish=FinishReason.STOP)
        await session.chunk("text", position=2, finish=FinishReason.STOP)
        await session.report(FinishReason.STOP, input_positions=20, output_positions=9)


async def fail_in_a_call(session: Session) -> None:
    """Says something and fails, as for a malformed call."""
    await session.opened()
    await session.text("I look.")
    await session.error(
        UnusableOutput("the model generated an invalid function call", edge="tool_calls")
    )

"""Stages that follow a script, of a model that calls functions."""

from __future__ import annotations

from typing import Any

from fake_stages import EDGES, THINKER, FakeStages, Session

from antiphon.conversation import ToolCall
from antiphon.errors import Internal
from antiphon.segment import FinishReason
from antiphon.v1 import stage_pb2
from antiphon.wire.tool_calls import tool_calls_to_tensors

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
            tensors = tool_calls_to_tensors([call])
            await session.chunk("tool_calls", tensors, position=position)
    for edge in ("text", "tool_calls"):
        if edge in session.segment.outputs:
            await session.chunk(edge, position=2, finish=finish)
    await session.report(finish, input_positions=20, output_positions=9)


async def fail_in_a_call(session: Session) -> None:
    """Says something and fails, as for a malformed call."""
    await session.opened()
    await session.text("I look.")
    await session.error(Internal("the model has written a call that is none", edge="tool_calls"))

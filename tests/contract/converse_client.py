"""What tests of `Converse` ask of a conversation."""

from __future__ import annotations

from typing import Any, TypeVar

import grpc

import antiphon
from antiphon.values.conversation import TextPart, from_tensors
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import CODE2WAV, THINKER, USUAL, Session
from tests.contract.served_gateway import ServedGateway

E = TypeVar("E")


async def until(call: antiphon.AsyncConversationCall, kind: type[E]) -> E:
    """The next event of that kind; others before it are passed over, refusals are not."""
    async for event in call:
        if isinstance(event, kind):
            return event
        assert not isinstance(event, antiphon.CommandFailed), event
    raise AssertionError("the conversation has ended")


async def said(call: antiphon.AsyncConversationCall, text: str) -> str:
    """Add a message of the user; its id."""
    await call.add(text)
    return (await until(call, antiphon.ItemCreated)).item.id


def asked(served: ServedGateway) -> list[tuple[str, list[str]]]:
    """The roles and texts of the conversation that the thinker got last."""
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return [
        (m.role, [part.text if isinstance(part, TextPart) else "audio" for part in m.parts])
        for m in from_tensors(chunk.tensors).messages
    ]


async def begin(session: Session) -> None:
    """Say a little, be cancelled, and answer the next as usual."""
    await session.opened()
    if session.role == THINKER:
        await session.text("Once upon")
    if session.role == CODE2WAV:
        await session.audio(10, 0)
    assert await session.cancelled_segment() == 0
    await session.report(FinishReason.CANCELLED, input_positions=9, output_positions=3)
    await session.next_segment()
    await USUAL[session.role](session)


async def until_begun(call: antiphon.AsyncConversationCall) -> antiphon.ResponseAudioDelta:
    """The first audio, once text has come, too; each comes from a stage of its own."""
    audio, text = None, False
    async for event in call:
        text = text or isinstance(event, antiphon.ResponseTextDelta)
        if audio is None and isinstance(event, antiphon.ResponseAudioDelta):
            audio = event
        if audio is not None and text:
            return audio
    raise AssertionError("the conversation has ended")


async def until_failed(call: antiphon.AsyncConversationCall) -> antiphon.CommandFailed:
    async for event in call:
        if isinstance(event, antiphon.CommandFailed):
            return event
    raise AssertionError("the conversation has ended")


async def read_to_end(call: Any) -> None:
    """Read a gRPC call's messages until its status, which is raised if it is an error."""
    while await call.read() is not grpc.aio.EOF:
        pass

"""The network between the gateway and its stages. It consists of message queues."""

from __future__ import annotations

from antiphon.runtime.session.instructions import Send
from antiphon.v1 import stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.frames import Frame


class Violation(Exception):
    """Raised if the system violates an expectation."""


class Gone:
    """The last message from an endpoint that no longer exists."""


GONE = Gone()


def name_of(message: object) -> str:
    """Describe a message in a few words."""
    match message:
        case Gone():
            return "the end of the connection"
        case Chunk() as chunk:
            return f"{chunk.edge} {chunk.sequence} of {chunk.session_id}"
        case Send(_, chunk):
            return f"{chunk.edge} {chunk.sequence}"
        case stage_pb2.LineRequest():
            kind = message.WhichOneof("message")
            if kind == "batch":
                return ", ".join(name_of(each) for each in message.batch.requests)
            what = message.request.WhichOneof("message") if kind == "request" else kind
            return f"{what} of line {message.line}"
        case stage_pb2.LineResponse():
            return f"{len(message.messages)} messages"
        case stage_pb2.LinkRequest():
            return ", ".join(
                f"{each.edge} {each.sequence} of {each.session_id}" for each in message.batch.chunks
            )
        case Frame():
            return f"the payload of chunk {message.transfer}"
    return type(message).__name__

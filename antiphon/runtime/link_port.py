"""The consumer's end of a link: an upstream process's chunks into the stage.

A malformed chunk fails its own session and a refused one is answered; the link
goes on for the others. When the link breaks, the stage is told, once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterable, AsyncIterator

import grpc

from antiphon.errors import AntiphonError, InvalidArgument, NotImplementedYet
from antiphon.runtime.description import StageIdentity
from antiphon.runtime.instructions import Refuse
from antiphon.runtime.stage import Stage
from antiphon.v1 import stage_pb2
from antiphon.wire.chunks import chunk_from_proto
from antiphon.wire.convert import error_to_proto
from antiphon.wire.status import abort

LinkContext = grpc.aio.ServicerContext[stage_pb2.LinkRequest, stage_pb2.LinkResponse]


async def receive_link(
    stage: Stage,
    identity: StageIdentity,
    requests: AsyncIterable[stage_pb2.LinkRequest],
    context: LinkContext,
) -> None:
    """Serve one link until its producer ends it or it breaks."""
    incoming = aiter(requests)
    hello = await anext(incoming, None)
    if hello is None or not hello.HasField("hello"):
        await abort(context, InvalidArgument("link: the first message must be `hello`"))
    link_id = uuid.uuid4().hex
    outbox = stage.link_opened(link_id)
    accept = stage_pb2.LinkAccept(transport="grpc", boot_id=identity.boot_id)
    await context.write(stage_pb2.LinkResponse(accept=accept))
    reader = asyncio.create_task(_receive(stage, link_id, incoming))
    reader.add_done_callback(lambda _: outbox.end())
    try:
        async for refuse in outbox:
            await context.write(_refusal(refuse))
    finally:
        stage.link_lost(link_id)
        reader.cancel()
        await asyncio.wait([reader])
    if not reader.cancelled() and isinstance(error := reader.exception(), AntiphonError):
        await abort(context, error)


async def _receive(
    stage: Stage, link_id: str, incoming: AsyncIterator[stage_pb2.LinkRequest]
) -> None:
    """Take a link's batches until the producer has no more."""
    async for request in incoming:
        if request.WhichOneof("message") != "batch":
            raise NotImplementedYet("link: only inline batches were agreed on")
        for proto in request.batch.chunks:
            try:
                chunk = chunk_from_proto(proto)
            except AntiphonError as error:
                stage.fail(proto.session_id, error)
            else:
                stage.chunk_arrived(chunk, link_id)


def _refusal(refuse: Refuse) -> stage_pb2.LinkResponse:
    return stage_pb2.LinkResponse(
        refusal=stage_pb2.LinkRefusal(
            session_id=refuse.session_id,
            edge=refuse.edge,
            attempt=refuse.attempt,
            error=error_to_proto(refuse.error),
        )
    )

"""The asyncio client of one stage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from antiphon.client import checks, stage
from antiphon.client.asyncio_channel import AsyncioChannel
from antiphon.client.connection import Tls, target
from antiphon.client.request import DEFAULT_TIMEOUT_S
from antiphon.client.retrying import Retry
from antiphon.client.stage import ServingStatus, StageTalk
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2


class AsyncStageSession(AsyncIterator[session_pb2.SessionResponse]):
    """A session on one stage: an iterator of what the stage sends, as `session.proto` has it.

    Entering the context registers it, and leaving it ends it and frees everything. A session
    that fails is raised as an `AntiphonError`. Chunks may be sent from another task than the
    one that reads.
    """

    def __init__(self, talk: StageTalk) -> None:
        self._talk = talk

    @property
    def session_id(self) -> str:
        """The session's id on all stages."""
        return self._talk.session_id

    async def open_segment(self, segment: session_pb2.SegmentOpen) -> None:
        """Open a turn: `segment_opened` says when it has its slot."""
        await self._talk.open_segment(segment)

    async def send_chunk(self, chunk: chunk_pb2.Chunk) -> None:
        """Send input; the session's id is put in."""
        await self._talk.send_chunk(chunk)

    async def finish_input(self) -> None:
        """No more input follows for the turn that was opened last."""
        await self._talk.finish_input()

    async def cancel_segment(self) -> None:
        """End the turn that was opened last; a `report` follows."""
        await self._talk.cancel_segment()

    async def send(self, request: session_pb2.SessionRequest) -> None:
        """Send any message, such as credit for an edge that has a window."""
        await self._talk.send(request)

    def finish(self) -> None:
        """Nothing more will be sent; what the stage sends ends when its turn is complete."""
        self._talk.finish()

    async def __anext__(self) -> session_pb2.SessionResponse:
        """The next message; waits for it."""
        response = await self._talk.next_response()
        if response is None:
            raise StopAsyncIteration
        return response

    async def __aenter__(self) -> Self:
        await self._talk.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._talk.cancel()


class AsyncStageClient:
    """Talks to one stage directly, from asyncio. The same as `StageClient`."""

    def __init__(
        self,
        address: str,
        *,
        tls: bool | Tls = False,
        retry: Retry = Retry(),  # noqa: B008  it is frozen
    ) -> None:
        self._retry = checks.of_type("retry", retry, Retry)
        where = target(address, tls, None, key_in_clear=False, options=stage.STAGE_OPTIONS)
        self._channel = AsyncioChannel(where)

    async def describe(self, *, timeout_s: float = 10.0) -> stage_pb2.DescribeResponse:
        """What the stage is, and how it is now."""
        self._channel.check_open()
        return await stage.describe(self._channel, checks.timeout(timeout_s), self._retry)

    async def health(self, *, timeout_s: float = 10.0) -> ServingStatus:
        """Whether it takes sessions."""
        self._channel.check_open()
        return await stage.health(self._channel, checks.timeout(timeout_s), self._retry)

    def session(
        self,
        edges: Mapping[str, Sequence[str]],
        *,
        session_id: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        idle_timeout_s: float | None = None,
    ) -> AsyncStageSession:
        """A session: enter its context to register it.

        `edges` are the output edges that are wanted; each comes back here, and goes to the stages
        at the addresses that are listed for it. `timeout_s` is for the whole session,
        `idle_timeout_s` for the wait for each message.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        return AsyncStageSession(
            stage.stage_talk(self._channel, edges, session_id, seconds, idle_s)
        )

    async def close(self) -> None:
        """Cancel what runs and close the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

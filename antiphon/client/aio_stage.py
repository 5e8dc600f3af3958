"""The asyncio client of a single stage."""

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
    """A session on one stage: an iterator of the stage's messages, as defined in `session.proto`.

    Entering the context registers the session; leaving it ends the session and frees everything. A
    failure is raised as an `AntiphonError`. Chunks may be sent from a different task than the
    reading one.
    """

    def __init__(self, talk: StageTalk) -> None:
        self._talk = talk

    @property
    def session_id(self) -> str:
        """The session's id on all stages."""
        return self._talk.session_id

    async def open_segment(self, segment: session_pb2.SegmentOpen) -> None:
        """Open a turn. `segment_opened` is received when it has its slot."""
        await self._talk.open_segment(segment)

    async def send_chunk(self, chunk: chunk_pb2.Chunk) -> None:
        """Send input. The session's id is filled in."""
        await self._talk.send_chunk(chunk)

    async def finish_input(self) -> None:
        """Finish the input of the last opened turn."""
        await self._talk.finish_input()

    async def cancel_segment(self) -> None:
        """Cancel the last opened turn; a `report` follows."""
        await self._talk.cancel_segment()

    async def send(self, request: session_pb2.SessionRequest) -> None:
        """Send any message, such as credit for an edge with a window."""
        await self._talk.send(request)

    def finish(self) -> None:
        """End the client's side. The session ends when its turn is complete."""
        self._talk.finish()

    async def __anext__(self) -> session_pb2.SessionResponse:
        """Wait for the next message and return it."""
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
    """A client of a single stage for asyncio. Works like `StageClient`."""

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
        """Return the stage's description and current load."""
        self._channel.check_open()
        return await stage.describe(self._channel, checks.timeout(timeout_s), self._retry)

    async def health(self, *, timeout_s: float = 10.0) -> ServingStatus:
        """Return whether the stage accepts sessions."""
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
        """Return a session. Enter its context to register it.

        `edges` are the requested output edges. Each is sent to this client and to the stages whose
        addresses are listed for it. `timeout_s` bounds the whole session, `idle_timeout_s` the wait
        for each message.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        return AsyncStageSession(
            stage.stage_talk(self._channel, edges, session_id, seconds, idle_s)
        )

    async def close(self) -> None:
        """Cancel running calls and close the connection."""
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

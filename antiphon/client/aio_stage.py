"""The asyncio client for a single stage."""

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
    """A session on a single stage. Iterate over it to receive the stage's messages.

    The messages are defined in `session.proto`. Entering the context registers the session, and
    leaving it ends the session and frees its resources. Failures are raised as `AntiphonError`. One
    task can send chunks while another one reads messages.
    """

    def __init__(self, talk: StageTalk) -> None:
        self._talk = talk

    @property
    def session_id(self) -> str:
        """The session ID, which is the same on every stage."""
        return self._talk.session_id

    async def open_segment(self, segment: session_pb2.SegmentOpen) -> None:
        """Open a turn. The stage sends `segment_opened` once the turn has a slot."""
        await self._talk.open_segment(segment)

    async def send_chunk(self, chunk: chunk_pb2.Chunk) -> None:
        """Send an input chunk. The session ID is filled in automatically."""
        await self._talk.send_chunk(chunk)

    async def finish_input(self) -> None:
        """Signal that the most recently opened turn will receive no more input."""
        await self._talk.finish_input()

    async def cancel_segment(self) -> None:
        """Cancel the most recently opened turn. The stage responds with a `report`."""
        await self._talk.cancel_segment()

    async def send(self, request: session_pb2.SessionRequest) -> None:
        """Send an arbitrary message, for example to grant credit on an edge that has a window."""
        await self._talk.send(request)

    def finish(self) -> None:
        """Stop sending messages. The session ends once its turn is complete."""
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
    """An asyncio client for a single stage. It works like `StageClient`."""

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
        """Return the stage's description, including its current load."""
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
        """Return a new session, which is registered when you enter its context.

        `edges` maps each requested output edge to a list of stage addresses. The stage sends the
        edge's output to this client and to every listed address. `timeout_s` limits the duration of
        the entire session, and `idle_timeout_s` limits the wait for each message.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        return AsyncStageSession(
            stage.stage_talk(self._channel, edges, session_id, seconds, idle_s)
        )

    async def close(self) -> None:
        """Cancel all running calls and close the connection."""
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

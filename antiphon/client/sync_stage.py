"""The blocking client for a single stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from antiphon.client import checks, stage
from antiphon.client.blocking_channel import BlockingChannel
from antiphon.client.calls import now
from antiphon.client.connection import Tls, target
from antiphon.client.request import DEFAULT_TIMEOUT_S
from antiphon.client.retrying import Retry
from antiphon.client.stage import ServingStatus, StageTalk
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2


class StageSession(Iterator[session_pb2.SessionResponse]):
    """A session on a single stage. Iterate over it to receive the stage's messages.

    The messages are defined in `session.proto`. Entering the context registers the session, and
    leaving it ends the session and frees its resources. Failures are raised as `AntiphonError`. One
    thread can send chunks while another one reads messages.
    """

    def __init__(self, talk: StageTalk) -> None:
        self._talk = talk

    @property
    def session_id(self) -> str:
        """The session ID, which is the same on every stage."""
        return self._talk.session_id

    def open_segment(self, segment: session_pb2.SegmentOpen) -> None:
        """Open a turn. The stage sends `segment_opened` once the turn has a slot."""
        now(self._talk.open_segment(segment))

    def send_chunk(self, chunk: chunk_pb2.Chunk) -> None:
        """Send an input chunk. The session ID is filled in automatically."""
        now(self._talk.send_chunk(chunk))

    def finish_input(self) -> None:
        """Signal that the most recently opened turn will receive no more input."""
        now(self._talk.finish_input())

    def cancel_segment(self) -> None:
        """Cancel the most recently opened turn. The stage responds with a `report`."""
        now(self._talk.cancel_segment())

    def send(self, request: session_pb2.SessionRequest) -> None:
        """Send an arbitrary message, for example to grant credit on an edge that has a window."""
        now(self._talk.send(request))

    def finish(self) -> None:
        """Stop sending messages. The session ends once its turn is complete."""
        self._talk.finish()

    def __next__(self) -> session_pb2.SessionResponse:
        """Wait for the next message and return it."""
        response = now(self._talk.next_response())
        if response is None:
            raise StopIteration
        return response

    def __enter__(self) -> Self:
        now(self._talk.open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._talk.cancel()


class StageClient:
    """A client for a single stage, for load tests and debugging. It uses the same interface as the
    gateway.

    >>> with antiphon.StageClient("localhost:50051") as stage:
    ...     print(stage.describe().role, stage.health())
    ...     with stage.session({"audio": ()}) as session:
    ...         session.open_segment(SegmentOpen(outputs=["audio"]))
    ...         session.send_chunk(chunk)
    ...         for response in session:
    ...             if response.HasField("chunk"):
    ...                 tensors = chunk_from_proto(response.chunk).tensors

    The messages are defined in `antiphon.v1`. Edges carry chunks of tensors, which you can encode
    and decode with `antiphon.wire.chunks`. This requires the `wire` extra.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: bool | Tls = False,
        retry: Retry = Retry(),  # noqa: B008  it is frozen
    ) -> None:
        self._retry = checks.of_type("retry", retry, Retry)
        where = target(address, tls, None, key_in_clear=False, options=stage.STAGE_OPTIONS)
        self._channel = BlockingChannel(where)

    def describe(self, *, timeout_s: float = 10.0) -> stage_pb2.DescribeResponse:
        """Return the stage's description, including its current load."""
        self._channel.check_open()
        return now(stage.describe(self._channel, checks.timeout(timeout_s), self._retry))

    def health(self, *, timeout_s: float = 10.0) -> ServingStatus:
        """Return whether the stage accepts sessions."""
        self._channel.check_open()
        return now(stage.health(self._channel, checks.timeout(timeout_s), self._retry))

    def session(
        self,
        edges: Mapping[str, Sequence[str]],
        *,
        session_id: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        idle_timeout_s: float | None = None,
    ) -> StageSession:
        """Return a new session, which is registered when you enter its context.

        `edges` maps each requested output edge to a list of stage addresses. The stage sends the
        edge's output to this client and to every listed address. `timeout_s` limits the duration of
        the entire session, and `idle_timeout_s` limits the wait for each message.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        return StageSession(stage.stage_talk(self._channel, edges, session_id, seconds, idle_s))

    def close(self) -> None:
        """Cancel all running calls and close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

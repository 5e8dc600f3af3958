"""Combines several concurrent answers to one request into a single stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from antiphon.errors import AntiphonError
from antiphon_gateway.failover.failover_segment import FailoverSegment
from antiphon_gateway.sessions.events import Event
from antiphon_gateway.sessions.mailbox import EventMailbox


@dataclass(frozen=True, slots=True)
class OfChoice:
    """An event of one of several answers. Answers are numbered from 0."""

    choice: int
    event: Event


class Choices:
    """An async iterator over the events of several segments, in the order in which they arrive.

    Use it as an async context manager. If a segment fails, its error is raised. The other segments
    are terminated when the context is left.
    """

    def __init__(self, segments: Sequence[FailoverSegment]) -> None:
        self._segments = segments
        self._left = len(segments)
        self._readers = asyncio.TaskGroup()
        self._reading: list[asyncio.Task[None]] = []
        self._events: EventMailbox[OfChoice | None] = EventMailbox(len(segments))

    async def __aenter__(self) -> Choices:
        await self._readers.__aenter__()
        self._reading = [
            self._readers.create_task(self._read(choice, segment))
            for choice, segment in enumerate(self._segments)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for reader in self._reading:
            reader.cancel()
        await self._readers.__aexit__(None, None, None)

    def __aiter__(self) -> Choices:
        return self

    async def __anext__(self) -> OfChoice:
        """Return the next event from any of the segments. Raises `AntiphonError` if a segment
        fails.
        """
        while self._left:
            if (event := await self._events.get()) is not None:
                return event
            self._left -= 1
        raise StopAsyncIteration

    async def _read(self, choice: int, segment: FailoverSegment) -> None:
        try:
            async for event in segment:
                await self._events.put(OfChoice(choice, event))
            await self._events.put(None)
        except AntiphonError as error:
            self._events.fail(error)
